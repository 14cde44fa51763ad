/* SPDX-License-Identifier: Apache-2.0
 * Plans of graphs: a plan of each node that is left, one workspace for the tensors between them and
 * what they need themselves, and the run. */
#include "graph/cache.h"
#include "graph/memory.h"
#include "graph/replay.h"
#include "graph/rewrite.h"
#include "graph/saved.h"
#include "base/memory.h"
#include "base/system/thread.h"
#include "cpu/cpu.h"
#include "cpu/floating.h"
#include "cpu/scratch.h"
#include "plan/context.h"

#include <string.h>

/* Where an argument of a step lies. */
enum { IN_WORKSPACE = -1, IN_CONSTANTS = -2 };
typedef struct place {
    int32_t arg, from; /* from: a real tensor's number, or one of the above */
    int64_t offset;    /* bytes from its element 0, or from the beginning */
} place;

typedef struct step {
    mica_plan *plan;
    int bound_end; /* behind the last of its places */
    int node;
    size_t workspace_at;
    double *scalars; /* NULL: all are their defaults */
    int *scalar_of;  /* run-time scalars instead; NULL: there are none */
    bool empty;      /* nothing is written: a run has nothing to do */
    char *nodes;
} step;

/* A real tensor. */
typedef struct port {
    int tensor;
    bool written;
    int64_t first, span; /* bytes */
    uintptr_t align_mask;
} port;

/* Constants on the device, of one or several plans. */
typedef struct shared_constants {
    atomic_int references;
    char *memory;
} shared_constants;

struct mica_graph_plan {
    atomic_int references;
    mica_context *context;
    mica_graph *graph; /* as it was lowered: names and tensors */
    step *steps;
    place *places;
    port *ports;
    int *tensor_of; /* the tensor of each place */
    double *defaults;
    int step_count, place_count, port_count;
    int64_t *where; /* of the graph's tensors: in the workspace or among the constants */
    char *constants;
    shared_constants *shared;
    bool borrows;        /* the constants of another plan */
    graph_piece *pieces; /* of a bucket: what lies in the workspace; or NULL */
    int piece_count;
    mica_graph_memory memory;
    graph_attempt *attempts;
    int attempt_count;
    mica_graph_mode mode;
    /* while it is made; NULL: none */
    const graph_choice *choices;      /* of a saved plan */
    const graph_decisions *decisions; /* of a bucket */
    const mica_graph_plan *beside;    /* it has the same constants */
    bool bucket, anew;
    bool cuda;
    graph_replay *replay;     /* or NULL */
    _Atomic uint64_t checked; /* a digest of pointers that were found not to overlap */
};

static bool is_port(const graph_tensor *t)
{
    return t->kind == MICA_GRAPH_INPUT || t->kind == MICA_GRAPH_OUTPUT ||
           t->kind == MICA_GRAPH_INOUT;
}

/* ---- lifetimes ---- */

typedef struct layout {
    mica_graph_plan *p;
    graph_piece *pieces; /* of the tensors of the workspace, then the workspace of each step */
    int *piece_of;       /* of a tensor; -1: none */
    int piece_count;
    bool separate;
} layout;

/* Either row of the two may say it. */
static bool may_coincide(const mica_arg *a, const mica_arg *b)
{
    return (a->alias && !strcmp(a->alias, b->name)) || (b->alias && !strcmp(b->alias, a->name));
}

/* Whether bind `in` of node `n` is read last there, whole, as what is written at bind `out` is, and
 * by no other argument. */
static bool ends_there(const mica_graph *g, const graph_node *n, const void *desc, int in, int out,
                       const int *last, int position)
{
    const graph_bound *i = &n->binds[in];
    const graph_tensor *t = &g->tensors[i->tensor];
    if (t->kind != MICA_GRAPH_VIRTUAL || last[i->tensor] != position || i->at) return false;
    for (int k = 0; k < n->bind_count; k++)
        if (k != in && n->binds[k].tensor == i->tensor) return false;
    const mica_tensor *from = mica_op_tensor(n->op, desc, i->arg);
    return mica_tensor_equal(from, mica_op_tensor(n->op, desc, n->binds[out].arg)) &&
           mica_tensor_equal(from, &t->t);
}

/* The binding of an input in whose place bind `out` may be written; -1: there is none. */
static int shared_input(const mica_graph *g, const graph_node *n, const void *desc, int out,
                        const int *last, int position)
{
    const mica_arg *a = &n->op->args[n->binds[out].arg];
    for (int in = 0; in < n->bind_count; in++)
        if (in != out && graph_access(n, desc, in) == MICA_IN &&
            may_coincide(a, &n->op->args[n->binds[in].arg]) &&
            ends_there(g, n, desc, in, out, last, position))
            return in;
    return -1;
}

static void widen(graph_piece *piece, int position)
{
    if (position < piece->first) piece->first = position;
    if (position > piece->last) piece->last = position;
}

static void place_node(layout *l, const int *last, int position)
{
    mica_graph *g = l->p->graph;
    const graph_node *n = &g->nodes[l->p->steps[position].node];
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_unpack(n->resolved, desc, n->op->desc_size);
    for (int b = 0; b < n->bind_count; b++) {
        const int tensor = n->binds[b].tensor;
        const graph_tensor *t = &g->tensors[tensor];
        if (t->kind != MICA_GRAPH_VIRTUAL) continue;
        if (l->piece_of[tensor] < 0) {
            int in = l->separate || graph_access(n, desc, b) != MICA_OUT
                         ? -1
                         : shared_input(g, n, desc, b, last, position);
            int64_t span = mica_tensor_span(&t->t, NULL);
            if (in >= 0) {
                l->piece_of[tensor] = l->piece_of[n->binds[in].tensor];
            } else {
                l->piece_of[tensor] = l->piece_count;
                l->pieces[l->piece_count++] = (graph_piece){(size_t)span, 0, position, position};
            }
        }
        if (l->piece_of[tensor] >= 0) widen(&l->pieces[l->piece_of[tensor]], position);
    }
}

static void last_uses(const mica_graph_plan *p, int *last)
{
    for (int i = 0; i < p->graph->tensor_count; i++) last[i] = -1;
    for (int s = 0; s < p->step_count; s++) {
        const graph_node *n = &p->graph->nodes[p->steps[s].node];
        for (int b = 0; b < n->bind_count; b++) last[n->binds[b].tensor] = s;
    }
}

/* What is needed at the same steps and is no larger may lie where a bucket's lies. */
static bool lies_like(layout *l, const mica_graph_plan *like)
{
    if (!like || !like->pieces || like->piece_count != l->piece_count) return false;
    for (int i = 0; i < l->piece_count; i++) {
        const graph_piece *a = &l->pieces[i], *b = &like->pieces[i];
        if (a->first != b->first || a->last != b->last || a->bytes > b->bytes) return false;
    }
    for (int i = 0; i < l->piece_count; i++) l->pieces[i].at = like->pieces[i].at;
    l->p->memory.workspace = like->memory.workspace;
    l->p->memory.least = like->memory.least;
    return true;
}

static mica_status lay_out(layout *l)
{
    mica_graph_plan *p = l->p;
    const int tensors = p->graph->tensor_count, steps = p->step_count;
    int *last = mica_alloc(((size_t)tensors + 1) * sizeof *last);
    if (!last) return mica_fail_memory((size_t)tensors * sizeof *last);
    last_uses(p, last);
    for (int i = 0; i < tensors; i++) l->piece_of[i] = -1;
    for (int s = 0; s < steps; s++) place_node(l, last, s);
    mica_release(last);
    const int own = l->piece_count;
    for (int i = 0; i < own; i++) p->memory.tensors += (l->pieces[i].bytes + 255) / 256 * 256;
    for (int s = 0; s < steps; s++)
        l->pieces[l->piece_count++] = (graph_piece){mica_plan_workspace(p->steps[s].plan), 0, s, s};
    for (int i = 0; l->separate && i < l->piece_count; i++) {
        l->pieces[i].first = 0;
        l->pieces[i].last = steps - 1;
    }
    if (!lies_like(l, p->decisions ? p->decisions->plan : NULL))
        MICA_TRY(
            graph_place(l->pieces, l->piece_count, steps, &p->memory.workspace, &p->memory.least));
    for (int s = 0; s < steps; s++) p->steps[s].workspace_at = l->pieces[own + s].at;
    for (int i = 0; i < tensors; i++) {
        int64_t first;
        if (l->piece_of[i] < 0) continue;
        mica_tensor_span(&p->graph->tensors[i].t, &first);
        p->where[i] = (int64_t)l->pieces[l->piece_of[i]].at - first;
    }
    return MICA_OK;
}

static mica_status find_places(mica_graph_plan *p, bool separate)
{
    const size_t tensors = (size_t)p->graph->tensor_count + 1;
    layout l = {.p = p, .separate = separate};
    l.pieces = mica_alloc((tensors + (size_t)p->step_count) * sizeof *l.pieces);
    l.piece_of = mica_alloc(tensors * sizeof *l.piece_of);
    mica_status status =
        l.pieces && l.piece_of ? lay_out(&l) : mica_fail_memory(tensors * sizeof *l.pieces);
    if (p->bucket) {
        p->pieces = l.pieces;
        p->piece_count = l.piece_count;
    } else {
        mica_release(l.pieces);
    }
    mica_release(l.piece_of);
    return status;
}

/* ---- constants ---- */

static void release_constants(mica_context *c, shared_constants *s)
{
    if (!s || atomic_fetch_sub(&s->references, 1) != 1) return;
    if (s->memory) mica_free(c, s->memory);
    mica_release(s);
}

/* Copies of a graph share the values of constants. */
static bool borrow_constants(mica_graph_plan *p)
{
    const mica_graph_plan *from = p->beside;
    if (!from || !from->shared || from->memory.constants != p->memory.constants) return false;
    for (int i = 0; i < p->graph->tensor_count; i++) {
        const graph_tensor *t = &p->graph->tensors[i];
        if (t->kind != MICA_GRAPH_CONSTANT) continue;
        if (i >= from->graph->tensor_count || from->graph->tensors[i].data != t->data ||
            from->where[i] != p->where[i])
            return false;
    }
    p->shared = from->shared;
    p->constants = p->shared->memory;
    p->borrows = true;
    atomic_fetch_add(&p->shared->references, 1);
    return true;
}

static mica_status keep_constants(mica_graph_plan *p)
{
    const mica_graph *g = p->graph;
    size_t total = 0;
    for (int i = 0; i < g->tensor_count; i++) {
        int64_t first, span;
        if (g->tensors[i].kind != MICA_GRAPH_CONSTANT) continue;
        span = mica_tensor_span(&g->tensors[i].t, &first);
        p->where[i] = (int64_t)total - first;
        total += ((size_t)span + 255) / 256 * 256;
    }
    p->memory.constants = total;
    if (!total || p->context->device.offline || borrow_constants(p)) return MICA_OK;
    void *memory;
    p->shared = mica_alloc(sizeof *p->shared);
    if (!p->shared) return mica_fail_memory(sizeof *p->shared);
    atomic_init(&p->shared->references, 1);
    MICA_TRY(mica_malloc(p->context, (int64_t)total, &memory));
    p->constants = p->shared->memory = memory;
    for (int i = 0; i < g->tensor_count; i++) {
        const graph_tensor *t = &g->tensors[i];
        int64_t first, span;
        if (t->kind != MICA_GRAPH_CONSTANT) continue;
        span = mica_tensor_span(&t->t, &first);
        if (span > 0)
            MICA_TRY(
                mica_upload(p->context, p->constants + p->where[i] + first, t->data, span, NULL));
    }
    return mica_synchronize(p->context, NULL);
}

/* ---- building ---- */

static mica_status make_ports(mica_graph_plan *p, int *number)
{
    const mica_graph *g = p->graph;
    for (int i = 0; i < g->tensor_count; i++) {
        const graph_tensor *t = &g->tensors[i];
        if (!is_port(t)) continue;
        const int bytes = mica_dtype_bits(t->t.dtype) / 8;
        port *q = &p->ports[p->port_count];
        number[i] = p->port_count++;
        q->tensor = i;
        q->written = t->kind != MICA_GRAPH_INPUT;
        q->span = mica_tensor_span(&t->t, &q->first);
        q->align_mask = bytes > 1 ? (uintptr_t)bytes - 1 : 0;
    }
    return MICA_OK;
}

static bool is_empty(const graph_node *n, const void *desc)
{
    for (int i = 0; i < n->op->arg_count; i++) {
        const mica_dir dir = mica_op_dir(n->op, desc, i);
        if (dir != MICA_OUT && dir != MICA_INOUT) continue;
        if (mica_tensor_span(mica_op_tensor(n->op, desc, i), NULL) > 0) return false;
    }
    return true;
}

static mica_status step_scalars(const graph_node *n, step *s)
{
    const size_t count = (size_t)n->op->scalar_count;
    bool given = false, at_run = false;
    for (size_t i = 0; i < count; i++) {
        at_run |= n->scalar_of[i] >= 0;
        given |= n->scalars[i] != n->op->scalars[i].def;
    }
    if (!given && !at_run) return MICA_OK;
    s->scalars = mica_alloc(count * sizeof *s->scalars);
    s->scalar_of = at_run ? mica_alloc(count * sizeof *s->scalar_of) : NULL;
    if (!s->scalars || (at_run && !s->scalar_of)) return mica_fail_memory(count * sizeof(double));
    memcpy(s->scalars, n->scalars, count * sizeof *s->scalars);
    if (at_run) memcpy(s->scalar_of, n->scalar_of, count * sizeof *s->scalar_of);
    return MICA_OK;
}

/* With the engine and config of the bucket's step; where that does not take it, with another. */
static mica_status plan_decided(mica_graph_plan *p, const graph_node *n, const void *desc,
                                const char *nodes, const mica_options *options, mica_plan **plan)
{
    const graph_decisions *d = p->decisions;
    const graph_choice *choice =
        p->step_count < d->choice_count ? d->choices + p->step_count : NULL;
    mica_options named = {0};
    if (!choice || strcmp(choice->nodes, nodes) != 0)
        return mica_fail(MICA_NOT_FOUND, "%s is no step of the bucket", nodes);
    MICA_TRY(mica_options_read(options, &named));
    named.size = sizeof named;
    named.mode = MICA_MODE_ESTIMATE;
    named.engine = choice->engine;
    named.config = *choice->config ? choice->config : NULL;
    mica_status status =
        mica_plan_create(p->context, n->op->name, desc, n->op->desc_size, &named, plan);
    if (status != MICA_UNSUPPORTED) return status;
    p->anew = true;
    status = mica_plan_create(p->context, n->op->name, desc, n->op->desc_size, options, plan);
    return status == MICA_UNSUPPORTED ? MICA_NOT_FOUND : status;
}

static mica_status plan_node(mica_graph_plan *p, int node, const mica_options *options)
{
    const graph_node *n = &p->graph->nodes[node];
    step *s = &p->steps[p->step_count];
    _Alignas(16) char desc[MICA_MAX_DESC];
    char number[16];
    mica_text digits = {number, sizeof number, 0};
    mica_text_add(&digits, "%d", node);
    graph_unpack(n->resolved, desc, n->op->desc_size);
    s->node = node;
    s->empty = is_empty(n, desc);
    const graph_choice *choice = p->choices ? &p->choices[node] : NULL;
    const mica_options chosen = {.engine = choice ? choice->engine : NULL,
                                 .config = choice && *choice->config ? choice->config : NULL,
                                 .nondeterministic = true};
    if (choice) options = &chosen;
    const char *nodes = choice ? choice->nodes : n->parts ? n->parts : number;
    mica_status status = p->decisions ? plan_decided(p, n, desc, nodes, options, &s->plan)
                                      : mica_plan_create(p->context, n->op->name, desc,
                                                         n->op->desc_size, options, &s->plan);
    if (status == MICA_NOT_FOUND && p->decisions) return status;
    if (status != MICA_OK) {
        char text[3072];
        mica_text copy = {text, sizeof text, 0};
        if (choice) mica_text_add(&copy, "saved with %s %s: ", choice->engine, choice->config);
        mica_text_add(&copy, "%s", mica_error());
        return graph_fail(p->graph, node, status, "%s", text);
    }
    p->step_count++;
    s->nodes = mica_copy_text(nodes);
    if (!s->nodes) return mica_fail_memory(sizeof number);
    return step_scalars(n, s);
}

/* What every step's arguments are at a run. */
static void bind_steps(mica_graph_plan *p, const int *number)
{
    for (int s = 0; s < p->step_count; s++) {
        const graph_node *n = &p->graph->nodes[p->steps[s].node];
        for (int b = 0; b < n->bind_count; b++) {
            const int tensor = n->binds[b].tensor;
            const graph_tensor *t = &p->graph->tensors[tensor];
            const int64_t at = n->binds[b].at * mica_dtype_bits(t->t.dtype) / 8;
            place *to = &p->places[p->place_count];
            p->tensor_of[p->place_count++] = tensor;
            to->arg = n->binds[b].arg;
            if (is_port(t))
                *to = (place){to->arg, number[tensor], at};
            else
                *to = (place){to->arg, t->kind == MICA_GRAPH_CONSTANT ? IN_CONSTANTS : IN_WORKSPACE,
                              p->where[tensor] + at};
        }
        p->steps[s].bound_end = p->place_count;
    }
}

static mica_status lower(mica_graph_plan *p, const mica_graph_options *o)
{
    mica_graph *g = p->graph;
    const size_t tensors = (size_t)g->tensor_count + 1, nodes = (size_t)g->node_count + 1;
    size_t binds = 1;
    for (int i = 0; i < g->node_count; i++)
        if (!g->nodes[i].gone) binds += (size_t)g->nodes[i].bind_count;
    p->steps = mica_alloc(nodes * sizeof *p->steps);
    p->places = mica_alloc(binds * sizeof *p->places);
    p->tensor_of = mica_alloc(binds * sizeof *p->tensor_of);
    p->ports = mica_alloc(tensors * sizeof *p->ports);
    p->where = mica_alloc(tensors * sizeof *p->where);
    p->defaults = mica_alloc(((size_t)g->scalar_count + 1) * sizeof *p->defaults);
    int *number = mica_alloc(tensors * sizeof *number);
    mica_status status = MICA_OK;
    if (!p->steps || !p->places || !p->tensor_of || !p->ports || !p->where || !p->defaults ||
        !number)
        status = mica_fail_memory(nodes * sizeof *p->steps);
    for (int i = 0; status == MICA_OK && i < g->scalar_count; i++)
        p->defaults[i] = g->scalars[i].value;
    if (status == MICA_OK) status = make_ports(p, number);
    for (int i = 0; status == MICA_OK && i < g->node_count; i++)
        if (!g->nodes[g->order[i]].gone) status = plan_node(p, g->order[i], o->nodes);
    if (status == MICA_OK) status = find_places(p, o->mode == MICA_GRAPH_SEPARATE);
    if (status == MICA_OK) status = keep_constants(p);
    if (status == MICA_OK) bind_steps(p, number);
    mica_release(number);
    return status;
}

static mica_status rewrite(mica_graph_plan *p, const mica_graph_options *o)
{
    graph_rewriting r = {.g = p->graph, .device = p->context->device, .without = o->without};
    if (o->mode != MICA_GRAPH_FUSED || p->choices) return MICA_OK;
    mica_status status =
        p->decisions ? graph_rewrite_again(&r, p->decisions->attempts, p->decisions->attempt_count)
                     : graph_rewrite_all(&r);
    p->attempts = r.attempts;
    p->attempt_count = r.attempt_count;
    return status;
}

static mica_status build(mica_graph_plan *p, const mica_graph_options *o)
{
    MICA_TRY(graph_infer(p->graph));
    MICA_TRY(rewrite(p, o));
    return lower(p, o);
}

mica_status graph_options_read(const mica_graph_options *given, mica_graph_options *o)
{
    *o = (mica_graph_options){0};
    if (given) memcpy(o, given, given->size && given->size < sizeof *o ? given->size : sizeof *o);
    if ((unsigned)o->mode > MICA_GRAPH_SEPARATE)
        return mica_fail(MICA_INVALID, "options: mode %d is unknown", (int)o->mode);
    mica_options nodes;
    MICA_TRY(mica_options_read(o->nodes, &nodes));
    if (nodes.packed) return mica_fail(MICA_INVALID, "options: arguments of nodes are not packed");
    if (nodes.prompt)
        return mica_fail(MICA_UNSUPPORTED, "graph: prompt nodes, whose launches change between "
                                           "runs while replays keep theirs");
    return MICA_OK;
}

typedef struct making {
    mica_graph_plan *plan;
    const mica_graph_options *options;
} making;

static mica_status build_deep(void *user)
{
    const making *m = user;
    return build(m->plan, m->options);
}

/* A plan of which nothing is made; it takes the graph over. */
static mica_graph_plan *begin_plan(mica_context *c, mica_graph *g, const mica_graph_options *o)
{
    mica_graph_plan *p = mica_alloc(sizeof *p);
    if (!p) {
        mica_graph_destroy(g);
        mica_fail_memory(sizeof *p);
        return NULL;
    }
    atomic_init(&p->references, 1);
    p->context = c;
    p->cuda = c->cuda != NULL;
    p->mode = o->mode;
    p->graph = g;
    atomic_fetch_add(&c->references, 1);
    return p;
}

static mica_status finish_plan(mica_graph_plan *p, const mica_graph_options *o,
                               mica_graph_plan **plan)
{
    mica_context *c = p->context;
    making m = {p, o};
    mica_status status = p->graph ? mica_deep_call(build_deep, &m) : MICA_OUT_OF_MEMORY;
    p->choices = NULL;
    p->decisions = NULL;
    p->beside = NULL;
    if (status == MICA_OK && o->replay && c->cuda && !c->device.offline)
        status = graph_replay_create(c->cuda, p->port_count, p->graph->scalar_count, p->step_count,
                                     &p->replay);
    if (status == MICA_OK) {
        *plan = p;
        return MICA_OK;
    }
    mica_graph_plan_destroy(p);
    return status;
}

static mica_status make(mica_context *c, const mica_graph *g, const mica_graph_options *o,
                        const graph_choice *choices, mica_graph_plan **plan)
{
    mica_graph_plan *p = begin_plan(c, graph_clone(g), o);
    if (!p) return MICA_OUT_OF_MEMORY;
    p->choices = choices;
    return finish_plan(p, o, plan);
}

mica_status graph_plan_decided(mica_context *c, mica_graph *g, const mica_graph_options *o,
                               const graph_decisions *decisions, const mica_graph_plan *beside,
                               bool *anew, mica_graph_plan **plan)
{
    mica_graph_plan *p = begin_plan(c, g, o);
    *plan = NULL;
    if (!p) return MICA_OUT_OF_MEMORY;
    p->decisions = decisions;
    p->beside = beside;
    p->bucket = !decisions || !decisions->plan;
    MICA_TRY(finish_plan(p, o, plan));
    *anew = p->anew;
    return MICA_OK;
}

const graph_attempt *graph_plan_attempts(const mica_graph_plan *p, int *count)
{
    *count = p->attempt_count;
    return p->attempts;
}

/* A measurement that failed is made again when somebody asks again. */
static bool disturbed(const mica_graph_plan *p)
{
    for (int i = 0; i < p->step_count; i++)
        if (*mica_plan_disturbed(p->steps[i].plan)) return true;
    return false;
}

static mica_status find_or_make(mica_context *c, const mica_graph *g, const mica_graph_options *o,
                                mica_graph_plan **plan)
{
    graph_key key;
    if (c->cuda) MICA_TRY(mica_fork_check());
    if (o->replay) return make(c, g, o, NULL, plan);
    MICA_TRY(graph_key_make(c, g, o, &key));
    mica_status status = MICA_OK;
    *plan = graph_cache_find(c, &key);
    if (!*plan) {
        status = make(c, g, o, NULL, plan);
        if (status == MICA_OK && !disturbed(*plan)) graph_cache_add(c, &key, *plan);
    }
    graph_key_free(&key);
    return status;
}

mica_status graph_plan_make(mica_context *c, const mica_graph *g, const mica_graph_options *options,
                            const graph_choice *choices, mica_graph_plan **plan)
{
    mica_graph_options o;
    mica_floating state MICA_FLOATING_SCOPE = mica_floating_begin(false);
    if (!plan) return mica_fail(MICA_INVALID, "plan is NULL");
    *plan = NULL;
    if (!c || !g) return mica_fail(MICA_INVALID, "context or graph is NULL");
    MICA_TRY(graph_options_read(options, &o));
    /* before the cache is asked, where the graph of its highest extents may be */
    if (g->extent_count)
        return mica_fail(MICA_INVALID,
                         "the graph has extents, %s among them: mica_graph_dynamic_create plans "
                         "it, mica_graph_fix gives them values",
                         g->extents[0].name);
    return choices ? make(c, g, &o, choices, plan) : find_or_make(c, g, &o, plan);
}

mica_status mica_graph_plan_create(mica_context *c, const mica_graph *g,
                                   const mica_graph_options *options, mica_graph_plan **plan)
{
    return graph_plan_make(c, g, options, NULL, plan);
}

void graph_plan_retain(mica_graph_plan *p)
{
    atomic_fetch_add(&p->references, 1);
}

static size_t graph_held(const mica_graph *g, bool values)
{
    size_t bytes = sizeof *g + (size_t)g->tensor_room * sizeof *g->tensors +
                   (size_t)g->node_room * sizeof *g->nodes +
                   (size_t)(g->table_size + g->node_count) * sizeof *g->table;
    for (int i = 0; i < g->tensor_count; i++) {
        const graph_tensor *t = &g->tensors[i];
        bytes += strlen(t->name) + 1;
        if (t->data && values) bytes += (size_t)mica_tensor_span(&t->given, NULL);
    }
    for (int i = 0; i < g->node_count; i++) {
        const graph_node *n = &g->nodes[i];
        bytes += graph_packed_bytes(n->given) +
                 (n->resolved ? graph_packed_bytes(n->resolved) : 0) +
                 (size_t)n->bind_count * sizeof *n->binds +
                 (size_t)n->op->scalar_count * (sizeof *n->scalars + sizeof *n->scalar_of) +
                 (n->parts ? strlen(n->parts) : 0);
    }
    return bytes;
}

size_t graph_plan_held(const mica_graph_plan *p)
{
    const size_t tensors = (size_t)p->graph->tensor_count;
    size_t bytes = sizeof *p + (p->borrows ? 0 : p->memory.constants) +
                   graph_held(p->graph, !p->borrows) + (size_t)p->piece_count * sizeof *p->pieces +
                   (size_t)p->graph->node_count * sizeof *p->steps +
                   (size_t)p->place_count * (sizeof *p->places + sizeof *p->tensor_of) +
                   tensors * (sizeof *p->ports + sizeof *p->where) +
                   (size_t)p->attempt_count * sizeof *p->attempts;
    /* a guess of what the driver keeps of a CUDA graph */
    if (p->replay) bytes += (64 << 10) + (size_t)p->step_count * 4096;
    for (int i = 0; i < p->attempt_count; i++)
        if (p->attempts[i].reason) bytes += strlen(p->attempts[i].reason) + 1;
    for (int i = 0; i < p->step_count; i++)
        bytes += mica_plan_held(p->steps[i].plan) + strlen(p->steps[i].nodes) + 1;
    return bytes;
}

const mica_graph *graph_plan_lowered(const mica_graph_plan *p, mica_graph_mode *mode,
                                     mica_device_info *device)
{
    *mode = p->mode;
    *device = p->context->device;
    return p->graph;
}

void mica_graph_plan_destroy(mica_graph_plan *p)
{
    if (!p || atomic_fetch_sub(&p->references, 1) != 1) return;
    graph_replay_destroy(p->replay);
    for (int i = 0; i < p->step_count; i++) {
        mica_plan_destroy(p->steps[i].plan);
        mica_release(p->steps[i].scalars);
        mica_release(p->steps[i].scalar_of);
        mica_release(p->steps[i].nodes);
    }
    for (int i = 0; i < p->attempt_count; i++) mica_release(p->attempts[i].reason);
    release_constants(p->context, p->shared);
    mica_release(p->pieces);
    mica_release(p->steps);
    mica_release(p->places);
    mica_release(p->tensor_of);
    mica_release(p->ports);
    mica_release(p->where);
    mica_release(p->defaults);
    mica_release(p->attempts);
    mica_graph_destroy(p->graph);
    mica_context_release(p->context);
    mica_release(p);
}

/* ---- running ---- */

static mica_status overlapping(const mica_graph_plan *p, void *const *tensors)
{
    for (int i = 0; i < p->port_count; i++) {
        const port *a = &p->ports[i];
        if (!a->written || !a->span) continue;
        const char *at = (const char *)tensors[i] + a->first;
        for (int k = 0; k < p->port_count; k++) {
            const port *b = &p->ports[k];
            if (k == i || !b->span || (b->written && k < i)) continue;
            const char *other = (const char *)tensors[k] + b->first;
            if (at < other + b->span && other < at + a->span)
                return mica_fail(MICA_INVALID, "%s overlaps %s in memory",
                                 p->graph->tensors[a->tensor].name,
                                 p->graph->tensors[b->tensor].name);
        }
    }
    return MICA_OK;
}

/* Pointers that were right once are right again. */
static mica_status check_ports(mica_graph_plan *p, void *const *tensors)
{
    uint64_t digest = 1;
    for (int i = 0; i < p->port_count; i++) {
        const port *q = &p->ports[i];
        const uintptr_t at = (uintptr_t)tensors[i];
        if (!q->span) continue;
        digest = (digest ^ at) * UINT64_C(0x9e3779b97f4a7c15);
        digest ^= digest >> 32;
        if (!at)
            return mica_fail(MICA_INVALID, "the pointer of %s is NULL",
                             p->graph->tensors[q->tensor].name);
        if (at & q->align_mask)
            return mica_fail(MICA_INVALID, "%s is at %p, its type needs %zu-byte alignment",
                             p->graph->tensors[q->tensor].name, tensors[i],
                             (size_t)q->align_mask + 1);
    }
    if (digest == atomic_load_explicit(&p->checked, memory_order_relaxed)) return MICA_OK;
    MICA_TRY(overlapping(p, tensors));
    atomic_store_explicit(&p->checked, digest, memory_order_relaxed);
    return MICA_OK;
}

static mica_status check_run(const mica_graph_plan *p, const mica_graph_run *run)
{
    if (p->port_count && !run->tensors) return mica_fail(MICA_INVALID, "tensors is NULL");
    if (p->memory.workspace && !run->workspace)
        return mica_fail(MICA_INVALID, "workspace is NULL, the plan needs %zu bytes",
                         p->memory.workspace);
    if (p->memory.workspace && ((uintptr_t)run->workspace & 255))
        return mica_fail(MICA_INVALID, "workspace is at %p, it needs 256-byte alignment",
                         run->workspace);
    return check_ports((mica_graph_plan *)(uintptr_t)p, run->tensors);
}

static mica_status run_step(const mica_graph_plan *p, const mica_graph_run *run, const step *s)
{
    const double *at_run = run->scalars ? run->scalars : p->defaults;
    const place *b = p->places + (s > p->steps ? s[-1].bound_end : 0);
    const place *end = p->places + s->bound_end;
    const int count = s->plan->op->arg_count;
    char *space = run->workspace;
    double scalars[MICA_MAX_SCALARS];
    mica_run child; /* of as many arguments as its operation has: the rest is not read */
    if (s->empty) return MICA_OK;
    child.size = offsetof(mica_run, args) + (size_t)count * sizeof *child.args;
    child.scalars = s->scalars;
    child.workspace = space ? space + s->workspace_at : NULL;
    child.stream = run->stream;
    for (int i = 0; i < count; i++) child.args[i] = NULL;
    for (; b < end; b++) {
        char *base = b->from >= 0              ? run->tensors[b->from]
                     : b->from == IN_CONSTANTS ? p->constants
                                               : space;
        child.args[b->arg] = base ? base + b->offset : NULL;
    }
    for (int i = 0; s->scalar_of && i < s->plan->op->scalar_count; i++)
        scalars[i] = s->scalar_of[i] >= 0 ? at_run[s->scalar_of[i]] : s->scalars[i];
    if (s->scalar_of) child.scalars = scalars;
    return mica_plan_child_run(s->plan, &child);
}

static mica_status run_steps(const mica_graph_plan *p, const mica_graph_run *run)
{
    for (const step *s = p->steps; s < p->steps + p->step_count; s++) MICA_TRY(run_step(p, run, s));
    return MICA_OK;
}

/* ---- replaying (replay.c) ---- */

mica_status graph_plan_run_step(const mica_graph_plan *p, const mica_graph_run *run, int index)
{
    return run_step(p, run, &p->steps[index]);
}

bool graph_plan_step_changes(const mica_graph_plan *p, int index, const graph_changes *c)
{
    const step *s = &p->steps[index];
    if (c->workspace && mica_plan_workspace(s->plan)) return true;
    for (int i = index ? s[-1].bound_end : 0; i < s->bound_end; i++) {
        const int from = p->places[i].from;
        if (from >= 0 ? c->tensors[from] : from == IN_WORKSPACE && c->workspace) return true;
    }
    for (int i = 0; s->scalar_of && i < s->plan->op->scalar_count; i++)
        if (s->scalar_of[i] >= 0 && c->scalars[s->scalar_of[i]]) return true;
    return false;
}

mica_status mica_graph_plan_run(const mica_graph_plan *p, const mica_graph_run *given)
{
    mica_graph_run run = {0};
    if (!p || !given) return mica_fail(MICA_INVALID, "plan or run is NULL");
    memcpy(&run, given, given->size && given->size < sizeof run ? given->size : sizeof run);
    mica_floating state MICA_FLOATING_SCOPE = mica_floating_begin(!p->cuda);
    if (!p->cuda && !mica_scratch_ready()) MICA_TRY(mica_scratch_prepare(mica_cpu_threads()));
    MICA_TRY(check_run(p, &run));
    if (p->replay) {
        const double *scalars = run.scalars ? run.scalars : p->defaults;
        const mica_status status = graph_replay_run(p->replay, p, &run, scalars);
        if (status != MICA_NOT_FOUND) return status;
    }
    return run_steps(p, &run);
}

/* ---- what others see ---- */

size_t mica_graph_plan_workspace(const mica_graph_plan *p)
{
    return p ? p->memory.workspace : 0;
}

mica_status mica_graph_plan_tensor(const mica_graph_plan *p, int index,
                                   mica_graph_tensor_info *info)
{
    if (!p || !info) return mica_fail(MICA_INVALID, "plan or info is NULL");
    if (index < 0 || index >= p->port_count)
        return mica_fail(MICA_INVALID, "tensor %d: the plan has %d", index, p->port_count);
    return mica_graph_tensor_at(p->graph, p->ports[index].tensor, info);
}

int mica_graph_plan_index(const mica_graph_plan *p, const char *name)
{
    if (!p || !name) return -1;
    int entry = graph_find(p->graph, name);
    if (entry < 0) return -entry - 1;
    for (int i = 0; entry && i < p->port_count; i++)
        if (p->ports[i].tensor == entry - 1) return i;
    return -1;
}

mica_status mica_graph_plan_scalar(const mica_graph_plan *p, int index, const char **name,
                                   double *value)
{
    if (!p || !name || !value) return mica_fail(MICA_INVALID, "plan, name or value is NULL");
    if (index < 0 || index >= p->graph->scalar_count)
        return mica_fail(MICA_INVALID, "scalar %d: the plan has %d", index, p->graph->scalar_count);
    *name = p->graph->scalars[index].name;
    *value = p->graph->scalars[index].value;
    return MICA_OK;
}

mica_status mica_graph_plan_step(const mica_graph_plan *p, int index, mica_graph_step *info)
{
    if (!p || !info) return mica_fail(MICA_INVALID, "plan or step is NULL");
    if (index < 0 || index >= p->step_count)
        return mica_fail(MICA_INVALID, "step %d: the plan has %d", index, p->step_count);
    const step *s = &p->steps[index];
    const int begin = index ? p->steps[index - 1].bound_end : 0;
    *info = (mica_graph_step){s->plan, s->nodes, s->bound_end - begin};
    return MICA_OK;
}

mica_status mica_graph_plan_bound(const mica_graph_plan *p, int step_index, int index, int *arg,
                                  mica_graph_tensor_info *info, int64_t *offset)
{
    mica_graph_step s;
    MICA_TRY(mica_graph_plan_step(p, step_index, &s));
    if (index < 0 || index >= s.binds || !arg || !info || !offset)
        return mica_fail(MICA_INVALID, "binding %d: the step has %d", index, s.binds);
    const int i = (step_index ? p->steps[step_index - 1].bound_end : 0) + index;
    *arg = p->places[i].arg;
    *offset = p->places[i].offset;
    return mica_graph_tensor_at(p->graph, p->tensor_of[i], info);
}

mica_status mica_graph_plan_attempt(const mica_graph_plan *p, int index, mica_graph_attempt *info)
{
    if (!p || !info) return mica_fail(MICA_INVALID, "plan or attempt is NULL");
    if (index < 0 || index >= p->attempt_count)
        return mica_fail(MICA_INVALID, "attempt %d: the plan has %d", index, p->attempt_count);
    const graph_attempt *a = &p->attempts[index];
    *info = (mica_graph_attempt){a->rewrite, a->node, !a->reason, a->reason ? a->reason : ""};
    return MICA_OK;
}

mica_status mica_graph_plan_memory(const mica_graph_plan *p, mica_graph_memory *memory)
{
    if (!p || !memory) return mica_fail(MICA_INVALID, "plan or memory is NULL");
    *memory = p->memory;
    return MICA_OK;
}

mica_status mica_graph_plan_replays(const mica_graph_plan *p, mica_graph_replays *replays)
{
    if (!p || !replays) return mica_fail(MICA_INVALID, "plan or replays is NULL");
    *replays = (mica_graph_replays){0};
    if (p->replay) graph_replay_count(p->replay, replays);
    return MICA_OK;
}

double mica_graph_plan_predicted(const mica_graph_plan *p)
{
    double ms = 0;
    for (int i = 0; p && i < p->step_count; i++) ms += mica_plan_predicted(p->steps[i].plan);
    return ms;
}
