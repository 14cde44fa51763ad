/* SPDX-License-Identifier: Apache-2.0
 * Deformable convolution and its gradients: tables, inference, checks, fills. */
#include "ops/deform_conv/deform_conv.h"
#include "base/random.h"

#include <math.h>

static const char *const passes[] = {"fwd", "dgrad", "wgrad", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_deform_conv_desc, member, kind, __VA_ARGS__)
#define AXES(member, ...)        FIELD(member, AXES, .count = 2, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes,
          .doc = "forward; gradients of x, offsets and mask; of filter and bias"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "input, N x C x H x W"),
    FIELD(w, TENSOR, .zero = "needed", .doc = "fwd, dgrad: filter, K x C/groups x R x S"),
    FIELD(offset, TENSOR, .zero = "inferred",
          .doc = "of each tap, along H and W: N x 2 offset_groups R S x spatial"),
    FIELD(mask, TENSOR, .zero = "none, as if all were 1",
          .doc = "factor of each tap: N x offset_groups R S x spatial"),
    FIELD(bias, TENSOR, .zero = "none", .doc = "fwd: added to channels of y, K"),
    FIELD(y, TENSOR, .zero = "inferred, order in memory as x",
          .doc = "fwd: output, N x K x spatial"),
    AXES(pad, .zero = "none", .doc = "zeros before and after each axis"),
    AXES(pad_extra, .zero = "none", .doc = "added to pad at the end of an axis, to its negative"),
    AXES(stride, .def = 1, .doc = "distance of windows"),
    AXES(dilation, .def = 1, .doc = "distance of taps"),
    FIELD(groups, I64, .def = 1, .doc = "groups of channels"),
    FIELD(offset_groups, I64, .def = 1, .doc = "groups of channels of x with offsets of their own"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "dgrad, wgrad: gradient of y"),
    FIELD(dx, TENSOR, .zero = "none, of the three one is needed", .doc = "dgrad: gradient of x"),
    FIELD(doffset, TENSOR, .zero = "none", .doc = "dgrad: gradient of the offsets"),
    FIELD(dmask, TENSOR, .zero = "none", .doc = "dgrad: gradient of the mask"),
    FIELD(dw, TENSOR, .zero = "needed", .doc = "wgrad: gradient of the filter"),
    FIELD(dbias, TENSOR, .zero = "none", .doc = "wgrad: gradient of the bias"),
};

/* O offsets, M masks: their channels; N, K, H and W of y. */
static int64_t dim(const void *desc, char letter)
{
    const mica_deform_conv_desc *d = desc;
    const mica_tensor *w = mica_deform_conv_filter(d);
    const int64_t taps = w->dims[2] * w->dims[3];
    if (letter == 'N') return d->x.dims[0];
    if (letter == 'K') return w->dims[0];
    if (letter == 'M') return d->offset_groups * taps;
    if (letter == 'O') return 2 * d->offset_groups * taps;
    const int i = letter == 'H' ? 0 : 1;
    const int64_t room = d->x.dims[i + 2] + 2 * d->pad[i] + d->pad_extra[i];
    return (room - d->dilation[i] * (w->dims[i + 2] - 1) - 1) / d->stride[i] + 1;
}

#define ARG(member, ...)                                                                           \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_deform_conv_desc, member), .types = MICA_FLOATS,  \
        __VA_ARGS__                                                                                \
    }
static const mica_arg args[] = {
    [MICA_DEFORM_CONV_X] =
        ARG(x, .dir = {MICA_IN, MICA_IN, MICA_IN}, .need = {MICA_NEEDED, MICA_NEEDED, MICA_NEEDED}),
    [MICA_DEFORM_CONV_W] =
        ARG(w, .dir = {MICA_IN, MICA_IN}, .need = {MICA_NEEDED, MICA_NEEDED}, .same = "x"),
    [MICA_DEFORM_CONV_OFFSET] = ARG(offset, .dir = {MICA_IN, MICA_IN, MICA_IN},
                                    .need = {MICA_INFERRED, MICA_INFERRED, MICA_INFERRED},
                                    .like = "x", .dims = "NxOxHxW", .same = "x"),
    [MICA_DEFORM_CONV_MASK] =
        ARG(mask, .dir = {MICA_IN, MICA_IN, MICA_IN}, .like = "x", .dims = "NxMxHxW", .same = "x"),
    [MICA_DEFORM_CONV_BIAS] = ARG(bias, .dir = {MICA_IN}, .like = "x", .dims = "K", .same = "x"),
    [MICA_DEFORM_CONV_Y] = ARG(y, .dir = {MICA_OUT}, .need = {MICA_INFERRED}, .like = "x",
                               .dims = "NxKxHxW", .same = "x"),
    [MICA_DEFORM_CONV_DY] =
        ARG(dy, .dir = {MICA_UNUSED, MICA_IN, MICA_IN}, .need = {0, MICA_INFERRED, MICA_INFERRED},
            .like = "x", .dims = "NxKxHxW", .same = "x"),
    [MICA_DEFORM_CONV_DX] = ARG(dx, .dir = {MICA_UNUSED, MICA_OUT}, .like = "x", .same = "x"),
    [MICA_DEFORM_CONV_DOFFSET] =
        ARG(doffset, .dir = {MICA_UNUSED, MICA_OUT}, .like = "offset", .same = "x"),
    [MICA_DEFORM_CONV_DMASK] =
        ARG(dmask, .dir = {MICA_UNUSED, MICA_OUT}, .like = "mask", .same = "x", .with = "mask"),
    [MICA_DEFORM_CONV_DW] = ARG(dw, .dir = {MICA_UNUSED, MICA_UNUSED, MICA_OUT},
                                .need = {0, 0, MICA_NEEDED}, .same = "x"),
    [MICA_DEFORM_CONV_DBIAS] = ARG(dbias, .dir = {MICA_UNUSED, MICA_UNUSED, MICA_OUT}, .like = "x",
                                   .dims = "K", .same = "x"),
};

static mica_status infer(void *desc, mica_why *why)
{
    mica_deform_conv_desc *d = desc;
    const mica_tensor *w = mica_deform_conv_filter(d);
    const char *name = d->pass == MICA_DEFORM_CONV_WGRAD ? "dw" : "w";
    if (d->x.rank != 4 || w->rank != 4)
        return mica_invalid(why, "x has rank %d and %s %d, both must be 4", d->x.rank, name,
                            w->rank);
    if (d->groups < 1 || w->dims[1] != d->x.dims[1] / d->groups || d->x.dims[1] % d->groups ||
        w->dims[0] % d->groups)
        return mica_invalid(why, "groups is %lld, of %lld channels, %s is %lld x %lld",
                            (long long)d->groups, (long long)d->x.dims[1], name,
                            (long long)w->dims[0], (long long)w->dims[1]);
    if (d->pass == MICA_DEFORM_CONV_DGRAD && !mica_tensor_given(&d->dx) &&
        !mica_tensor_given(&d->doffset) && !mica_tensor_given(&d->dmask))
        return mica_invalid(why, "neither dx nor doffset nor dmask is given, one is needed");
    if (d->offset_groups < 1 || d->x.dims[1] % d->offset_groups)
        return mica_invalid(why, "offset_groups is %lld: it must divide x's %lld channels",
                            (long long)d->offset_groups, (long long)d->x.dims[1]);
    for (int i = 0; i < 2; i++) {
        const int64_t numbers[] = {d->stride[i], d->dilation[i], d->pad[i], d->pad_extra[i]};
        static const char *const names[] = {"stride", "dilation", "pad", "pad_extra"};
        const int64_t least[] = {1, 1, 0, -d->pad[i]};
        for (int k = 0; k < 4; k++)
            if (numbers[k] < least[k] || numbers[k] > INT32_MAX)
                return mica_invalid(why, "%s of axis %d is %lld, %lld to 2^31 - 1 are legal",
                                    names[k], i, (long long)numbers[k], (long long)least[k]);
        if (w->dims[i + 2] < 1)
            return mica_invalid(why, "the filter has %lld taps along axis %d",
                                (long long)w->dims[i + 2], i);
        const double extent = (double)(w->dims[i + 2] - 1) * (double)d->dilation[i] + 1;
        const double room =
            (double)d->x.dims[i + 2] + 2 * (double)d->pad[i] + (double)d->pad_extra[i];
        if (extent > room)
            return mica_invalid(why, "axis %d: a window spans %.15g, x with its padding %.15g", i,
                                extent, room);
    }
    return MICA_OK;
}

static mica_deform_conv_strides strides_of(const mica_tensor *t)
{
    return (mica_deform_conv_strides){{t->strides[0], t->strides[1], t->strides[2], t->strides[3]}};
}

void mica_deform_conv_args_make(const mica_deform_conv_desc *d, mica_deform_conv_args *a)
{
    const mica_tensor *w = mica_deform_conv_filter(d), *y = mica_deform_conv_output(d);
    *a = (mica_deform_conv_args){.images = d->x.dims[0],
                                 .channels = d->x.dims[1],
                                 .taps = w->dims[2] * w->dims[3],
                                 .pixels = y->dims[2] * y->dims[3],
                                 .offset_groups = d->offset_groups,
                                 .of_group = d->x.dims[1] / d->offset_groups,
                                 .x_step = strides_of(&d->x),
                                 .offset_step = strides_of(&d->offset),
                                 .mask_step = strides_of(&d->mask),
                                 .doffset_step = strides_of(&d->doffset),
                                 .dmask_step = strides_of(&d->dmask)};
    a->column_row = a->pixels, a->column_image = a->channels * a->taps * a->pixels;
    for (int i = 0; i < 2; i++)
        a->axis[i] = (mica_deform_conv_axis){d->x.dims[i + 2], y->dims[i + 2], w->dims[i + 2],
                                             d->stride[i],     d->pad[i],      d->dilation[i]};
}

/* ---- numbers ---- */

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Of a gradient of columns; and then over all taps that may read an element, or over channels. */
static int64_t terms(const void *desc)
{
    const mica_deform_conv_desc *d = desc;
    const mica_tensor *w = mica_deform_conv_filter(d), *y = mica_deform_conv_output(d);
    const int64_t taps = w->dims[2] * w->dims[3], pixels = y->dims[2] * y->dims[3];
    if (d->pass == MICA_DEFORM_CONV_FWD) return w->dims[1] * taps + 1;
    if (d->pass == MICA_DEFORM_CONV_WGRAD) return most(1, y->dims[0] * pixels);
    const int64_t of_x = mica_tensor_given(&d->dx) ? taps * pixels : 1;
    return most(1, w->dims[0] / d->groups) + most(of_x, 4 * d->x.dims[1] / d->offset_groups);
}

/* Offsets are then halves, masks 0 and 1; gradients of columns must be exact in x's type. */
static bool exact(const void *desc)
{
    const mica_deform_conv_desc *d = desc;
    const int64_t squares = 16 * d->w.dims[0] / most(1, d->groups);
    if (d->pass != MICA_DEFORM_CONV_DGRAD) return true;
    return squares <= (d->x.dtype == MICA_BF16 ? 256 : d->x.dtype == MICA_F16 ? 2048 : 1 << 20);
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_deform_conv_desc *d = desc;
    const mica_tensor *w = mica_deform_conv_filter(d);
    const double products = (double)(w->dims[1] * w->dims[2] * w->dims[3]);
    (void)bytes;
    *flops = 2.0 * (double)mica_tensor_count(mica_deform_conv_output(d)) *
             (d->pass == MICA_DEFORM_CONV_FWD ? products + 1 : products);
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
    .doc = "deformable convolution, with or without a mask, and gradients",
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
