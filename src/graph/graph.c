/* SPDX-License-Identifier: Apache-2.0
 * Building graphs: names, tensors, nodes, copies. */
#include "graph/graph.h"
#include "base/format.h"
#include "base/memory.h"
#include "plan/context.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- packed descriptors ---- */

struct graph_packed {
    uint64_t bytes;    /* of all of it */
    uint64_t words[1]; /* a bit for each word of the descriptor, then those that are not 0 */
};

static size_t mask_words(size_t size)
{
    return (size / 8 + 63) / 64 + 1; /* one more: sizes that are no multiple of 8 */
}

graph_packed *graph_pack(const void *desc, size_t size)
{
    uint64_t words[MICA_MAX_DESC / 8 + 1] = {0};
    size_t count = (size + 7) / 8, masks = mask_words(size), used = 0;
    memcpy(words, desc, size);
    for (size_t i = 0; i < count; i++) used += words[i] != 0;
    const size_t bytes = (1 + masks + used) * sizeof(uint64_t);
    graph_packed *p = mica_alloc(bytes);
    if (!p) return NULL;
    p->bytes = bytes;
    uint64_t *to = p->words + masks;
    for (size_t i = 0; i < count; i++) {
        if (!words[i]) continue;
        p->words[i / 64] |= UINT64_C(1) << i % 64;
        *to++ = words[i];
    }
    return p;
}

void graph_unpack(const graph_packed *p, void *desc, size_t size)
{
    const size_t masks = mask_words(size);
    const uint64_t *from = p->words + masks;
    memset(desc, 0, size);
    for (size_t m = 0; m < masks; m++)
        for (uint64_t bits = p->words[m]; bits; bits &= bits - 1) {
            const size_t at = (m * 64 + (size_t)__builtin_ctzll(bits)) * 8, left = size - at;
            if (left >= 8)
                memcpy((char *)desc + at, from++, 8);
            else
                memcpy((char *)desc + at, from++, left);
        }
}

size_t graph_packed_bytes(const graph_packed *p)
{
    return p->bytes;
}

graph_packed *graph_packed_copy(const graph_packed *p)
{
    graph_packed *copy = mica_alloc(p->bytes);
    if (copy) memcpy(copy, p, p->bytes);
    return copy;
}

/* ---- values of constants ---- */

typedef struct counted {
    atomic_int references;
    _Alignas(16) char bytes[];
} counted;

static counted *counted_of(void *values)
{
    return (counted *)(void *)((char *)values - offsetof(counted, bytes));
}

void *graph_values_new(size_t bytes)
{
    counted *c = mica_alloc(sizeof *c + bytes);
    if (!c) return NULL;
    atomic_init(&c->references, 1);
    return c->bytes;
}

void graph_values_release(void *values)
{
    if (values && atomic_fetch_sub(&counted_of(values)->references, 1) == 1)
        mica_release(counted_of(values));
}

/* ---- lists ---- */

mica_status graph_room(void *list, int count, int *room, size_t element)
{
    void *memory;
    if (count < *room) return MICA_OK;
    if (count >= INT32_MAX / 2) return mica_fail(MICA_UNSUPPORTED, "a list of %d elements", count);
    int more = *room ? 2 * *room : 8;
    memcpy(&memory, list, sizeof memory);
    memory = mica_grow(memory, (size_t)more * element);
    if (!memory) return mica_fail_memory((size_t)more * element);
    memcpy(list, &memory, sizeof memory);
    *room = more;
    return MICA_OK;
}

/* ---- names ---- */

static uint64_t hash_of(const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++) h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return h ^ h >> 29;
}

static const char *name_of(const mica_graph *g, int entry)
{
    return entry > 0 ? g->tensors[entry - 1].name : g->scalars[-entry - 1].name;
}

/* The slot of that name, or the empty one where it would be. */
static int *slot_of(const mica_graph *g, const char *name)
{
    size_t mask = (size_t)g->table_size - 1, i = (size_t)hash_of(name) & mask;
    while (g->table[i] && strcmp(name_of(g, g->table[i]), name) != 0) i = (i + 1) & mask;
    return &g->table[i];
}

int graph_find(const mica_graph *g, const char *name)
{
    return g->table_size ? *slot_of(g, name) : 0;
}

/* Again, for as many names as there are and one more. */
static mica_status fill_table(mica_graph *g, int size)
{
    int *table = mica_alloc((size_t)size * sizeof *table);
    if (!table) return mica_fail_memory((size_t)size * sizeof *table);
    mica_release(g->table);
    g->table = table;
    g->table_size = size;
    g->table_used = g->tensor_count + g->scalar_count;
    for (int i = 0; i < g->tensor_count; i++) *slot_of(g, g->tensors[i].name) = i + 1;
    for (int i = 0; i < g->scalar_count; i++) *slot_of(g, g->scalars[i].name) = -i - 1;
    return MICA_OK;
}

static mica_status room_for_name(mica_graph *g)
{
    if (2 * (g->table_used + 1) < g->table_size) return MICA_OK;
    return fill_table(g, g->table_size ? 2 * g->table_size : 64);
}

mica_status graph_check_name(const char *name)
{
    if (!name || !*name) return mica_fail(MICA_INVALID, "a name is empty");
    size_t length = strlen(name);
    if (length >= GRAPH_NAME)
        return mica_fail(MICA_INVALID, "the name %.40s... has %zu characters, at most %d are legal",
                         name, length, GRAPH_NAME - 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)name[i];
        if (c < 128 && (isalpha(c) || c == '_' || (i && (isdigit(c) || c == '.')))) continue;
        return mica_fail(MICA_INVALID,
                         "\"%.60s\" is no name: character %zu is not a letter, digit, '_' or '.', "
                         "of which a letter or '_' comes first",
                         name, i + 1);
    }
    return MICA_OK;
}

static mica_status add_tensor(mica_graph *g, const char *name, int *index)
{
    MICA_TRY(room_for_name(g));
    MICA_TRY(graph_room(&g->tensors, g->tensor_count, &g->tensor_room, sizeof *g->tensors));
    char *copy = mica_copy_text(name);
    if (!copy) return mica_fail_memory(strlen(name) + 1);
    int *slot = slot_of(g, name);
    g->tensors[g->tensor_count] = (graph_tensor){.name = copy, .writer = -1};
    *index = g->tensor_count++;
    *slot = *index + 1;
    g->table_used++;
    return MICA_OK;
}

mica_status graph_tensor_named(mica_graph *g, const char *name, int *index)
{
    MICA_TRY(graph_check_name(name));
    int entry = graph_find(g, name);
    if (entry < 0) return mica_fail(MICA_INVALID, "%s is a scalar", name);
    if (!entry) return add_tensor(g, name, index);
    *index = entry - 1;
    return MICA_OK;
}

mica_status graph_tensor_anonymous(mica_graph *g, int node, int arg, int *index)
{
    char name[64];
    mica_format(name, sizeof name, ".%d.%s", node, g->nodes[node].op->args[arg].name);
    return add_tensor(g, name, index);
}

/* ---- declarations ---- */

static mica_status check_declared(mica_graph *g, const char *name, mica_graph_kind kind,
                                  const mica_tensor *t)
{
    mica_why why = {""};
    if ((unsigned)kind > MICA_GRAPH_CONSTANT)
        return mica_fail(MICA_INVALID, "%s: kind %d is unknown", name, (int)kind);
    const bool open = kind == MICA_GRAPH_VIRTUAL || kind == MICA_GRAPH_OUTPUT;
    if (!open && t && mica_tensor_given(t) && t->rank == 0)
        return mica_fail(MICA_INVALID, "%s: its dimensions are needed", name);
    if (!open && !(t && mica_tensor_given(t)))
        return mica_fail(MICA_INVALID,
                         "%s: a tensor is needed, only outputs and tensors of the "
                         "graph's own are inferred",
                         name);
    int entry = graph_find(g, name);
    if (entry < 0) return mica_fail(MICA_INVALID, "%s is a scalar", name);
    if (entry && g->tensors[entry - 1].declared)
        return mica_fail(MICA_INVALID, "%s is declared twice", name);
    if (!t || !mica_tensor_given(t)) return MICA_OK;
    if ((unsigned)t->dtype >= MICA_DTYPE_COUNT)
        return mica_fail(MICA_INVALID, "%s: %d is no data type", name, (int)t->dtype);
    mica_tensor full = *t;
    if (full.rank > 0 && full.rank <= MICA_MAX_RANK) mica_tensor_default_strides(&full);
    bool written = kind == MICA_GRAPH_OUTPUT || kind == MICA_GRAPH_INOUT;
    if (mica_tensor_check(&full, name, written, &why) != MICA_OK)
        return mica_fail(MICA_INVALID, "%s", why.text);
    return MICA_OK;
}

mica_status mica_graph_tensor(mica_graph *g, const char *name, mica_graph_kind kind,
                              const mica_tensor *t)
{
    int index;
    if (!g) return mica_fail(MICA_INVALID, "graph is NULL");
    MICA_TRY(graph_check_name(name));
    if (kind == MICA_GRAPH_CONSTANT)
        return mica_fail(MICA_INVALID, "%s: a constant has values, see mica_graph_constant", name);
    MICA_TRY(check_declared(g, name, kind, t));
    MICA_TRY(graph_tensor_named(g, name, &index));
    g->tensors[index].kind = kind;
    g->tensors[index].declared = true;
    if (t) g->tensors[index].given = *t;
    if (t && t->rank > 0) mica_tensor_default_strides(&g->tensors[index].given);
    return MICA_OK;
}

mica_status mica_graph_constant(mica_graph *g, const char *name, const mica_tensor *t,
                                const void *data)
{
    int index;
    if (!g) return mica_fail(MICA_INVALID, "graph is NULL");
    MICA_TRY(graph_check_name(name));
    mica_tensor full = t ? *t : (mica_tensor){0};
    if (mica_tensor_given(&full) && full.rank == 0) full.rank = 1, full.dims[0] = 1;
    MICA_TRY(check_declared(g, name, MICA_GRAPH_CONSTANT, &full));
    if (full.rank > 0) mica_tensor_default_strides(&full);
    int64_t first, span = mica_tensor_span(&full, &first);
    if (span > 0 && !data) return mica_fail(MICA_INVALID, "%s: data is NULL", name);
    void *copy = graph_values_new(span > 0 ? (size_t)span : 1);
    if (!copy) return mica_fail_memory((size_t)span);
    if (span > 0) memcpy(copy, (const char *)data + first, (size_t)span);
    mica_status status = graph_tensor_named(g, name, &index);
    if (status != MICA_OK) {
        graph_values_release(copy);
        return status;
    }
    graph_tensor *to = &g->tensors[index];
    to->kind = MICA_GRAPH_CONSTANT;
    to->declared = true;
    to->given = full;
    to->data = copy;
    return MICA_OK;
}

mica_status mica_graph_scalar(mica_graph *g, const char *name, double value)
{
    if (!g) return mica_fail(MICA_INVALID, "graph is NULL");
    MICA_TRY(graph_check_name(name));
    if (!isfinite(value)) return mica_fail(MICA_INVALID, "%s: not a finite number", name);
    if (graph_find(g, name)) return mica_fail(MICA_INVALID, "%s is declared twice", name);
    MICA_TRY(room_for_name(g));
    MICA_TRY(graph_room(&g->scalars, g->scalar_count, &g->scalar_room, sizeof *g->scalars));
    char *copy = mica_copy_text(name);
    if (!copy) return mica_fail_memory(strlen(name) + 1);
    int *slot = slot_of(g, name);
    g->scalars[g->scalar_count] = (graph_scalar){copy, value};
    *slot = -++g->scalar_count;
    g->table_used++;
    return MICA_OK;
}

/* ---- nodes ---- */

void graph_node_free(graph_node *n)
{
    mica_release(n->given);
    mica_release(n->resolved);
    mica_release(n->binds);
    mica_release(n->scalars);
    mica_release(n->scalar_of);
    mica_release(n->parts);
    mica_release(n->open);
    *n = (graph_node){0};
}

mica_status graph_node_bind(graph_node *n, int arg, int tensor, int64_t at)
{
    size_t bytes = ((size_t)n->bind_count + 1) * sizeof *n->binds;
    graph_bound *binds = mica_grow(n->binds, bytes);
    if (!binds) return mica_fail_memory(bytes);
    n->binds = binds;
    binds[n->bind_count++] = (graph_bound){arg, tensor, at};
    return MICA_OK;
}

int graph_bind_of(const graph_node *n, int arg)
{
    int i = n->bind_count - 1;
    while (i >= 0 && n->binds[i].arg != arg) i--;
    return i;
}

mica_status graph_node_add(mica_graph *g, graph_node *n)
{
    mica_status status = graph_room(&g->nodes, g->node_count, &g->node_room, sizeof *g->nodes);
    if (status != MICA_OK) {
        graph_node_free(n);
        return status;
    }
    g->nodes[g->node_count++] = *n;
    return MICA_OK;
}

static mica_status bind_scalar(const mica_graph *g, graph_node *n, const mica_graph_bind *b)
{
    int scalar = mica_op_scalar_index(n->op, b->arg);
    int entry = b->name ? graph_find(g, b->name) : 0;
    if (b->name && entry >= 0)
        return mica_fail(MICA_INVALID, "%s: %s=@%.60s: no scalar of that name is declared",
                         n->op->name, b->arg, b->name);
    if (!b->name && !isfinite(b->value))
        return mica_fail(MICA_INVALID, "%s: %s is not a finite number", n->op->name, b->arg);
    n->scalar_of[scalar] = b->name ? -entry - 1 : -1;
    if (!b->name) n->scalars[scalar] = b->value;
    return MICA_OK;
}

static mica_status bind_one(mica_graph *g, graph_node *n, const mica_graph_bind *b)
{
    int tensor;
    if (!b->arg) return mica_fail(MICA_INVALID, "%s: a bind without an argument", n->op->name);
    if (mica_op_scalar_index(n->op, b->arg) >= 0) return bind_scalar(g, n, b);
    int arg = mica_op_arg_index(n->op, b->arg);
    if (arg < 0)
        return mica_fail(MICA_INVALID, "%s has no argument %.60s; `mica list %s` shows them",
                         n->op->name, b->arg, n->op->name);
    if (graph_bind_of(n, arg) >= 0)
        return mica_fail(MICA_INVALID, "%s: %s is bound twice", n->op->name, b->arg);
    if (b->at < 0)
        return mica_fail(MICA_INVALID, "%s: %s begins at element %lld, it may not be negative",
                         n->op->name, b->arg, (long long)b->at);
    MICA_TRY(graph_tensor_named(g, b->name, &tensor));
    return graph_node_bind(n, arg, tensor, b->at);
}

mica_status graph_node_begin(const mica_op *op, graph_node *n)
{
    size_t count = (size_t)op->scalar_count + 1; /* none is no failure */
    *n = (graph_node){.op = op};
    n->scalars = mica_alloc(count * sizeof *n->scalars);
    n->scalar_of = mica_alloc(count * sizeof *n->scalar_of);
    if (!n->scalars || !n->scalar_of) {
        graph_node_free(n);
        return mica_fail_memory(count * sizeof *n->scalars);
    }
    mica_op_default_scalars(op, n->scalars);
    for (int i = 0; i < op->scalar_count; i++) n->scalar_of[i] = -1;
    return MICA_OK;
}

mica_status graph_node_finish(mica_graph *g, graph_node *n, const void *desc,
                              const mica_graph_bind *binds, int count)
{
    const int tensors = g->tensor_count;
    mica_status status = MICA_OK;
    n->given = graph_pack(desc, n->op->desc_size);
    if (!n->given) status = mica_fail_memory(n->op->desc_size);
    for (int i = 0; status == MICA_OK && i < count; i++) status = bind_one(g, n, &binds[i]);
    if (status == MICA_OK) {
        status = graph_node_add(g, n);
    } else {
        graph_node_free(n);
    }
    if (status != MICA_OK) graph_truncate(g, tensors, g->node_count, g->scalar_count);
    return status;
}

mica_status mica_graph_node(mica_graph *g, const char *name, const void *desc, size_t desc_size,
                            const mica_graph_bind *binds, int count)
{
    _Alignas(16) char copy[MICA_MAX_DESC] = {0};
    graph_node n;
    mica_why why = {""};
    if (!g || !name || !desc || count < 0 || (count && !binds))
        return mica_fail(MICA_INVALID, "graph, op, desc or binds is NULL");
    const mica_op *op = mica_op_find(name);
    if (!op) return mica_fail(MICA_INVALID, "\"%.60s\" is no operation", name);
    if (mica_fields_copy(op->fields, op->field_count, desc, desc_size, copy, &why) != MICA_OK)
        return mica_fail(MICA_INVALID, "node %d (%s): %s", g->node_count, name, why.text);
    MICA_TRY(graph_node_begin(op, &n));
    return graph_node_finish(g, &n, copy, binds, count);
}

const char *graph_node_name(const mica_graph *g, int node, char *buffer, size_t size)
{
    const graph_node *n = &g->nodes[node];
    if (n->line)
        mica_format(buffer, size, "node %d (%s, line %d)", node, n->op->name, n->line);
    else
        mica_format(buffer, size, "node %d (%s)", node, n->op->name);
    return buffer;
}

mica_status graph_fail(const mica_graph *g, int node, mica_status status, const char *format, ...)
{
    char text[3584], name[96];
    va_list list;
    va_start(list, format);
    mica_format_list(text, sizeof text, format, list);
    va_end(list);
    return mica_fail(status, "%s: %s", graph_node_name(g, node, name, sizeof name), text);
}

/* ---- whole graphs ---- */

mica_status mica_graph_create(mica_graph **graph)
{
    if (!graph) return mica_fail(MICA_INVALID, "graph is NULL");
    *graph = mica_alloc(sizeof **graph);
    return *graph ? MICA_OK : mica_fail_memory(sizeof **graph);
}

void graph_truncate(mica_graph *g, int tensors, int nodes, int scalars)
{
    if (g->tensor_count == tensors && g->node_count == nodes && g->scalar_count == scalars) return;
    while (g->node_count > nodes) graph_node_free(&g->nodes[--g->node_count]);
    while (g->tensor_count > tensors) {
        graph_tensor *t = &g->tensors[--g->tensor_count];
        mica_release(t->name);
        mica_release(t->open);
        graph_values_release(t->data);
    }
    while (g->scalar_count > scalars) mica_release(g->scalars[--g->scalar_count].name);
    if (!g->table_size) return;
    memset(g->table, 0, (size_t)g->table_size * sizeof *g->table);
    g->table_used = g->tensor_count + g->scalar_count;
    for (int i = 0; i < g->tensor_count; i++) *slot_of(g, g->tensors[i].name) = i + 1;
    for (int i = 0; i < g->scalar_count; i++) *slot_of(g, g->scalars[i].name) = -i - 1;
}

void mica_graph_destroy(mica_graph *g)
{
    if (!g) return;
    graph_truncate(g, 0, 0, 0);
    graph_extents_truncate(g, 0);
    mica_release(g->extents);
    mica_release(g->tensors);
    mica_release(g->nodes);
    mica_release(g->scalars);
    mica_release(g->table);
    mica_release(g->order);
    mica_release(g);
}

static mica_status copy_node(const graph_node *from, graph_node *to)
{
    const size_t size = from->op->desc_size;
    MICA_TRY(graph_node_begin(from->op, to));
    to->line = from->line;
    memcpy(to->scalars, from->scalars, (size_t)from->op->scalar_count * sizeof *to->scalars);
    memcpy(to->scalar_of, from->scalar_of, (size_t)from->op->scalar_count * sizeof *to->scalar_of);
    to->given = graph_packed_copy(from->given);
    if (!to->given) return mica_fail_memory(size);
    if (from->open && !(to->open = mica_copy_text(from->open)))
        return mica_fail_memory(strlen(from->open));
    if (!from->bind_count) return MICA_OK;
    const size_t bytes = (size_t)from->bind_count * sizeof *to->binds;
    to->binds = mica_alloc(bytes);
    if (!to->binds) return mica_fail_memory(bytes);
    memcpy(to->binds, from->binds, bytes);
    to->bind_count = from->bind_count;
    return MICA_OK;
}

static mica_status copy_tensor(mica_graph *to, const graph_tensor *t)
{
    int index;
    MICA_TRY(add_tensor(to, t->name, &index));
    graph_tensor *copy = &to->tensors[index];
    copy->kind = t->kind;
    copy->declared = t->declared;
    copy->given = t->given;
    copy->data = t->data;
    if (t->data) atomic_fetch_add(&counted_of(t->data)->references, 1);
    if (t->open && !(copy->open = mica_copy_text(t->open)))
        return mica_fail_memory(strlen(t->open));
    return MICA_OK;
}

/* A tensor with numbers in place of names. */
static mica_status fix_tensor(const mica_graph *g, const int64_t *values, mica_graph *to,
                              const graph_tensor *t)
{
    char *filled;
    size_t at;
    mica_tensor given;
    MICA_TRY(graph_fill_line(g, values, t->open, &filled, NULL, &at));
    mica_status status = mica_tensor_from_text(filled, &given);
    mica_release(filled);
    if (status == MICA_OK) status = mica_graph_tensor(to, t->name, t->kind, &given);
    return status;
}

static mica_status fix_node(const mica_graph *g, const int64_t *values, mica_graph *to,
                            const graph_node *n)
{
    char *filled;
    size_t at;
    MICA_TRY(graph_fill_line(g, values, n->open, &filled, NULL, &at));
    mica_status status = graph_read_filled(to, filled, n->line);
    mica_release(filled);
    /* results without a name, which inference has bound */
    for (int i = 0; status == MICA_OK && i < n->bind_count; i++)
        if (*g->tensors[n->binds[i].tensor].name == '.')
            status = graph_node_bind(&to->nodes[to->node_count - 1], n->binds[i].arg,
                                     n->binds[i].tensor, n->binds[i].at);
    return status;
}

static mica_status copy_whole_node(const graph_node *from, mica_graph *to)
{
    graph_node n;
    const mica_status status = copy_node(from, &n);
    if (status == MICA_OK) return graph_node_add(to, &n);
    graph_node_free(&n);
    return status;
}

/* Tensors and nodes keep their numbers. values NULL: names stay. */
static mica_status copy_parts(const mica_graph *g, const int64_t *values, mica_graph *copy)
{
    for (int i = 0; i < g->extent_count && !values; i++) {
        const graph_extent *e = &g->extents[i];
        MICA_TRY(mica_graph_extent(copy, e->name, e->low, e->high, e->buckets, e->bucket_count));
    }
    for (int i = 0; i < g->tensor_count; i++)
        MICA_TRY(values && g->tensors[i].open ? fix_tensor(g, values, copy, &g->tensors[i])
                                              : copy_tensor(copy, &g->tensors[i]));
    for (int i = 0; i < g->scalar_count; i++)
        MICA_TRY(mica_graph_scalar(copy, g->scalars[i].name, g->scalars[i].value));
    for (int i = 0; i < g->node_count; i++)
        MICA_TRY(values && g->nodes[i].open ? fix_node(g, values, copy, &g->nodes[i])
                                            : copy_whole_node(&g->nodes[i], copy));
    return MICA_OK;
}

static mica_status copy_of(const mica_graph *g, const int64_t *values, mica_graph **copy)
{
    MICA_TRY(mica_graph_create(copy));
    const mica_status status = copy_parts(g, values, *copy);
    if (status == MICA_OK) return MICA_OK;
    mica_graph_destroy(*copy);
    *copy = NULL;
    return status;
}

mica_graph *graph_clone(const mica_graph *g)
{
    mica_graph *copy;
    copy_of(g, NULL, &copy);
    return copy;
}

mica_status graph_at_extents(const mica_graph *g, const int64_t *values, mica_graph **fixed)
{
    return copy_of(g, values, fixed);
}

/* ---- what others see ---- */

mica_status mica_graph_tensor_at(const mica_graph *g, int index, mica_graph_tensor_info *info)
{
    if (!g || !info) return mica_fail(MICA_INVALID, "graph or info is NULL");
    if (index < 0 || index >= g->tensor_count)
        return mica_fail(MICA_INVALID, "tensor %d: the graph has %d", index, g->tensor_count);
    const graph_tensor *t = &g->tensors[index];
    *info = (mica_graph_tensor_info){t->name, t->kind, mica_tensor_given(&t->t) ? t->t : t->given};
    return MICA_OK;
}

mica_status mica_graph_problem(const mica_graph *g, int index, mica_problem **problem)
{
    if (!g || !problem) return mica_fail(MICA_INVALID, "graph or problem is NULL");
    *problem = NULL;
    if (index < 0 || index >= g->node_count || !g->nodes[index].resolved)
        return mica_fail(MICA_INVALID, "node %d: the graph has %d, and infer comes first", index,
                         g->node_count);
    const graph_node *n = &g->nodes[index];
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_unpack(n->resolved, desc, n->op->desc_size);
    MICA_TRY(mica_problem_create(n->op->name, desc, n->op->desc_size, problem));
    for (int i = 0; i < n->op->scalar_count; i++)
        (*problem)->scalars[i] =
            n->scalar_of[i] < 0 ? n->scalars[i] : g->scalars[n->scalar_of[i]].value;
    return MICA_OK;
}

int mica_graph_bound(const mica_graph *g, int node, int arg, int64_t *at)
{
    if (!g || node < 0 || node >= g->node_count) return -1;
    int i = graph_bind_of(&g->nodes[node], arg);
    if (i < 0) return -1;
    if (at) *at = g->nodes[node].binds[i].at;
    return g->nodes[node].binds[i].tensor;
}

const void *mica_graph_data(const mica_graph *g, int tensor)
{
    int64_t first;
    if (!g || tensor < 0 || tensor >= g->tensor_count || !g->tensors[tensor].data) return NULL;
    mica_tensor_span(&g->tensors[tensor].given, &first);
    return (const char *)g->tensors[tensor].data - first;
}
