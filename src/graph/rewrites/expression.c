/* SPDX-License-Identifier: Apache-2.0
 * Expressions of nodes. */
#include "graph/rewrites/expression.h"
#include "base/format.h"
#include "mica/pointwise.h"
#include "ops/pointwise/expression.h"

#include <ctype.h>
#include <string.h>

bool source_of_pointwise(const graph_rewriting *r, int node, void *desc, source *s)
{
    if (node < 0 || strcmp(r->g->nodes[node].op->name, "pointwise") != 0) return false;
    graph_desc(r, node, desc);
    const mica_pointwise_desc *d = desc;
    if (d->pass != MICA_POINTWISE_FWD) return false;
    *s = (source){.r = r, .node = &r->g->nodes[node], .desc = desc, .text = d->expr};
    for (int k = 0; k < EXPRESSION_X; k++) s->arg[k] = MICA_POINTWISE_X0 + k;
    return true;
}

/* The type that the expression has by itself, as the operation infers it. */
static mica_status natural_type(const mica_pointwise_desc *d, mica_dtype *type, mica_why *why)
{
    mica_expr e = {.rank = MICA_EXPR_INDICES, .extent = INT32_MAX};
    bool f64 = false;
    for (int k = 0; k < MICA_EXPR_INPUTS; k++) {
        e.inputs[k] = k < MICA_EXPR_X       ? (&d->x0)[k].dtype
                      : k < MICA_EXPR_INDEX ? MICA_F64
                                            : MICA_S64;
        f64 |= k < MICA_EXPR_X && e.inputs[k] == MICA_F64;
    }
    if (mica_expr_parse(&e, d->expr, why) != MICA_OK) return MICA_UNSUPPORTED;
    *type = e.nodes[e.results[0]].type;
    if (*type == MICA_EXPR_WHOLE) *type = MICA_S32;
    if (*type == MICA_F64 && !f64) *type = MICA_F32;
    return MICA_OK;
}

mica_status source_result(const source *s, const mica_tensor **y, const char **cast, mica_why *why)
{
    const mica_pointwise_desc *d = s->desc;
    mica_dtype natural;
    *y = &d->y0;
    *cast = "";
    if (strchr(d->expr, ';')) return mica_refuse(why, "its expression has several results");
    MICA_TRY(natural_type(d, &natural, why));
    if (natural == d->y0.dtype) return MICA_OK;
    const bool real = mica_dtype_is_common(d->y0.dtype) && d->y0.dtype != MICA_F64;
    if (real && mica_dtype_is_common(natural)) return MICA_OK;
    if (real) {
        *cast = mica_dtype_name(d->y0.dtype);
        return MICA_OK;
    }
    return mica_refuse(why, "its result is %s, stored as %s: that rounds, and has to stay",
                       mica_dtype_name(natural), mica_dtype_name(d->y0.dtype));
}

mica_status expression_operand(expression *e, const source *s, int k, int *index, mica_why *why)
{
    const int bind = graph_bind_of(s->node, s->arg[k]);
    if (bind < 0) return mica_refuse(why, "x%d is bound to nothing", k);
    const graph_bound *b = &s->node->binds[bind];
    const mica_tensor *t = mica_op_tensor(s->node->op, s->desc, s->arg[k]);
    for (*index = 0; *index < e->x_count; ++*index) {
        const graph_bound *x = &e->x[*index];
        if (x->tensor == b->tensor && x->at == b->at && mica_tensor_equal(t, &e->dims[*index]))
            return MICA_OK;
    }
    if (e->x_count == EXPRESSION_X)
        return mica_refuse(why, "together they have more than %d operands", EXPRESSION_X);
    e->x[e->x_count] = *b;
    e->dims[e->x_count++] = *t;
    return MICA_OK;
}

static mica_status append(expression *e, const char *text, size_t length, mica_why *why)
{
    size_t used = strlen(e->text);
    if (used + length >= sizeof e->text)
        return mica_refuse(why, "the expression would have more than %d characters",
                           EXPRESSION_TEXT - 1);
    memcpy(e->text + used, text, length);
    e->text[used + length] = 0;
    return MICA_OK;
}

/* A value is written down, a run-time scalar keeps a name. */
static mica_status append_scalar(expression *e, const source *s, int k, mica_why *why)
{
    char text[48];
    const int scalar = s->node->scalar_of[k];
    if (scalar < 0) {
        const double v = s->node->scalars[k];
        int n = mica_format(text, sizeof text, v < 0 ? "(%.17g" : "%.17g", v);
        if (!strpbrk(text, ".e")) n += mica_format(text + n, sizeof text - (size_t)n, ".0");
        if (v < 0) n += mica_format(text + n, sizeof text - (size_t)n, ")");
        return append(e, text, (size_t)n, why);
    }
    int i = 0;
    while (i < e->s_count && e->scalar_of[i] != scalar) i++;
    if (i == EXPRESSION_S)
        return mica_refuse(why, "together they have more than %d run-time scalars", EXPRESSION_S);
    if (i == e->s_count) e->scalar_of[e->s_count++] = scalar;
    int n = mica_format(text, sizeof text, "s%d", i);
    return append(e, text, (size_t)n, why);
}

static mica_status append_operand(expression *e, const source *s, int k, mica_why *why)
{
    char text[8];
    int index;
    MICA_TRY(expression_operand(e, s, k, &index, why));
    int n = mica_format(text, sizeof text, "x%d", index);
    return append(e, text, (size_t)n, why);
}

static mica_status append_source(expression *e, const source *s, int hole, const source *inner,
                                 const char *cast, mica_why *why);

static mica_status append_word(expression *e, const source *s, const char *word, size_t length,
                               int hole, const source *inner, const char *cast, mica_why *why)
{
    const int digit = length == 2 && isdigit((unsigned char)word[1]) ? word[1] - '0' : -1;
    if (digit >= 0 && *word == 'x' && digit == hole) {
        MICA_TRY(append(e, cast, strlen(cast), why));
        MICA_TRY(append(e, "(", 1, why));
        MICA_TRY(append_source(e, inner, -1, NULL, "", why));
        return append(e, ")", 1, why);
    }
    if (digit >= 0 && *word == 'x') return append_operand(e, s, digit, why);
    if (digit >= 0 && *word == 's' && digit < EXPRESSION_S) return append_scalar(e, s, digit, why);
    e->places |= digit >= 0 && *word == 'i';
    return append(e, word, length, why);
}

/* Numbers, names and what is between them. */
static size_t token_length(const char *s)
{
    size_t n = 1;
    const bool number = isdigit((unsigned char)*s) || *s == '.';
    if (!number && !isalpha((unsigned char)*s) && *s != '_') return 1;
    while (isalnum((unsigned char)s[n]) || s[n] == '_' || (number && s[n] == '.') ||
           (number && (s[n] == '+' || s[n] == '-') && (s[n - 1] == 'e' || s[n - 1] == 'E')))
        n++;
    return n;
}

static mica_status append_source(expression *e, const source *s, int hole, const source *inner,
                                 const char *cast, mica_why *why)
{
    for (const char *p = s->text; *p;) {
        const size_t n = token_length(p);
        MICA_TRY(append_word(e, s, p, n, hole, inner, cast, why));
        p += n;
    }
    return MICA_OK;
}

mica_status expression_join(expression *e, const source *outer, int hole, const source *inner,
                            const char *cast, mica_why *why)
{
    return append_source(e, outer, hole, inner, cast, why);
}

mica_status expression_bind(const expression *e, const source *outer, graph_node *fresh, void *desc)
{
    for (int i = 0; i < EXPRESSION_X; i++) {
        const size_t at = outer->node->op->args[outer->arg[i]].tensor;
        *(mica_tensor *)(void *)((char *)desc + at) =
            i < e->x_count ? e->dims[i] : (mica_tensor){0};
        if (i < e->x_count)
            MICA_TRY(graph_node_bind(fresh, outer->arg[i], e->x[i].tensor, e->x[i].at));
    }
    return MICA_OK;
}

mica_status expression_try(graph_rewriting *r, int node, const source *outer,
                           expression_joining join, mica_why *why)
{
    _Alignas(16) char desc[MICA_MAX_DESC];
    mica_status found = MICA_NOT_FOUND;
    source inner;
    for (int k = 0; k < EXPRESSION_X; k++) {
        const int bind = graph_bind_of(outer->node, outer->arg[k]);
        const int from = graph_writer_of_bind(r, node, bind);
        if (!source_of_pointwise(r, from, desc, &inner)) continue;
        mica_status status = graph_may_absorb(r, from, node, bind, why);
        if (status == MICA_OK) status = join(r, from, node, k, outer, &inner, why);
        if (status != MICA_UNSUPPORTED) return status;
        found = status;
    }
    return found;
}
