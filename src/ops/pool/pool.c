/* SPDX-License-Identifier: Apache-2.0
 * The pooling family: tables, inference, checks. */
#include "ops/pool/pool.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const modes[] = {"max", "avg", "avg_valid", "lp", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_pool_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(mode, ENUM, .spellings = modes,
          .doc = "maximum; average with padding counted, or without; Lp norm"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "input, N x C x 1 to 3 axes; bwd: its gradient"),
    FIELD(y, TENSOR, .zero = "inferred, for adaptive and with samples needed",
          .doc = "output; bwd: its gradient"),
    FIELD(indices, TENSOR, .zero = "none in fwd, inferred in bwd of max",
          .doc = "max: argmax positions within each N,C plane of x, s32 or s64"),
    FIELD(window, AXES, .count = 3, .positive = true, .zero = "the whole axis",
          .doc = "taps per axis"),
    FIELD(stride, AXES, .count = 3, .positive = true, .zero = "window",
          .doc = "step from window to window"),
    FIELD(pad, AXES, .count = 3, .zero = "none", .doc = "before and after each axis"),
    FIELD(pad_extra, AXES, .count = 3, .zero = "none",
          .doc = "added to pad at the end of an axis; may be negative"),
    FIELD(dilation, AXES, .count = 3, .def = 1, .doc = "step from tap to tap"),
    FIELD(ceil, FLAG, .doc = "round the number of windows up"),
    FIELD(adaptive, FLAG, .doc = "windows follow from the sizes of x and y"),
    FIELD(divisor, I64, .positive = true, .zero = "the taps that count",
          .doc = "averages: what every window's sum is divided by"),
    FIELD(p, F64, .def = 2, .doc = "lp: the norm's order"),
    FIELD(signed_powers, FLAG, .doc = "lp: powers of x, not of |x|"),
    FIELD(rescale, FLAG, .doc = "lp: windows cut short count as if whole"),
    FIELD(input, TENSOR, .zero = "inferred in bwd of lp, else none", .doc = "x of fwd"),
    FIELD(output, TENSOR, .zero = "inferred in bwd of lp, else none", .doc = "y of fwd"),
    FIELD(samples, TENSOR, .zero = "none",
          .doc = "max: N x C x axes, where windows start, as PyTorch's fractional pooling"),
};

static const mica_arg args[] = {
    [MICA_POOL_X] = {"x",
                     offsetof(mica_pool_desc, x),
                     {MICA_IN, MICA_OUT},
                     .need = {MICA_NEEDED, MICA_NEEDED}},
    [MICA_POOL_Y] = {"y", offsetof(mica_pool_desc, y), {MICA_OUT, MICA_IN}, .same = "x"},
    [MICA_POOL_INDICES] = {"indices",
                           offsetof(mica_pool_desc, indices),
                           {MICA_OUT, MICA_IN},
                           .types = MICA_INDICES,
                           .like = "y"},
    [MICA_POOL_INPUT] = {"input",
                         offsetof(mica_pool_desc, input),
                         {MICA_UNUSED, MICA_IN},
                         .need = {0, MICA_INFERRED},
                         .like = "x",
                         .same = "x",
                         .when = "mode",
                         .values = 1 << MICA_POOL_LP},
    [MICA_POOL_OUTPUT] = {"output",
                          offsetof(mica_pool_desc, output),
                          {MICA_UNUSED, MICA_IN},
                          .need = {0, MICA_INFERRED},
                          .like = "y",
                          .same = "x",
                          .when = "mode",
                          .values = 1 << MICA_POOL_LP},
    [MICA_POOL_SAMPLES] = {"samples",
                           offsetof(mica_pool_desc, samples),
                           {MICA_IN, MICA_IN},
                           .types = MICA_FLOATS,
                           .dims = "NxCxA"},
};

static const mica_scalar scalars[] = {
    [MICA_POOL_ALPHA] = {"alpha", 1}, [MICA_POOL_BETA] = {"beta", 0}};

/* ---- geometry ---- */

static bool is_fractional(const mica_pool_desc *d)
{
    return mica_tensor_given(&d->samples);
}

void mica_pool_axes(const mica_pool_desc *d, mica_pool_axis axes[3])
{
    int missing = 5 - d->x.rank;
    for (int a = 0; a < 3; a++) {
        axes[a] =
            (mica_pool_axis){.x = 1, .y = 1, .window = 1, .stride = 1, .dilation = 1, .end = 1};
        int i = a - missing;
        if (i < 0) continue;
        axes[a].x = d->x.dims[i + 2];
        axes[a].y = d->y.dims[i + 2];
        axes[a].adaptive = d->adaptive;
        axes[a].end = axes[a].x;
        if (d->adaptive) continue;
        axes[a].window = d->window[i];
        if (is_fractional(d)) continue;
        axes[a].stride = d->stride[i];
        axes[a].pad = d->pad[i];
        axes[a].dilation = d->dilation[i];
        axes[a].end = axes[a].x + d->pad[i] + d->pad_extra[i];
    }
    if (d->divisor)
        for (int a = 0; a < 3; a++) axes[a].divisor = a == 2 ? d->divisor : 1;
}

void mica_pool_strides(const mica_tensor *t, long long strides[5])
{
    for (int i = 0; i < 5; i++) strides[i] = 0;
    for (int i = 0; i < t->rank && i < 5; i++)
        strides[i < 2 ? i : i + 5 - t->rank] = t->dims[i] > 1 ? t->strides[i] : 0;
}

int64_t mica_pool_plane(const mica_pool_axis axes[3])
{
    return axes[0].x * axes[1].x * axes[2].x;
}

double mica_pool_step(const mica_pool_axis *a, bool wide)
{
    if (a->y < 2) return 0;
    const double by = (double)(a->x - a->window) / (double)(a->y - 1);
    return wide ? by : (double)((float)(a->x - a->window) / (float)(a->y - 1));
}

double mica_pool_rescale(const mica_pool_desc *d, const mica_pool_axis axes[3],
                         const int64_t window[3])
{
    double by = 1;
    for (int a = 0; a < 3 && d->rescale; a++) {
        int64_t from, to;
        mica_pool_valid(&axes[a], window[a], &from, &to);
        if (to > from) by *= (double)mica_pool_taps(&axes[a], window[a]) / (double)(to - from);
    }
    return by;
}

/* ---- inference ---- */

static mica_status check_axis(const mica_pool_desc *d, int i, mica_why *why)
{
    const struct {
        const char *name;
        int64_t value, least;
    } rows[] = {{"window", d->window[i], 1},
                {"stride", d->stride[i], 1},
                {"pad", d->pad[i], 0},
                {"pad_extra", d->pad_extra[i], -d->pad[i]},
                {"dilation", d->dilation[i], 1}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        if (rows[r].value < rows[r].least)
            return mica_invalid(why, "%s of axis %d is %lld, it must be %lld or more", rows[r].name,
                                i, (long long)rows[r].value, (long long)rows[r].least);
    int64_t reach, end, twice;
    if (__builtin_mul_overflow(d->window[i] - 1, d->dilation[i], &reach) ||
        __builtin_add_overflow(d->pad[i], d->pad_extra[i], &end) ||
        __builtin_add_overflow(end, d->pad[i], &twice) ||
        __builtin_add_overflow(twice, d->x.dims[i + 2], &twice) ||
        __builtin_add_overflow(twice, d->stride[i], &twice) ||
        __builtin_add_overflow(twice, reach, &twice))
        return mica_invalid(why, "axis %d: window, padding and stride do not fit 63 bits", i);
    if (d->pad[i] > reach || end > reach)
        return mica_invalid(why,
                            "axis %d is padded by %lld before and %lld after, the window spans "
                            "%lld: a window must not fit into padding",
                            i, (long long)d->pad[i], (long long)end, (long long)reach + 1);
    return MICA_OK;
}

static mica_status check_unused(const mica_pool_desc *d, int i, mica_why *why)
{
    const bool placed = is_fractional(d) && i < d->x.rank - 2;
    const bool steps = d->stride[i] && !(placed && d->stride[i] == d->window[i]);
    const char *name = steps ? "stride" : d->pad[i] ? "pad" : NULL;
    if (d->window[i] && !placed) name = "window";
    if (!name && d->pad_extra[i]) name = "pad_extra";
    if (!name && d->dilation[i] != 1) name = "dilation";
    if (!name) return MICA_OK;
    if (d->adaptive)
        return mica_invalid(why, "%s is given, adaptive windows follow from x and y", name);
    if (placed) return mica_invalid(why, "%s is given, samples place the windows", name);
    return mica_invalid(why, "%s has a value for axis %d, x has %d axes", name, i, d->x.rank - 2);
}

/* Windows of an axis, as PyTorch counts them: with `ceil` a last window that would start past x and
 * the padding before it is left out. */
static mica_status count_windows(const mica_pool_desc *d, int i, int64_t *count, mica_why *why)
{
    int64_t x = d->x.dims[i + 2], stride = d->stride[i], pad = d->pad[i];
    int64_t extent = (d->window[i] - 1) * d->dilation[i] + 1;
    int64_t room = x + 2 * pad + d->pad_extra[i] - extent + (d->ceil ? stride - 1 : 0);
    *count = x == 0 ? 0 : room < 0 ? 0 : room / stride + 1;
    if (d->ceil && *count > 0 && (*count - 1) * stride >= x + pad) --*count;
    if (x > 0 && *count == 0)
        return mica_invalid(why, "axis %d: a window spans %lld, x with its padding only %lld", i,
                            (long long)extent, (long long)(x + 2 * pad + d->pad_extra[i]));
    return MICA_OK;
}

/* Sizes that y has to have. */
static mica_status expected_dims(const mica_pool_desc *d, int64_t *dims, mica_why *why)
{
    dims[0] = d->x.dims[0], dims[1] = d->x.dims[1];
    for (int i = 0; i < d->x.rank - 2; i++)
        if (d->adaptive || is_fractional(d))
            dims[i + 2] = d->y.dims[i + 2];
        else
            MICA_TRY(count_windows(d, i, &dims[i + 2], why));
    return MICA_OK;
}

static void infer_windows(mica_pool_desc *d)
{
    for (int i = 0; i < d->x.rank - 2; i++) {
        int64_t whole = d->x.dims[i + 2] ? d->x.dims[i + 2] : 1;
        if (d->window[i] == 0) d->window[i] = whole;
        if (d->stride[i] == 0) d->stride[i] = d->window[i];
    }
}

static mica_status check_fractional(const mica_pool_desc *d, mica_why *why)
{
    if (d->mode != MICA_POOL_MAX)
        return mica_invalid(why, "samples are given, only mode=max has them");
    if (d->ceil || d->adaptive)
        return mica_invalid(why, "%s is given, samples place the windows",
                            d->ceil ? "ceil" : "adaptive");
    if (d->y.rank != d->x.rank)
        return mica_invalid(why, "samples: y is needed, with the rank of x, %d", d->x.rank);
    for (int i = 0; i < 3; i++) MICA_TRY(check_unused(d, i, why));
    for (int i = 0; i < d->x.rank - 2; i++) {
        if (d->window[i] < 1)
            return mica_invalid(why, "samples: window of axis %d is %lld, it must be 1 or more", i,
                                (long long)d->window[i]);
        if (d->window[i] > d->x.dims[i + 2] && (d->x.dims[i + 2] > 0 || d->y.dims[i + 2] > 0))
            return mica_invalid(why, "axis %d: a window spans %lld, x only %lld", i,
                                (long long)d->window[i], (long long)d->x.dims[i + 2]);
    }
    return MICA_OK;
}

/* Of windows that samples place the step has no meaning but its default. */
static void infer_steps(mica_pool_desc *d)
{
    for (int i = 0; i < d->x.rank - 2; i++) d->stride[i] = d->window[i];
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_pool_desc *d = desc;
    int64_t dims[MICA_MAX_RANK] = {0};
    if (d->x.rank < 3 || d->x.rank > 5)
        return mica_invalid(why, "x has rank %d; pooling takes N x C and one to three axes",
                            d->x.rank);
    int axes = d->x.rank - 2;
    if (is_fractional(d)) {
        MICA_TRY(check_fractional(d, why));
        infer_steps(d);
    }
    for (int i = d->adaptive ? 0 : axes; i < 3; i++) MICA_TRY(check_unused(d, i, why));
    if (d->adaptive) {
        if (d->ceil)
            return mica_invalid(why, "ceil is given, adaptive windows follow from x and y");
        if (d->y.rank != d->x.rank)
            return mica_invalid(why, "adaptive: y is needed, with the rank of x, %d", d->x.rank);
    } else if (!is_fractional(d)) {
        infer_windows(d);
        for (int i = 0; i < axes; i++) MICA_TRY(check_axis(d, i, why));
    }
    MICA_TRY(expected_dims(d, dims, why));
    if (!mica_tensor_given(&d->y)) d->y.dtype = d->x.dtype;
    if (d->y.rank == 0) {
        d->y.rank = d->x.rank;
        memcpy(d->y.dims, dims, sizeof d->y.dims);
        mica_tensor_strides_like(&d->y, &d->x);
    }
    bool reads_indices = d->pass == MICA_POOL_BWD && d->mode == MICA_POOL_MAX;
    if (reads_indices && !mica_tensor_given(&d->indices)) d->indices.dtype = MICA_S64;
    return MICA_OK;
}

/* ---- checks ---- */

static mica_status check_types(const mica_pool_desc *d, mica_why *why)
{
    mica_dtype t = d->x.dtype;
    bool max = d->mode == MICA_POOL_MAX, bwd = d->pass == MICA_POOL_BWD;
    bool narrow = t == MICA_S8 || t == MICA_U8;
    bool lp = d->mode == MICA_POOL_LP;
    bool known = mica_dtype_is_common(t) || (!bwd && !lp && (narrow || (max && t == MICA_S32)));
    if (!known)
        return mica_invalid(why, "x is %s; %s takes f64, f32, f16, bf16%s", mica_dtype_name(t),
                            bwd   ? "the gradient"
                            : max ? "a maximum"
                            : lp  ? "a norm"
                                  : "an average",
                            bwd || lp ? ""
                            : max     ? ", s8, u8, s32"
                                      : ", s8, u8");
    return MICA_OK;
}

static mica_status check_indices(const mica_pool_desc *d, mica_why *why)
{
    if (!mica_tensor_given(&d->indices)) return MICA_OK;
    if (d->mode != MICA_POOL_MAX)
        return mica_invalid(why, "indices are given, only mode=max has them");
    mica_dtype t = d->indices.dtype;
    int64_t plane = 1;
    bool overflow = false;
    for (int i = 2; i < d->x.rank; i++)
        overflow |= __builtin_mul_overflow(plane, d->x.dims[i], &plane);
    if (t == MICA_S32 && (overflow || plane > INT32_MAX))
        return mica_invalid(why, "indices are s32, a plane of x has more than %d elements: use s64",
                            INT32_MAX);
    return MICA_OK;
}

static mica_status check_divisor(const mica_pool_desc *d, mica_why *why)
{
    if (d->divisor == 0) return MICA_OK;
    if (d->divisor < 0)
        return mica_invalid(why, "divisor is %lld, it must be 1 or more", (long long)d->divisor);
    if (d->mode == MICA_POOL_MAX || d->mode == MICA_POOL_LP)
        return mica_invalid(why, "divisor is %lld, mode=%s has none", (long long)d->divisor,
                            modes[d->mode]);
    if (d->adaptive)
        return mica_invalid(why, "divisor is %lld, adaptive windows have their own",
                            (long long)d->divisor);
    return MICA_OK;
}

static mica_status check_norm(const mica_pool_desc *d, mica_why *why)
{
    if (d->mode != MICA_POOL_LP) {
        const char *name = d->p != 2 ? "p" : d->signed_powers ? "signed_powers" : "rescale";
        if (d->p != 2 || d->signed_powers || d->rescale)
            return mica_invalid(why, "%s is given, mode=%s has none", name, modes[d->mode]);
        return MICA_OK;
    }
    /* A root of 1 / p: beyond, no digit of the sum is left. */
    if (!(d->p >= 0.01 && d->p <= 1000))
        return mica_invalid(why, "p is %g, it must be 0.01 to 1000", d->p);
    if (d->signed_powers && d->p != floor(d->p))
        return mica_invalid(why, "p is %g, signed_powers are of whole numbers", d->p);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_pool_desc *d = desc;
    int64_t dims[MICA_MAX_RANK] = {0}, product;
    MICA_TRY(check_types(d, why));
    MICA_TRY(check_divisor(d, why));
    MICA_TRY(check_norm(d, why));
    MICA_TRY(expected_dims(d, dims, why));
    if (d->y.rank != d->x.rank)
        return mica_invalid(why, "y has rank %d, x has %d; they must agree", d->y.rank, d->x.rank);
    for (int i = 0; i < d->x.rank; i++) {
        if (d->y.dims[i] != dims[i])
            return mica_invalid(why, "dimension %d of y is %lld, pooling x gives %lld", i,
                                (long long)d->y.dims[i], (long long)dims[i]);
        if (d->adaptive && i > 1 &&
            __builtin_mul_overflow(d->x.dims[i] + 1, d->y.dims[i] + 1, &product))
            return mica_invalid(why, "axis %d: %lld windows of %lld elements do not fit 63 bits",
                                i - 2, (long long)d->y.dims[i], (long long)d->x.dims[i]);
        if (d->adaptive && i > 1 && d->x.dims[i] == 0 && d->y.dims[i] > 0)
            return mica_invalid(why, "axis %d: %lld windows of an axis without elements", i - 2,
                                (long long)d->y.dims[i]);
    }
    return check_indices(d, why);
}

/* ---- numbers ---- */

/* Most taps of a window, or most windows over an element. */
static int64_t axis_terms(const mica_pool_axis *a, bool backward, bool fractional)
{
    if (a->x == 0 || a->y == 0) return 1;
    /* Windows of length ceil(x / y), or one more where they do not line up; and the other way. */
    if (a->adaptive && backward) return a->y % a->x ? a->y / a->x + 2 : a->y / a->x;
    if (a->adaptive) return a->x % a->y ? a->x / a->y + 2 : a->x / a->y;
    if (!backward) return a->window < a->x ? a->window : a->x;
    if (fractional && a->x == a->window) return a->y;
    if (fractional) {
        const double over = (double)a->window * (double)a->y / (double)(a->x - a->window) + 2;
        return over < (double)a->y ? (int64_t)over : a->y;
    }
    int64_t windows = (a->window - 1) * a->dilation / a->stride + 1;
    return windows < a->y ? windows : a->y;
}

static int64_t sum_terms(const mica_pool_desc *d)
{
    mica_pool_axis axes[3];
    bool backward = d->pass == MICA_POOL_BWD;
    if (!backward && d->mode == MICA_POOL_MAX) return 1;
    mica_pool_axes(d, axes);
    int64_t product = 1;
    for (int i = 0; i < 3; i++) product *= axis_terms(&axes[i], backward, is_fractional(d));
    return product;
}

/* Two more for the division and the scaling. Of a norm: powers, whose exponents are rounded, and
 * the root, which enlarges by 1 / p what the sum lost. */
static int64_t terms(const void *desc)
{
    const mica_pool_desc *d = desc;
    const int64_t sum = sum_terms(desc) + 2, root = d->p < 1 ? (int64_t)(1 / d->p) + 1 : 1;
    return d->mode == MICA_POOL_LP && d->p != 1 ? (sum + (int64_t)d->p + 64) * root : sum;
}

/* Every divisor a power of two; all the same one where quotients are added up. */
static bool divides_exactly(const mica_pool_axis *a, bool valid_only, bool same)
{
    for (int64_t o = 0; o < a->y; o++) {
        int64_t n = mica_pool_divisor(a, o, valid_only);
        if (n > 0 && (n & (n - 1))) return false;
        if (same && n != mica_pool_divisor(a, 0, valid_only)) return false;
        /* Windows inside x are all alike: go on at the last of them. */
        int64_t first = mica_pool_first(a, o), room = a->x - 1 - (a->window - 1) * a->dilation;
        if (!a->adaptive && first >= 0 && first <= room) o = (room + a->pad) / a->stride;
    }
    return true;
}

static bool exact(const void *desc)
{
    const mica_pool_desc *d = desc;
    mica_pool_axis axes[3];
    /* Integers round the same quotient everywhere. */
    if (d->mode == MICA_POOL_MAX || mica_dtype_is_integer(d->x.dtype)) return true;
    /* Of bwd, fill has outputs that are powers of two. */
    if (d->mode == MICA_POOL_LP)
        return !d->rescale && (d->p == 1 || (d->p == 2 && d->pass == MICA_POOL_BWD));
    mica_pool_axes(d, axes);
    for (int a = 0; a < 3; a++)
        if (!divides_exactly(&axes[a], d->mode == MICA_POOL_AVG_VALID, d->pass == MICA_POOL_BWD))
            return false;
    return true;
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_pool_desc *d = desc;
    mica_pool_axis axes[3];
    mica_pool_axes(d, axes);
    *flops = (double)mica_tensor_count(&d->y);
    for (int a = 0; a < 3; a++) *flops *= (double)axis_terms(&axes[a], false, false);
    *bytes = 0;
}

/* Norms of elements of unit size. */
static void fill_norms(const mica_pool_desc *d, uint64_t seed, double *values)
{
    int64_t count = mica_tensor_count(&d->output);
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)(1 << mica_random_bits(seed, (uint64_t)i) % 3);
}

/* A NaN wins a maximum, and the first of several: fill EXTREME has some. */
static bool fill_with_nan(const void *desc, uint64_t seed, double *values)
{
    const mica_pool_desc *d = desc;
    mica_fill_general(&mica_op_pool, desc, MICA_POOL_X, MICA_FILL_EXTREME, seed, values);
    int64_t count = mica_tensor_count(&d->x);
    for (int64_t i = 0; i < count; i++)
        if (mica_random_bits(seed + 1, (uint64_t)i) % 16 == 0) values[i] = NAN;
    return true;
}

static int64_t dim(const void *desc, char letter)
{
    const mica_pool_desc *d = desc;
    if (letter == 'A') return d->x.rank - 2;
    return letter == 'N' ? d->x.dims[0] : d->x.dims[1];
}

/* Numbers from 0 to 1, both too; EXTREME has some that are none of these. */
static void fill_samples(const mica_pool_desc *d, mica_fill kind, uint64_t seed, double *values)
{
    static const double odd[] = {0, 1, -0.25, 1.5, NAN, INFINITY};
    int64_t count = mica_tensor_count(&d->samples);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = mica_random_bits(seed ^ 0x51, (uint64_t)i);
        values[i] = mica_random_uniform(seed, (uint64_t)i);
        if (bits % 16 == 0) values[i] = odd[bits / 16 % 2];
        if (kind == MICA_FILL_EXTREME && bits % 4 == 0) values[i] = odd[bits / 16 % 6];
    }
}

/* The first tap of window o for a fill of indices: with samples about where it lies. */
static int64_t about_first(const mica_pool_desc *d, const mica_pool_axis *a, int64_t o)
{
    if (!is_fractional(d)) return mica_pool_first(a, o);
    const mica_pool_steps s = mica_pool_steps_of(a, mica_pool_step(a, true), 0.5, 1);
    return mica_pool_start(&s, o);
}

/* Norms, samples, and indices of elements that lie in their windows. */
static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    (void)scalars;
    const mica_pool_desc *d = desc;
    mica_pool_axis axes[3];
    if (arg == MICA_POOL_X && kind == MICA_FILL_EXTREME && d->pass == MICA_POOL_FWD &&
        d->mode == MICA_POOL_MAX && mica_dtype_is_float(d->x.dtype))
        return fill_with_nan(desc, seed, values);
    if (arg == MICA_POOL_OUTPUT) fill_norms(d, seed, values);
    if (arg == MICA_POOL_SAMPLES) fill_samples(d, kind, seed, values);
    if (arg != MICA_POOL_INDICES) return arg == MICA_POOL_OUTPUT || arg == MICA_POOL_SAMPLES;
    mica_pool_axes(d, axes);
    int64_t count = mica_tensor_count(&d->y);
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i, o[3], index = 0;
        bool none = false;
        for (int a = 2; a >= 0; a--) o[a] = rest % axes[a].y, rest /= axes[a].y;
        for (int a = 0; a < 3; a++) {
            int64_t from, to;
            mica_pool_valid(&axes[a], o[a], &from, &to);
            if (is_fractional(d)) from = 0, to = axes[a].window;
            none |= from >= to;
            if (none) break;
            uint64_t draw = mica_random_bits(seed + (uint64_t)a, (uint64_t)i);
            int64_t tap = from + (int64_t)(draw % (uint64_t)(to - from));
            index = index * axes[a].x + about_first(d, &axes[a], o[a]) + tap * axes[a].dilation;
        }
        values[i] = none ? -1 : (double)index;
    }
    return true;
}

static const mica_engine *const engines[] = {&mica_pool_cuda, &mica_pool_cpu, &mica_engine_ref,
                                             NULL};

const mica_op mica_op_pool = {
    .name = "pool",
    .doc = "maximum, average or norm over windows, forward and backward",
    .desc_size = sizeof(mica_pool_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .check = check,
    .dim = dim,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .fill = fill,
    .reference = mica_pool_reference,
    .engines = engines,
};
