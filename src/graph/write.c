/* SPDX-License-Identifier: Apache-2.0
 * The text form of graphs, written. */
#include "graph/graph.h"
#include "base/text.h"

static void tensor_text(const mica_tensor *t, mica_text *text)
{
    char buffer[256];
    mica_tensor_text(t, buffer, sizeof buffer);
    mica_text_add(text, "%s", buffer);
}

static void values_text(const mica_graph *g, int tensor, mica_text *text)
{
    const mica_tensor *t = &g->tensors[tensor].given;
    const mica_load_fn load = mica_dtype_load(t->dtype);
    const void *data = mica_graph_data(g, tensor);
    int64_t count = mica_tensor_count(t), same = 1;
    if (!load || count == 0) return;
    double first = load(data, 0);
    while (same < count && load(data, mica_offset(t, same)) == first) same++;
    for (int64_t i = 0; i < (same == count ? 1 : count); i++)
        mica_text_add(text, " %.17g", load(data, mica_offset(t, i)));
}

static void declaration_text(const mica_graph *g, int tensor, mica_text *text)
{
    const graph_tensor *t = &g->tensors[tensor];
    mica_text_add(text, "%s %s", graph_words[t->kind], t->name);
    if (t->open) {
        mica_text_add(text, " = %s", t->open);
    } else if (mica_tensor_given(&t->given)) {
        mica_text_add(text, " = ");
        tensor_text(&t->given, text);
    }
    if (t->kind == MICA_GRAPH_CONSTANT) values_text(g, tensor, text);
    mica_text_add(text, "\n");
}

static void bind_text(const mica_graph *g, const graph_node *n, const graph_bound *b,
                      const void *desc, mica_text *text)
{
    const mica_tensor *t = mica_op_tensor(n->op, desc, b->arg);
    const char *name = g->tensors[b->tensor].name;
    if (*name == '.') return; /* nobody's */
    mica_text_add(text, " %s=", n->op->args[b->arg].name);
    if (mica_tensor_given(t)) tensor_text(t, text);
    mica_text_add(text, "@%s", name);
    if (b->at) mica_text_add(text, "+%lld", (long long)b->at);
}

static void node_text(const mica_graph *g, const graph_node *n, mica_text *text)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    if (n->open) {
        mica_text_add(text, "%s\n", n->open);
        return;
    }
    graph_unpack(n->given, desc, n->op->desc_size);
    mica_text_add(text, "%s", n->op->name);
    for (int i = 0; i < n->op->field_count; i++) {
        const mica_field *f = &n->op->fields[i];
        bool bound = false;
        for (int k = 0; k < n->bind_count; k++)
            bound |= n->op->args[n->binds[k].arg].tensor == f->offset;
        if (!bound) mica_field_text(f, desc, text);
    }
    for (int i = 0; i < n->bind_count; i++) bind_text(g, n, &n->binds[i], desc, text);
    for (int i = 0; i < n->op->scalar_count; i++) {
        const mica_scalar *s = &n->op->scalars[i];
        if (n->scalar_of[i] >= 0)
            mica_text_add(text, " %s=@%s", s->name, g->scalars[n->scalar_of[i]].name);
        else if (n->scalars[i] != s->def)
            mica_text_add(text, " %s=%.17g", s->name, n->scalars[i]);
    }
    mica_text_add(text, "\n");
}

static void extent_text(const graph_extent *e, mica_text *text)
{
    mica_text_add(text, "extent %s = %lld..%lld", e->name, (long long)e->low, (long long)e->high);
    for (int i = 0; i < e->bucket_count; i++)
        mica_text_add(text, "%s%lld", i ? "," : " buckets=", (long long)e->buckets[i]);
    mica_text_add(text, "\n");
}

static void declarations_text(const mica_graph *g, bool lowered, mica_text *text)
{
    for (int i = 0; i < g->extent_count; i++) extent_text(&g->extents[i], text);
    for (int i = 0; i < g->tensor_count; i++) {
        const graph_tensor *t = &g->tensors[i];
        const bool gone = t->kind == MICA_GRAPH_VIRTUAL && t->writer < 0 && !t->reads;
        if (t->declared && !(lowered && gone)) declaration_text(g, i, text);
    }
    for (int i = 0; i < g->scalar_count; i++)
        mica_text_add(text, "scalar %s = %.17g\n", g->scalars[i].name, g->scalars[i].value);
}

int mica_graph_text(const mica_graph *g, char *buffer, size_t size)
{
    mica_text text = {buffer, size, 0};
    if (size) *buffer = 0;
    if (g) graph_text_whole(g, &text);
    return (int)text.length;
}

void graph_text_whole(const mica_graph *g, mica_text *text)
{
    declarations_text(g, false, text);
    for (int i = 0; i < g->node_count; i++) node_text(g, &g->nodes[i], text);
}

void graph_text_lowered(const mica_graph *g, mica_text *text)
{
    declarations_text(g, true, text);
    for (int i = 0; i < g->node_count; i++)
        if (!g->nodes[g->order[i]].gone) node_text(g, &g->nodes[g->order[i]], text);
}
