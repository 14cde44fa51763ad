/* SPDX-License-Identifier: Apache-2.0
 * The family "pointwise": an expression in a line. Tables, shapes, types, and its program. */
#include "ops/pointwise/expression_op.h"

#include <string.h>

static const char *const passes[] = {"fwd", "bwd", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_pointwise_desc, member, kind, __VA_ARGS__)
#define X(member)                FIELD(member, TENSOR, .zero = "not given", .doc = "input")
#define Y(member)                                                                                  \
    FIELD(member, TENSOR, .zero = "inferred, one for each expression", .doc = "fwd: result")
#define DY(member)                                                                                 \
    FIELD(member, TENSOR, .zero = "inferred, one for each expression",                             \
          .doc = "bwd: gradient of a result")
#define DX(member)                                                                                 \
    FIELD(member, TENSOR, .zero = "not wanted, or where none is given inferred as x",              \
          .doc = "bwd: gradient of an input")
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradients of the inputs"),
    FIELD(expr, TEXT, .count = MICA_POINTWISE_EXPR, .zero = "needed",
          .doc = "expressions of x0 .. x7, s0 .. s3 and i0 .. i7, divided by ';'"),
    X(x0),
    X(x1),
    X(x2),
    X(x3),
    X(x4),
    X(x5),
    X(x6),
    X(x7),
    Y(y0),
    Y(y1),
    Y(y2),
    Y(y3),
    DY(dy0),
    DY(dy1),
    DY(dy2),
    DY(dy3),
    DX(dx0),
    DX(dx1),
    DX(dx2),
    DX(dx3),
    DX(dx4),
    DX(dx5),
    DX(dx6),
    DX(dx7),
};

#define AT(member) offsetof(mica_pointwise_desc, member)
#define X_ARG(n)                                                                                   \
    {                                                                                              \
        .name = "x" #n, .tensor = AT(x##n), .dir = { MICA_IN, MICA_IN }                            \
    }
#define Y_ARG(n)                                                                                   \
    {                                                                                              \
        "y" #n, AT(y##n), {MICA_OUT, MICA_UNUSED}, .alias = "x" #n                                 \
    }
#define DY_ARG(n)                                                                                  \
    {                                                                                              \
        .name = "dy" #n, .tensor = AT(dy##n), .dir = { MICA_UNUSED, MICA_IN }                      \
    }
#define DX_ARG(n)                                                                                  \
    {                                                                                              \
        "dx" #n, AT(dx##n), {MICA_UNUSED, MICA_OUT}, .alias = "dy" #n                              \
    }
static const mica_arg args[] = {X_ARG(0),  X_ARG(1),  X_ARG(2),  X_ARG(3),  X_ARG(4),  X_ARG(5),
                                X_ARG(6),  X_ARG(7),  Y_ARG(0),  Y_ARG(1),  Y_ARG(2),  Y_ARG(3),
                                DY_ARG(0), DY_ARG(1), DY_ARG(2), DY_ARG(3), DX_ARG(0), DX_ARG(1),
                                DX_ARG(2), DX_ARG(3), DX_ARG(4), DX_ARG(5), DX_ARG(6), DX_ARG(7)};
_Static_assert(sizeof args / sizeof *args == MICA_POINTWISE_ARGS, "as the header counts them");

static const mica_scalar scalars[] = {{"s0", 1}, {"s1", 1}, {"s2", 1}, {"s3", 1}};

static mica_tensor *tensor(void *desc, int arg)
{
    return (mica_tensor *)((char *)desc + args[arg].tensor);
}

const mica_tensor *mica_expr_given(const mica_pointwise_desc *d, int arg)
{
    const mica_tensor *t = mica_op_tensor(&mica_op_pointwise, d, arg);
    return mica_tensor_given(t) ? t : NULL;
}

/* ---- dimensions ---- */

/* dims grow by those of t, as NumPy has it. */
static mica_status broadcast(mica_tensor *dims, const mica_tensor *t, const char *name,
                             mica_why *why)
{
    mica_tensor wide = *(t->rank > dims->rank ? t : dims);
    const mica_tensor *other = t->rank > dims->rank ? dims : t;
    const int apart = wide.rank - other->rank;
    for (int i = 0; i < other->rank; i++) {
        int64_t *to = &wide.dims[i + apart];
        if (*to == other->dims[i] || other->dims[i] == 1) continue;
        if (*to != 1)
            return mica_invalid(why,
                                "%s does not broadcast: dimension %d from the last is %lld, that "
                                "of the inputs before it is %lld",
                                name, other->rank - i,
                                (long long)(t->rank > dims->rank ? *to : other->dims[i]),
                                (long long)(t->rank > dims->rank ? other->dims[i] : *to));
        *to = other->dims[i];
    }
    dims->rank = wide.rank;
    memcpy(dims->dims, wide.dims, sizeof dims->dims);
    return MICA_OK;
}

mica_status mica_expr_dims(const mica_pointwise_desc *d, mica_tensor *dims, mica_why *why)
{
    const int result = d->pass == MICA_POINTWISE_BWD ? MICA_POINTWISE_DY0 : MICA_POINTWISE_Y0;
    bool any = false;
    *dims = (mica_tensor){0};
    for (int k = 0; k < MICA_EXPR_X; k++) {
        const mica_tensor *x = mica_expr_given(d, MICA_POINTWISE_X0 + k);
        if (x) MICA_TRY(broadcast(dims, x, args[MICA_POINTWISE_X0 + k].name, why));
        any |= x != NULL;
    }
    if (!any && !mica_expr_given(d, result))
        return mica_invalid(why, "without an input, %s is needed", args[result].name);
    if (!any) *dims = *mica_expr_given(d, result);
    return MICA_OK;
}

/* ---- the expression ---- */

/* Inputs whose gradients are wanted. */
static unsigned wanted(const mica_pointwise_desc *d)
{
    unsigned bits = 0;
    for (int k = 0; k < MICA_EXPR_X; k++)
        if (mica_expr_given(d, MICA_POINTWISE_DX0 + k)) bits |= 1u << k;
    return bits;
}

static mica_status read_forward(const mica_pointwise_desc *d, mica_expr *e, mica_why *why)
{
    mica_tensor dims;
    mica_why ignored;
    if (!*d->expr) return mica_invalid(why, "expr is needed");
    for (int k = 0; k < MICA_EXPR_INPUTS; k++) {
        const mica_tensor *x = k < MICA_EXPR_X ? mica_expr_given(d, MICA_POINTWISE_X0 + k) : NULL;
        e->inputs[k] = x                     ? x->dtype
                       : k < MICA_EXPR_X     ? MICA_NONE
                       : k < MICA_EXPR_INDEX ? MICA_F64
                                             : MICA_S64;
    }
    /* Dimensions that contradict themselves are refused later. */
    const bool known = mica_expr_dims(d, &dims, &ignored) == MICA_OK;
    e->rank = known ? dims.rank : MICA_EXPR_INDICES;
    e->extent = 1;
    for (int i = 0; known && i < dims.rank; i++)
        if (dims.dims[i] > e->extent) e->extent = dims.dims[i];
    return mica_expr_parse(e, d->expr, why);
}

static mica_status read_all(const mica_pointwise_desc *d, mica_expr *e, mica_why *why)
{
    MICA_TRY(read_forward(d, e, why));
    if (d->pass == MICA_POINTWISE_BWD) return mica_expr_derive(e, wanted(d), why);
    for (int i = 0; i < e->result_count; i++) {
        const mica_tensor *y = mica_expr_given(d, MICA_POINTWISE_Y0 + i);
        if (y) MICA_TRY(mica_expr_store(e, i, y->dtype, why));
    }
    return MICA_OK;
}

/* ---- inference ---- */

static mica_dtype larger_float(mica_dtype a, mica_dtype b)
{
    if (a == MICA_NONE || a == b) return b;
    return a == MICA_F64 || b == MICA_F64 ? MICA_F64 : MICA_F32;
}

static mica_dtype result_type(const mica_expr *e, int result)
{
    const mica_dtype type = e->nodes[e->results[result]].type;
    mica_dtype real = MICA_NONE;
    if (type == MICA_EXPR_WHOLE) return MICA_S32;
    if (type != MICA_F64) return type;
    for (int k = 0; k < MICA_EXPR_X; k++)
        if (mica_dtype_is_float(e->inputs[k])) real = larger_float(real, e->inputs[k]);
    return real == MICA_NONE ? MICA_F32 : real;
}

/* The first input of these dimensions, whose order in memory results take. */
static const mica_tensor *find_model(const mica_pointwise_desc *d, const mica_tensor *dims)
{
    for (int k = 0; k < MICA_EXPR_X; k++) {
        const mica_tensor *x = mica_expr_given(d, MICA_POINTWISE_X0 + k);
        if (x && x->rank == dims->rank &&
            !memcmp(x->dims, dims->dims, (size_t)x->rank * sizeof *x->dims))
            return x;
    }
    return NULL;
}

static void infer_result(mica_pointwise_desc *d, int arg, const mica_tensor *dims, mica_dtype type)
{
    mica_tensor *t = tensor(d, arg);
    const mica_tensor *model = find_model(d, dims);
    if (mica_tensor_given(t)) return;
    *t = *dims;
    t->dtype = type;
    memset(t->strides, 0, sizeof t->strides);
    if (model)
        mica_tensor_strides_like(t, model);
    else
        mica_tensor_default_strides(t);
}

static void infer_gradients(mica_pointwise_desc *d)
{
    if (wanted(d)) return;
    for (int k = 0; k < MICA_EXPR_X; k++) {
        const mica_tensor *x = mica_expr_given(d, MICA_POINTWISE_X0 + k);
        if (!x || !mica_dtype_is_float(x->dtype)) continue;
        mica_tensor *dx = tensor(d, MICA_POINTWISE_DX0 + k);
        *dx = *x;
        mica_tensor_strides_like(dx, x);
    }
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_pointwise_desc *d = desc;
    const bool backward = d->pass == MICA_POINTWISE_BWD;
    const int first = backward ? MICA_POINTWISE_DY0 : MICA_POINTWISE_Y0;
    mica_expr e;
    mica_tensor dims;
    MICA_TRY(read_forward(d, &e, why));
    MICA_TRY(mica_expr_dims(d, &dims, why));
    for (int i = e.result_count; i < MICA_EXPR_Y; i++)
        if (mica_expr_given(d, first + i))
            return mica_invalid(why, "%s is given, expr has %d result%s", args[first + i].name,
                                e.result_count, e.result_count == 1 ? "" : "s");
    for (int i = 0; i < e.result_count; i++)
        infer_result(d, first + i, &dims,
                     backward ? larger_float(MICA_NONE, result_type(&e, i)) : result_type(&e, i));
    for (int i = 0; i < MICA_EXPR_Y; i++)
        *tensor(d, (backward ? MICA_POINTWISE_Y0 : MICA_POINTWISE_DY0) + i) = (mica_tensor){0};
    if (backward) infer_gradients(d);
    for (int k = 0; k < MICA_EXPR_X && !backward; k++)
        *tensor(d, MICA_POINTWISE_DX0 + k) = (mica_tensor){0};
    return MICA_OK;
}

/* ---- checks ---- */

static bool is_taken(mica_dtype t)
{
    return mica_dtype_is_float(t) || t == MICA_S8 || t == MICA_U8 || t == MICA_S32 ||
           t == MICA_U32 || t == MICA_S64 || t == MICA_BOOL;
}

mica_tensor mica_expr_expanded(const mica_tensor *t, const mica_tensor *dims)
{
    mica_tensor wide = *dims;
    const int apart = dims->rank - t->rank;
    wide.dtype = t->dtype;
    for (int i = 0; i < dims->rank; i++) {
        const bool own = i >= apart && (t->dims[i - apart] != 1 || dims->dims[i] == 1);
        wide.strides[i] = own ? t->strides[i - apart] : 0;
    }
    return wide;
}

unsigned mica_expr_repeated(const mica_tensor *t, const mica_tensor *dims)
{
    const int apart = dims->rank - t->rank;
    unsigned repeated = 0;
    for (int i = 0; i < dims->rank; i++)
        if (dims->dims[i] != 1 && (i < apart || t->dims[i - apart] == 1)) repeated |= 1u << i;
    return repeated;
}

static mica_status check_inputs(const mica_pointwise_desc *d, const mica_expr *forward,
                                mica_why *why)
{
    const unsigned used = mica_expr_inputs(forward);
    for (int k = 0; k < MICA_EXPR_X; k++) {
        const mica_tensor *x = mica_expr_given(d, MICA_POINTWISE_X0 + k);
        if (!x) continue;
        if (!is_taken(x->dtype))
            return mica_invalid(why,
                                "x%d is %s; taken are f64, f32, f16, bf16, e4m3, e5m2, s64, s32, "
                                "u32, s8, u8, bool",
                                k, mica_dtype_name(x->dtype));
        if (!(used >> k & 1)) return mica_invalid(why, "x%d is given, no result depends on it", k);
    }
    return MICA_OK;
}

/* Whether a result of that type may be stored as the other without a cast. */
static bool may_store(mica_dtype result, mica_dtype to)
{
    if (mica_dtype_is_float(to)) return true;
    if (!is_taken(to) || result == MICA_F64) return false;
    if (result == MICA_EXPR_WHOLE || result == MICA_BOOL) return true;
    return to == result || to == MICA_S64 ||
           (to == MICA_S32 && (result == MICA_S8 || result == MICA_U8)) ||
           (to == MICA_U32 && result == MICA_U8);
}

static mica_status check_results(const mica_pointwise_desc *d, const mica_expr *e,
                                 const mica_tensor *dims, mica_why *why)
{
    const bool backward = d->pass == MICA_POINTWISE_BWD;
    for (int i = 0; i < e->result_count; i++) {
        const int arg = (backward ? MICA_POINTWISE_DY0 : MICA_POINTWISE_Y0) + i;
        const mica_tensor *t = mica_expr_given(d, arg);
        const mica_dtype type = e->nodes[e->results[i]].type;
        if (backward && type != MICA_F64)
            return mica_invalid(why, "pass=bwd: result %d of expr is %s, it must be real", i,
                                mica_expr_type_name(type));
        if (backward ? !mica_dtype_is_float(t->dtype) : !may_store(type, t->dtype))
            return mica_invalid(why,
                                "result %d of expr is %s, %s is %s: write %s(...) or another y", i,
                                mica_expr_type_name(type), args[arg].name,
                                mica_dtype_name(t->dtype), mica_dtype_name(t->dtype));
        MICA_TRY(mica_tensor_same_dims(t, args[arg].name, dims, "the inputs together", why));
    }
    return MICA_OK;
}

/* dx is as x, or 1 where x has a stride of 0. */
static mica_status check_gradients(const mica_pointwise_desc *d, mica_why *why)
{
    if (!wanted(d)) return mica_invalid(why, "pass=bwd: no input is of a floating-point type");
    for (int k = 0; k < MICA_EXPR_X; k++) {
        const mica_tensor *x = mica_expr_given(d, MICA_POINTWISE_X0 + k);
        const mica_tensor *dx = mica_expr_given(d, MICA_POINTWISE_DX0 + k);
        if (!dx) continue;
        if (!x) return mica_invalid(why, "dx%d is given, x%d is not", k, k);
        if (!mica_dtype_is_float(x->dtype) || !mica_dtype_is_float(dx->dtype))
            return mica_invalid(why, "x%d is %s and dx%d %s: gradients are of floating-point types",
                                k, mica_dtype_name(x->dtype), k, mica_dtype_name(dx->dtype));
        mica_tensor want = *x;
        for (int i = 0; i < x->rank && dx->rank == x->rank; i++)
            if (x->strides[i] == 0 && dx->dims[i] == 1) want.dims[i] = 1;
        MICA_TRY(mica_tensor_same_dims(dx, args[MICA_POINTWISE_DX0 + k].name, &want,
                                       args[MICA_POINTWISE_X0 + k].name, why));
    }
    return MICA_OK;
}

static int count_operands(const mica_expr *e)
{
    return __builtin_popcount(mica_expr_inputs(e)) + e->result_count;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_pointwise_desc *d = desc;
    mica_expr e;
    mica_tensor dims;
    MICA_TRY(read_forward(d, &e, why));
    MICA_TRY(mica_expr_dims(d, &dims, why));
    MICA_TRY(check_inputs(d, &e, why));
    MICA_TRY(check_results(d, &e, &dims, why));
    if (d->pass == MICA_POINTWISE_BWD) {
        MICA_TRY(check_gradients(d, why));
        MICA_TRY(mica_expr_derive(&e, wanted(d), why));
    }
    if (count_operands(&e) > MICA_POINTWISE_OPERANDS)
        return mica_invalid(why,
                            "%d tensors and index functions take part, %d may: ask for fewer "
                            "gradients at a time",
                            count_operands(&e), MICA_POINTWISE_OPERANDS);
    return MICA_OK;
}

/* Terms of the longest sum. */
static double longest_sum(const mica_pointwise_desc *d)
{
    mica_tensor dims;
    mica_why why;
    double longest = 1;
    if (d->pass != MICA_POINTWISE_BWD || mica_expr_dims(d, &dims, &why) != MICA_OK) return 1;
    for (int k = 0; k < MICA_EXPR_X; k++) {
        const mica_tensor *dx = mica_expr_given(d, MICA_POINTWISE_DX0 + k);
        const unsigned summed = dx ? mica_expr_repeated(dx, &dims) : 0;
        double terms = 1;
        for (int i = 0; i < dims.rank; i++)
            if (summed >> i & 1) terms *= (double)dims.dims[i];
        longest = terms > longest ? terms : longest;
    }
    return longest;
}

static bool exact(const void *desc)
{
    mica_expr e;
    mica_why why;
    return read_all(desc, &e, &why) == MICA_OK && mica_expr_is_exact(&e, longest_sum(desc));
}

static void cost(const void *desc, double *flops, double *bytes)
{
    mica_expr e;
    mica_why why;
    mica_tensor dims;
    (void)bytes;
    if (read_all(desc, &e, &why) != MICA_OK || mica_expr_dims(desc, &dims, &why) != MICA_OK) return;
    dims.dtype = MICA_F32;
    *flops = (double)mica_tensor_count(&dims) * e.count;
}

/* ---- the program ---- */

/* The place along dimension k: where an element would lie in a tensor of that stride alone. */
static void add_index(const mica_tensor *dims, int k, mica_pointwise_operand *o)
{
    *o = (mica_pointwise_operand){
        .tensor = *dims, .arg = -1, .read = true, .whole = true, .index = true};
    o->tensor.dtype = MICA_F64;
    for (int i = 0; i < dims->rank; i++) o->tensor.strides[i] = i == k;
}

/* Inputs that are read, results, and places, in this order. */
static void find_operands(const mica_pointwise_desc *d, const mica_expr *e, mica_pointwise_set *set,
                          int *operand, int *result_operand)
{
    const bool backward = d->pass == MICA_POINTWISE_BWD;
    const unsigned used = mica_expr_inputs(e);
    mica_tensor dims;
    mica_why why;
    bool floats = false;
    if (mica_expr_dims(d, &dims, &why) != MICA_OK) return;
    for (int k = 0; k < MICA_EXPR_INPUTS; k++) {
        operand[k] = -1;
        if (!(used >> k & 1) || k >= MICA_EXPR_INDEX) continue;
        const int arg =
            k < MICA_EXPR_DY ? MICA_POINTWISE_X0 + k : MICA_POINTWISE_DY0 + k - MICA_EXPR_DY;
        operand[k] = set->count;
        set->at[set->count] = mica_pointwise_argument(&mica_op_pointwise, d, arg);
        set->at[set->count++].tensor = mica_expr_expanded(mica_expr_given(d, arg), &dims);
    }
    for (int i = 0, k = 0; i < e->result_count; i++, k++) {
        while (backward && !mica_expr_given(d, MICA_POINTWISE_DX0 + k)) k++;
        const int arg = (backward ? MICA_POINTWISE_DX0 : MICA_POINTWISE_Y0) + k;
        result_operand[i] = set->count;
        mica_pointwise_operand *o = &set->at[set->count++];
        *o = mica_pointwise_argument(&mica_op_pointwise, d, arg);
        if (!backward) continue;
        o->summed = mica_expr_repeated(&o->tensor, &dims);
        o->tensor = mica_expr_expanded(&o->tensor, &dims);
    }
    for (int k = 0; k < set->count; k++) {
        mica_dtype *type = &set->at[k].tensor.dtype;
        floats |= mica_dtype_is_float(*type);
        set->at[k].whole = *type == MICA_S64;
        if (*type == MICA_S64) *type = MICA_F64;
    }
    for (int k = 0; k < MICA_EXPR_INDICES; k++)
        if (used >> (MICA_EXPR_INDEX + k) & 1) {
            operand[MICA_EXPR_INDEX + k] = set->count;
            add_index(&dims, k, &set->at[set->count++]);
        }
    set->f64 = !floats || mica_expr_is_wide(e);
}

static void operands(const void *desc, mica_pointwise_set *set)
{
    int operand[MICA_EXPR_INPUTS], result_operand[MICA_EXPR_X];
    mica_expr e;
    mica_why why;
    if (read_all(desc, &e, &why) != MICA_OK) return;
    find_operands(desc, &e, set, operand, result_operand);
}

static void prepare(const void *desc, void *prepared)
{
    mica_expr_program *p = prepared;
    mica_pointwise_set set = {0};
    mica_why why;
    if (read_all(desc, &p->expr, &why) != MICA_OK) return;
    find_operands(desc, &p->expr, &set, p->operand, p->result_operand);
    p->f64 = mica_pointwise_real(&set) == MICA_F64;
    mica_expr_compile(p);
}
_Static_assert(sizeof(mica_expr_program) <= MICA_POINTWISE_PREPARED, "fits");

static const mica_pointwise pointwise = {.kernel = "ops/pointwise/expression.cu",
                                         .entry = "expression",
                                         .operands = operands,
                                         .number_count = MICA_EXPR_SCALARS,
                                         .prepare = prepare,
                                         .prepared_size = sizeof(mica_expr_program),
                                         .prologue = mica_expr_prologue,
                                         .f32 = mica_expr_block_f32,
                                         .f64 = mica_expr_block_f64,
                                         .truth = mica_expr_truth};

const mica_op mica_op_pointwise = {
    .name = "pointwise",
    .doc = "Expressions of element functions, and their gradients",
    .desc_size = sizeof(mica_pointwise_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .check = check,
    .cost = cost,
    .exact = exact,
    .pointwise = &pointwise,
    .engines = mica_expr_engines,
};
