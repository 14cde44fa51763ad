/* SPDX-License-Identifier: Apache-2.0
 * Nodes of expressions and their types. */
#include "ops/pointwise/expression_build.h"
#include "base/format.h"
#include "base/tensor.h"

#include <math.h>
#include <string.h>

mica_status mica_expr_fail(mica_expr_reader *r, const char *format, ...)
{
    char text[400];
    va_list list;
    va_start(list, format);
    mica_format_list(text, sizeof text, format, list);
    va_end(list);
    r->status = MICA_INVALID;
    return mica_invalid(r->why, "%s, column %d: %s", r->field, (int)(r->at - r->text) + 1, text);
}

const char *mica_expr_type_name(mica_dtype type)
{
    return type == MICA_F64          ? "real"
           : type == MICA_EXPR_WHOLE ? "a whole number"
                                     : mica_dtype_name(type);
}

/* ---- nodes ---- */

static bool same(const mica_expr_node *a, const mica_expr_node *b)
{
    return a->kind == b->kind && a->type == b->type && a->index == b->index &&
           !memcmp(a->arg, b->arg, sizeof a->arg) && a->of_s64 == b->of_s64 &&
           a->whole == b->whole && !memcmp(&a->value, &b->value, sizeof a->value);
}

static int add_node(mica_expr_reader *r, const mica_expr_node *node)
{
    mica_expr *e = r->e;
    for (int i = 0; i < e->count; i++)
        if (same(&e->nodes[i], node)) return i;
    if (e->count == MICA_EXPR_NODES) {
        mica_expr_fail(r, "more than %d terms", MICA_EXPR_NODES);
        return -1;
    }
    e->nodes[e->count] = *node;
    return e->count++;
}

static mica_dtype carried(mica_dtype type)
{
    return mica_dtype_is_float(type) ? MICA_F64 : type;
}

int mica_expr_input(mica_expr_reader *r, int k)
{
    return add_node(r, &(mica_expr_node){.kind = MICA_EXPR_INPUT,
                                         .type = carried(r->e->inputs[k]),
                                         .index = k,
                                         .arg = {-1, -1, -1}});
}

int mica_expr_scalar(mica_expr_reader *r, int k)
{
    return add_node(
        r, &(mica_expr_node){
               .kind = MICA_EXPR_SCALAR, .type = MICA_F64, .index = k, .arg = {-1, -1, -1}});
}

int mica_expr_number(mica_expr_reader *r, double value, mica_dtype type)
{
    return add_node(
        r, &(mica_expr_node){
               .kind = MICA_EXPR_NUMBER, .type = type, .arg = {-1, -1, -1}, .value = value});
}

static int add_s64(mica_expr_reader *r, int64_t value, mica_dtype type)
{
    return add_node(r, &(mica_expr_node){.kind = MICA_EXPR_NUMBER,
                                         .type = type,
                                         .arg = {-1, -1, -1},
                                         .value = (double)value,
                                         .whole = value});
}

int mica_expr_whole(mica_expr_reader *r, int64_t value)
{
    const bool any = value >= -4294967295LL && value <= 4294967295LL;
    return add_s64(r, value, any ? MICA_EXPR_WHOLE : MICA_S64);
}

/* ---- types ---- */

static bool is_narrow(mica_dtype t)
{
    return t == MICA_U8 || t == MICA_S8;
}

/* Of two types the one that holds both. */
static mica_dtype common_type(mica_dtype a, mica_dtype b)
{
    if (a == b) return a;
    if (a == MICA_F64 || b == MICA_F64) return MICA_F64;
    if (a == MICA_S64 || b == MICA_S64) return MICA_S64;
    if (a == MICA_EXPR_WHOLE) return b == MICA_BOOL ? MICA_S32 : b;
    if (b == MICA_EXPR_WHOLE) return a == MICA_BOOL ? MICA_S32 : a;
    if (a == MICA_BOOL) return b;
    if (b == MICA_BOOL) return a;
    if (is_narrow(a) && is_narrow(b)) return MICA_S32;
    if (is_narrow(b)) return common_type(b, a);
    if (a == MICA_U8 || (a == MICA_S8 && b == MICA_S32)) return b;
    return MICA_S64; /* of s32 and u32, s8 and u32 */
}

static bool holds(mica_dtype type, double value)
{
    switch (type) {
    case MICA_U8:
        return value >= 0 && value <= 255;
    case MICA_S8:
        return value >= -128 && value <= 127;
    case MICA_U32:
        return value >= 0 && value <= 4294967295.0;
    case MICA_S32:
        return value >= -2147483648.0 && value <= 2147483647.0;
    default:
        return true;
    }
}

/* Of arguments from..arity-1. */
static bool find_common(mica_expr_reader *r, const mica_function *f, const int *args, int from,
                        mica_dtype *type)
{
    const mica_expr_node *nodes = r->e->nodes;
    *type = nodes[args[from]].type;
    for (int i = from + 1; i < f->arity; i++) *type = common_type(*type, nodes[args[i]].type);
    for (int i = from; i < f->arity && f->kind != MICA_FUNCTION_TEST; i++) {
        const mica_expr_node *n = &nodes[args[i]];
        if (n->type != MICA_EXPR_WHOLE || holds(*type, n->value)) continue;
        mica_expr_fail(r, "%s: %.15g is no %s", f->name, n->value, mica_expr_type_name(*type));
        return false;
    }
    return true;
}

static bool are_integers(mica_expr_reader *r, const mica_function *f, const int *args)
{
    for (int i = 0; i < f->arity; i++) {
        if (r->e->nodes[args[i]].type != MICA_F64) continue;
        mica_expr_fail(r, "%s needs integers, argument %d is real", f->name, i + 1);
        return false;
    }
    return true;
}

static const struct {
    mica_dtype type;
    mica_function_id cast, wrap;
} casts[] = {{MICA_F64, MICA_FN_f32, MICA_FN_f32},       {MICA_F64, MICA_FN_f16, MICA_FN_f16},
             {MICA_F64, MICA_FN_bf16, MICA_FN_bf16},     {MICA_S8, MICA_FN_s8, MICA_FN__wrap_s8},
             {MICA_U8, MICA_FN_u8, MICA_FN__wrap_u8},    {MICA_S32, MICA_FN_s32, MICA_FN__wrap_s32},
             {MICA_U32, MICA_FN_u32, MICA_FN__wrap_u32}, {MICA_BOOL, MICA_FN_bool, MICA_FN_bool}};
enum { CASTS = sizeof casts / sizeof *casts };

/* What the arguments become: of several the type that holds all, of reals real; MICA_NONE: they are
 * left as they are. False: refused. */
static bool find_arguments(mica_expr_reader *r, const mica_function *f, const int *args,
                           mica_dtype *type)
{
    *type = MICA_NONE;
    switch (f->kind) {
    case MICA_FUNCTION_REAL:
    case MICA_FUNCTION_CLASS:
        *type = MICA_F64;
        return true;
    case MICA_FUNCTION_BITS:
        return are_integers(r, f, args) && find_common(r, f, args, 0, type);
    case MICA_FUNCTION_SAME:
    case MICA_FUNCTION_QUOTIENT:
    case MICA_FUNCTION_KEEP:
    case MICA_FUNCTION_TEST:
        return find_common(r, f, args, 0, type);
    case MICA_FUNCTION_PICK:
        return find_common(r, f, args, 1, type);
    case MICA_FUNCTION_LOGIC:
    case MICA_FUNCTION_CAST:
    case MICA_FUNCTION_WHOLE:
    case MICA_FUNCTION_FORMULA:
    case MICA_FUNCTION_HIDDEN:
        break;
    }
    return true;
}

/* Of the value; of: of the arguments. */
static mica_dtype value_type(int function, mica_dtype of)
{
    /* & | ^ of bools are bools; else those count as integers. */
    const bool logic =
        function == MICA_FN_band || function == MICA_FN_bor || function == MICA_FN_bxor;
    switch (mica_functions[function].kind) {
    case MICA_FUNCTION_REAL:
    case MICA_FUNCTION_FORMULA:
    case MICA_FUNCTION_HIDDEN:
        break;
    case MICA_FUNCTION_TEST:
    case MICA_FUNCTION_CLASS:
    case MICA_FUNCTION_LOGIC:
        return MICA_BOOL;
    case MICA_FUNCTION_PICK:
        return of;
    case MICA_FUNCTION_WHOLE:
        return MICA_S64;
    case MICA_FUNCTION_CAST:
        for (int i = 0; i < CASTS; i++)
            if ((int)casts[i].cast == function) return casts[i].type;
        break;
    case MICA_FUNCTION_BITS:
    case MICA_FUNCTION_SAME:
    case MICA_FUNCTION_QUOTIENT:
    case MICA_FUNCTION_KEEP:
        return of == MICA_BOOL && !logic ? MICA_S32 : of;
    }
    return MICA_F64;
}

/* ---- calls ---- */

/* Whether it is the row of s64 that is called: a value is of that type, or numbers are to be folded
 * that take any. */
static bool is_of_s64(const mica_expr_reader *r, const mica_function *f, const int *args,
                      bool numbers)
{
    if (f->kind == MICA_FUNCTION_WHOLE) return true;
    if (f->kind == MICA_FUNCTION_REAL || f->kind == MICA_FUNCTION_CLASS ||
        f->kind == MICA_FUNCTION_LOGIC || f->kind == MICA_FUNCTION_CAST)
        return false;
    const int from = f->kind == MICA_FUNCTION_PICK;
    bool any = false, whole = numbers;
    for (int i = from; i < f->arity; i++) {
        any |= r->e->nodes[args[i]].type == MICA_S64;
        whole &= r->e->nodes[args[i]].type == MICA_EXPR_WHOLE;
    }
    return any || whole;
}

/* A call of numbers. */
static int folded(mica_expr_reader *r, const mica_expr_node *call)
{
    const mica_expr_node *nodes = r->e->nodes;
    const mica_function *f = &mica_functions[call->index];
    mica_expr_cell v[MICA_FUNCTION_ARGS] = {{0}}, value;
    for (int i = 0; i < f->arity; i++) {
        v[i].real = nodes[call->arg[i]].value;
        if (mica_expr_takes_s64(call, i)) v[i].whole = nodes[call->arg[i]].whole;
    }
    value = mica_expr_value(call, v);
    const bool s64 =
        call->of_s64 && f->kind != MICA_FUNCTION_TEST && f->kind != MICA_FUNCTION_HIDDEN;
    if (call->type == MICA_S64) return add_s64(r, value.whole, MICA_S64);
    if (call->type == MICA_EXPR_WHOLE)
        return mica_expr_whole(r, s64 ? value.whole : (int64_t)value.real);
    return mica_expr_number(r, s64 ? (double)value.whole : value.real, call->type);
}

/* A call as it is, but for numbers, which are folded. */
static int plain_call(mica_expr_reader *r, int function, const int *args, mica_dtype type)
{
    const mica_function *f = &mica_functions[function];
    mica_expr_node n = {
        .kind = MICA_EXPR_CALL, .type = type, .index = function, .arg = {-1, -1, -1}};
    bool numbers = true;
    for (int i = 0; i < f->arity; i++) {
        if (args[i] < 0) return -1;
        n.arg[i] = args[i];
        numbers &= r->e->nodes[args[i]].kind == MICA_EXPR_NUMBER;
    }
    n.of_s64 = is_of_s64(r, f, args, numbers);
    return numbers ? folded(r, &n) : add_node(r, &n);
}

/* The same value as an s64, or as a real; -1: refused. */
static int as_s64(mica_expr_reader *r, int node)
{
    const mica_expr_node *n = &r->e->nodes[node];
    if (n->type == MICA_S64) return node;
    if (n->kind == MICA_EXPR_NUMBER && n->type != MICA_F64)
        return add_s64(r, (int64_t)n->value, MICA_S64);
    return plain_call(r, MICA_FN_s64, &node, MICA_S64);
}

static int as_real(mica_expr_reader *r, int node, mica_function_id by)
{
    return r->e->nodes[node].type == MICA_S64 ? plain_call(r, (int)by, &node, MICA_F64) : node;
}

static int is_not_0(mica_expr_reader *r, int node)
{
    const int args[] = {node, add_s64(r, 0, MICA_S64)};
    if (r->e->nodes[node].type != MICA_S64) return node;
    return plain_call(r, MICA_FN_ne, args, MICA_BOOL);
}

/* s64 among arguments, or become one; of: what find_arguments says. */
static bool convert_arguments(mica_expr_reader *r, const mica_function *f, mica_dtype of, int *args)
{
    for (int i = 0; i < f->arity; i++) {
        const bool truth =
            f->kind == MICA_FUNCTION_LOGIC || (f->kind == MICA_FUNCTION_PICK && i == 0);
        if (truth)
            args[i] = is_not_0(r, args[i]);
        else if (of == MICA_S64)
            args[i] = as_s64(r, args[i]);
        else if (of == MICA_F64)
            args[i] = as_real(r, args[i], MICA_FN__real);
        if (args[i] < 0) return false;
    }
    return true;
}

/* The low bits of an integer's value. */
static int wrapped(mica_expr_reader *r, int node, mica_dtype type)
{
    if (node < 0 || type == MICA_F64 || type == MICA_S64 || type == MICA_EXPR_WHOLE ||
        type == MICA_BOOL)
        return node;
    for (int i = 0; i < CASTS; i++)
        if (casts[i].type == type) return plain_call(r, (int)casts[i].wrap, &node, type);
    return node;
}

static int call_same(mica_expr_reader *r, int function, const int *args, mica_dtype type)
{
    const bool wide = type == MICA_S32 || type == MICA_U32;
    int node;
    if (wide && mica_functions[function].exact == MICA_EXACT_PRODUCT) {
        int factors[MICA_FUNCTION_ARGS] = {args[0], args[1], -1};
        if (function == MICA_FN_square) factors[1] = args[0];
        if (function == MICA_FN_sqdiff) {
            factors[0] = factors[1] = plain_call(r, MICA_FN_sub, args, type);
            if (factors[0] < 0) return -1;
        }
        node = plain_call(r, MICA_FN__mul32, factors, type);
    } else {
        node = plain_call(r, function, args, type);
    }
    return wrapped(r, node, type);
}

/* 0 where an integer divisor is 0. */
static int call_quotient(mica_expr_reader *r, int function, const int *args, mica_dtype type)
{
    if (type == MICA_F64 || type == MICA_S64) return plain_call(r, function, args, type);
    const int zero = mica_expr_whole(r, 0), one = mica_expr_whole(r, 1);
    if (zero < 0 || one < 0) return -1;
    const int compared[] = {args[1], zero};
    const int is_zero = plain_call(r, MICA_FN_eq, compared, MICA_BOOL);
    const int safe[] = {is_zero, one, args[1]};
    const int divisor = is_zero < 0 ? -1 : plain_call(r, MICA_FN_where, safe, type);
    const int divided[] = {args[0], divisor};
    const int node = divisor < 0 ? -1 : plain_call(r, function, divided, type);
    const int picked[] = {is_zero, zero, wrapped(r, node, type)};
    return picked[2] < 0 ? -1 : plain_call(r, MICA_FN_where, picked, type);
}

static int call_cast(mica_expr_reader *r, int function, const int *args, mica_dtype type)
{
    const mica_dtype from = r->e->nodes[args[0]].type;
    if (from == type && type != MICA_F64) return args[0];
    if (type == MICA_S64) return as_s64(r, args[0]);
    if (type == MICA_BOOL && from == MICA_S64) return is_not_0(r, args[0]);
    if (type != MICA_F64 && type != MICA_BOOL && from != MICA_F64) return wrapped(r, args[0], type);
    const int real = as_real(r, args[0], MICA_FN__near);
    return real < 0 ? -1 : plain_call(r, function, &real, type);
}

static bool is_number(const mica_expr_reader *r, int node, double value)
{
    const mica_expr_node *n = &r->e->nodes[node];
    return n->kind == MICA_EXPR_NUMBER && n->value == value;
}

/* What a product with 1 is: the other factor, if that has the type already. */
static int without_one(const mica_expr_reader *r, const int *args, mica_dtype type)
{
    for (int i = 0; i < 2; i++)
        if (is_number(r, args[i], 1) && r->e->nodes[args[1 - i]].type == type) return args[1 - i];
    return -1;
}

/* What its text gives, with the arguments for a, b, c. */
static int call_formula(mica_expr_reader *r, const mica_function *f, const int *args)
{
    mica_expr_name names[] = {
        {"a", args[0], false}, {"b", args[1], false}, {"c", args[2], false}, {NULL, 0, false}};
    const mica_expr_reader outer = *r;
    int node = -1;
    r->field = f->name;
    r->text = r->at = f->value;
    r->names = names;
    r->status = mica_expr_read(r, &node);
    if (r->status != MICA_OK) return -1;
    *r = outer;
    return node;
}

int mica_expr_call(mica_expr_reader *r, int function, const int *arguments)
{
    const mica_function *f = &mica_functions[function];
    int args[] = {arguments[0], arguments[1], arguments[2]};
    mica_dtype of;
    if (f->kind == MICA_FUNCTION_FORMULA) return call_formula(r, f, args);
    if (!find_arguments(r, f, args, &of)) return -1;
    const mica_dtype type = value_type(function, of);
    if (function == MICA_FN_mul && without_one(r, args, type) >= 0)
        return without_one(r, args, type);
    if (!convert_arguments(r, f, of, args)) return -1;
    switch (f->kind) {
    case MICA_FUNCTION_SAME:
        return call_same(r, function, args, type);
    case MICA_FUNCTION_QUOTIENT:
        return call_quotient(r, function, args, type);
    case MICA_FUNCTION_CAST:
    case MICA_FUNCTION_WHOLE:
        return call_cast(r, function, args, type);
    case MICA_FUNCTION_BITS:
        return wrapped(r, plain_call(r, function, args, type), type);
    default:
        return plain_call(r, function, args, type);
    }
}

mica_status mica_expr_store(mica_expr *e, int result, mica_dtype type, mica_why *why)
{
    mica_expr_reader r = {.e = e, .text = "", .at = "", .why = why, .field = "expr"};
    const int node = e->results[result];
    int stored = node;
    if (type == MICA_S64)
        stored = as_s64(&r, node);
    else if (mica_dtype_is_float(type))
        stored = as_real(&r, node, type == MICA_F64 ? MICA_FN__real : MICA_FN__near);
    if (stored < 0) return r.status;
    e->results[result] = stored;
    return MICA_OK;
}

/* ---- what a whole expression is ---- */

/* bit k of `reached`: the results depend on node k */
static void mark(const mica_expr *e, bool *reached)
{
    memset(reached, 0, MICA_EXPR_NODES * sizeof *reached);
    for (int i = 0; i < e->result_count; i++) reached[e->results[i]] = true;
    for (int i = e->count - 1; i >= 0; i--)
        for (int a = 0; a < MICA_FUNCTION_ARGS && reached[i]; a++)
            if (e->nodes[i].arg[a] >= 0) reached[e->nodes[i].arg[a]] = true;
}

unsigned mica_expr_inputs(const mica_expr *e)
{
    bool reached[MICA_EXPR_NODES];
    unsigned inputs = 0;
    mark(e, reached);
    for (int i = 0; i < e->count; i++)
        if (reached[i] && e->nodes[i].kind == MICA_EXPR_INPUT) inputs |= 1u << e->nodes[i].index;
    return inputs;
}

bool mica_expr_is_wide(const mica_expr *e)
{
    bool reached[MICA_EXPR_NODES], wide = false;
    mark(e, reached);
    for (int i = 0; i < e->count; i++) {
        const mica_expr_node *n = &e->nodes[i];
        if (!reached[i]) continue;
        wide |= n->type == MICA_S32 || n->type == MICA_U32 || n->type == MICA_S64;
        wide |= n->kind == MICA_EXPR_CALL && mica_functions[n->index].kind == MICA_FUNCTION_BITS;
    }
    return wide;
}

static double bound_of(const mica_expr *e, int i, const double *bounds)
{
    const mica_expr_node *n = &e->nodes[i];
    double v[MICA_FUNCTION_ARGS] = {0}, most = 0;
    if (n->kind == MICA_EXPR_INPUT) return n->index < MICA_EXPR_INDEX ? 8 : (double)e->extent;
    if (n->kind == MICA_EXPR_SCALAR) return (double)INFINITY;
    if (n->kind == MICA_EXPR_NUMBER)
        return n->value == floor(n->value) ? fabs(n->value) : (double)INFINITY;
    for (int a = 0; a < mica_functions[n->index].arity; a++) {
        v[a] = bounds[n->arg[a]];
        most = fmax(most, v[a]);
    }
    if (!isfinite(most)) return most;
    const bool square = mica_functions[n->index].arity == 1 || n->index == MICA_FN_sqdiff;
    switch (mica_functions[n->index].exact) {
    case MICA_EXACT_KEEP:
        return most;
    case MICA_EXACT_SUM:
        return v[0] + v[1];
    case MICA_EXACT_PRODUCT:
        return square ? 4 * most * most : v[0] * v[1];
    case MICA_EXACT_ONE:
        return 1;
    case MICA_EXACT_NO:
        break;
    }
    return (double)INFINITY;
}

double mica_expr_bound(const mica_expr *e)
{
    bool reached[MICA_EXPR_NODES];
    double bounds[MICA_EXPR_NODES], most = 0;
    mark(e, reached);
    for (int i = 0; i < e->count; i++) {
        bounds[i] = bound_of(e, i, bounds);
        if (reached[i]) most = fmax(most, bounds[i]);
    }
    return most;
}

bool mica_expr_is_exact(const mica_expr *e, double terms)
{
    return mica_expr_bound(e) * terms <= 0x1p24;
}
