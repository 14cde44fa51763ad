/* SPDX-License-Identifier: Apache-2.0
 * im2col: tables, inference, checks, and the truth. Not a map of ops/index: two dimensions, taps
 * and windows, make one coordinate of the image there. Nor conv's matrices (conv/lowered), which
 * are packed, window by window, with the filter's order of pairs, and whose sums end in an
 * epilogue. */
#include "ops/im2col/im2col.h"

#include <math.h>

extern const mica_op mica_op_im2col;

static const char *const passes[] = {"fwd", "bwd", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_im2col_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x (col2im, fold)"),
    FIELD(x, TENSOR, .zero = "needed", .doc = "fwd: input, N x C x 1 to 3 axes"),
    FIELD(y, TENSOR, .zero = "inferred", .doc = "fwd: columns, N x C K x L"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "needed", .doc = "bwd: gradient of x"),
    FIELD(kernel, AXES, .count = 3, .def = 1, .doc = "taps per axis"),
    FIELD(stride, AXES, .count = 3, .def = 1, .doc = "step from window to window"),
    FIELD(pad, AXES, .count = 3, .zero = "none", .doc = "zeros before and behind each axis"),
    FIELD(pad_extra, AXES, .count = 3, .zero = "none", .doc = "added to pad behind an axis"),
    FIELD(dilation, AXES, .count = 3, .def = 1, .doc = "step from tap to tap"),
};

/* Along axis i of the image. */
static int64_t windows_of(const mica_im2col_desc *d, int i)
{
    const int64_t extent = (d->kernel[i] - 1) * d->dilation[i] + 1;
    const int64_t room =
        mica_im2col_image(d)->dims[i + 2] + 2 * d->pad[i] + d->pad_extra[i] - extent;
    return room < 0 ? 0 : room / d->stride[i] + 1;
}

static mica_tensor columns(const void *desc)
{
    const mica_im2col_desc *d = desc;
    const mica_tensor *image = mica_im2col_image(d);
    mica_tensor t = {.dtype = image->dtype, .rank = 3};
    t.dims[0] = image->dims[0], t.dims[1] = image->dims[1], t.dims[2] = 1;
    for (int i = 0; i + 2 < image->rank; i++)
        t.dims[1] *= d->kernel[i], t.dims[2] *= windows_of(d, i);
    mica_tensor_default_strides(&t);
    return t;
}

#define ARG(member)    #member, offsetof(mica_im2col_desc, member)
#define COLUMNS(image) .same = image, .like = "the columns of " image, .shape = columns
static const mica_arg args[] = {
    [MICA_IM2COL_X] = {ARG(x), {MICA_IN, MICA_UNUSED}, .types = MICA_FLOATS, .need = {MICA_NEEDED}},
    [MICA_IM2COL_Y] = {ARG(y),
                       {MICA_OUT, MICA_UNUSED},
                       .types = MICA_FLOATS,
                       .need = {MICA_INFERRED},
                       COLUMNS("x")},
    [MICA_IM2COL_DY] = {ARG(dy),
                        {MICA_UNUSED, MICA_IN},
                        .types = MICA_FLOATS,
                        .need = {0, MICA_INFERRED},
                        COLUMNS("dx")},
    [MICA_IM2COL_DX] = {ARG(dx),
                        {MICA_UNUSED, MICA_OUT},
                        .types = MICA_FLOATS,
                        .need = {0, MICA_NEEDED}},
};

/* ---- checks ---- */

static mica_status check_axis(const mica_im2col_desc *d, int i, bool there, mica_why *why)
{
    const struct {
        const char *name;
        int64_t value, least;
    } rows[] = {{"kernel", d->kernel[i], 1},
                {"stride", d->stride[i], 1},
                {"dilation", d->dilation[i], 1},
                {"pad", d->pad[i], 0},
                {"pad_extra", d->pad_extra[i], 0}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        if (rows[r].value < rows[r].least || rows[r].value > MICA_MOST_ELEMENTS)
            return mica_invalid(why, "%s of axis %d is %lld, it must be %lld or more, at most 2^48",
                                rows[r].name, i, (long long)rows[r].value,
                                (long long)rows[r].least);
        if (!there && rows[r].value != rows[r].least)
            return mica_invalid(why, "%s has a value for axis %d, the image has %d axes",
                                rows[r].name, i, mica_im2col_image(d)->rank - 2);
    }
    return MICA_OK;
}

/* Of the rows of the matrix and of its columns, before they are multiplied. */
static mica_status check_sizes(const mica_im2col_desc *d, mica_why *why)
{
    const mica_tensor *image = mica_im2col_image(d);
    double pairs = (double)image->dims[1], windows = 1;
    for (int i = 0; i + 2 < image->rank; i++) {
        const double extent = (double)(d->kernel[i] - 1) * (double)d->dilation[i] + 1;
        const double room =
            (double)image->dims[i + 2] + 2 * (double)d->pad[i] + (double)d->pad_extra[i];
        if (extent > room)
            return mica_invalid(why,
                                "axis %d: a window spans %.15g, the image with its padding only "
                                "%.15g",
                                i, extent, room);
        pairs *= (double)d->kernel[i], windows *= (double)windows_of(d, i);
    }
    if (pairs > (double)MICA_MOST_ELEMENTS || windows > (double)MICA_MOST_ELEMENTS)
        return mica_invalid(why, "columns of %.4g elements, %.4g of them; at most 2^48 are legal",
                            pairs, windows);
    return MICA_OK;
}

static mica_status infer(void *desc, mica_why *why)
{
    const mica_im2col_desc *d = desc;
    const mica_tensor *image = mica_im2col_image(d);
    if (image->rank < 3 || image->rank > 5)
        return mica_invalid(why, "the image has rank %d; it takes N x C and one to three axes",
                            image->rank);
    for (int i = 0; i < MICA_IM2COL_AXES; i++) MICA_TRY(check_axis(d, i, i + 2 < image->rank, why));
    return check_sizes(d, why);
}

/* ---- numbers ---- */

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

mica_im2col_args mica_im2col_sizes(const mica_im2col_desc *d, const mica_tensor *image,
                                   const mica_tensor *matrix)
{
    const int missing = MICA_IM2COL_AXES + 2 - image->rank;
    mica_im2col_args a = {.n = image->dims[0],
                          .c = image->dims[1],
                          .taps = 1,
                          .windows = matrix->dims[2],
                          .image_n = image->strides[0],
                          .image_c = image->strides[1],
                          .matrix_n = matrix->strides[0],
                          .matrix_k = matrix->strides[1],
                          .matrix_l = matrix->strides[2]};
    for (int i = 0; i < MICA_IM2COL_AXES; i++) {
        const int j = i - missing;
        a.axis[i] = (mica_im2col_axis){
            .in = 1, .out = 1, .taps = 1, .stride = 1, .dilation = 1, .apart = 1, .back = 1};
        if (j < 0) continue;
        const int64_t common = common_divisor(d->stride[j], d->dilation[j]);
        a.axis[i] = (mica_im2col_axis){.in = image->dims[j + 2],
                                       .out = windows_of(d, j),
                                       .taps = d->kernel[j],
                                       .stride = d->stride[j],
                                       .pad = d->pad[j],
                                       .dilation = d->dilation[j],
                                       .step = image->strides[j + 2],
                                       .apart = d->stride[j] / common,
                                       .back = d->dilation[j] / common};
        a.taps *= d->kernel[j];
    }
    return a;
}

static int64_t terms(const void *desc)
{
    const mica_im2col_desc *d = desc;
    const int64_t taps = mica_im2col_sizes(d, mica_im2col_image(d), mica_im2col_matrix(d)).taps;
    const int64_t windows = mica_im2col_matrix(d)->dims[2];
    if (mica_im2col_is_forward(d) || windows == 0) return 1;
    return taps < windows ? taps : windows; /* a window reads an element once */
}

static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_im2col_desc *d = desc;
    *flops = mica_im2col_is_forward(d) ? 0 : (double)mica_tensor_count(&d->dy);
    *bytes = 0;
}

void mica_im2col_contract(const void *desc, const mica_config *config, mica_contract *contract)
{
    (void)config;
    if (!mica_im2col_is_forward(desc)) return;
    contract->n_seq = contract->n_outer = 0;
}

/* ---- the truth ---- */

/* What tap k of window l reads: its place in the image; false: nothing. */
static bool read_by(const mica_im2col_args *a, int64_t k, int64_t l, int64_t *place)
{
    bool inside = true;
    *place = 0;
    for (int i = MICA_IM2COL_AXES - 1; i >= 0; i--) {
        const mica_im2col_axis *x = &a->axis[i];
        const int64_t at = l % x->out * x->stride + k % x->taps * x->dilation - x->pad;
        k /= x->taps, l /= x->out;
        inside &= at >= 0 && at < x->in;
        *place += at * x->step;
    }
    return inside;
}

/* The window whose tap k reads element `at` of a plane; -1: there is none. */
static int64_t reader(const mica_im2col_args *a, int64_t k, int64_t at)
{
    int64_t window = 0, size = 1;
    for (int i = MICA_IM2COL_AXES - 1; i >= 0; i--) {
        const mica_im2col_axis *x = &a->axis[i];
        const int64_t moved = at % x->in + x->pad - k % x->taps * x->dilation;
        k /= x->taps, at /= x->in;
        if (moved < 0 || moved % x->stride || moved / x->stride >= x->out) return -1;
        window += moved / x->stride * size, size *= x->out;
    }
    return window;
}

static int64_t of_matrix(const mica_im2col_args *a, int64_t plane, int64_t k, int64_t l)
{
    return plane / a->c * a->matrix_n + (plane % a->c * a->taps + k) * a->matrix_k +
           l * a->matrix_l;
}

static int64_t of_plane(const mica_im2col_args *a, int64_t plane)
{
    return plane / a->c * a->image_n + plane % a->c * a->image_c;
}

static void reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_im2col_desc *d = desc;
    const bool fwd = mica_im2col_is_forward(d);
    const mica_view *image = &args[fwd ? MICA_IM2COL_X : MICA_IM2COL_DX];
    const mica_view *matrix = &args[fwd ? MICA_IM2COL_Y : MICA_IM2COL_DY];
    const mica_im2col_args a = mica_im2col_sizes(d, &image->t, &matrix->t);
    const int64_t elements = a.axis[0].in * a.axis[1].in * a.axis[2].in;
    int64_t place;
    (void)scalars;
    for (int64_t p = 0; p < a.n * a.c; p++) {
        for (int64_t k = 0; fwd && k < a.taps; k++)
            for (int64_t l = 0; l < a.windows; l++) {
                const bool inside = read_by(&a, k, l, &place);
                const double v = inside ? mica_get(image, of_plane(&a, p) + place) : 0;
                mica_put(matrix, of_matrix(&a, p, k, l), v, fabs(v));
            }
        for (int64_t i = 0; !fwd && i < elements; i++) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < a.taps; k++) {
                const int64_t l = reader(&a, k, i);
                const double v = l < 0 ? 0 : mica_get(matrix, of_matrix(&a, p, k, l));
                sum += v, magnitude += fabs(v);
            }
            int64_t rest = i, at = of_plane(&a, p);
            for (int x = MICA_IM2COL_AXES - 1; x >= 0; x--) {
                at += rest % a.axis[x].in * a.axis[x].step;
                rest /= a.axis[x].in;
            }
            mica_put(image, at, sum, magnitude);
        }
    }
}

static const mica_engine *const engines[] = {&mica_im2col_cpu, &mica_engine_ref, &mica_im2col_cuda,
                                             NULL};

const mica_op mica_op_im2col = {
    .name = "im2col",
    .doc = "windows as columns of a matrix, and sums of such columns (col2im)",
    .desc_size = sizeof(mica_im2col_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .reference = reference,
    .engines = engines,
};
