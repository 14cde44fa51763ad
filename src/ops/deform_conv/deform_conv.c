/* SPDX-License-Identifier: Apache-2.0
 * Deformable convolution: tables, inference, checks, fills. */
#include "ops/deform_conv/deform_conv.h"
#include "base/random.h"

#include <math.h>

#define FIELD(member, kind, ...) MICA_FIELD(mica_deform_conv_desc, member, kind, __VA_ARGS__)
#define AXES(member, ...)        FIELD(member, AXES, .count = 2, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(x, TENSOR, .zero = "needed", .doc = "input, N x C x H x W"),
    FIELD(w, TENSOR, .zero = "needed", .doc = "filter, K x C/groups x R x S"),
    FIELD(offset, TENSOR, .zero = "inferred",
          .doc = "of each tap, along H and W: N x 2 offset_groups R S x spatial"),
    FIELD(mask, TENSOR, .zero = "none, as if all were 1",
          .doc = "factor of each tap: N x offset_groups R S x spatial"),
    FIELD(bias, TENSOR, .zero = "none", .doc = "added to channels of y, K"),
    FIELD(y, TENSOR, .zero = "inferred, order in memory as x", .doc = "output, N x K x spatial"),
    AXES(pad, .zero = "none", .doc = "zeros before and after each axis"),
    AXES(pad_extra, .zero = "none", .doc = "added to pad at the end of an axis"),
    AXES(stride, .def = 1, .doc = "distance of windows"),
    AXES(dilation, .def = 1, .doc = "distance of taps"),
    FIELD(groups, I64, .def = 1, .doc = "groups of channels"),
    FIELD(offset_groups, I64, .def = 1, .doc = "groups of channels of x with offsets of their own"),
};

/* O offsets, M masks: their channels; N, K, H and W of y. */
static int64_t dim(const void *desc, char letter)
{
    const mica_deform_conv_desc *d = desc;
    const int64_t taps = d->w.dims[2] * d->w.dims[3];
    if (letter == 'N') return d->x.dims[0];
    if (letter == 'K') return d->w.dims[0];
    if (letter == 'M') return d->offset_groups * taps;
    if (letter == 'O') return 2 * d->offset_groups * taps;
    const int i = letter == 'H' ? 0 : 1;
    const int64_t room = d->x.dims[i + 2] + 2 * d->pad[i] + d->pad_extra[i];
    return (room - d->dilation[i] * (d->w.dims[i + 2] - 1) - 1) / d->stride[i] + 1;
}

#define ARG(member, ...)                                                                           \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_deform_conv_desc, member), .types = MICA_FLOATS,  \
        __VA_ARGS__                                                                                \
    }
static const mica_arg args[] = {
    [MICA_DEFORM_CONV_X] = ARG(x, .dir = {MICA_IN}, .need = {MICA_NEEDED}),
    [MICA_DEFORM_CONV_W] = ARG(w, .dir = {MICA_IN}, .need = {MICA_NEEDED}, .same = "x"),
    [MICA_DEFORM_CONV_OFFSET] = ARG(offset, .dir = {MICA_IN}, .need = {MICA_INFERRED}, .like = "x",
                                    .dims = "NxOxHxW", .same = "x"),
    [MICA_DEFORM_CONV_MASK] =
        ARG(mask, .dir = {MICA_IN}, .like = "x", .dims = "NxMxHxW", .same = "x"),
    [MICA_DEFORM_CONV_BIAS] = ARG(bias, .dir = {MICA_IN}, .like = "x", .dims = "K", .same = "x"),
    [MICA_DEFORM_CONV_Y] = ARG(y, .dir = {MICA_OUT}, .need = {MICA_INFERRED}, .like = "x",
                               .dims = "NxKxHxW", .same = "x"),
};

static mica_status infer(void *desc, mica_why *why)
{
    mica_deform_conv_desc *d = desc;
    if (d->x.rank != 4 || d->w.rank != 4)
        return mica_invalid(why, "x has rank %d and w %d, both must be 4", d->x.rank, d->w.rank);
    if (d->groups < 1 || d->w.dims[1] != d->x.dims[1] / d->groups || d->x.dims[1] % d->groups ||
        d->w.dims[0] % d->groups)
        return mica_invalid(why, "groups is %lld, of %lld channels, w is %lld x %lld",
                            (long long)d->groups, (long long)d->x.dims[1], (long long)d->w.dims[0],
                            (long long)d->w.dims[1]);
    if (d->offset_groups < 1 || d->x.dims[1] % d->offset_groups)
        return mica_invalid(why, "offset_groups is %lld: it must divide x's %lld channels",
                            (long long)d->offset_groups, (long long)d->x.dims[1]);
    for (int i = 0; i < 2; i++) {
        const int64_t numbers[] = {d->stride[i], d->dilation[i], d->pad[i], d->pad_extra[i]};
        static const char *const names[] = {"stride", "dilation", "pad", "pad_extra"};
        for (int k = 0; k < 4; k++)
            if (numbers[k] < (k < 2) || numbers[k] > INT32_MAX)
                return mica_invalid(why, "%s of axis %d is %lld, %d to 2^31 - 1 are legal",
                                    names[k], i, (long long)numbers[k], k < 2);
        if (d->w.dims[i + 2] < 1)
            return mica_invalid(why, "the filter has %lld taps along axis %d",
                                (long long)d->w.dims[i + 2], i);
        const double extent = (double)(d->w.dims[i + 2] - 1) * (double)d->dilation[i] + 1;
        const double room =
            (double)d->x.dims[i + 2] + 2 * (double)d->pad[i] + (double)d->pad_extra[i];
        if (extent > room)
            return mica_invalid(why, "axis %d: a window spans %.15g, x with its padding %.15g", i,
                                extent, room);
    }
    return MICA_OK;
}

void mica_deform_conv_args_make(const mica_deform_conv_desc *d, mica_deform_conv_args *a)
{
    *a = (mica_deform_conv_args){.images = d->x.dims[0],
                                 .channels = d->x.dims[1],
                                 .taps = d->w.dims[2] * d->w.dims[3],
                                 .pixels = d->y.dims[2] * d->y.dims[3],
                                 .offset_groups = d->offset_groups,
                                 .of_group = d->x.dims[1] / d->offset_groups};
    for (int i = 0; i < 4; i++) {
        a->x_step.at[i] = d->x.strides[i];
        a->offset_step.at[i] = d->offset.strides[i];
        a->mask_step.at[i] = d->mask.strides[i];
    }
    for (int i = 0; i < 2; i++)
        a->axis[i] = (mica_deform_conv_axis){d->x.dims[i + 2], d->y.dims[i + 2], d->w.dims[i + 2],
                                             d->stride[i],     d->pad[i],        d->dilation[i]};
}

/* ---- numbers ---- */

static int64_t terms(const void *desc)
{
    const mica_deform_conv_desc *d = desc;
    return d->w.dims[1] * d->w.dims[2] * d->w.dims[3] + 1;
}

/* Offsets are then halves, masks 0 and 1. */
static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_deform_conv_desc *d = desc;
    (void)bytes;
    *flops = 2.0 * (double)mica_tensor_count(&d->y) * (double)terms(d);
}

static double offset_value(mica_fill kind, uint64_t seed, uint64_t i)
{
    static const double edges[] = {0, -1, 1, 0.5, -120, 120, 2, -2};
    const double v = 1.5 * mica_random_normal(seed, i);
    if (kind == MICA_FILL_EXACT) return rint(2 * v) / 2;
    if (kind == MICA_FILL_EXTREME) return edges[mica_random_bits(seed, i) % 8];
    return v;
}

static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_deform_conv_desc *d = desc;
    const bool mask = arg == MICA_DEFORM_CONV_MASK && kind == MICA_FILL_EXACT;
    const bool offset = arg == MICA_DEFORM_CONV_OFFSET && kind != MICA_FILL_EDGES;
    const mica_tensor *t = mica_op_tensor(&mica_op_deform_conv, desc, arg);
    const int64_t count = mica_tensor_count(t);
    (void)scalars;
    if (!mask && !offset) return false;
    seed = mica_random_bits(seed, (uint64_t)arg + 0xdef);
    for (int64_t i = 0; i < count; i++) {
        const double v = mask ? (double)(mica_random_bits(seed, (uint64_t)i) % 4 != 0)
                              : offset_value(kind, seed, (uint64_t)i);
        values[i] = mica_fill_rounded(d->x.dtype, v);
    }
    return true;
}

static const mica_engine *const engines[] = {&mica_deform_conv_cpu, &mica_engine_ref,
                                             &mica_deform_conv_cuda, NULL};

const mica_op mica_op_deform_conv = {
    .name = "deform_conv",
    .doc = "deformable convolution, with or without a mask",
    .desc_size = sizeof(mica_deform_conv_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .dim = dim,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .fill = fill,
    .reference = mica_deform_conv_reference,
    .engines = engines,
};
