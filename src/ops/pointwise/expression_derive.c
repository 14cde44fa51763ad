/* SPDX-License-Identifier: Apache-2.0
 * Gradients of expressions, by the derivatives of the table, from the results back. */
#include "ops/pointwise/expression_build.h"
#include "base/format.h"

#include <string.h>

typedef struct backward {
    mica_expr_reader reader;
    int gradient[MICA_EXPR_NODES]; /* of a node: a node; -1: none yet */
    bool needed[MICA_EXPR_NODES];  /* a wanted input lies behind it */
} backward;

static int add(backward *b, int sum, int term)
{
    if (sum < 0 || term < 0) return term;
    const int args[MICA_FUNCTION_ARGS] = {sum, term, -1};
    return mica_expr_call(&b->reader, MICA_FN_add, args);
}

/* An integer as a real: derivatives are formulas of reals. */
static int as_real(backward *b, int node)
{
    if (b->reader.e->nodes[node].type == MICA_F64) return node;
    const int one = mica_expr_number(&b->reader, 1, MICA_F64);
    if (one < 0) return -1;
    const int args[MICA_FUNCTION_ARGS] = {node, one, -1};
    return mica_expr_call(&b->reader, MICA_FN_mul, args);
}

/* What argument i of a call receives of the call's gradient g. */
static mica_status contribution(backward *b, int call, int i, int *node)
{
    mica_expr_reader *r = &b->reader;
    const mica_expr_node n = r->e->nodes[call];
    const mica_function *f = &mica_functions[n.index];
    mica_expr_name names[] = {{"a", 0, false},
                              {"b", 0, false},
                              {"c", 0, false},
                              {"y", call, false},
                              {"g", b->gradient[call], false},
                              {NULL, 0, false}};
    char field[64];
    *node = -1;
    if (!*f->derivative[i])
        return mica_invalid(
            r->why, "expr: %s has no derivative in the table yet, pass=bwd needs it", f->name);
    if (!strcmp(f->derivative[i], "0")) return MICA_OK;
    for (int k = 0; k < f->arity; k++) {
        /* A condition stays what it is. */
        const bool condition = f->kind == MICA_FUNCTION_PICK && k == 0;
        names[k].node = condition ? n.arg[k] : as_real(b, n.arg[k]);
        if (names[k].node < 0) return r->status;
    }
    mica_format(field, sizeof field, "derivative of %s", f->name);
    r->text = r->at = f->derivative[i];
    r->field = field;
    r->names = names;
    r->depth = 0;
    mica_status status = mica_expr_read(r, node);
    if (status == MICA_OK && *r->at) status = mica_expr_fail(r, "more than an expression");
    if (status == MICA_OK && !names[4].used) {
        const int args[MICA_FUNCTION_ARGS] = {names[4].node, as_real(b, *node), -1};
        *node = args[1] < 0 ? -1 : mica_expr_call(r, MICA_FN_mul, args);
    }
    r->names = NULL;
    r->field = "expr"; /* the text above goes out of scope */
    if (status != MICA_OK) return status;
    return *node < 0 ? r->status : MICA_OK;
}

static mica_status pass_on(backward *b, int call)
{
    const mica_expr_node n = b->reader.e->nodes[call];
    if (n.kind != MICA_EXPR_CALL || b->gradient[call] < 0 || !b->needed[call]) return MICA_OK;
    for (int i = 0; i < mica_functions[n.index].arity; i++) {
        int term;
        const int arg = n.arg[i];
        if (!b->needed[arg]) continue;
        MICA_TRY(contribution(b, call, i, &term));
        if (term < 0) continue;
        b->gradient[arg] = add(b, b->gradient[arg], term);
        if (b->gradient[arg] < 0) return b->reader.status;
    }
    return MICA_OK;
}

static void find_needed(backward *b, unsigned wanted)
{
    const mica_expr *e = b->reader.e;
    for (int i = 0; i < e->count; i++) {
        const mica_expr_node *n = &e->nodes[i];
        b->gradient[i] = -1;
        b->needed[i] = n->kind == MICA_EXPR_INPUT && wanted >> n->index & 1;
        for (int a = 0; a < MICA_FUNCTION_ARGS && n->kind == MICA_EXPR_CALL; a++)
            b->needed[i] |= n->arg[a] >= 0 && b->needed[n->arg[a]];
    }
}

mica_status mica_expr_derive(mica_expr *e, unsigned wanted, mica_why *why)
{
    backward b = {.reader = {.e = e, .text = "", .at = "", .why = why, .field = "expr"}};
    const int count = e->count;
    find_needed(&b, wanted);
    for (int i = 0; i < e->result_count; i++) {
        const int dy = mica_expr_input(&b.reader, MICA_EXPR_DY + i), at = e->results[i];
        if (dy < 0) return b.reader.status;
        b.gradient[at] = add(&b, b.gradient[at], dy);
        if (b.gradient[at] < 0) return b.reader.status;
    }
    for (int i = count - 1; i >= 0; i--) MICA_TRY(pass_on(&b, i));
    e->result_count = 0;
    for (int k = 0; k < MICA_EXPR_X; k++) {
        if (!(wanted >> k & 1)) continue;
        const int input = mica_expr_input(&b.reader, k);
        const bool known = input >= 0 && input < count && b.gradient[input] >= 0;
        const int node = known ? b.gradient[input] : mica_expr_number(&b.reader, 0, MICA_F64);
        if (input < 0 || node < 0) return b.reader.status;
        e->results[e->result_count++] = node;
    }
    return MICA_OK;
}
