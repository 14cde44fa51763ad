/* SPDX-License-Identifier: Apache-2.0
 * Convolutions with more results than y, for both backends: the plain convolution is a child plan
 * of an engine that may be quick. Where y is not yet final its sums go to the workspace, in the
 * type they are formed in, so that nothing is rounded on the way. */
#include "ops/conv/lowered/passes.h"

#include <string.h>

const char *const conv_passes_knobs[] = {"via", NULL};

bool conv_needs_quantised_epilogue(const mica_conv_desc *d)
{
    return mica_tensor_given(&d->aux) || mica_tensor_given(&d->amax) ||
           mica_tensor_given(&d->scale_y) ||
           (mica_dtype_is_float(d->x.dtype) && mica_dtype_bits(d->y.dtype) == 8);
}

bool conv_has_batch_stats(const mica_conv_desc *d)
{
    return mica_tensor_given(&d->stat_sum) || mica_tensor_given(&d->stat_square);
}

static mica_status refuse_given(const mica_conv_desc *d, int last, mica_why *why)
{
    for (int i = MICA_CONV_SCALE_Y; i <= last; i++)
        if (mica_tensor_given(mica_op_tensor(&mica_op_conv, d, i)))
            return mica_refuse(why, "%s is not taken by this engine", mica_op_conv.args[i].name);
    if (conv_needs_quantised_epilogue(d))
        return mica_refuse(why, "y is %s; of floating sums this engine takes no 8-bit y",
                           mica_dtype_name(d->y.dtype));
    return MICA_OK;
}

mica_status conv_refuse_quantised_epilogue(const mica_conv_desc *d, mica_why *why)
{
    return refuse_given(d, MICA_CONV_AMAX, why);
}

mica_status conv_refuse_full_epilogue(const mica_conv_desc *d, mica_why *why)
{
    return refuse_given(d, MICA_CONV_STAT_SQUARE, why);
}

mica_status conv_refuse_empty(const mica_conv_desc *d, mica_why *why)
{
    if (mica_tensor_count(&d->x) == 0 || mica_tensor_count(&d->w) == 0 ||
        mica_tensor_count(&d->y) == 0)
        return mica_refuse(why, "a tensor without elements is left to other engines");
    return MICA_OK;
}

/* ---- the convolution inside ---- */

static mica_conv_desc inner_of(const mica_conv_desc *d)
{
    const mica_tensor none = {0};
    mica_conv_desc c = *d;
    c.scale_y = c.aux = c.amax = c.stat_sum = c.stat_square = none;
    if (!conv_needs_quantised_epilogue(d)) return c;
    memset(c.epilogue, 0, sizeof c.epilogue);
    c.bias = c.scale = c.shift = c.residual = none;
    c.act_a = c.act_b = 0;
    c.y.dtype = mica_dtype_accumulator(d->x.dtype);
    mica_tensor_strides_like(&c.y, &d->y);
    return c;
}

mica_status conv_passes_accepts(const mica_engine *const *engines, const mica_conv_desc *d,
                                const mica_device_info *device, mica_why *why)
{
    if (!conv_needs_quantised_epilogue(d) && !conv_has_batch_stats(d))
        return mica_refuse(why, "there is no result but y, which other engines form in one pass");
    mica_conv_desc inner = inner_of(d);
    return mica_engine_accepts(engines[0], &inner, device, why); /* which takes everything */
}

int conv_passes_configs(const mica_engine *const *engines, const mica_conv_desc *d,
                        const mica_device_info *device, mica_config *configs)
{
    mica_conv_desc inner = inner_of(d);
    mica_why ignored;
    int count = 0;
    for (int i = 0; engines[i]; i++)
        if (mica_engine_accepts(engines[i], &inner, device, &ignored) == MICA_OK)
            configs[count++] = (mica_config){{i}};
    return count;
}

double conv_passes_predict(const mica_engine *const *engines, const mica_conv_desc *d,
                           const mica_device_info *device, const mica_config *config)
{
    const double pass_ms = 3e-3;
    mica_conv_desc inner = inner_of(d);
    double count = (double)mica_tensor_count(&d->y), y = mica_dtype_bits(d->y.dtype) / 8, bytes = 0;
    if (conv_needs_quantised_epilogue(d)) bytes += count * (y + mica_dtype_bits(inner.y.dtype) / 8);
    if (mica_tensor_given(&d->aux)) bytes += count * mica_dtype_bits(d->aux.dtype) / 8;
    if (conv_has_batch_stats(d)) bytes += count * y;
    return mica_engine_predict(engines[config->knob[0]], &mica_op_conv, &inner, device) + pass_ms +
           bytes / (device->copy_gbps * 1e6);
}

/* Some engines let a few blocks share a sum, which their config says; 16 is more than any. */
void conv_passes_contract(const mica_engine *const *engines, const mica_conv_desc *d,
                          const mica_config *config, mica_contract *contract)
{
    const mica_engine *e = engines[config->knob[0]];
    mica_conv_desc inner = inner_of(d);
    if (!e->contract) return;
    e->contract(&inner, &(mica_config){0}, contract);
    contract->n_outer += 16;
}

/* ---- plan and run ---- */

static void make_layout(const mica_conv_desc *d, const mica_conv_desc *inner, conv_passes *p)
{
    mica_tensor nothing = d->y, channel;
    memset(nothing.strides, 0, sizeof nothing.strides);
    channel = nothing;
    channel.strides[1] = 1;
    const mica_tensor *tensors[] = {
        [CONV_PASS_SUMS] = &inner->y,
        [CONV_PASS_Y] = &d->y,
        [CONV_PASS_RESIDUAL] = mica_tensor_given(&d->residual) ? &d->residual : &nothing,
        [CONV_PASS_AUX] = mica_tensor_given(&d->aux) ? &d->aux : &nothing,
        [CONV_PASS_CHANNEL] = &channel};
    mica_layout_make(&p->layout, tensors, CONV_PASS_CHANNEL + 1);
}

mica_status conv_passes_build(mica_plan *plan, const mica_engine *const *engines, conv_passes *p)
{
    const mica_conv_desc *d = plan->desc;
    mica_conv_desc inner = inner_of(d);
    p->finish = conv_needs_quantised_epilogue(d);
    p->stats = conv_has_batch_stats(d);
    p->sums = inner.y.dtype;
    make_layout(d, &inner, p);
    if (p->layout.count == 0) return MICA_OK;
    MICA_TRY(mica_plan_child_create(plan, "conv", &inner, sizeof inner,
                                    engines[plan->config.knob[0]]->name, &p->child, &p->child_at));
    if (!p->finish) return MICA_OK;
    size_t bytes = (size_t)p->layout.count * (size_t)(mica_dtype_bits(p->sums) / 8);
    return mica_book(plan, "sums", bytes, &p->sums_at);
}

mica_status conv_passes_run(const conv_passes *p, const mica_run *r)
{
    const double plain[] = {[MICA_CONV_ALPHA] = 1, [MICA_CONV_BETA] = 0};
    if (!p->child) return MICA_OK;
    mica_run inner = *r;
    inner.workspace = mica_at(r, p->child_at);
    if (p->finish) {
        inner.args[MICA_CONV_Y] = mica_at(r, p->sums_at);
        inner.scalars = plain;
    }
    return mica_plan_child_run(p->child, &inner);
}

mica_tensor conv_passes_channel(const mica_conv_desc *d)
{
    mica_tensor t = d->y;
    t.dims[1] = 1;
    return t;
}
