/* SPDX-License-Identifier: Apache-2.0
 * The resizing family: tables, inference, checks, geometry. */
#include "ops/resize/resize.h"
#include "ops/resize/resize_host.h"

#include <string.h>

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const modes[] = {"nearest", "linear", "cubic", "area", NULL};
static const char *const coordinates[] = {
    "half_pixel",         "half_pixel_symmetric", "asymmetric", "align_corners",
    "pytorch_half_pixel", "tf_crop_and_resize",   NULL};
static const char *const roundings[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil",
                                        NULL};
static const char *const borders[] = {"auto", "edge", "exclude", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_resize_desc, member, kind, __VA_ARGS__)
#define SCALE(member, axis)                                                                        \
    FIELD(member, F64, .apart = true, .zero = "the ratio of the sizes",                            \
          .doc = "elements of y for one of x along " axis)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(mode, ENUM, .spellings = modes, .doc = "the filter"),
    FIELD(coordinates, ENUM, .spellings = coordinates, .doc = "where elements of y lie in x"),
    FIELD(nearest, ENUM, .spellings = roundings, .doc = "mode=nearest: which element is"),
    FIELD(border, ENUM, .spellings = borders,
          .doc = "weights outside x: of the edge, or left out; auto: edge, with antialias exclude"),
    FIELD(antialias, FLAG, .doc = "linear and cubic: filters as wide as what becomes one element"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "input, N x C x 1 to 3 axes; bwd: its gradient"),
    FIELD(y, TENSOR, .zero = "inferred by the scales: floor(X * scale); without them needed",
          .doc = "output; bwd: its gradient"),
    SCALE(scale_d, "the third last axis"),
    SCALE(scale_h, "the second last"),
    SCALE(scale_w, "the last"),
    FIELD(cubic, F64, .apart = true, .zero = "-0.75, with antialias -0.5",
          .doc = "coefficient of cubic filters"),
    FIELD(from_d, F64, .doc = "tf_crop_and_resize: where the part of x begins, of 0 to 1"),
    FIELD(from_h, F64, .doc = "the same of the second last axis"),
    FIELD(from_w, F64, .doc = "the same of the last"),
    FIELD(to_d, F64, .def = 1, .doc = "tf_crop_and_resize: where it ends"),
    FIELD(to_h, F64, .def = 1, .doc = "the same of the second last axis"),
    FIELD(to_w, F64, .def = 1, .doc = "the same of the last"),
    FIELD(extrapolation, F64, .infinite = true, .doc = "tf_crop_and_resize: y outside x"),
};

#define TYPES (MICA_FLOATS | MICA_TYPE(S8) | MICA_TYPE(U8))
static const mica_arg args[] = {
    [MICA_RESIZE_X] = {"x",
                       offsetof(mica_resize_desc, x),
                       {MICA_IN, MICA_OUT},
                       .types = TYPES,
                       .need = {MICA_NEEDED, MICA_NEEDED}},
    [MICA_RESIZE_Y] = {"y", offsetof(mica_resize_desc, y), {MICA_OUT, MICA_IN}, .same = "x"},
};

static const char *const axis_names[] = {"d", "h", "w"};

static const double *scale_of(const mica_resize_desc *d, int axis)
{
    return axis == 0 ? &d->scale_d : axis == 1 ? &d->scale_h : &d->scale_w;
}
static double from_of(const mica_resize_desc *d, int axis)
{
    return axis == 0 ? d->from_d : axis == 1 ? d->from_h : d->from_w;
}
static double to_of(const mica_resize_desc *d, int axis)
{
    return axis == 0 ? d->to_d : axis == 1 ? d->to_h : d->to_w;
}

/* ---- geometry ---- */

/* The coordinate (a o + b) / d: of sizes alone in integers. */
static void place_axis(const mica_resize_desc *d, int axis, mica_resize_axis *a)
{
    const double s = *scale_of(d, axis), x = (double)a->x, y = (double)a->y;
    const bool single = a->y == 1;
    a->a = 1, a->b = 0, a->d = 1;
    switch (d->coordinates) {
    case MICA_RESIZE_HALF_PIXEL:
    case MICA_RESIZE_PYTORCH_HALF_PIXEL:
        if (single && d->coordinates == MICA_RESIZE_PYTORCH_HALF_PIXEL)
            a->a = 0;
        else if (s > 0)
            a->b = fma(-0.5, s, 0.5), a->d = s;
        else
            a->a = 2 * x, a->b = x - y, a->d = 2 * y;
        return;
    case MICA_RESIZE_HALF_PIXEL_SYMMETRIC:
        if (s > 0) /* s (x / 2 - 1 / 2) + 1 / 2 - y / 2 */
            a->b = fma(s, (x - 1) / 2, (1 - y) / 2), a->d = s;
        else
            a->a = 2 * x, a->b = x - y, a->d = 2 * y;
        return;
    case MICA_RESIZE_ASYMMETRIC:
        if (s > 0)
            a->d = s;
        else
            a->a = x, a->d = y;
        return;
    case MICA_RESIZE_ALIGN_CORNERS:
        if (single)
            a->a = 0;
        else
            a->a = x - 1, a->d = s > 0 ? fma(s, x, -1) : y - 1;
        return;
    case MICA_RESIZE_TF_CROP_AND_RESIZE: {
        const double from = from_of(d, axis), to = to_of(d, axis);
        if (single)
            a->a = 0, a->b = (from + to) * (x - 1), a->d = 2;
        else
            a->a = (to - from) * (x - 1), a->b = from * (x - 1) * (y - 1), a->d = y - 1;
        a->extrapolates = true;
        return;
    }
    }
}

static bool excludes(const mica_resize_desc *d)
{
    return d->border == MICA_RESIZE_BORDER_EXCLUDE ||
           (d->border == MICA_RESIZE_BORDER_AUTO && d->antialias);
}

static void make_axis(const mica_resize_desc *d, int axis, mica_resize_axis *a)
{
    const double s = *scale_of(d, axis);
    a->mode = (int)d->mode, a->nearest = (int)d->nearest, a->cubic = d->cubic;
    a->exclude = excludes(d);
    place_axis(d, axis, a);
    a->stretch = s > 0 ? 1 / s : (double)a->x / (double)a->y;
    if (!d->antialias || !(a->stretch > 1)) a->stretch = 1;
    a->normalised = a->exclude || d->antialias;
    a->reach = a->stretch * (d->mode == MICA_RESIZE_CUBIC ? 2 : 1);
}

static bool is_whole(const mica_resize_axis *a)
{
    return a->x == a->y && a->a == a->d && a->b == 0;
}

void mica_resize_axes(const mica_resize_desc *d, mica_resize_axis axes[3])
{
    int missing = 5 - d->x.rank, changed = 0;
    for (int i = 0; i < 3; i++) {
        mica_resize_axis *a = &axes[i];
        *a = (mica_resize_axis){.x = 1, .y = 1, .a = 1, .d = 1, .stretch = 1, .reach = 1};
        if (i < missing) continue;
        a->x = d->x.dims[i - missing + 2], a->y = d->y.dims[i - missing + 2];
        if (a->x > 0 && a->y > 0) make_axis(d, i, a);
        changed += !is_whole(a);
    }
    if (!mica_dtype_is_integer(d->x.dtype)) return;
    static const double units[] = {1, 0x1p30, 0x1p20, 0x1p14};
    for (int i = 0; i < 3; i++) axes[i].unit = units[changed];
}

void mica_resize_strides(const mica_tensor *t, long long strides[5])
{
    for (int i = 0; i < 5; i++) strides[i] = 0;
    for (int i = 0; i < t->rank && i < 5; i++)
        strides[i < 2 ? i : i + 5 - t->rank] = t->dims[i] > 1 ? t->strides[i] : 0;
}

/* Elements from the first with a weight to the last. */
static int64_t length_of(const mica_resize_axis *a, int64_t i)
{
    long long from, to;
    resize_span(a, true, i, &from, &to);
    for (; from < to; from++) {
        const resize_taps t = resize_find(a, from);
        if (t.first <= t.last && resize_weight(a, &t, i) != 0) break;
    }
    for (; from < to; to--) {
        const resize_taps t = resize_find(a, to - 1);
        if (t.first <= t.last && resize_weight(a, &t, i) != 0) break;
    }
    return to - from;
}

/* Of the elements inside: those with a weight lie less than the reach from a coordinate, on either
 * side. */
static double inner_most(const mica_resize_axis *a, bool backward, int64_t rows, int64_t limit)
{
    const bool nearest = a->mode == RESIZE_NEAREST;
    if (a->mode == RESIZE_AREA) return (double)(limit / rows) + (limit % rows ? 2 : 0);
    if (!backward) return nearest ? 1 : ceil(2 * a->reach);
    if (a->a == 0) return (double)limit;
    const double step_in = a->d / fabs(a->a); /* elements of y for one of x */
    return nearest ? ceil(step_in) + (a->d != floor(a->d)) : ceil(2 * a->reach * step_in);
}

/* Elements at the edges have what lies beyond, too. */
int64_t mica_resize_most(const mica_resize_axis *a, bool backward)
{
    const int64_t limit = backward ? a->y : a->x, rows = backward ? a->x : a->y;
    if (limit <= 1 || rows <= 0 || is_whole(a)) return 1;
    const double inner = inner_most(a, backward, rows, limit);
    int64_t most = inner < (double)limit ? (int64_t)inner : limit;
    if (backward && a->mode != RESIZE_AREA && most < limit) {
        const int64_t first = length_of(a, 0), last = length_of(a, a->x - 1);
        most = first > most ? first : most;
        most = last > most ? last : most;
    }
    return most;
}

int64_t mica_resize_row(const mica_resize_axis *a, bool backward, int64_t i, double *weights,
                        int64_t most)
{
    return resize_row(a, backward, i, weights, most, NULL);
}

/* ---- inference ---- */

static mica_status check_scale(const mica_resize_desc *d, int axis, mica_why *why)
{
    const double s = *scale_of(d, axis);
    if (mica_left_out(s)) return MICA_OK;
    if (!(s > 0))
        return mica_invalid(why, "scale_%s is %g, it must be more than 0", axis_names[axis], s + 0);
    if (axis < 5 - d->x.rank)
        return mica_invalid(why, "scale_%s is given, x has %d axes: the last are %s",
                            axis_names[axis], d->x.rank - 2, d->x.rank == 3 ? "w" : "h w");
    if (d->mode == MICA_RESIZE_AREA)
        return mica_invalid(why, "scale_%s is given, area follows from the sizes",
                            axis_names[axis]);
    return MICA_OK;
}

static mica_status infer_dims(mica_resize_desc *d, mica_why *why)
{
    const int missing = 5 - d->x.rank;
    d->y.rank = d->x.rank;
    d->y.dims[0] = d->x.dims[0], d->y.dims[1] = d->x.dims[1];
    for (int i = missing; i < 3; i++) {
        const double s = *scale_of(d, i), n = floor((double)d->x.dims[i - missing + 2] * s);
        if (mica_left_out(s))
            return mica_invalid(why, "y is needed, or scale_%s: one of them gives the size",
                                axis_names[i]);
        if (n > (double)MICA_MOST_ELEMENTS)
            return mica_invalid(why, "scale_%s is %g: y would have more than 2^48 elements",
                                axis_names[i], s);
        d->y.dims[i - missing + 2] = (int64_t)n;
    }
    mica_tensor_strides_like(&d->y, &d->x);
    return MICA_OK;
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_resize_desc *d = desc;
    if (d->x.rank < 3 || d->x.rank > 5)
        return mica_invalid(why, "x has rank %d; resize takes N x C and one to three axes",
                            d->x.rank);
    for (int i = 0; i < 3; i++) MICA_TRY(check_scale(d, i, why));
    if (!mica_tensor_given(&d->y)) d->y.dtype = d->x.dtype;
    if (d->y.rank == 0) MICA_TRY(infer_dims(d, why));
    if (d->mode == MICA_RESIZE_CUBIC && mica_left_out(d->cubic))
        d->cubic = d->antialias ? -0.5 : -0.75;
    return MICA_OK;
}

/* ---- checks ---- */

/* What another mode would use. */
static mica_status check_unused(const mica_resize_desc *d, mica_why *why)
{
    const bool filtered = d->mode == MICA_RESIZE_LINEAR || d->mode == MICA_RESIZE_CUBIC;
    const bool crops = d->coordinates == MICA_RESIZE_TF_CROP_AND_RESIZE;
    const struct {
        const char *name, *rule;
        bool wrong;
    } rows[] = {
        {"nearest", "mode=nearest", d->nearest && d->mode != MICA_RESIZE_NEAREST},
        {"cubic", "mode=cubic", !mica_left_out(d->cubic) && d->mode != MICA_RESIZE_CUBIC},
        {"antialias", "linear and cubic", d->antialias && !filtered},
        {"border", "linear and cubic", d->border && !filtered},
        {"coordinates", "nearest, linear and cubic", d->coordinates && d->mode == MICA_RESIZE_AREA},
        {"antialias", "other coordinates than tf_crop_and_resize", d->antialias && crops},
        {"from_d", "tf_crop_and_resize", !crops && d->from_d != 0},
        {"from_h", "tf_crop_and_resize", !crops && d->from_h != 0},
        {"from_w", "tf_crop_and_resize", !crops && d->from_w != 0},
        {"to_d", "tf_crop_and_resize", !crops && d->to_d != 1},
        {"to_h", "tf_crop_and_resize", !crops && d->to_h != 1},
        {"to_w", "tf_crop_and_resize", !crops && d->to_w != 1},
        {"extrapolation", "tf_crop_and_resize", !crops && d->extrapolation != 0},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        if (rows[r].wrong)
            return mica_invalid(why, "%s is given, it belongs to %s", rows[r].name, rows[r].rule);
    return MICA_OK;
}

static mica_status check_axis(const mica_resize_desc *d, int axis, mica_why *why)
{
    const int i = axis - (5 - d->x.rank) + 2;
    const char *name = axis_names[axis];
    const int64_t x = d->x.dims[i], y = d->y.dims[i];
    const double s = *scale_of(d, axis);
    int64_t product;
    if ((x == 0) != (y == 0))
        return mica_invalid(why, "axis %s has %lld elements in x and %lld in y: 0 only in both",
                            name, (long long)x, (long long)y);
    if (__builtin_mul_overflow(x + 1, y + 1, &product))
        return mica_invalid(why, "axis %s: %lld elements times %lld do not fit 63 bits", name,
                            (long long)x, (long long)y);
    if (s > 0 && !(fabs((double)y - (double)x * s) < 1))
        return mica_invalid(why,
                            "axis %s of y is %lld, x times scale_%s is %g: they must be less than "
                            "1 apart",
                            name, (long long)y, name, (double)x * s);
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_resize_desc *d = desc;
    if (d->pass == MICA_RESIZE_BWD && mica_dtype_is_integer(d->x.dtype))
        return mica_invalid(why, "x is %s; the gradient takes f64, f32, f16, bf16",
                            mica_dtype_name(d->x.dtype));
    if (d->y.rank != d->x.rank)
        return mica_invalid(why, "y has rank %d, x has %d; they must agree", d->y.rank, d->x.rank);
    MICA_TRY(check_unused(d, why));
    for (int i = 0; i < 2; i++)
        if (d->x.dims[i] != d->y.dims[i])
            return mica_invalid(why, "dimension %d of y is %lld, x has %lld; they must agree", i,
                                (long long)d->y.dims[i], (long long)d->x.dims[i]);
    for (int i = 5 - d->x.rank; i < 3; i++) MICA_TRY(check_axis(d, i, why));
    return MICA_OK;
}

/* ---- numbers ---- */

static double product_of_most(const mica_resize_desc *d, bool backward)
{
    mica_resize_axis axes[3];
    double n = 1;
    mica_resize_axes(d, axes);
    for (int a = 0; a < 3; a++) n *= (double)mica_resize_most(&axes[a], backward);
    return n;
}

/* With the rounding of three weights and of their product. */
static int64_t terms(const void *desc)
{
    const mica_resize_desc *d = desc;
    const double n = product_of_most(d, d->pass == MICA_RESIZE_BWD);
    return n < 0x1p40 ? (int64_t)n + 6 : INT64_C(1) << 40;
}

/* Digits of an axis' weights behind the point; 64: too many. */
static int digits_of(const mica_resize_desc *d, const mica_resize_axis *a)
{
    if (a->x == 0 || a->y == 0 || d->mode == MICA_RESIZE_NEAREST || is_whole(a)) return 0;
    if (d->mode == MICA_RESIZE_AREA) {
        const int64_t n = a->x / a->y;
        return a->x % a->y == 0 && (n & (n - 1)) == 0 ? __builtin_ctzll((uint64_t)n) : 64;
    }
    if (d->mode != MICA_RESIZE_LINEAR || a->normalised || a->extrapolates) return 64;
    if (a->a != floor(a->a) || a->b != floor(a->b) || !(a->d < 1024)) return 64;
    const int64_t n = (int64_t)a->d;
    return (double)n == a->d && (n & (n - 1)) == 0 ? __builtin_ctzll((uint64_t)n) : 64;
}

static bool exact(const void *desc)
{
    const mica_resize_desc *d = desc;
    mica_resize_axis axes[3];
    int digits = 0;
    if (mica_dtype_is_integer(d->x.dtype)) return true;
    mica_resize_axes(d, axes);
    for (int a = 0; a < 3; a++) digits += digits_of(d, &axes[a]);
    return digits <= 10;
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_resize_desc *d = desc;
    *flops = 2 * (double)mica_tensor_count(&d->y) * product_of_most(d, false);
    *bytes = 0;
}

static const mica_engine *const engines[] = {&mica_resize_cuda, &mica_resize_cpu, &mica_engine_ref,
                                             NULL};

const mica_op mica_op_resize = {
    .name = "resize",
    .doc = "nearest, linear, cubic and area resizing, forward and backward",
    .desc_size = sizeof(mica_resize_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .reference = mica_resize_reference,
    .engines = engines,
};
