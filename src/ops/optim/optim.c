/* SPDX-License-Identifier: Apache-2.0
 * Optimiser steps: tables, inference, checks, the numbers of a step. */
#include "ops/optim/optim.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

static const char *const rules[] = {"sgd", "adam", "adamw", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_optim_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(rule, ENUM, .spellings = rules, .doc = "sgd, adam or adamw"),
    FIELD(p, TENSOR, .doc = "parameters"),
    FIELD(grad, TENSOR, .doc = "gradient"),
    FIELD(m, TENSOR, .doc = "first moment; sgd: momentum buffer"),
    FIELD(v, TENSOR, .doc = "adam, adamw: second moment"),
    FIELD(master, TENSOR, .doc = "parameters in higher precision, if given"),
    FIELD(momentum, F64, .doc = "sgd: of the buffer; 0: no buffer"),
    FIELD(dampening, F64, .doc = "sgd: what the gradient loses on its way into the buffer"),
    FIELD(nesterov, FLAG, .doc = "sgd: look ahead by the momentum"),
    FIELD(beta1, F64, .def = 0.9, .doc = "adam, adamw: of the first moment"),
    FIELD(beta2, F64, .def = 0.999, .doc = "adam, adamw: of the second moment"),
    FIELD(eps, F64, .def = 1e-8, .doc = "adam, adamw: added to the root of the second moment"),
    FIELD(weight_decay, F64, .doc = "of the parameters"),
    FIELD(maximize, FLAG, .doc = "ascend instead of descend"),
};

#define ARG(member) #member, offsetof(mica_optim_desc, member)
static const mica_arg args[] = {
    [MICA_OPTIM_P] = {ARG(p), {MICA_INOUT}},           [MICA_OPTIM_GRAD] = {ARG(grad), {MICA_IN}},
    [MICA_OPTIM_M] = {ARG(m), {MICA_INOUT}},           [MICA_OPTIM_V] = {ARG(v), {MICA_INOUT}},
    [MICA_OPTIM_MASTER] = {ARG(master), {MICA_INOUT}},
};

static const mica_scalar scalars[] = {
    [MICA_OPTIM_LR] = {"lr", 1e-3},
    [MICA_OPTIM_STEP] = {"step", 1},
    [MICA_OPTIM_GRAD_SCALE] = {"grad_scale", 1},
};

static const mica_tensor *given(const mica_optim_desc *d, int i)
{
    return (const mica_tensor *)((const char *)d + args[i].tensor);
}

bool mica_optim_has(const mica_optim_desc *d, int i)
{
    return mica_tensor_given(given(d, i));
}

const mica_tensor *mica_optim_tensor(const mica_optim_desc *d, int i)
{
    return mica_optim_has(d, i) ? given(d, i) : &d->p;
}

bool mica_optim_is_wide(const mica_optim_desc *d)
{
    for (int i = 0; i < MICA_OPTIM_TENSORS; i++)
        if (given(d, i)->dtype == MICA_F64) return true;
    return false;
}

/* ---- inference and checks ---- */

static void infer_state(mica_tensor *t, bool used, const mica_tensor *p)
{
    if (!used) memset(t, 0, sizeof *t);
    if (!used || mica_tensor_given(t)) return;
    *t = *p;
    t->dtype = p->dtype == MICA_F64 ? MICA_F64 : MICA_F32;
    mica_tensor_strides_like(t, p);
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_optim_desc *d = desc;
    bool sgd = d->rule == MICA_OPTIM_SGD;
    if (!mica_tensor_given(&d->p)) return mica_invalid(why, "p is needed");
    if (!mica_tensor_given(&d->grad)) {
        d->grad = d->p;
        mica_tensor_strides_like(&d->grad, &d->p);
    }
    infer_state(&d->m, !sgd || d->momentum != 0, &d->p);
    infer_state(&d->v, !sgd, &d->p);
    if (sgd) d->beta1 = d->beta2 = d->eps = 0;
    return MICA_OK;
}

static mica_status check_sgd(const mica_optim_desc *d, mica_why *why)
{
    if (!(d->momentum >= 0))
        return mica_invalid(why, "momentum is %g, it may not be negative", d->momentum);
    if (d->nesterov && (d->momentum == 0 || d->dampening != 0))
        return mica_invalid(why,
                            "nesterov with momentum %g and dampening %g: it needs a momentum and "
                            "no dampening",
                            d->momentum, d->dampening);
    if (d->dampening != 0 && d->momentum == 0)
        return mica_invalid(why, "dampening is %g without a momentum", d->dampening);
    return MICA_OK;
}

static mica_status check_adam(const mica_optim_desc *d, mica_why *why)
{
    if (d->momentum != 0 || d->dampening != 0 || d->nesterov)
        return mica_invalid(why, "momentum %g, dampening %g, nesterov %d: they belong to sgd",
                            d->momentum, d->dampening, d->nesterov);
    if (!(d->beta1 >= 0 && d->beta1 < 1))
        return mica_invalid(why, "beta1 is %g, it must lie in [0, 1)", d->beta1);
    if (!(d->beta2 >= 0 && d->beta2 < 1))
        return mica_invalid(why, "beta2 is %g, it must lie in [0, 1)", d->beta2);
    if (!(d->eps >= 0)) return mica_invalid(why, "eps is %g, it may not be negative", d->eps);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_optim_desc *d = desc;
    for (int i = 0; i < MICA_OPTIM_TENSORS; i++) {
        const mica_tensor *t = mica_optim_tensor(d, i);
        if (!mica_dtype_is_common(t->dtype))
            return mica_invalid(why, "%s is %s, it must be f64, f32, f16 or bf16", args[i].name,
                                mica_dtype_name(t->dtype));
        MICA_TRY(mica_tensor_same_dims(t, args[i].name, &d->p, "p", why));
    }
    if (mica_tensor_given(&d->master) &&
        mica_dtype_bits(d->master.dtype) < mica_dtype_bits(d->p.dtype))
        return mica_invalid(why, "master is %s, it may not be shorter than p, which is %s",
                            mica_dtype_name(d->master.dtype), mica_dtype_name(d->p.dtype));
    if (!(d->weight_decay >= 0))
        return mica_invalid(why, "weight_decay is %g, it may not be negative", d->weight_decay);
    return d->rule == MICA_OPTIM_SGD ? check_sgd(d, why) : check_adam(d, why);
}

/* A parameter that has a master copy is written and not read. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_optim_desc *d = desc;
    double count = (double)mica_tensor_count(&d->p);
    *flops = (d->rule == MICA_OPTIM_SGD ? d->momentum != 0 ? 5 : 2 : 14) * count;
    for (int i = 0; i < MICA_OPTIM_TENSORS; i++) {
        if (!mica_optim_has(d, i)) continue;
        bool once = i == MICA_OPTIM_GRAD || (i == MICA_OPTIM_P && mica_tensor_given(&d->master));
        *bytes += count * mica_dtype_bits(given(d, i)->dtype) / 8 * (once ? 1 : 2);
    }
}

/* Not a sum, but a chain of up to so many roundings. */
static int64_t terms(const void *desc)
{
    (void)desc;
    return 8;
}

/* Second moments are not negative, and not so small that their own subnormal rounding counts. */
static bool fill_moment(const void *desc, int arg, mica_fill fill, uint64_t seed, double *values)
{
    static const double extremes[] = {0, 1, 14400, 0x1p-14};
    const mica_optim_desc *d = desc;
    if (arg != MICA_OPTIM_V) return false;
    int64_t count = mica_tensor_count(&d->v);
    seed = mica_random_bits(seed, 0x5ec0);
    for (int64_t i = 0; i < count; i++) {
        double n = mica_random_normal(seed, (uint64_t)i),
               u = mica_random_uniform(seed, (uint64_t)i);
        double value = n * n;
        if (fill == MICA_FILL_EXACT) value = floor(5 * u);
        if (fill == MICA_FILL_SAME_SIGN) value = 0.5 + u;
        if (fill == MICA_FILL_RANGE) value = exp2(28 * u - 14);
        if (fill == MICA_FILL_EXTREME) value = extremes[(int)(4 * u)];
        char element[16];
        mica_dtype_store(d->v.dtype)(element, 0, value);
        values[i] = mica_dtype_load(d->v.dtype)(element, 0);
    }
    return true;
}

/* ---- a step ---- */

void mica_optim_factors_of(const mica_optim_desc *d, const double *s, mica_optim_factors *f)
{
    double lr = s[MICA_OPTIM_LR], step = s[MICA_OPTIM_STEP];
    bool sgd = d->rule == MICA_OPTIM_SGD, adamw = d->rule == MICA_OPTIM_ADAMW;
    *f = (mica_optim_factors){.grad_scale = d->maximize ? -s[MICA_OPTIM_GRAD_SCALE]
                                                        : s[MICA_OPTIM_GRAD_SCALE],
                              .decay = adamw ? 0 : d->weight_decay,
                              .keep = adamw ? 1 - lr * d->weight_decay : 1,
                              .lr = lr,
                              .first = step == 1};
    if (sgd) {
        f->beta1 = d->momentum;
        f->add1 = 1 - d->dampening;
        return;
    }
    f->lr = lr / (1 - pow(d->beta1, step));
    f->beta1 = d->beta1;
    f->add1 = 1 - d->beta1;
    f->beta2 = d->beta2;
    f->add2 = 1 - d->beta2;
    f->root = 1 / sqrt(1 - pow(d->beta2, step));
    f->eps = d->eps;
}

mica_status mica_optim_run_factors(const mica_plan *plan, const mica_run *run,
                                   mica_optim_factors *f)
{
    double s[] = {[MICA_OPTIM_LR] = mica_run_scalar(plan, run, MICA_OPTIM_LR),
                  [MICA_OPTIM_STEP] = mica_run_scalar(plan, run, MICA_OPTIM_STEP),
                  [MICA_OPTIM_GRAD_SCALE] = mica_run_scalar(plan, run, MICA_OPTIM_GRAD_SCALE)};
    if (!(s[MICA_OPTIM_STEP] >= 1))
        return mica_fail(MICA_INVALID, "optim: step is %g, steps count from 1", s[MICA_OPTIM_STEP]);
    mica_optim_factors_of(plan->desc, s, f);
    return MICA_OK;
}

static const mica_engine *const engines[] = {&mica_optim_cpu, &mica_engine_ref, &mica_optim_cuda,
                                             NULL};

const mica_op mica_op_optim = {
    .name = "optim",
    .doc = "optimiser steps in place: SGD, Adam, AdamW",
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
    .terms = terms,
    .ulps = 2, /* of a root and a division */
    .fill = fill_moment,
    .reference = mica_optim_reference,
    .engines = engines,
};
