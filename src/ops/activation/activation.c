/* SPDX-License-Identifier: Apache-2.0
 * Activations: tables, inference, checks. */
#include "ops/activation/activation.h"

#include <math.h>

static const char *const passes[] = {"fwd", "bwd", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_activation_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(act, ENUM, .spellings = mica_act_spellings, .doc = "the function"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "input"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "fwd: output"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "inferred", .doc = "bwd: gradient of x"),
    FIELD(gated, FLAG, .doc = "y = act(first half of x) * second half, along axis"),
    FIELD(axis, I64, .zero = "axis 0", .doc = "of the split; negative counts from the end"),
    FIELD(act_a, F64, .apart = true, .infinite = true, .zero = "the function's own",
          .doc = "first parameter of the function"),
    FIELD(act_b, F64, .infinite = true, .zero = "the function's own",
          .doc = "second parameter of the function"),
};

/* x, or with gating the first half of it along the axis. */
static mica_tensor half_of_x(const void *desc)
{
    const mica_activation_desc *d = desc;
    mica_tensor t = d->x;
    if (d->gated) t.dims[d->axis] /= 2;
    return t;
}

#define ARG(member, fwd, bwd, ...)                                                                 \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_activation_desc, member), .types = MICA_FLOATS,   \
        .dir = {fwd, bwd}, .need = {MICA_INFERRED, MICA_INFERRED}, __VA_ARGS__                     \
    }
#define HALF .like = "x", .words = "half of x", .shape = half_of_x
static const mica_arg args[] = {
    [MICA_ACTIVATION_X] = {"x",
                           offsetof(mica_activation_desc, x),
                           {MICA_IN, MICA_IN},
                           .alias = "y",
                           .types = MICA_FLOATS,
                           .need = {MICA_NEEDED, MICA_NEEDED}},
    [MICA_ACTIVATION_Y] = ARG(y, MICA_OUT, MICA_UNUSED, HALF),
    [MICA_ACTIVATION_DY] = ARG(dy, MICA_UNUSED, MICA_IN, HALF, .alias = "dx"),
    [MICA_ACTIVATION_DX] = ARG(dx, MICA_UNUSED, MICA_OUT, .like = "x"),
};

static const mica_scalar scalars[] = {
    [MICA_ACTIVATION_ALPHA] = {"alpha", 1}, [MICA_ACTIVATION_BETA] = {"beta", 0}};

static mica_status infer(void *desc, mica_why *why)
{
    mica_activation_desc *d = desc;
    if (!d->gated) d->axis = 0;
    if (d->gated && d->axis < 0) d->axis += d->x.rank;
    if (d->gated && (d->axis < 0 || d->axis >= d->x.rank))
        return mica_invalid(why, "axis is %lld, x has %d dimensions", (long long)d->axis,
                            d->x.rank);
    mica_act_defaults(d->act, &d->act_a, &d->act_b);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_activation_desc *d = desc;
    if (d->gated && d->x.dims[d->axis] % 2)
        return mica_invalid(why, "x has %lld elements along axis %lld, gating needs an even number",
                            (long long)d->x.dims[d->axis], (long long)d->axis);
    return MICA_OK;
}

/* EXTREME: x at the edges. Where dy and the gate are there too, the order of products counts. */
static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_activation_desc *d = desc;
    (void)scalars;
    if (kind != MICA_FILL_EXTREME || arg != MICA_ACTIVATION_X) return false;
    const mica_tensor *t = &d->x;
    int64_t split = d->gated ? t->dims[d->axis] / 2 : 0, inner = 1;
    for (int a = (int)d->axis + 1; d->gated && a < t->rank; a++) inner *= t->dims[a];
    mica_fill_general(&mica_op_activation, desc, arg, MICA_FILL_RANDOM, seed, values);
    for (int64_t i = 0, n = mica_tensor_count(t); i < n; i++)
        if (!d->gated || i / inner % (2 * split) < split) {
            double v = mica_fill_rounded(t->dtype, mica_fill_edge(t->dtype, seed, (uint64_t)i));
            /* Twice it, a slope in f32, is to be finite. */
            if (d->act == MICA_ACT_SQUARED_RELU && fabs(v) > 0x1p126) v = 0.5;
            values[i] = v;
        }
    return true;
}

/* Functions whose values on small integers are exact in any precision. */
static bool exact(const void *desc)
{
    const mica_activation_desc *d = desc;
    return mica_act_is_exact(d->act) && floor(d->act_a) == d->act_a && floor(d->act_b) == d->act_b;
}

/* ---- what the body works on ---- */

/* An argument, or with gating a half of one along the axis. */
static mica_pointwise_operand half_of(const mica_activation_desc *d, int arg, int half)
{
    mica_pointwise_operand o = mica_pointwise_argument(&mica_op_activation, d, arg);
    if (!d->gated || !mica_tensor_given(&o.tensor)) return o;
    o.tensor.dims[d->axis] /= 2;
    o.shift = half * o.tensor.dims[d->axis] * o.tensor.strides[d->axis];
    return o;
}

void mica_activation_operands(const void *desc, mica_pointwise_set *set)
{
    const mica_activation_desc *d = desc;
    const bool backward = d->pass == MICA_ACTIVATION_BWD;
    mica_pointwise_operand *at = set->at;
    at[ACTIVATION_X] = half_of(d, MICA_ACTIVATION_X, 0);
    if (d->gated) at[ACTIVATION_GATE] = half_of(d, MICA_ACTIVATION_X, 1);
    at[ACTIVATION_DY] = mica_pointwise_argument(&mica_op_activation, d, MICA_ACTIVATION_DY);
    at[ACTIVATION_OUT] = backward
                             ? half_of(d, MICA_ACTIVATION_DX, 0)
                             : mica_pointwise_argument(&mica_op_activation, d, MICA_ACTIVATION_Y);
    if (backward && d->gated) at[ACTIVATION_OUT_GATE] = half_of(d, MICA_ACTIVATION_DX, 1);
    set->count = ACTIVATION_OUT_GATE + 1;
    set->variant = (backward ? ACTIVATION_BACKWARD : 0) | (d->gated ? ACTIVATION_GATED : 0);
}

mica_status mica_activation_numbers(const void *desc, const double *scalars, double *numbers)
{
    const mica_activation_desc *d = desc;
    (void)scalars;
    numbers[ACTIVATION_A] = d->act_a;
    numbers[ACTIVATION_B] = d->act_b;
    return MICA_OK;
}

void mica_activation_prologue(const void *desc, mica_text *prologue)
{
    const mica_activation_desc *d = desc;
    mica_prologue_activation(prologue, d->act);
    mica_prologue_int(prologue, "ACT", d->act);
}

/* Errors are relative to the result, in the tails too; slopes of two terms cancel. What is below
 * the normal numbers of the arithmetic, and then multiplied, has lost digits: up to 104 units, |x|.
 */
void mica_activation_truth(const void *desc, const double *numbers, double *v, double *mag)
{
    const mica_activation_desc *d = desc;
    (void)numbers;
    double x = v[ACTIVATION_X], gate = d->gated ? v[ACTIVATION_GATE] : 1, g = v[ACTIVATION_DY];
    double value = mica_act_value(d->act, x, d->act_a, d->act_b);
    double size = mica_act_value_size(d->act, x, d->act_a, d->act_b);
    double lost = fabs(x) < 1000 ? (d->x.dtype == MICA_F64 ? 0x1p-1016 : 0x1p-122) : 0;
    if (d->pass == MICA_ACTIVATION_FWD) {
        v[ACTIVATION_OUT] = value * gate;
        mag[ACTIVATION_OUT] = d->gated ? fmax(size, lost) * fabs(gate) : size;
        return;
    }
    double slope = mica_act_slope(d->act, x, d->act_a, d->act_b);
    size = fmax(size, lost);
    v[ACTIVATION_OUT] = g * gate * slope;
    mag[ACTIVATION_OUT] =
        fabs(g * gate) * fmax(mica_act_slope_size(d->act, x, d->act_a, d->act_b), lost);
    v[ACTIVATION_OUT_GATE] = g * value;
    mag[ACTIVATION_OUT_GATE] = fabs(g) * size;
}

const mica_op mica_op_activation = {
    .name = "activation",
    .doc = "Activation functions and their gated forms (GLU, SwiGLU, GEGLU, ...)",
    .desc_size = sizeof(mica_activation_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .check = check,
    .exact = exact,
    .ulps = 8, /* mica/activation.h */
    .fill = fill,
    .pointwise = &mica_activation_pointwise,
    .engines = mica_pointwise_engines,
};
