/* SPDX-License-Identifier: Apache-2.0
 * Programs: an order of steps with few buffers, for blocks of the CPU; text for a kernel; and the
 * truth of an element with what it may be off. */
#include "ops/pointwise/expression.h"
#include "base/format.h"
#include "base/tensor.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- buffers ---- */

typedef struct allocation {
    mica_expr_program *p;
    int16_t slot[MICA_EXPR_NODES]; /* of a node; -1: not computed */
    int last[MICA_EXPR_NODES];     /* the last node that reads it; count: a result */
    bool busy[MICA_EXPR_NODES];    /* buffers */
} allocation;

static void find_last_uses(allocation *a)
{
    const mica_expr *e = &a->p->expr;
    for (int i = 0; i < e->count; i++) a->last[i] = -1;
    for (int i = 0; i < e->result_count; i++) a->last[e->results[i]] = e->count;
    for (int i = e->count - 1; i >= 0; i--)
        for (int k = 0; k < MICA_FUNCTION_ARGS && a->last[i] >= 0; k++) {
            const int arg = e->nodes[i].arg[k];
            if (arg >= 0 && a->last[arg] < i) a->last[arg] = i;
        }
}

static int16_t take_buffer(allocation *a)
{
    int b = a->p->fixed_count;
    while (a->busy[b]) b++;
    a->busy[b] = true;
    if (b >= a->p->buffers) a->p->buffers = b + 1;
    return (int16_t)(MICA_POINTWISE_OPERANDS + b);
}

static void place_leaves(allocation *a)
{
    mica_expr_program *p = a->p;
    for (int i = 0; i < p->expr.count; i++) {
        const mica_expr_node *n = &p->expr.nodes[i];
        a->slot[i] = -1;
        if (a->last[i] < 0 || n->kind == MICA_EXPR_CALL) continue;
        if (n->kind == MICA_EXPR_INPUT) {
            a->slot[i] = (int16_t)p->operand[n->index];
        } else {
            a->slot[i] = (int16_t)(MICA_POINTWISE_OPERANDS + p->fixed_count);
            p->fixed[p->fixed_count++] = (int16_t)i;
        }
    }
    p->buffers = p->fixed_count;
}

/* Inputs that are results are kept aside: where there are several results, another one may lie on
 * them. */
static void keep_inputs(allocation *a)
{
    mica_expr_program *p = a->p;
    const mica_expr *e = &p->expr;
    for (int i = 0; i < e->count && e->result_count > 1; i++) {
        if (e->nodes[i].kind != MICA_EXPR_INPUT || a->last[i] != e->count) continue;
        const int16_t buffer = take_buffer(a);
        p->steps[p->step_count++] =
            (mica_expr_step){.function = -1, .out = buffer, .in = {a->slot[i]}};
        a->slot[i] = buffer;
    }
}

/* Buffers that only this node still needed. */
static void release(allocation *a, int node)
{
    for (int k = 0; k < MICA_FUNCTION_ARGS; k++) {
        const int arg = a->p->expr.nodes[node].arg[k];
        if (arg < 0 || a->last[arg] != node) continue;
        const int b = a->slot[arg] - MICA_POINTWISE_OPERANDS;
        if (b >= a->p->fixed_count) a->busy[b] = false;
    }
}

/* A result may lie on an operand: it is written where nothing is left to be read. */
static bool ends_as(const allocation *a, int node, int *result)
{
    const mica_expr *e = &a->p->expr;
    int results = 0;
    for (int i = 0; i < e->result_count; i++)
        if (e->results[i] == node) {
            *result = i;
            results++;
        }
    for (int i = node + 1; i < e->count; i++)
        if (a->last[i] >= 0 && e->nodes[i].kind == MICA_EXPR_CALL) return false;
    return results == 1 && e->result_count == 1;
}

void mica_expr_compile(mica_expr_program *p)
{
    allocation a = {.p = p};
    const mica_expr *e = &p->expr;
    bool written[MICA_EXPR_X] = {false};
    p->step_count = p->fixed_count = p->buffers = 0;
    find_last_uses(&a);
    place_leaves(&a);
    keep_inputs(&a);
    for (int i = 0; i < e->count; i++) {
        const mica_expr_node *n = &e->nodes[i];
        int result = 0;
        if (a.last[i] < 0 || n->kind != MICA_EXPR_CALL) continue;
        mica_expr_step *s = &p->steps[p->step_count++];
        s->function = (int16_t)n->index;
        s->of_s64 = n->of_s64;
        for (int k = 0; k < MICA_FUNCTION_ARGS; k++)
            s->in[k] = a.slot[n->arg[k] >= 0 ? n->arg[k] : n->arg[0]];
        release(&a, i);
        if (ends_as(&a, i, &result)) {
            a.slot[i] = (int16_t)p->result_operand[result];
            written[result] = true;
        } else {
            a.slot[i] = take_buffer(&a);
        }
        s->out = a.slot[i];
    }
    for (int i = 0; i < e->result_count; i++)
        if (!written[i])
            p->steps[p->step_count++] = (mica_expr_step){.function = -1,
                                                         .out = (int16_t)p->result_operand[i],
                                                         .in = {a.slot[e->results[i]]}};
}

/* ---- text ---- */

static void add_number(mica_text *text, double v)
{
    if (isnan(v))
        mica_text_add(text, "(infinity_of() - infinity_of())");
    else if (isinf(v))
        mica_text_add(text, "%sinfinity_of()", v < 0 ? "-" : "");
    else
        mica_text_add(text, "(real)%a", v);
}

/* The least s64 is no number of C. */
static void add_whole(mica_text *text, int64_t v)
{
    if (v == INT64_MIN)
        mica_text_add(text, "(-9223372036854775807ll - 1)");
    else
        mica_text_add(text, "%lldll", (long long)v);
}

static void add_term(const mica_expr_program *p, int i, mica_text *text)
{
    const mica_expr_node *n = &p->expr.nodes[i];
    const bool s64 = n->type == MICA_S64;
    mica_text_add(text, " const %s t%d = ", s64 ? "long long" : "real", i);
    if (n->kind == MICA_EXPR_INPUT) {
        mica_text_add(text, s64 ? "__double_as_longlong(v[%d])" : "v[%d]", p->operand[n->index]);
    } else if (n->kind == MICA_EXPR_SCALAR) {
        mica_text_add(text, "n[%d]", n->index);
    } else if (n->kind == MICA_EXPR_NUMBER && s64) {
        add_whole(text, n->whole);
    } else if (n->kind == MICA_EXPR_NUMBER) {
        add_number(text, n->value);
    } else {
        mica_text_add(text, "%sfn_%s(", n->of_s64 ? "of_s64::" : "", mica_functions[n->index].name);
        for (int k = 0; k < mica_functions[n->index].arity; k++)
            mica_text_add(text, "%st%d", k ? ", " : "", n->arg[k]);
        mica_text_add(text, ")");
    }
    mica_text_add(text, ";");
}

/* Within the namespace, real is s64 and ::real what is none. */
static void add_function(int function, bool of_s64, mica_text *text)
{
    const mica_function *f = &mica_functions[function];
    const mica_expr_node call = {.index = function, .of_s64 = of_s64};
    const bool real = f->kind == MICA_FUNCTION_TEST || f->kind == MICA_FUNCTION_HIDDEN;
    mica_text_add(text, " POINTWISE %s fn_%s(", of_s64 && real ? "::real" : "real", f->name);
    for (int i = 0; i < f->arity; i++)
        mica_text_add(text, "%s%sreal %c", i ? ", " : "",
                      of_s64 && !mica_expr_takes_s64(&call, i) ? "::" : "", 'a' + i);
    mica_text_add(text, ") { return %s; }", f->value);
}

static void add_functions(const mica_expr_program *p, const allocation *a, bool of_s64,
                          mica_text *text)
{
    bool used[MICA_FUNCTIONS] = {false}, any = false;
    for (int i = 0; i < p->expr.count; i++) {
        const mica_expr_node *n = &p->expr.nodes[i];
        if (a->last[i] < 0 || n->kind != MICA_EXPR_CALL || n->of_s64 != of_s64) continue;
        used[n->index] = any = true;
    }
    if (of_s64 && !any) return;
    mica_text_add(text, of_s64 ? "#define FUNCTIONS_S64" : "#define FUNCTIONS");
    for (int i = 0; i < MICA_FUNCTIONS; i++)
        if (used[i]) add_function(i, of_s64, text);
    mica_text_add(text, "\n");
}

/* Macros, because the text comes before what it uses: the functions, and the steps. */
void mica_expr_prologue(const void *program, mica_text *text)
{
    const mica_expr_program *p = program;
    allocation a = {.p = (mica_expr_program *)program};
    find_last_uses(&a);
    add_functions(p, &a, false, text);
    add_functions(p, &a, true, text);
    mica_text_add(text, "#define EXPRESSION");
    for (int i = 0; i < p->expr.count; i++)
        if (a.last[i] >= 0) add_term(p, i, text);
    for (int i = 0; i < p->expr.result_count; i++) {
        const bool s64 = p->expr.nodes[p->expr.results[i]].type == MICA_S64;
        mica_text_add(text, s64 ? " v[%d] = __longlong_as_double(t%d);" : " v[%d] = t%d;",
                      p->result_operand[i], p->expr.results[i]);
    }
    mica_text_add(text, "\n");
}

/* ---- values ---- */

bool mica_expr_takes_s64(const mica_expr_node *call, int i)
{
    const mica_function_kind kind = mica_functions[call->index].kind;
    return call->of_s64 && kind != MICA_FUNCTION_WHOLE && !(kind == MICA_FUNCTION_PICK && i == 0);
}

mica_expr_cell mica_expr_value(const mica_expr_node *call,
                               const mica_expr_cell v[MICA_FUNCTION_ARGS])
{
    mica_expr_cell value = {0};
    if (call->of_s64)
        mica_function_s64(call->index, &value, (const void *const[]){&v[0], &v[1], &v[2]}, 1);
    else
        value.real = mica_function_value(call->index, v[0].real, v[1].real, v[2].real);
    return value;
}

/* ---- truth ---- */

/* A value, and what its error scales with in units of roundoff. */
typedef struct known {
    double value, mag;
    int64_t whole; /* the same value of an s64 */
} known;

typedef struct arithmetic {
    bool f64;
    double unit, least; /* roundoff; below this number it is absolute */
} arithmetic;

/* f32 overflows where double does not. */
static double in_range(const arithmetic *m, double v)
{
    return !m->f64 && fabs(v) >= 0x1.ffffffp127 && isfinite(v) ? copysign((double)INFINITY, v) : v;
}

static known value_of(const arithmetic *m, const mica_expr_node *n, const known *args)
{
    mica_expr_cell v[MICA_FUNCTION_ARGS] = {{0}};
    for (int i = 0; i < mica_functions[n->index].arity; i++) {
        v[i].real = args[i].value;
        if (mica_expr_takes_s64(n, i)) v[i].whole = args[i].whole;
    }
    const mica_expr_cell value = mica_expr_value(n, v);
    if (n->type == MICA_S64) return (known){.value = (double)value.whole, .whole = value.whole};
    return (known){.value = in_range(m, value.real)};
}

/* How much the value may move while argument i is anywhere within its error: by differences, not by
 * derivatives, so that steps and kinks count too. */
static double moved(const arithmetic *m, const mica_expr_node *n, known *args, int i, double error,
                    double value)
{
    const known at = args[i];
    const int64_t by_whole = error < 0x1p60 ? (int64_t)ceil(error) : INT64_C(1) << 60;
    double most = 0;
    for (int sign = -1; sign <= 1; sign += 2) {
        args[i].value = at.value + sign * error;
        args[i].whole = (int64_t)((uint64_t)at.whole + (uint64_t)(sign * by_whole));
        const double other = value_of(m, n, args).value;
        const double by = other == value ? 0 : fabs(other - value);
        most = by <= most ? most : by; /* NaN is kept */
    }
    args[i] = at;
    return isnan(most) ? (double)INFINITY : most;
}

static known evaluate(const arithmetic *m, const mica_expr_node *n, known *args)
{
    const mica_function *f = &mica_functions[n->index];
    known r = value_of(m, n, args);
    if (!isfinite(r.value)) {
        /* An infinity of infinitely close arguments may be a number, and the reverse. */
        for (int i = 0; i < f->arity; i++)
            if (args[i].mag > 0) r.mag = (double)INFINITY;
        return r;
    }
    if (n->of_s64) {
        for (int i = 0; i < f->arity; i++)
            if (args[i].mag > 0)
                r.mag += moved(m, n, args, i, args[i].mag * m->unit, r.value) / m->unit;
        return r;
    }
    /* Of integers the arithmetic is exact, in the type that is wide enough for them. */
    const bool rounds = n->type == MICA_F64 || n->type == MICA_EXPR_WHOLE;
    if (f->ulps > 0 && rounds) r.mag = 2 * f->ulps * fabs(r.value) + m->least;
    for (int i = 0; i < f->arity; i++) {
        const double v = args[i].value;
        if (!isfinite(v)) continue;
        const double units = args[i].mag + (rounds ? f->inner * fabs(v) : 0);
        if (units > 0) r.mag += moved(m, n, args, i, units * m->unit, r.value) / m->unit;
    }
    return r;
}

/* As an operand carries it. */
static known of_operand(const mica_expr_node *n, double v)
{
    known r = {.value = v};
    if (n->type != MICA_S64) return r;
    memcpy(&r.whole, &v, sizeof v);
    r.value = (double)r.whole;
    return r;
}

static double carried(const mica_expr_node *n, const known *k)
{
    double v = k->value;
    if (n->type == MICA_S64) memcpy(&v, &k->whole, sizeof v);
    return v;
}

void mica_expr_truth(const void *program, const double *numbers, double *v, double *mag)
{
    const mica_expr_program *p = program;
    const arithmetic m = p->f64 ? (arithmetic){true, 0x1p-53, DBL_MIN}
                                : (arithmetic){false, 0x1p-24, (double)FLT_MIN};
    known known_nodes[MICA_EXPR_NODES];
    for (int i = 0; i < p->expr.count; i++) {
        const mica_expr_node *n = &p->expr.nodes[i];
        known *to = &known_nodes[i], args[MICA_FUNCTION_ARGS] = {{0}};
        *to = (known){0};
        if (n->kind == MICA_EXPR_INPUT) {
            if (p->operand[n->index] >= 0) *to = of_operand(n, v[p->operand[n->index]]);
        } else if (n->kind != MICA_EXPR_CALL) {
            const double value = n->kind == MICA_EXPR_SCALAR ? numbers[n->index] : n->value;
            to->value = m.f64 ? value : (double)(float)value;
            to->whole = n->whole;
        } else {
            for (int k = 0; k < mica_functions[n->index].arity; k++)
                args[k] = known_nodes[n->arg[k]];
            *to = evaluate(&m, n, args);
        }
    }
    for (int i = 0; i < p->expr.result_count; i++) {
        const int at = p->expr.results[i];
        v[p->result_operand[i]] = carried(&p->expr.nodes[at], &known_nodes[at]);
        mag[p->result_operand[i]] = known_nodes[at].mag;
    }
}
