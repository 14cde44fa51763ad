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

static void add_term(const mica_expr_program *p, int i, mica_text *text)
{
    const mica_expr_node *n = &p->expr.nodes[i];
    mica_text_add(text, " const real t%d = ", i);
    if (n->kind == MICA_EXPR_INPUT) {
        mica_text_add(text, "v[%d]", p->operand[n->index]);
    } else if (n->kind == MICA_EXPR_SCALAR) {
        mica_text_add(text, "n[%d]", n->index);
    } else if (n->kind == MICA_EXPR_NUMBER) {
        add_number(text, n->value);
    } else {
        mica_text_add(text, "fn_%s(", mica_functions[n->index].name);
        for (int k = 0; k < mica_functions[n->index].arity; k++)
            mica_text_add(text, "%st%d", k ? ", " : "", n->arg[k]);
        mica_text_add(text, ")");
    }
    mica_text_add(text, ";");
}

static void add_function(int function, mica_text *text)
{
    static const char *const parameters[] = {"", "real a", "real a, real b",
                                             "real a, real b, real c"};
    const mica_function *f = &mica_functions[function];
    mica_text_add(text, " POINTWISE real fn_%s(%s) { return %s; }", f->name, parameters[f->arity],
                  f->value);
}

/* Macros, because the text comes before what it uses: the functions, and the steps. */
void mica_expr_prologue(const void *program, mica_text *text)
{
    const mica_expr_program *p = program;
    allocation a = {.p = (mica_expr_program *)program};
    bool used[MICA_FUNCTIONS] = {false};
    find_last_uses(&a);
    for (int i = 0; i < p->expr.count; i++)
        if (a.last[i] >= 0 && p->expr.nodes[i].kind == MICA_EXPR_CALL)
            used[p->expr.nodes[i].index] = true;
    mica_text_add(text, "#define FUNCTIONS");
    for (int i = 0; i < MICA_FUNCTIONS; i++)
        if (used[i]) add_function(i, text);
    mica_text_add(text, "\n#define EXPRESSION");
    for (int i = 0; i < p->expr.count; i++)
        if (a.last[i] >= 0) add_term(p, i, text);
    for (int i = 0; i < p->expr.result_count; i++)
        mica_text_add(text, " v[%d] = t%d;", p->result_operand[i], p->expr.results[i]);
    mica_text_add(text, "\n");
}

/* ---- truth ---- */

/* A value, and what its error scales with in units of roundoff. */
typedef struct known {
    double value, mag;
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

static double value_of(const arithmetic *m, int function, const double *v)
{
    return in_range(m, mica_function_value(function, v[0], v[1], v[2]));
}

/* How much the value may move while argument i is anywhere within its error: by differences, not by
 * derivatives, so that steps and kinks count too. */
static double moved(const arithmetic *m, int function, double *v, int i, double error, double value)
{
    const double at = v[i];
    double most = 0;
    for (int sign = -1; sign <= 1; sign += 2) {
        v[i] = at + sign * error;
        const double other = value_of(m, function, v);
        const double by = other == value ? 0 : fabs(other - value);
        most = by <= most ? most : by; /* NaN is kept */
    }
    v[i] = at;
    return isnan(most) ? (double)INFINITY : most;
}

static known evaluate(const arithmetic *m, int function, const known *args)
{
    const mica_function *f = &mica_functions[function];
    double v[MICA_FUNCTION_ARGS] = {0};
    known r = {0};
    for (int i = 0; i < f->arity; i++) v[i] = args[i].value;
    r.value = value_of(m, function, v);
    if (!isfinite(r.value)) {
        /* An infinity of infinitely close arguments may be a number, and the reverse. */
        for (int i = 0; i < f->arity; i++)
            if (args[i].mag > 0) r.mag = (double)INFINITY;
        return r;
    }
    if (f->ulps > 0) r.mag = 2 * f->ulps * fabs(r.value) + m->least;
    for (int i = 0; i < f->arity; i++) {
        if (!isfinite(v[i])) continue;
        const double units = args[i].mag + f->inner * fabs(v[i]);
        if (units > 0) r.mag += moved(m, function, v, i, units * m->unit, r.value) / m->unit;
    }
    return r;
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
            if (p->operand[n->index] >= 0) to->value = v[p->operand[n->index]];
        } else if (n->kind != MICA_EXPR_CALL) {
            const double value = n->kind == MICA_EXPR_SCALAR ? numbers[n->index] : n->value;
            to->value = m.f64 ? value : (double)(float)value;
        } else {
            for (int k = 0; k < mica_functions[n->index].arity; k++)
                args[k] = known_nodes[n->arg[k]];
            *to = evaluate(&m, n->index, args);
        }
    }
    for (int i = 0; i < p->expr.result_count; i++) {
        v[p->result_operand[i]] = known_nodes[p->expr.results[i]].value;
        mag[p->result_operand[i]] = known_nodes[p->expr.results[i]].mag;
    }
}
