/* SPDX-License-Identifier: Apache-2.0
 * Trying rewrites, and what all of them share. */
#include "graph/rewrite.h"
#include "base/format.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define X(name) extern const graph_rewrite graph_rewrite_##name;
#include "graph/rewrites.def"
#undef X

const graph_rewrite *const graph_rewrites[] = {
#define X(name) &graph_rewrite_##name,
#include "graph/rewrites.def"
#undef X
};
const int graph_rewrite_count = (int)(sizeof graph_rewrites / sizeof *graph_rewrites);

const char *mica_graph_rewrite(int index, const char **doc)
{
    if (index < 0 || index >= graph_rewrite_count) return NULL;
    if (doc) *doc = graph_rewrites[index]->doc;
    return graph_rewrites[index]->name;
}

/* ---- who makes what ---- */

int graph_writer_of_bind(const graph_rewriting *r, int node, int bind)
{
    return bind < 0 ? -1 : r->g->tensors[r->g->nodes[node].binds[bind].tensor].writer;
}

int graph_writer(const graph_rewriting *r, int node, int arg)
{
    return graph_writer_of_bind(r, node, graph_bind_of(&r->g->nodes[node], arg));
}

void graph_desc(const graph_rewriting *r, int node, void *desc)
{
    const graph_node *n = &r->g->nodes[node];
    graph_unpack(n->resolved, desc, n->op->desc_size);
}

/* A node behind `from`, up to the one that is looked at, that changes a tensor; -1: none. */
static int changer(const graph_rewriting *r, int from, int tensor)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    for (int i = r->position[from] + 1; i <= r->position[r->at]; i++) {
        const int node = r->g->order[i];
        const graph_node *n = &r->g->nodes[node];
        graph_desc(r, node, desc);
        for (int b = 0; b < n->bind_count && !n->gone; b++)
            if (n->binds[b].tensor == tensor && graph_access(n, desc, b) != MICA_IN) return node;
    }
    return -1;
}

mica_status graph_may_move(const graph_rewriting *r, int from, int tensor, mica_why *why)
{
    const graph_node *n = &r->g->nodes[from];
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_desc(r, from, desc);
    for (int i = 0; i < n->bind_count; i++) {
        const graph_tensor *t = &r->g->tensors[n->binds[i].tensor];
        const mica_dir dir = graph_access(n, desc, i);
        if (dir == MICA_INOUT)
            return mica_refuse(why, "node %d changes %s in place", from, t->name);
        const int by = dir == MICA_IN && t->changed ? changer(r, from, n->binds[i].tensor) : -1;
        if (by >= 0)
            return mica_refuse(why, "%s, which node %d reads, is changed in place by node %d",
                               t->name, from, by);
        if (dir == MICA_OUT && n->binds[i].tensor != tensor && *t->name != '.')
            return mica_refuse(why, "node %d has another result, %s", from, t->name);
    }
    return MICA_OK;
}

mica_status graph_may_absorb(const graph_rewriting *r, int from, int node, int bind, mica_why *why)
{
    const graph_bound *b = &r->g->nodes[node].binds[bind];
    const graph_tensor *t = &r->g->tensors[b->tensor];
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_desc(r, node, desc);
    if (t->kind != MICA_GRAPH_VIRTUAL)
        return mica_refuse(why, "%s, which node %d makes, is an output of the graph", t->name,
                           from);
    if (t->reads != 1)
        return mica_refuse(why, "%s is read %d times, it is left out only where one node reads it",
                           t->name, t->reads);
    if (t->changed) return mica_refuse(why, "%s is changed in place", t->name);
    const mica_tensor *read = mica_op_tensor(r->g->nodes[node].op, desc, b->arg);
    if (b->at || !mica_tensor_equal(read, &t->t))
        return mica_refuse(why, "%s is read through a view", t->name);
    return graph_may_move(r, from, b->tensor, why);
}

/* ---- merging ---- */

mica_status graph_node_like(const graph_node *n, graph_node *fresh)
{
    MICA_TRY(graph_node_begin(n->op, fresh));
    memcpy(fresh->scalars, n->scalars, (size_t)n->op->scalar_count * sizeof *n->scalars);
    memcpy(fresh->scalar_of, n->scalar_of, (size_t)n->op->scalar_count * sizeof *n->scalar_of);
    mica_status status = MICA_OK;
    for (int i = 0; status == MICA_OK && i < n->bind_count; i++)
        status = graph_node_bind(fresh, n->binds[i].arg, n->binds[i].tensor, n->binds[i].at);
    if (status != MICA_OK) graph_node_free(fresh);
    return status;
}

static double predict(const graph_rewriting *r, const graph_node *n)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_unpack(n->resolved, desc, n->op->desc_size);
    return mica_op_predict(n->op, desc, &r->device, r->device.cuda);
}

/* Counts (or, with -1, forgets) what a node reads and writes. */
static void note(graph_rewriting *r, const graph_node *n, int number, int sign)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    graph_unpack(n->resolved, desc, n->op->desc_size);
    for (int i = 0; i < n->bind_count; i++) {
        graph_tensor *t = &r->g->tensors[n->binds[i].tensor];
        const mica_dir dir = graph_access(n, desc, i);
        if (dir == MICA_OUT) {
            if (sign > 0)
                t->writer = number;
            else if (t->writer == number)
                t->writer = -1;
            continue;
        }
        t->reads += sign;
        t->readers ^= number;
    }
}

/* "0 1 2": the nodes that one stands for. */
static mica_status add_parts(const mica_graph *g, int node, char **parts)
{
    char number[16];
    const char *own = g->nodes[node].parts, *before = *parts ? *parts : "";
    mica_format(number, sizeof number, "%d", node);
    if (!own) own = number;
    const size_t size = strlen(before) + strlen(own) + 2;
    char *text = mica_alloc(size);
    if (!text) return mica_fail_memory(size);
    mica_format(text, size, "%s%s%s", before, *before ? " " : "", own);
    mica_release(*parts);
    *parts = text;
    return MICA_OK;
}

static int by_number(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* Its nodes in order of appearance. */
static mica_status sort_parts(char *parts)
{
    int count = 1, i = 0;
    for (const char *s = parts; *s; s++) count += *s == ' ';
    int *numbers = mica_alloc((size_t)count * sizeof *numbers);
    if (!numbers) return mica_fail_memory((size_t)count * sizeof *numbers);
    for (char *s = parts; i < count; s++) numbers[i++] = (int)strtol(s, &s, 10);
    qsort(numbers, (size_t)count, sizeof *numbers, by_number);
    mica_text text = {parts, strlen(parts) + 1, 0};
    for (i = 0; i < count; i++) mica_text_add(&text, "%s%d", i ? " " : "", numbers[i]);
    mica_release(numbers);
    return MICA_OK;
}

/* What a launch less is worth beside what the model says of the launches themselves. */
static const double launch_ms = 1e-3;

static mica_status check_fresh(const graph_rewriting *r, const int *from, int count, int node,
                               graph_node *fresh, void *desc, mica_why *why)
{
    _Alignas(16) char resolved[MICA_MAX_DESC] = {0};
    const mica_op *op = fresh->op;
    if (mica_op_resolve(op, desc, op->desc_size, resolved, why) != MICA_OK) return MICA_UNSUPPORTED;
    fresh->resolved = graph_pack(resolved, op->desc_size);
    if (!fresh->resolved) return mica_fail_memory(op->desc_size);
    if (r->again) return MICA_OK;
    const double together = predict(r, fresh);
    double apart = predict(r, &r->g->nodes[node]) + count * launch_ms;
    for (int i = 0; i < count; i++) apart += predict(r, &r->g->nodes[from[i]]);
    if (together <= 0) return mica_refuse(why, "no engine here takes %s with all of it", op->name);
    if (together > apart)
        return mica_refuse(why, "%.4g ms are expected of all in one, %.4g ms of one by one",
                           together, apart);
    return MICA_OK;
}

mica_status graph_merge(graph_rewriting *r, const int *from, int count, int node, graph_node *fresh,
                        void *desc, mica_why *why)
{
    mica_graph *g = r->g;
    mica_status status = check_fresh(r, from, count, node, fresh, desc, why);
    if (status == MICA_OK) {
        fresh->given = graph_packed_copy(fresh->resolved);
        if (!fresh->given) status = mica_fail_memory(fresh->op->desc_size);
    }
    for (int i = 0; status == MICA_OK && i <= count; i++)
        status = add_parts(g, i < count ? from[i] : node, &fresh->parts);
    if (status == MICA_OK) status = sort_parts(fresh->parts);
    if (status != MICA_OK) {
        graph_node_free(fresh);
        return status;
    }
    fresh->line = g->nodes[node].line;
    for (int i = 0; i < count; i++) {
        note(r, &g->nodes[from[i]], from[i], -1);
        g->nodes[from[i]].gone = true;
    }
    note(r, &g->nodes[node], node, -1);
    note(r, fresh, node, 1);
    graph_node_free(&g->nodes[node]);
    g->nodes[node] = *fresh;
    return MICA_OK;
}

/* ---- trying ---- */

static bool listed(const char *list, const char *name)
{
    for (const char *s = list; s && *s;) {
        size_t n = strcspn(s, ",");
        if (strlen(name) == n && !strncmp(s, name, n)) return true;
        s += n + (s[n] == ',');
    }
    return false;
}

static mica_status note_attempt(graph_rewriting *r, const char *name, int node, const char *reason)
{
    MICA_TRY(graph_room(&r->attempts, r->attempt_count, &r->attempt_room, sizeof *r->attempts));
    char *copy = reason ? mica_copy_text(reason) : NULL;
    if (reason && !copy) return mica_fail_memory(strlen(reason));
    r->attempts[r->attempt_count++] = (graph_attempt){name, node, copy};
    return MICA_OK;
}

/* Whether one was taken: the node is another one then. */
static mica_status try_node(graph_rewriting *r, int node, bool *again)
{
    *again = false;
    r->at = node;
    for (int i = 0; i < graph_rewrite_count; i++) {
        const graph_rewrite *row = graph_rewrites[i];
        mica_why why = {""};
        if (listed(r->without, row->name)) continue;
        mica_status status = row->apply(r, node, &why);
        if (status == MICA_NOT_FOUND) continue;
        if (status != MICA_OK && status != MICA_UNSUPPORTED) return status;
        MICA_TRY(note_attempt(r, row->name, node, status == MICA_OK ? NULL : why.text));
        *again = status == MICA_OK;
        if (*again) return MICA_OK;
    }
    return MICA_OK;
}

/* Reasons of a node that became another one later: what counts is the last look. */
static void forget_reasons(graph_rewriting *r, int begin, int node)
{
    int kept = begin;
    for (int i = begin; i < r->attempt_count; i++) {
        if (r->attempts[i].node == node && r->attempts[i].reason) {
            mica_release(r->attempts[i].reason);
            continue;
        }
        r->attempts[kept++] = r->attempts[i];
    }
    r->attempt_count = kept;
}

static mica_status known(const char *list)
{
    for (const char *s = list; s && *s;) {
        size_t n = strcspn(s, ",");
        bool found = false;
        for (int i = 0; i < graph_rewrite_count; i++)
            found |=
                strlen(graph_rewrites[i]->name) == n && !strncmp(s, graph_rewrites[i]->name, n);
        if (!found) {
            char names[400] = "";
            mica_text text = {names, sizeof names, 0};
            for (int i = 0; i < graph_rewrite_count; i++)
                mica_text_add(&text, "%s%s", i ? ", " : "", graph_rewrites[i]->name);
            return mica_fail(MICA_INVALID, "without=%.*s: known rewrites are %s",
                             n < 60 ? (int)n : 60, s, names);
        }
        s += n + (s[n] == ',');
    }
    return MICA_OK;
}

static mica_status find_positions(graph_rewriting *r)
{
    const size_t bytes = ((size_t)r->g->node_count + 1) * sizeof *r->position;
    r->position = mica_alloc(bytes);
    if (!r->position) return mica_fail_memory(bytes);
    for (int i = 0; i < r->g->node_count; i++) r->position[r->g->order[i]] = i;
    return MICA_OK;
}

static mica_status try_all(graph_rewriting *r)
{
    mica_graph *g = r->g;
    for (int i = 0; i < g->node_count; i++) {
        const int node = g->order[i], begin = r->attempt_count;
        bool again = !g->nodes[node].gone;
        while (again) {
            forget_reasons(r, begin, node);
            MICA_TRY(try_node(r, node, &again));
        }
    }
    return MICA_OK;
}

mica_status graph_rewrite_all(graph_rewriting *r)
{
    MICA_TRY(known(r->without));
    mica_status status = find_positions(r);
    if (status == MICA_OK) status = try_all(r);
    mica_release(r->position);
    r->position = NULL;
    return status;
}

static const graph_rewrite *rewrite_named(const char *name)
{
    for (int i = 0; i < graph_rewrite_count; i++)
        if (!strcmp(graph_rewrites[i]->name, name)) return graph_rewrites[i];
    return NULL;
}

static mica_status take_again(graph_rewriting *r, const graph_attempt *attempts, int count)
{
    for (int i = 0; i < count; i++) {
        mica_why why = {""};
        if (attempts[i].reason) continue;
        const int node = attempts[i].node;
        const graph_rewrite *row = rewrite_named(attempts[i].rewrite);
        if (!row || node < 0 || node >= r->g->node_count || r->g->nodes[node].gone)
            return MICA_NOT_FOUND;
        r->at = node;
        const mica_status status = row->apply(r, node, &why);
        if (status == MICA_UNSUPPORTED) return MICA_NOT_FOUND;
        MICA_TRY(status);
        MICA_TRY(note_attempt(r, row->name, node, NULL));
    }
    return MICA_OK;
}

mica_status graph_rewrite_again(graph_rewriting *r, const graph_attempt *attempts, int count)
{
    r->again = true;
    mica_status status = find_positions(r);
    if (status == MICA_OK) status = take_again(r, attempts, count);
    mica_release(r->position);
    r->position = NULL;
    return status;
}
