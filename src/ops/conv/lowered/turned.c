/* SPDX-License-Identifier: Apache-2.0
 * Engine "turned": a convolution of stride 1 to few channels, as the transposed one from them with
 * a mirrored filter. The sums are the same; only what is called image and gradient changes places,
 * and engines for few channels of an image (stem, col2im) take what they would refuse. Nothing is
 * moved: the filter's first two strides change places too. The last layer of decoders, heads of a
 * few channels. All passes and epilogues, types of 16 bits and more; the child plan takes the same
 * arguments. */
#include "ops/compose/compose.h"
#include "ops/conv/lowered/gemm.h"

enum { MOST_CHANNELS = 16 };

/* Image position p of tap t is q - pad + t dilation; seen from p, and with taps counted from the
 * other end, q is p - (reach - pad) + t dilation, where reach is dilation (taps - 1). */
static mica_conv_desc as_transposed(const mica_conv_desc *d)
{
    mica_conv_desc c = *d;
    c.transposed = !d->transposed;
    c.flip = !d->flip;
    for (int i = 0; i < 2; i++) {
        c.w.dims[i] = d->w.dims[1 - i];
        c.w.strides[i] = d->w.strides[1 - i];
    }
    for (int i = 0; i < d->x.rank - 2; i++) {
        c.pad[i] = d->dilation[i] * (d->w.dims[i + 2] - 1) - d->pad[i];
        c.pad_extra[i] = d->output_pad[i] - d->pad_extra[i];
        c.output_pad[i] = 0;
    }
    return c;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_conv_desc *d = desc;
    mica_conv_geometry g;
    (void)device;
    MICA_TRY(conv_refuse_full_epilogue(d, why));
    mica_conv_geometry_make(d, &g);
    if (mica_dtype_bits(d->x.dtype) == 8)
        return mica_refuse(why, "x is %s, this engine takes 16 bits and more",
                           mica_dtype_name(d->x.dtype));
    if (mica_tensor_count(&d->x) == 0 || mica_tensor_count(&d->y) == 0)
        return mica_refuse(why, "an image is empty: it is left to other engines");
    if (g.groups > 1) return mica_refuse(why, "groups is %lld, this engine takes one", g.groups);
    for (int i = 0; i < 3; i++)
        if (g.stride[i] != 1)
            return mica_refuse(why, "a stride of %lld, this engine takes 1", g.stride[i]);
    if (g.k > MOST_CHANNELS || g.k >= g.c)
        return mica_refuse(why,
                           "%lld channels from %lld, this engine is for at most %d and for fewer "
                           "than there were",
                           g.k, g.c, MOST_CHANNELS);
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    mica_conv_desc c = as_transposed(desc);
    (void)config;
    return mica_op_predict(&mica_op_conv, &c, device, true);
}

/* Some engines let a few blocks share a sum; 16 is more than any. wgrad: what lies at x's edge
 * meets the zeros around y. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    mica_conv_desc turned = as_transposed(desc);
    (void)config;
    conv_child_contract(&turned, c);
    c->spreads = turned.pass == MICA_CONV_WGRAD;
}

static mica_status build(mica_plan *plan)
{
    mica_compose c = {0};
    const mica_conv_desc step = as_transposed(plan->desc);
    mica_compose_step(&c, "conv", &step, sizeof step, NULL);
    mica_compose_pass(&c, mica_op_conv.arg_count);
    mica_compose_scale(&c);
    return mica_compose_build(plan, &c);
}

const mica_engine mica_conv_turned = {.name = "turned",
                                      .cuda = true,
                                      .accepts = accepts,
                                      .predict = predict,
                                      .contract = contract,
                                      .build = build,
                                      .run = mica_compose_run};
