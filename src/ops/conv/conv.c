/* SPDX-License-Identifier: Apache-2.0
 * Convolution: its fields, arguments and rules. include/mica/conv.h is the specification. */
#include "ops/conv/conv.h"

#include <math.h>
#include <string.h>

static const char *const pass_names[] = {"fwd", "dgrad", "wgrad", NULL};
static const char *const compute_names[] = {"default", "tf32", NULL};

static const mica_field fields[] = {
    MICA_FIELD(mica_conv_desc, pass, ENUM, .spellings = pass_names,
               .doc = "result: y, the gradient of x, or the gradient of w"),
    MICA_FIELD(mica_conv_desc, x, TENSOR, .zero = "needed, in dgrad inferred from y",
               .doc = "N x C x spatial; dgrad: the result"),
    MICA_FIELD(mica_conv_desc, w, TENSOR, .zero = "needed",
               .doc = "K x C/groups x filter; transposed: C x K/groups x filter"),
    MICA_FIELD(mica_conv_desc, y, TENSOR, .zero = "inferred, in dgrad needed",
               .doc = "N x K x spatial; inferred in the memory order of x"),
    MICA_FIELD(mica_conv_desc, pad, AXES, .count = 3, .zero = "none",
               .doc = "zeros before and after each axis; negative: crops"),
    MICA_FIELD(mica_conv_desc, pad_extra, AXES, .count = 3, .zero = "none",
               .doc = "added to pad at the end of each axis"),
    MICA_FIELD(mica_conv_desc, stride, AXES, .count = 3, .def = 1, .doc = "of the filter's steps"),
    MICA_FIELD(mica_conv_desc, dilation, AXES, .count = 3, .def = 1,
               .doc = "distance of the filter's taps"),
    MICA_FIELD(mica_conv_desc, output_pad, AXES, .count = 3, .apart = true,
               .zero = "as y has it, else none", .doc = "transposed: added to the end of y"),
    MICA_FIELD(mica_conv_desc, groups, I64, .def = 1,
               .doc = "channels are convolved in that many separate groups"),
    MICA_FIELD(mica_conv_desc, transposed, FLAG, .doc = "x and y exchange their roles"),
    MICA_FIELD(mica_conv_desc, flip, FLAG, .doc = "the filter is mirrored"),
    MICA_FIELD(mica_conv_desc, compute, ENUM, .spellings = compute_names,
               .doc = "tf32: f32 inputs may be rounded to 11 bits"),
    MICA_FIELD(mica_conv_desc, epilogue, LIST, .count = MICA_MAX_STEPS,
               .spellings = mica_step_spellings, .doc = "fwd: steps applied to the result"),
    MICA_FIELD(mica_conv_desc, act_a, F64, .apart = true, .infinite = true,
               .zero = "the function's own", .doc = "parameter a of the activation"),
    MICA_FIELD(mica_conv_desc, act_b, F64, .infinite = true, .zero = "the function's own",
               .doc = "parameter b of the activation"),
    MICA_FIELD(mica_conv_desc, bias, TENSOR, .zero = "inferred with its step",
               .doc = "of the step bias; f32 as a rule"),
    MICA_FIELD(mica_conv_desc, scale, TENSOR, .zero = "inferred with its step",
               .doc = "of the step scale"),
    MICA_FIELD(mica_conv_desc, shift, TENSOR, .zero = "inferred with its step",
               .doc = "of the step shift"),
    MICA_FIELD(mica_conv_desc, residual, TENSOR, .zero = "inferred with its step",
               .doc = "of the step residual; as y"),
    MICA_FIELD(mica_conv_desc, scale_y, TENSOR, .zero = "none",
               .doc = "fwd: f32, 1 element by which an 8-bit y is scaled before rounding"),
    MICA_FIELD(mica_conv_desc, aux, TENSOR, .zero = "none",
               .doc = "fwd: the values before the activation, as y; a type is enough"),
    MICA_FIELD(mica_conv_desc, amax, TENSOR, .zero = "none",
               .doc = "fwd: 1 element, largest |value| before scale_y; a type is enough"),
    MICA_FIELD(mica_conv_desc, stat_sum, TENSOR, .zero = "none",
               .doc = "fwd: K, sums of the stored y by channel; a type is enough"),
    MICA_FIELD(mica_conv_desc, stat_square, TENSOR, .zero = "none",
               .doc = "fwd: K, sums of squares of the stored y; a type is enough"),
};

static int64_t dim(const void *desc, char letter)
{
    (void)letter; /* K */
    return ((const mica_conv_desc *)desc)->y.dims[1];
}

static mica_tensor of_channels(const void *desc)
{
    const mica_conv_desc *d = desc;
    return mica_epilogue_vector(&d->y, d->y.dims[1]);
}

#define EIGHT_BITS (MICA_TYPE(E4M3) | MICA_TYPE(E5M2) | MICA_TYPE(S8))
#define SUMS       (MICA_TYPE(F64) | MICA_TYPE(F32))
#define ARG(member, FWD, DGRAD, WGRAD, TYPES, ...)                                                 \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_conv_desc, member), .dir = {FWD, DGRAD, WGRAD},   \
        .types = TYPES, __VA_ARGS__                                                                \
    }
#define FORWARD(member, direction, TYPES, ...)                                                     \
    ARG(member, direction, MICA_UNUSED, MICA_UNUSED, TYPES, __VA_ARGS__)
#define ALWAYS(N)  .need = {N, N, N}
#define STEP(name) .need = {MICA_INFERRED}, MICA_EPILOGUE_STEP(name)
#define VECTOR     MICA_EPILOGUE_CHANNELS(of_channels)
static const mica_arg args[] = {
    ARG(x, MICA_IN, MICA_OUT, MICA_IN, MICA_FLOATS | EIGHT_BITS | MICA_TYPE(U8),
        ALWAYS(MICA_INFERRED)),
    ARG(w, MICA_IN, MICA_IN, MICA_OUT, MICA_FLOATS | EIGHT_BITS, ALWAYS(MICA_NEEDED)),
    ARG(y, MICA_OUT, MICA_IN, MICA_IN, MICA_FLOATS | EIGHT_BITS | MICA_TYPE(S32),
        ALWAYS(MICA_INFERRED)),
    FORWARD(bias, MICA_IN, MICA_FLOATS, STEP(BIAS), VECTOR),
    FORWARD(scale, MICA_IN, MICA_FLOATS, STEP(SCALE), VECTOR),
    FORWARD(shift, MICA_IN, MICA_FLOATS, STEP(SHIFT), VECTOR),
    FORWARD(residual, MICA_IN, MICA_FLOATS | EIGHT_BITS | MICA_TYPE(S32), STEP(RESIDUAL),
            .like = "y"),
    FORWARD(scale_y, MICA_IN, MICA_TYPE(F32), .refused = true, .dims = "1"),
    FORWARD(aux, MICA_OUT, MICA_FLOATS, .refused = true, .like = "y"),
    FORWARD(amax, MICA_OUT, SUMS, .refused = true, .like = "x", .dims = "1", .sums = true),
    FORWARD(stat_sum, MICA_OUT, SUMS, .refused = true, .like = "x", .dims = "K", .sums = true),
    FORWARD(stat_square, MICA_OUT, SUMS, .refused = true, .like = "x", .dims = "K", .sums = true),
};

static const mica_scalar scalars[] = {{"alpha", 1}, {"beta", 0}};

/* ---- inference ---- */

static mica_status axes_ok(const mica_conv_desc *d, int axes, mica_why *why)
{
    static const struct {
        const char *name;
        size_t offset;
        int64_t low, rest; /* least value; value of axes the tensors do not have */
    } all[] = {
        {"pad", offsetof(mica_conv_desc, pad), INT32_MIN, 0},
        {"pad_extra", offsetof(mica_conv_desc, pad_extra), INT32_MIN, 0},
        {"stride", offsetof(mica_conv_desc, stride), 1, 1},
        {"dilation", offsetof(mica_conv_desc, dilation), 1, 1},
        {"output_pad", offsetof(mica_conv_desc, output_pad), 0, 0},
    };
    for (size_t f = 0; f < sizeof all / sizeof *all; f++) {
        const int64_t *v = (const int64_t *)(const void *)((const char *)d + all[f].offset);
        for (int i = 0; i < 3; i++) {
            if (i >= axes && v[i] != all[f].rest)
                return mica_invalid(why, "%s has %lld for axis %d, x has %d spatial axes",
                                    all[f].name, (long long)v[i], i + 1, axes);
            if (v[i] < all[f].low || v[i] > INT32_MAX)
                return mica_invalid(why,
                                    "%s is %lld on axis %d, it must be from %lld to 2147483647",
                                    all[f].name, (long long)v[i], i + 1, (long long)all[f].low);
        }
    }
    return MICA_OK;
}

/* What stays true whichever tensors are given: ranks, axes, groups, filter sizes. */
static mica_status frame_ok(const mica_conv_desc *d, mica_why *why)
{
    const mica_tensor *known = mica_tensor_given(&d->x) ? &d->x : &d->y;
    if (!mica_tensor_given(known))
        return mica_invalid(why, "x and y are both missing: one of them is needed");
    if (d->w.rank < 3 || d->w.rank > 5 || known->rank != d->w.rank)
        return mica_invalid(why,
                            "%s has %d dimensions and w has %d: both must have the same 3, 4 or 5",
                            known == &d->x ? "x" : "y", known->rank, d->w.rank);
    if (d->groups < 1 || known->dims[1] % d->groups || d->w.dims[0] % d->groups)
        return mica_invalid(why, "groups is %lld: it must divide the %lld channels and w's %lld",
                            (long long)d->groups, (long long)known->dims[1],
                            (long long)d->w.dims[0]);
    for (int i = 2; i < d->w.rank; i++)
        if (d->w.dims[i] < 1)
            return mica_invalid(why, "w has %lld taps on axis %d, at least 1 is needed",
                                (long long)d->w.dims[i], i - 1);
    return axes_ok(d, d->w.rank - 2, why);
}

/* Sizes of y from x, or of x from y. */
static mica_status spatial(mica_conv_desc *d, bool to_y, mica_tensor *t, mica_why *why)
{
    bool shrinks = to_y != d->transposed; /* from a to b */
    const mica_tensor *from = to_y ? &d->x : &d->y;
    for (int i = 0; i < from->rank - 2; i++) {
        int64_t in = from->dims[i + 2], tap = d->w.dims[i + 2], *size = &t->dims[i + 2];
        if (shrinks) {
            if (!mica_conv_out_size(d, i, in, tap, size))
                return mica_invalid(why,
                                    "axis %d: %s is %lld long, with its padding less than the "
                                    "filter's %lld taps at dilation %lld",
                                    i + 1, to_y ? "x" : "y", (long long)in, (long long)tap,
                                    (long long)d->dilation[i]);
            continue;
        }
        if (!to_y && d->stride[i] > 1)
            return mica_invalid(why, "x is missing: with stride %lld several sizes of x give y",
                                (long long)d->stride[i]);
        if (!mica_conv_in_size(d, i, in, tap, d->output_pad[i], size))
            return mica_invalid(why, "axis %d: padding %lld leaves nothing of %s", i + 1,
                                (long long)d->pad[i], to_y ? "y" : "x");
    }
    return MICA_OK;
}

static mica_status infer_image(mica_conv_desc *d, bool y, mica_why *why)
{
    mica_tensor *t = y ? &d->y : &d->x;
    const mica_tensor *from = y ? &d->x : &d->y;
    memset(t, 0, sizeof *t);
    t->rank = from->rank;
    t->dims[0] = from->dims[0];
    /* w is K x C/G, transposed C x K/G */
    t->dims[1] = y != d->transposed ? d->w.dims[0] : d->w.dims[1] * d->groups;
    MICA_TRY(spatial(d, y, t, why));
    t->dtype = !mica_dtype_is_float(from->dtype)   ? MICA_S32
               : mica_dtype_bits(from->dtype) == 8 ? MICA_F32
                                                   : from->dtype;
    mica_tensor_strides_like(t, from);
    return MICA_OK;
}

/* With more, y would end in pixels that no size of x explains. */
static int64_t longest_output_pad(const mica_conv_desc *d, int axis)
{
    return (d->stride[axis] > d->dilation[axis] ? d->stride[axis] : d->dilation[axis]) - 1;
}

/* A transposed convolution's y may be given instead of output_pad. */
static void infer_output_pad(mica_conv_desc *d, const bool *none)
{
    for (int i = 0; i < d->x.rank - 2; i++) {
        int64_t most = longest_output_pad(d, i), size, left;
        if (d->output_pad[i] == 0 && !none[i] &&
            mica_conv_in_size(d, i, d->x.dims[i + 2], d->w.dims[i + 2], most, &size) &&
            !__builtin_sub_overflow(most, size, &left) &&
            !__builtin_add_overflow(left, d->y.dims[i + 2], &left) && left > 0)
            d->output_pad[i] = left;
    }
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_conv_desc *d = desc;
    bool none[3]; /* axes with an output_pad of 0, and not one left out */
    for (int i = 0; i < 3; i++) {
        none[i] = d->output_pad[i] == MICA_ZERO_INT;
        if (none[i]) d->output_pad[i] = 0;
    }
    MICA_TRY(frame_ok(d, why));
    bool x_given = mica_tensor_given(&d->x), y_given = d->y.rank > 0 || !x_given;
    mica_dtype y_type = d->y.dtype;
    if (!y_given) MICA_TRY(infer_image(d, true, why));
    if (!y_given && y_type) d->y.dtype = y_type;
    if (!x_given) MICA_TRY(infer_image(d, false, why));
    if (d->transposed && y_given && d->y.rank == d->x.rank) infer_output_pad(d, none);
    mica_epilogue e = mica_conv_epilogue(d);
    mica_epilogue_infer(&e, &d->y);
    return MICA_OK;
}

/* ---- check ---- */

static mica_status check_shapes(const mica_conv_desc *d, mica_why *why)
{
    if (d->y.rank != d->x.rank)
        return mica_invalid(why, "y has %d dimensions, x has %d", d->y.rank, d->x.rank);
    if (d->y.dims[0] != d->x.dims[0])
        return mica_invalid(why, "y has a batch of %lld, x of %lld", (long long)d->y.dims[0],
                            (long long)d->x.dims[0]);
    const mica_tensor *a = d->transposed ? &d->y : &d->x, *b = d->transposed ? &d->x : &d->y;
    const char *a_name = d->transposed ? "y" : "x", *b_name = d->transposed ? "x" : "y";
    if (d->w.dims[0] != b->dims[1])
        return mica_invalid(why, "w has %lld filters, %s has %lld channels",
                            (long long)d->w.dims[0], b_name, (long long)b->dims[1]);
    if (a->dims[1] % d->groups || d->w.dims[1] != a->dims[1] / d->groups)
        return mica_invalid(why, "w has %lld channels, %s has %lld in %lld groups",
                            (long long)d->w.dims[1], a_name, (long long)a->dims[1],
                            (long long)d->groups);
    for (int i = 0; i < d->x.rank - 2; i++) {
        int64_t size, tap = d->w.dims[i + 2], most = longest_output_pad(d, i) + 1;
        if (d->output_pad[i] && (!d->transposed || d->output_pad[i] >= most))
            return mica_invalid(why,
                                "output_pad is %lld on axis %d: it needs transposed=1 and less "
                                "than the larger of stride and dilation, %lld",
                                (long long)d->output_pad[i], i + 1, (long long)most);
        bool fits = d->transposed
                        ? mica_conv_in_size(d, i, d->x.dims[i + 2], tap, d->output_pad[i], &size)
                        : mica_conv_out_size(d, i, d->x.dims[i + 2], tap, &size);
        if (!fits)
            return mica_invalid(why, "axis %d: %lld taps at dilation %lld do not fit x's %lld",
                                i + 1, (long long)tap, (long long)d->dilation[i],
                                (long long)d->x.dims[i + 2]);
        if (size != d->y.dims[i + 2])
            return mica_invalid(why, "axis %d: y is %lld long, x's %lld gives %lld", i + 1,
                                (long long)d->y.dims[i + 2], (long long)d->x.dims[i + 2],
                                (long long)size);
    }
    return MICA_OK;
}

static mica_status check_integers(const mica_conv_desc *d, mica_why *why)
{
    if (d->pass != MICA_CONV_FWD)
        return mica_invalid(why, "pass is %s: integers have no gradients", pass_names[d->pass]);
    if (d->w.dtype != MICA_S8)
        return mica_invalid(why, "w is %s, with x of %s it must be s8", mica_dtype_name(d->w.dtype),
                            mica_dtype_name(d->x.dtype));
    if (d->y.dtype != MICA_S32 && d->y.dtype != MICA_F32 && d->y.dtype != MICA_S8)
        return mica_invalid(why, "y is %s, with x of %s it must be s32, f32 or s8",
                            mica_dtype_name(d->y.dtype), mica_dtype_name(d->x.dtype));
    int64_t terms = mica_conv_terms(d), most = INT32_MAX / (d->x.dtype == MICA_U8 ? 32640 : 16384);
    if (terms > most)
        return mica_invalid(why, "a sum has %lld products of %s by s8: past %lld s32 overflows",
                            (long long)terms, mica_dtype_name(d->x.dtype), (long long)most);
    return MICA_OK;
}

static bool is_fp8(mica_dtype t)
{
    return t == MICA_E4M3 || t == MICA_E5M2;
}

static mica_status check_fp8(const mica_conv_desc *d, mica_why *why)
{
    if (d->pass != MICA_CONV_FWD)
        return mica_invalid(why, "pass is %s: %s is for forward passes", pass_names[d->pass],
                            mica_dtype_name(d->x.dtype));
    if (!is_fp8(d->x.dtype) || !is_fp8(d->w.dtype))
        return mica_invalid(why, "x is %s and w is %s: e4m3 and e5m2 go with each other",
                            mica_dtype_name(d->x.dtype), mica_dtype_name(d->w.dtype));
    mica_dtype y = d->y.dtype;
    if (y == MICA_F32 || y == MICA_F16 || y == MICA_BF16 || y == MICA_S8 || is_fp8(y))
        return MICA_OK;
    return mica_invalid(why, "y is %s, with x of %s it must be f32, f16, bf16, e4m3, e5m2 or s8",
                        mica_dtype_name(y), mica_dtype_name(d->x.dtype));
}

static mica_status check_types(const mica_conv_desc *d, mica_why *why)
{
    static const int inputs[3][2] = {
        {MICA_CONV_X, MICA_CONV_W}, {MICA_CONV_Y, MICA_CONV_W}, {MICA_CONV_X, MICA_CONV_Y}};
    static const int outs[3] = {MICA_CONV_Y, MICA_CONV_X, MICA_CONV_W};
    mica_dtype p = mica_conv_tensor(d, inputs[d->pass][0])->dtype;
    mica_dtype q = mica_conv_tensor(d, inputs[d->pass][1])->dtype;
    mica_dtype out = mica_conv_tensor(d, outs[d->pass])->dtype;
    if (d->x.dtype == MICA_S8 || d->x.dtype == MICA_U8) return check_integers(d, why);
    if (is_fp8(p) || is_fp8(q)) return check_fp8(d, why);
    if (!mica_dtype_is_common(p) || p != q)
        return mica_invalid(why,
                            "%s is %s and %s is %s: both must be the same of f64, f32, f16, "
                            "bf16, or x s8 or u8 and w s8, or both e4m3 or e5m2",
                            args[inputs[d->pass][0]].name, mica_dtype_name(p),
                            args[inputs[d->pass][1]].name, mica_dtype_name(q));
    bool small = out == MICA_E4M3 || out == MICA_E5M2 || out == MICA_S8;
    bool fits = out == p || (out == MICA_F32 && p != MICA_F64) ||
                (small && p != MICA_F64 && d->pass == MICA_CONV_FWD);
    if (!fits)
        return mica_invalid(why, "%s is %s: it must be %s%s%s", args[outs[d->pass]].name,
                            mica_dtype_name(out), mica_dtype_name(p),
                            p == MICA_F16 || p == MICA_BF16 ? " or f32" : "",
                            d->pass == MICA_CONV_FWD && p != MICA_F64 ? ", e4m3, e5m2 or s8" : "");
    if (d->compute == MICA_COMPUTE_TF32 && p != MICA_F32)
        return mica_invalid(why, "compute is tf32: it is about f32 inputs, these are %s",
                            mica_dtype_name(p));
    return MICA_OK;
}

static mica_status check_extra(const mica_conv_desc *d, mica_why *why)
{
    if (mica_tensor_given(&d->scale_y) && mica_dtype_bits(d->y.dtype) != 8)
        return mica_invalid(why, "scale_y is for an 8-bit y, y is %s", mica_dtype_name(d->y.dtype));
    if (conv_has_batch_stats(d) && !mica_dtype_is_common(d->y.dtype))
        return mica_invalid(why, "y is %s; stat_sum and stat_square are for f64, f32, f16 and bf16",
                            mica_dtype_name(d->y.dtype));
    return mica_epilogue_check_aux(d->epilogue, &d->aux, d->x.dtype, why);
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_conv_desc *d = desc;
    MICA_TRY(frame_ok(d, why));
    MICA_TRY(check_shapes(d, why));
    MICA_TRY(check_types(d, why));
    if (d->pass != MICA_CONV_FWD && d->epilogue[0])
        return mica_invalid(why, "epilogue starts with %s: pass %s has none",
                            mica_step_spellings[d->epilogue[0]], pass_names[d->pass]);
    MICA_TRY(check_extra(d, why));
    if (mica_tensor_given(&d->residual) && !mica_dtype_is_common(d->residual.dtype) &&
        d->residual.dtype != d->y.dtype)
        return mica_invalid(why, "residual is %s: it must be f64, f32, f16, bf16 or as y, %s",
                            mica_dtype_name(d->residual.dtype), mica_dtype_name(d->y.dtype));
    mica_epilogue e = mica_conv_epilogue(d);
    return mica_epilogue_check(&e, why);
}

/* ---- numbers ---- */

static void cost(const void *desc, double *flops, double *bytes)
{
    (void)bytes;
    mica_conv_geometry g;
    mica_conv_geometry_make(desc, &g);
    *flops = 2.0 * (double)g.n * (double)g.groups * (double)g.k * (double)g.c;
    for (int i = 0; i < 3; i++) *flops *= (double)g.out[i] * (double)g.tap[i];
}

/* The products, the rounding by alpha and beta, and the epilogue's steps. */
static int64_t terms(const void *desc)
{
    const mica_conv_desc *d = desc;
    int64_t n = mica_conv_terms(d) + 3;
    for (int i = 0; i < MICA_MAX_STEPS && d->epilogue[i]; i++) n++;
    return n + mica_tensor_given(&d->scale_y);
}

static bool whole(double v)
{
    return v == rint(v);
}

/* Sums of squares must stay below 24 bits: some 2000 results of up to 80 or so. */
static bool exact_stats(const mica_conv_desc *d)
{
    int64_t k = d->y.dims[1], most = 2048 * (k > 0 ? k : 1);
    return mica_conv_terms(d) <= 128 && mica_tensor_count(&d->y) <= most;
}

static bool exact(const void *desc)
{
    const mica_conv_desc *d = desc;
    if (conv_has_batch_stats(d) && !exact_stats(d)) return false;
    for (int i = 0; i < MICA_MAX_STEPS && d->epilogue[i]; i++) {
        switch (d->epilogue[i] - MICA_STEP_ACT) {
        case MICA_ACT_LEAKY_RELU:
        case MICA_ACT_CLIP:
            if (!whole(d->act_a) || !whole(d->act_b)) return false;
            continue;
        case MICA_ACT_IDENTITY:
        case MICA_ACT_RELU:
        case MICA_ACT_RELU6:
        case MICA_ACT_HARD_TANH:
            continue;
        default:
            if (d->epilogue[i] >= MICA_STEP_ACT) return false;
        }
    }
    return true;
}

static bool is_plain(const mica_conv_desc *d, const double *scalars)
{
    bool more = d->epilogue[0] || conv_needs_quantised_epilogue(d) || conv_has_batch_stats(d) ||
                d->compute == MICA_COMPUTE_TF32;
    return !more && scalars[MICA_CONV_ALPHA] == 1 && scalars[MICA_CONV_BETA] == 0 &&
           d->x.dtype == d->w.dtype && d->x.dtype == d->y.dtype;
}

/* Of 16 bits only depthwise problems: with more channels in a group tensor cores multiply pixels
 * by zeros that stand for other groups. */
static bool has_infinities(const mica_conv_desc *d, const double *scalars)
{
    if (!is_plain(d, scalars)) return false;
    mica_conv_geometry g;
    mica_conv_geometry_make(d, &g);
    bool narrow = d->x.dtype == MICA_F16 || d->x.dtype == MICA_BF16;
    return d->x.dtype == MICA_F32 || (narrow && g.c == 1);
}

/* EXTREME has infinity, NaN, and numbers at the ends of f32 in channels of their own of the image:
 * they are to be seen where a window meets them, as f32 has them, and nowhere else. Of 16 bits
 * infinity and NaN only. */
static bool fill_pixels(const void *desc, const double *scalars, int arg, mica_fill fill,
                        uint64_t seed, double *values)
{
    const mica_conv_desc *d = desc;
    /* the image behind the windows: what is beside it counts for nothing, not for 0 x infinity */
    mica_conv_roles roles = mica_conv_roles_of(d);
    int image = roles.image;
    if (arg != image || fill != MICA_FILL_EXTREME || !has_infinities(d, scalars)) return false;
    const mica_tensor *t = mica_conv_tensor(d, image);
    int64_t n = t->dims[0], c = t->dims[1], count = mica_tensor_count(t);
    if (n < 2 || c < 4 || count == 0) return false;
    for (int i = 0; i < t->rank; i++)
        if (t->strides[i] == 0 && t->dims[i] > 1) return false; /* one pixel that is many */
    mica_fill_general(&mica_op_conv, desc, arg, fill, seed, values);
    int64_t pixels = count / (n * c), last = (n - 1) * c * pixels;
    values[pixels / 2] = (double)INFINITY;
    values[pixels] = (double)NAN;
    if (d->x.dtype != MICA_F32) return true;
    values[last + 2 * pixels + pixels / 2] = MICA_FILL_LARGEST;
    for (int64_t i = last; i < count && c % 2 == 0; i++) values[i] = MICA_FILL_SMALL;
    return true;
}

static const mica_engine *const engines[] = {
    &mica_conv_onednn,
    &mica_conv_sections,
    &mica_conv_cpu,
    &mica_engine_ref,
    &mica_conv_slab,
    &mica_conv_slab_stream,
    &mica_conv_volume,
    &mica_conv_sm90,
    &mica_conv_cuda_depthwise,
    &mica_conv_depthwise_mma,
    &mica_conv_cuda_planar,
    &mica_conv_sm90_stem,
    &mica_conv_stem,
    &mica_conv_grouped,
    &mica_conv_sm80,
    &mica_conv_sm80_f32,
    &mica_conv_gemm,
    &mica_conv_disjoint,
    &mica_conv_col2im,
    &mica_conv_by_group,
    &mica_conv_turned,
    &mica_conv_channels_last,
    &mica_conv_padded,
    &mica_conv_cuda,
    &mica_conv_winograd,
    &mica_conv_fft_cpu,
    &mica_conv_fft_cuda,
    &mica_conv_cudnn,
    &mica_conv_cpu_passes,
    &mica_conv_cuda_passes,
    NULL,
};

const mica_op mica_op_conv = {
    .name = "conv",
    .doc = "convolution in 1, 2 and 3 dimensions and its gradients",
    .desc_size = sizeof(mica_conv_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .dim = dim,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = 8, /* of the epilogue's activations */
    .fill = fill_pixels,
    .reference = mica_conv_reference,
    .engines = engines,
};
