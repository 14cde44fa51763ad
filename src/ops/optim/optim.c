/* SPDX-License-Identifier: Apache-2.0
 * Optimiser steps: tables, inference, checks, the numbers of a step. */
#include "ops/optim/optim.h"
#include "base/random.h"

#include <math.h>

static const char *const rules[] = {"sgd", "adam", "adamw", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_optim_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(rule, ENUM, .spellings = rules, .doc = "how the parameters move"),
    FIELD(p, TENSOR, .zero = "needed", .doc = "parameters, stepped in place"),
    FIELD(grad, TENSOR, .zero = "inferred", .doc = "gradient"),
    FIELD(m, TENSOR, .zero = "inferred where the rule has it",
          .doc = "first moment (sgd: momentum buffer), f32 as a rule"),
    FIELD(v, TENSOR, .zero = "inferred where the rule has it",
          .doc = "adam, adamw: second moment, f32 as a rule"),
    FIELD(master, TENSOR, .zero = "none", .doc = "f32 copy of p that is stepped in its place"),
    FIELD(momentum, F64, .zero = "none", .doc = "sgd: share of the old m that is kept"),
    FIELD(dampening, F64, .zero = "none", .doc = "sgd: share of the gradient kept out of m"),
    FIELD(nesterov, FLAG, .doc = "sgd: step along g + momentum m"),
    FIELD(beta1, F64, .def = 0.9, .doc = "adam, adamw: share of the old m that is kept"),
    FIELD(beta2, F64, .def = 0.999, .doc = "adam, adamw: share of the old v that is kept"),
    FIELD(eps, F64, .def = 1e-8, .doc = "adam, adamw: added to sqrt(v)"),
    FIELD(weight_decay, F64, .zero = "none",
          .doc = "added to the gradient as weight_decay p; adamw: apart"),
    FIELD(maximize, FLAG, .doc = "ascend instead of descend"),
};

#define ARG(member, direction, ...)                                                                \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_optim_desc, member), .dir = {direction},          \
        __VA_ARGS__                                                                                \
    }
#define AS_P .types = MICA_FLOATS, .like = "p"
static const mica_arg args[] = {
    [MICA_OPTIM_P] = ARG(p, MICA_INOUT, .types = MICA_FLOATS, .need = {MICA_NEEDED}),
    [MICA_OPTIM_GRAD] = ARG(grad, MICA_IN, AS_P, .need = {MICA_INFERRED}),
    [MICA_OPTIM_M] = ARG(m, MICA_INOUT, AS_P),
    [MICA_OPTIM_V] = ARG(v, MICA_INOUT, AS_P, .need = {MICA_INFERRED}, .state = true,
                         .when = "rule", .values = 1 << MICA_OPTIM_ADAM | 1 << MICA_OPTIM_ADAMW),
    [MICA_OPTIM_MASTER] = ARG(master, MICA_INOUT, .types = MICA_TYPE(F32), .like = "p"),
};

static const mica_scalar scalars[] = {[MICA_OPTIM_LR] = {"lr", 1e-3},
                                      [MICA_OPTIM_STEP] = {"step", 1},
                                      [MICA_OPTIM_GRAD_SCALE] = {"grad_scale", 1}};

/* ---- inference and checks ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_optim_desc *d = desc;
    bool sgd = d->rule == MICA_OPTIM_SGD;
    (void)why;
    if (sgd) d->beta1 = d->beta2 = d->eps = 0;
    if (sgd && d->momentum == 0)
        d->m = (mica_tensor){0};
    else if (!mica_tensor_given(&d->m))
        d->m.dtype = mica_dtype_accumulator(d->p.dtype);
    return MICA_OK;
}

static mica_status check_share(double value, const char *name, mica_why *why)
{
    if (value >= 0 && value < 1) return MICA_OK;
    return mica_invalid(why, "%s is %g, it must be at least 0 and below 1", name, value);
}

static mica_status check_finite(double value, const char *name, mica_why *why)
{
    if (isfinite(value)) return MICA_OK;
    return mica_invalid(why, "%s is %g, it must be finite", name, value);
}

static mica_status check_sgd(const mica_optim_desc *d, mica_why *why)
{
    if (!(d->momentum >= 0) || !isfinite(d->momentum))
        return mica_invalid(why, "momentum is %g, it must be finite and at least 0", d->momentum);
    MICA_TRY(check_finite(d->dampening, "dampening", why));
    if (d->dampening != 0 && d->momentum == 0)
        return mica_invalid(why, "dampening is %g, it needs momentum", d->dampening);
    if (d->nesterov && (d->momentum == 0 || d->dampening != 0))
        return mica_invalid(why,
                            "nesterov with momentum %g and dampening %g: it needs momentum and no "
                            "dampening",
                            d->momentum, d->dampening);
    return MICA_OK;
}

static mica_status check_adam(const mica_optim_desc *d, mica_why *why)
{
    if (d->momentum != 0 || d->dampening != 0 || d->nesterov)
        return mica_invalid(why, "momentum %g, dampening %g, nesterov %d: they are sgd's, not %s's",
                            d->momentum, d->dampening, d->nesterov, rules[d->rule]);
    MICA_TRY(check_share(d->beta1, "beta1", why));
    MICA_TRY(check_share(d->beta2, "beta2", why));
    /* Below the normal floats eps loses its digits, and 0 / (0 + eps) in the end its meaning. */
    if (!(d->eps >= 0x1p-126) || !isfinite(d->eps))
        return mica_invalid(why, "eps is %g, it must be finite and at least 2^-126", d->eps + 0);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_optim_desc *d = desc;
    if (mica_tensor_given(&d->master) && d->p.dtype == MICA_F64)
        return mica_invalid(why, "p is f64, a master of f32 would hold less of it");
    MICA_TRY(check_finite(d->weight_decay, "weight_decay", why));
    return d->rule == MICA_OPTIM_SGD ? check_sgd(d, why) : check_adam(d, why);
}

/* ---- what the body works on ---- */

void mica_optim_operands(const void *desc, mica_pointwise_set *set)
{
    const mica_op *op = &mica_op_optim;
    const mica_optim_desc *d = desc;
    const bool master = mica_tensor_given(&d->master);
    mica_pointwise_operand *at = set->at;
    at[OPTIM_STEPPED] =
        mica_pointwise_argument(op, desc, master ? MICA_OPTIM_MASTER : MICA_OPTIM_P);
    if (master) {
        at[OPTIM_ROUNDED] = mica_pointwise_argument(op, desc, MICA_OPTIM_P);
        at[OPTIM_ROUNDED].read = false; /* its old value is not needed */
        at[OPTIM_ROUNDED].follows = true;
    }
    at[OPTIM_GRAD] = mica_pointwise_argument(op, desc, MICA_OPTIM_GRAD);
    at[OPTIM_M] = mica_pointwise_argument(op, desc, MICA_OPTIM_M);
    at[OPTIM_V] = mica_pointwise_argument(op, desc, MICA_OPTIM_V);
    set->count = OPTIM_V + 1;
    set->variant = d->rule != MICA_OPTIM_SGD  ? OPTIM_ADAM
                   : mica_tensor_given(&d->m) ? OPTIM_MOMENTUM
                                              : OPTIM_PLAIN;
}

static void begin_sgd(const mica_optim_desc *d, double step, double lr, double *n)
{
    bool first = step == 1;
    n[OPTIM_RATE] = lr;
    n[OPTIM_KEEP_M] = first ? 0 : d->momentum;
    n[OPTIM_TAKE_G] = first ? 1 : 1 - d->dampening;
    n[OPTIM_AHEAD_G] = d->nesterov || d->momentum == 0 ? 1 : 0;
    n[OPTIM_AHEAD_M] = d->nesterov ? d->momentum : d->momentum == 0 ? 0 : 1;
}

static void begin_adam(const mica_optim_desc *d, double step, double lr, double *n)
{
    n[OPTIM_KEEP_M] = d->beta1;
    n[OPTIM_TAKE_G] = 1 - d->beta1;
    n[OPTIM_KEEP_V] = d->beta2;
    n[OPTIM_TAKE_G2] = 1 - d->beta2;
    /* 1 - beta^step without the cancellation that beta near 1 brings. */
    n[OPTIM_RATE] = lr / -expm1(step * log(d->beta1));
    n[OPTIM_ROOT_SCALE] = 1 / sqrt(-expm1(step * log(d->beta2)));
    n[OPTIM_EPS] = d->eps;
}

mica_status mica_optim_numbers(const void *desc, const double *scalars, double *n)
{
    const mica_optim_desc *d = desc;
    double lr = scalars[MICA_OPTIM_LR], step = scalars[MICA_OPTIM_STEP];
    if (!(step >= 1)) return mica_fail(MICA_INVALID, "step is %g, it counts from 1", step);
    for (int i = 0; i < OPTIM_NUMBERS; i++) n[i] = 0;
    n[OPTIM_GRAD_SCALE] = scalars[MICA_OPTIM_GRAD_SCALE] * (d->maximize ? -1 : 1);
    n[OPTIM_DECAY] = d->rule == MICA_OPTIM_ADAMW ? 0 : d->weight_decay;
    n[OPTIM_KEEP_P] = d->rule == MICA_OPTIM_ADAMW ? 1 - lr * d->weight_decay : 1;
    if (d->rule == MICA_OPTIM_SGD)
        begin_sgd(d, step, lr, n);
    else
        begin_adam(d, step, lr, n);
    return MICA_OK;
}

/* ---- tables ---- */

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_optim_desc *d = desc;
    (void)bytes;
    *flops = (double)mica_tensor_count(&d->p) * (d->rule == MICA_OPTIM_SGD ? 6 : 14);
}

/* A second moment is not negative. What lies in m before the first step of sgd may be anything. */
static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_optim_desc *d = desc;
    bool anything = arg == MICA_OPTIM_M && d->rule == MICA_OPTIM_SGD &&
                    scalars[MICA_OPTIM_STEP] == 1 && kind == MICA_FILL_EXTREME &&
                    mica_dtype_is_float(d->m.dtype);
    /* Gradients whose squares overflow f32, and shares of 2^-8 of them do not. */
    bool large = arg == MICA_OPTIM_GRAD && d->rule != MICA_OPTIM_SGD && d->beta2 > 0.997 &&
                 kind == MICA_FILL_EXTREME && d->grad.dtype != MICA_F16;
    if (arg != MICA_OPTIM_V && !anything && !large) return false;
    int64_t count = mica_tensor_count(mica_op_tensor(&mica_op_optim, desc, arg));
    mica_fill_general(&mica_op_optim, desc, arg, kind, seed, values);
    for (int64_t i = 0; i < count; i++) {
        if (!large)
            values[i] = anything ? NAN : fabs(values[i]);
        else if (mica_random_bits(seed ^ 0x19, (uint64_t)i) % 5 == 0)
            values[i] = i & 1 ? 0x1.2p64 : -0x1.2p64;
    }
    return true;
}

const mica_op mica_op_optim = {
    .name = "optim",
    .doc = "Optimiser steps in place: SGD with momentum, Adam, AdamW",
    .desc_size = sizeof(mica_optim_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .check = check,
    .cost = cost,
    .ulps = 4, /* a dozen roundings on the way, of numbers that the magnitudes count in full */
    .fill = fill,
    .reference = mica_optim_reference,
    .pointwise = &mica_optim_pointwise,
    .engines = mica_pointwise_engines,
};
