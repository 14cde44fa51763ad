/* SPDX-License-Identifier: Apache-2.0
 * Inference over a whole graph: the order in which nodes run, then every node's tensors by its own
 * operation, from what its inputs were found to be. */
#include "graph/graph.h"
#include "base/memory.h"

#include <string.h>

/* ---- who uses what ---- */

static bool reads_old(const graph_node *n)
{
    int beta = mica_op_scalar_index(n->op, "beta");
    return beta >= 0 && (n->scalar_of[beta] >= 0 || n->scalars[beta] != 0);
}

mica_dir graph_access(const graph_node *n, const void *desc, int bind)
{
    const int arg = n->binds[bind].arg, pass = mica_op_pass(n->op, desc);
    mica_dir dir = n->op->args[arg].dir[pass];
    if (dir != MICA_OUT || !reads_old(n)) return dir;
    /* beta takes the old content of the result, the first one of the table */
    for (int i = 0; i < n->bind_count; i++)
        if (n->op->args[n->binds[i].arg].dir[pass] == MICA_OUT && n->binds[i].arg < arg) return dir;
    return MICA_INOUT;
}

/* An access of a tensor, in the order of the lines. */
typedef struct use {
    int node, next; /* the next one of the same tensor; -1: none */
    mica_dir dir;
} use;

typedef struct sorting {
    mica_graph *g;
    use *uses;
    int *first, *last; /* of each tensor */
    int use_count;
    int *from, *to; /* edges */
    int edge_count, edge_room, to_room;
    int *begin, *targets, *waiting; /* edges by node; how many a node waits for */
    int *heap;
    int heap_count;
} sorting;

static void forget(sorting *s)
{
    mica_release(s->uses);
    mica_release(s->first);
    mica_release(s->last);
    mica_release(s->from);
    mica_release(s->to);
    mica_release(s->begin);
    mica_release(s->targets);
    mica_release(s->waiting);
    mica_release(s->heap);
}

static mica_status check_write(mica_graph *g, int node, int tensor, mica_dir dir)
{
    graph_tensor *t = &g->tensors[tensor];
    char other[96];
    if (t->kind == MICA_GRAPH_INPUT || t->kind == MICA_GRAPH_CONSTANT)
        return graph_fail(g, node, MICA_INVALID, "it writes %s, which is %s%s", t->name,
                          t->kind == MICA_GRAPH_INPUT ? "an input" : "a constant",
                          dir == MICA_INOUT ? "; what is changed in place is declared inout" : "");
    if (dir == MICA_INOUT || t->kind == MICA_GRAPH_INOUT) {
        t->changed = true;
        return MICA_OK;
    }
    if (t->writer >= 0)
        return graph_fail(g, node, MICA_INVALID,
                          "it writes %s, as %s does; one node writes a tensor", t->name,
                          graph_node_name(g, t->writer, other, sizeof other));
    t->writer = node;
    return MICA_OK;
}

static mica_status note_use(sorting *s, int node, int bind, mica_dir dir)
{
    const int tensor = s->g->nodes[node].binds[bind].tensor;
    use *u = &s->uses[s->use_count];
    *u = (use){node, -1, dir};
    if (s->last[tensor] >= 0)
        s->uses[s->last[tensor]].next = s->use_count;
    else
        s->first[tensor] = s->use_count;
    s->last[tensor] = s->use_count++;
    if (dir != MICA_IN) MICA_TRY(check_write(s->g, node, tensor, dir));
    return MICA_OK;
}

static const char *pass_of(const mica_op *op, const void *desc)
{
    if (strcmp(op->fields[0].name, "pass") != 0) return "";
    return op->fields[0].spellings[mica_op_pass(op, desc)];
}

static mica_status note_uses(sorting *s)
{
    mica_graph *g = s->g;
    _Alignas(16) char desc[MICA_MAX_DESC];
    for (int i = 0; i < g->node_count; i++) {
        const graph_node *n = &g->nodes[i];
        graph_unpack(n->given, desc, n->op->desc_size);
        for (int b = 0; b < n->bind_count; b++) {
            mica_dir dir = graph_access(n, desc, b);
            if (dir == MICA_UNUSED)
                return graph_fail(g, i, MICA_INVALID, "%s is bound to %s, pass %s has no %s",
                                  n->op->args[n->binds[b].arg].name,
                                  g->tensors[n->binds[b].tensor].name, pass_of(n->op, desc),
                                  n->op->args[n->binds[b].arg].name);
            MICA_TRY(note_use(s, i, b, dir));
        }
    }
    return MICA_OK;
}

/* ---- order ---- */

static mica_status add_edge(sorting *s, int from, int to)
{
    if (from < 0 || from == to) return MICA_OK;
    MICA_TRY(graph_room(&s->from, s->edge_count, &s->edge_room, sizeof *s->from));
    MICA_TRY(graph_room(&s->to, s->edge_count, &s->to_room, sizeof *s->to));
    s->from[s->edge_count] = from;
    s->to[s->edge_count++] = to;
    s->begin[from + 1]++;
    s->waiting[to]++;
    return MICA_OK;
}

/* Who changes a tensor waits for those that read it before, and those behind wait for it. */
static mica_status order_uses(sorting *s, int tensor)
{
    const graph_tensor *t = &s->g->tensors[tensor];
    int current = t->writer, since = s->first[tensor];
    for (int u = s->first[tensor]; u >= 0; u = s->uses[u].next) {
        const int node = s->uses[u].node;
        if (node == t->writer && s->uses[u].dir == MICA_OUT) continue;
        MICA_TRY(add_edge(s, current, node));
        if (s->uses[u].dir == MICA_IN) continue;
        for (int r = since; r != u; r = s->uses[r].next)
            if (s->uses[r].dir == MICA_IN) MICA_TRY(add_edge(s, s->uses[r].node, node));
        current = node;
        since = u;
    }
    return MICA_OK;
}

/* A heap of nodes, the first of the lines on top. */
static void push(sorting *s, int node)
{
    int i = s->heap_count++;
    for (; i && s->heap[(i - 1) / 2] > node; i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = node;
}

static int pop(sorting *s)
{
    int top = s->heap[0], node = s->heap[--s->heap_count], i = 0;
    for (int child; (child = 2 * i + 1) < s->heap_count; i = child) {
        if (child + 1 < s->heap_count && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= node) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = node;
    return top;
}

/* Somebody that a waiting node waits for and that waits itself. */
static int waits_for(const sorting *s, int node)
{
    for (int e = 0; e < s->edge_count; e++)
        if (s->to[e] == node && s->waiting[s->from[e]] > 0) return s->from[e];
    return node;
}

static mica_status cycle(const sorting *s)
{
    const mica_graph *g = s->g;
    int node = 0, steps = 0;
    char first[96], text[400] = "";
    mica_text list = {text, sizeof text, 0};
    while (s->waiting[node] <= 0) node++;
    /* Backwards from any such node one comes into a cycle. */
    for (int i = 0; i < g->node_count && i < 64; i++) node = waits_for(s, node);
    for (int i = waits_for(s, node); i != node && ++steps <= 3; i = waits_for(s, i))
        mica_text_add(&list, " waits for %s, which", graph_node_name(g, i, first, sizeof first));
    return graph_fail(g, node, MICA_INVALID, "a cycle: it%s%s waits for it", text,
                      steps > 3 ? " in the end" : "");
}

static mica_status sort(sorting *s)
{
    mica_graph *g = s->g;
    const int n = g->node_count;
    int done = 0;
    s->targets = mica_alloc(((size_t)s->edge_count + 1) * sizeof(int));
    s->heap = mica_alloc(((size_t)n + 1) * sizeof(int));
    int *order = mica_alloc(((size_t)n + 1) * sizeof(int));
    mica_release(g->order);
    g->order = order;
    if (!s->targets || !s->heap || !order) return mica_fail_memory((size_t)n * sizeof(int));
    for (int i = 0; i < n; i++) s->begin[i + 1] += s->begin[i];
    for (int e = 0; e < s->edge_count; e++) s->targets[s->begin[s->from[e]]++] = s->to[e];
    for (int i = n; i > 0; i--) s->begin[i] = s->begin[i - 1];
    s->begin[0] = 0;
    for (int i = 0; i < n; i++)
        if (!s->waiting[i]) push(s, i);
    while (s->heap_count) {
        const int node = pop(s);
        order[done++] = node;
        for (int e = s->begin[node]; e < s->begin[node + 1]; e++)
            if (--s->waiting[s->targets[e]] == 0) push(s, s->targets[e]);
    }
    return done == n ? MICA_OK : cycle(s);
}

static mica_status find_order(sorting *s)
{
    mica_graph *g = s->g;
    size_t binds = 1, tensors = (size_t)g->tensor_count + 1, nodes = (size_t)g->node_count + 2;
    for (int i = 0; i < g->node_count; i++) binds += (size_t)g->nodes[i].bind_count;
    s->uses = mica_alloc(binds * sizeof *s->uses);
    s->first = mica_alloc(tensors * sizeof(int));
    s->last = mica_alloc(tensors * sizeof(int));
    s->begin = mica_alloc(nodes * sizeof(int));
    s->waiting = mica_alloc(nodes * sizeof(int));
    if (!s->uses || !s->first || !s->last || !s->begin || !s->waiting)
        return mica_fail_memory(binds * sizeof *s->uses);
    for (int i = 0; i < g->tensor_count; i++) {
        graph_tensor *t = &g->tensors[i];
        s->first[i] = s->last[i] = t->writer = -1;
        t->changed = false;
        t->reads = t->readers = 0;
        t->t = (mica_tensor){0};
    }
    MICA_TRY(note_uses(s));
    for (int i = 0; i < g->tensor_count; i++) MICA_TRY(order_uses(s, i));
    return sort(s);
}

/* ---- tensors ---- */

static bool is_real(const graph_tensor *t)
{
    return t->kind != MICA_GRAPH_VIRTUAL && t->kind != MICA_GRAPH_OUTPUT;
}

/* Whether a view keeps to the tensor's memory. */
static mica_status check_view(const mica_graph *g, int node, const graph_bound *b,
                              const mica_tensor *view)
{
    const graph_tensor *t = &g->tensors[b->tensor];
    const char *arg = g->nodes[node].op->args[b->arg].name;
    int64_t first, span, of_first, of_span = mica_tensor_span(&t->t, &of_first), at;
    mica_why why = {""};
    const int bits = mica_dtype_bits(t->t.dtype);
    if (view->dtype != t->t.dtype)
        return graph_fail(g, node, MICA_INVALID, "%s is a view of type %s, %s is %s", arg,
                          mica_dtype_name(view->dtype), t->name, mica_dtype_name(t->t.dtype));
    if (mica_tensor_check(view, arg, false, &why) != MICA_OK)
        return graph_fail(g, node, MICA_INVALID, "%s", why.text);
    if (bits < 8 && b->at % (8 / bits))
        return graph_fail(g, node, MICA_INVALID, "%s begins inside a byte, at element %lld", arg,
                          (long long)b->at);
    span = mica_tensor_span(view, &first);
    if (span == 0) return MICA_OK;
    if (span < 0 || __builtin_mul_overflow(b->at, (int64_t)bits, &at) ||
        at / 8 + first < of_first || at / 8 + first + span > of_first + of_span)
        return graph_fail(g, node, MICA_INVALID,
                          "%s is a view of bytes %lld to %lld of %s, which has %lld to %lld", arg,
                          (long long)(b->at * bits / 8 + first),
                          (long long)(b->at * bits / 8 + first + span), t->name,
                          (long long)of_first, (long long)(of_first + of_span));
    return MICA_OK;
}

/* Puts what is known of a bound tensor into the descriptor. */
static mica_status give_tensor(const mica_graph *g, int node, const graph_bound *b, mica_dir dir,
                               mica_tensor *field)
{
    const graph_tensor *t = &g->tensors[b->tensor];
    const char *arg = g->nodes[node].op->args[b->arg].name;
    const bool read = dir != MICA_OUT;
    const mica_tensor *known = read ? &t->t : &t->given;
    if (read && !mica_tensor_given(known))
        return graph_fail(g, node, MICA_INVALID, "%s is bound to %s, which no node writes%s", arg,
                          t->name, dir == MICA_INOUT ? " before" : "");
    if (!mica_tensor_given(field) && !b->at) {
        if (mica_tensor_given(known)) *field = *known;
        return MICA_OK;
    }
    if (field->rank > 0) mica_tensor_default_strides(field);
    const bool part = dir == MICA_IN || t->kind == MICA_GRAPH_INOUT;
    if (part && field->rank > 0) return check_view(g, node, b, field);
    if (b->at)
        return graph_fail(g, node, MICA_INVALID,
                          "%s begins at element %lld of %s: only inputs, and what is written of "
                          "inout tensors, are views, and they say their dimensions",
                          arg, (long long)b->at, t->name);
    if (!mica_tensor_given(known)) return MICA_OK;
    if (field->dtype != known->dtype)
        return graph_fail(g, node, MICA_INVALID, "%s is %s, %s is %s; they must agree", arg,
                          mica_dtype_name(field->dtype), t->name, mica_dtype_name(known->dtype));
    if (field->rank == 0)
        *field = *known;
    else if (known->rank > 0 && !mica_tensor_equal(field, known))
        return graph_fail(g, node, MICA_INVALID, "%s and %s, which it is bound to, differ", arg,
                          t->name);
    return MICA_OK;
}

/* The columns that a view has in rows of `row` elements, where it lies in whole rows. */
static bool columns_of(const mica_tensor *t, int64_t at, int64_t row, int64_t *first, int64_t *last)
{
    *first = *last = at % row;
    for (int i = 0; i < t->rank; i++) {
        if (t->dims[i] == 1) continue;
        if (t->strides[i] < 0) return false;
        if (t->strides[i] % row) *last += (t->dims[i] - 1) * t->strides[i];
    }
    return *last < row;
}

/* Whether two views have no element in common: one ends before the other begins, or both keep to
 * columns of their own. */
static bool lie_apart(const mica_tensor *a, int64_t a_at, const mica_tensor *b, int64_t b_at)
{
    int64_t first, last, from, to;
    if (mica_tensor_count(a) == 0 || mica_tensor_count(b) == 0) return true;
    for (int i = -1; i < a->rank; i++) {
        const int64_t row = i < 0 ? INT64_MAX : a->strides[i];
        if (row > 0 && columns_of(a, a_at, row, &first, &last) &&
            columns_of(b, b_at, row, &from, &to) && (last < from || to < first))
            return true;
    }
    return false;
}

/* What a node writes may be bound once, but to the argument whose memory it may share, or in parts
 * of an inout tensor. */
static mica_status check_sharing(const mica_graph *g, int node, const void *desc)
{
    const graph_node *n = &g->nodes[node];
    for (int i = 0; i < n->bind_count; i++) {
        const mica_arg *a = &n->op->args[n->binds[i].arg];
        if (graph_access(n, desc, i) == MICA_IN) continue;
        for (int k = 0; k < n->bind_count; k++) {
            const mica_arg *other = &n->op->args[n->binds[k].arg];
            if (k == i || n->binds[k].tensor != n->binds[i].tensor) continue;
            bool alias = (a->alias && !strcmp(a->alias, other->name)) ||
                         (other->alias && !strcmp(other->alias, a->name));
            const mica_tensor *one = mica_op_tensor(n->op, desc, n->binds[i].arg);
            const mica_tensor *two = mica_op_tensor(n->op, desc, n->binds[k].arg);
            if (alias && n->binds[k].at == n->binds[i].at && mica_tensor_equal(one, two)) continue;
            if (lie_apart(one, n->binds[i].at, two, n->binds[k].at)) continue;
            return graph_fail(g, node, MICA_INVALID, "%s and %s are both %s, and it writes %s",
                              a->name, other->name, g->tensors[n->binds[i].tensor].name, a->name);
        }
    }
    return MICA_OK;
}

/* A single number has no dimensions, and neither has a type alone, of which operations make more.
 */
static mica_status check_extent(const mica_graph *g, int node, int bind, const void *desc)
{
    const graph_bound *b = &g->nodes[node].binds[bind];
    const graph_tensor *t = &g->tensors[b->tensor];
    const mica_tensor *read = mica_op_tensor(g->nodes[node].op, desc, b->arg);
    if (t->t.rank || mica_tensor_count(read) == 1) return MICA_OK;
    return graph_fail(g, node, MICA_INVALID, "%s has %lld elements, %s, which it is bound to, one",
                      g->nodes[node].op->args[b->arg].name, (long long)mica_tensor_count(read),
                      t->name);
}

/* Results that somebody wants are the graph's tensors now; of the others, those that must be there
 * get one. */
static mica_status take_results(mica_graph *g, int node, const void *desc)
{
    const mica_op *op = g->nodes[node].op;
    for (int i = 0; i < op->arg_count; i++) {
        const mica_dir dir = mica_op_dir(op, desc, i);
        int b = graph_bind_of(&g->nodes[node], i), tensor;
        if (b >= 0 && dir == MICA_UNUSED)
            return graph_fail(g, node, MICA_INVALID,
                              "%s is bound to %s, but is not there: give its type, %s=f32@%s",
                              op->args[i].name, g->tensors[g->nodes[node].binds[b].tensor].name,
                              op->args[i].name, g->tensors[g->nodes[node].binds[b].tensor].name);
        if (dir == MICA_UNUSED || (b < 0 && op->args[i].optional)) continue;
        if (b < 0 && dir != MICA_OUT && mica_tensor_span(mica_op_tensor(op, desc, i), NULL) == 0)
            continue;
        if (b < 0 && dir != MICA_OUT)
            return graph_fail(g, node, MICA_INVALID, "%s is bound to no tensor", op->args[i].name);
        if (b < 0) {
            MICA_TRY(graph_tensor_anonymous(g, node, i, &tensor));
            MICA_TRY(graph_node_bind(&g->nodes[node], i, tensor, 0));
            g->tensors[tensor].writer = node;
            b = g->nodes[node].bind_count - 1;
        }
        graph_tensor *t = &g->tensors[g->nodes[node].binds[b].tensor];
        const mica_dir access = graph_access(&g->nodes[node], desc, b);
        if (access == MICA_OUT && !is_real(t)) t->t = *mica_op_tensor(op, desc, i);
        if (access != MICA_OUT) {
            MICA_TRY(check_extent(g, node, b, desc));
            t->reads++;
            t->readers ^= node;
        }
    }
    return MICA_OK;
}

/* Operations that want all of a result or nothing: what they infer, in the type that was given. */
static bool retype(const graph_node *n, char *given, char *desc)
{
    _Alignas(16) char open[MICA_MAX_DESC];
    mica_why why;
    bool typed = false;
    memcpy(open, given, n->op->desc_size);
    for (int i = 0; i < n->bind_count; i++) {
        mica_tensor *t = (mica_tensor *)(void *)(open + n->op->args[n->binds[i].arg].tensor);
        if (!mica_tensor_given(t) || t->rank || graph_access(n, given, i) != MICA_OUT) continue;
        *t = (mica_tensor){0};
        typed = true;
    }
    memset(desc, 0, n->op->desc_size);
    if (!typed || mica_op_resolve(n->op, open, n->op->desc_size, desc, &why) != MICA_OK)
        return false;
    for (int i = 0; i < n->bind_count; i++) {
        const size_t at = n->op->args[n->binds[i].arg].tensor;
        mica_tensor *t = (mica_tensor *)(void *)(given + at);
        if (!mica_tensor_given(t) || t->rank || graph_access(n, given, i) != MICA_OUT) continue;
        const mica_dtype type = t->dtype;
        memcpy(t, desc + at, sizeof *t);
        t->dtype = type;
    }
    memset(desc, 0, n->op->desc_size);
    return mica_op_resolve(n->op, given, n->op->desc_size, desc, &why) == MICA_OK;
}

static mica_status infer_node(mica_graph *g, int node)
{
    graph_node *n = &g->nodes[node];
    const mica_op *op = n->op;
    _Alignas(16) char given[MICA_MAX_DESC], desc[MICA_MAX_DESC];
    mica_why why = {""};
    graph_unpack(n->given, given, op->desc_size);
    for (int i = 0; i < n->bind_count; i++) {
        mica_tensor field;
        char *at = given + op->args[n->binds[i].arg].tensor;
        memcpy(&field, at, sizeof field);
        MICA_TRY(give_tensor(g, node, &n->binds[i], graph_access(n, given, i), &field));
        memcpy(at, &field, sizeof field);
    }
    memset(desc, 0, op->desc_size);
    if (mica_op_resolve(op, given, op->desc_size, desc, &why) != MICA_OK && !retype(n, given, desc))
        return graph_fail(g, node, MICA_INVALID, "%s", why.text);
    MICA_TRY(check_sharing(g, node, desc));
    MICA_TRY(take_results(g, node, desc));
    n = &g->nodes[node];
    mica_release(n->resolved);
    n->resolved = graph_pack(desc, op->desc_size);
    return n->resolved ? MICA_OK : mica_fail_memory(op->desc_size);
}

static mica_status check_outputs(const mica_graph *g)
{
    for (int i = 0; i < g->tensor_count; i++) {
        const graph_tensor *t = &g->tensors[i];
        if (t->kind == MICA_GRAPH_OUTPUT && t->writer < 0)
            return mica_fail(MICA_INVALID, "the output %s is written by no node", t->name);
    }
    return MICA_OK;
}

mica_status graph_infer(mica_graph *g)
{
    sorting s = {.g = g};
    mica_status status = find_order(&s);
    forget(&s);
    MICA_TRY(status);
    for (int i = 0; i < g->tensor_count; i++)
        if (is_real(&g->tensors[i])) g->tensors[i].t = g->tensors[i].given;
    for (int i = 0; i < g->node_count; i++) MICA_TRY(infer_node(g, g->order[i]));
    return check_outputs(g);
}

mica_status mica_graph_infer(mica_graph *g)
{
    if (!g) return mica_fail(MICA_INVALID, "graph is NULL");
    return graph_infer(g);
}
