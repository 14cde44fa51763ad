/* SPDX-License-Identifier: Apache-2.0
 * roi_align: tables, inference, checks, fills. */
#include "ops/roi_align/roi_align.h"
#include "ops/access/access.h"
#include "base/random.h"

#include <math.h>

extern const mica_op mica_op_roi_align;

enum { MOST_SAMPLES = 4096 };

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const modes[] = {"avg", "max", "pool", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_roi_align_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "forward, or gradient of x"),
    FIELD(mode, ENUM, .spellings = modes,
          .doc = "mean of samples, their greatest product, the greatest of whole elements"),
    FIELD(x, TENSOR, .zero = "in bwd none, else needed", .doc = "fwd: input, N x C x H x W"),
    FIELD(rois, TENSOR, .zero = "needed",
          .doc = "regions: picture, x1, y1, x2, y2, or without picture; f32, or as x"),
    FIELD(batch, TENSOR, .zero = "the first column of rois", .doc = "pictures of regions of 4"),
    FIELD(y, TENSOR, .zero = "inferred, order in memory as x", .doc = "fwd: K x C x size"),
    FIELD(argmax, TENSOR, .zero = "not wanted, in bwd needed",
          .doc = "pool: positions within each N,C plane of x, s32 or s64"),
    FIELD(dy, TENSOR, .zero = "inferred", .doc = "bwd: gradient of y"),
    FIELD(dx, TENSOR, .zero = "in fwd none, else needed", .doc = "bwd: gradient of x"),
    FIELD(size, AXES, .count = 2, .positive = true, .zero = "those of y",
          .doc = "bins along H and W"),
    FIELD(sampling, I64, .zero = "by its length",
          .doc = "avg, max: samples of a bin along an axis"),
    FIELD(scale, F64, .def = 1, .doc = "elements of x for a unit of coordinates"),
    FIELD(aligned, FLAG, .doc = "avg, max: coordinates are of corners, not of centres"),
};

/* ---- arguments ---- */

static mica_tensor output_shape(const void *desc)
{
    mica_tensor t = *mica_roi_align_output(desc);
    t.dtype = MICA_S32;
    return t;
}

static int64_t dim(const void *desc, char letter)
{
    (void)letter;
    return ((const mica_roi_align_desc *)desc)->rois.dims[0];
}

#define ARG(member) #member, offsetof(mica_roi_align_desc, member)
static const mica_arg args[] = {
    [MICA_ROI_ALIGN_X] = {ARG(x),
                          {MICA_IN, MICA_UNUSED},
                          .types = MICA_FLOATS,
                          .need = {MICA_NEEDED}},
    [MICA_ROI_ALIGN_ROIS] = {ARG(rois),
                             {MICA_IN, MICA_IN},
                             .types = MICA_FLOATS,
                             .need = {MICA_NEEDED, MICA_NEEDED}},
    [MICA_ROI_ALIGN_BATCH] = {ARG(batch), {MICA_IN, MICA_IN}, .types = MICA_INDICES, .dims = "K"},
    [MICA_ROI_ALIGN_Y] = {ARG(y), {MICA_OUT, MICA_UNUSED}, .types = MICA_FLOATS, .same = "x"},
    [MICA_ROI_ALIGN_ARGMAX] = {ARG(argmax),
                               {MICA_OUT, MICA_IN},
                               .types = MICA_INDICES,
                               .like = "y",
                               .shape = output_shape,
                               .words = "the bins",
                               .when = "mode",
                               .values = 1 << MICA_ROI_ALIGN_POOL},
    [MICA_ROI_ALIGN_DY] = {ARG(dy), {MICA_UNUSED, MICA_IN}, .types = MICA_FLOATS, .same = "dx"},
    [MICA_ROI_ALIGN_DX] = {ARG(dx),
                           {MICA_UNUSED, MICA_OUT},
                           .types = MICA_FLOATS,
                           .need = {0, MICA_NEEDED}},
};

static mica_roi_align_strides strides_of(const mica_tensor *t)
{
    return (mica_roi_align_strides){
        mica_access_step(t->strides[0], t->dims[0]), mica_access_step(t->strides[1], t->dims[1]),
        mica_access_step(t->strides[2], t->dims[2]), mica_access_step(t->strides[3], t->dims[3])};
}

void mica_roi_align_args_make(const mica_roi_align_desc *d, mica_roi_align_args *a)
{
    const mica_tensor *x = mica_roi_align_image(d), *y = mica_roi_align_output(d);
    *a = (mica_roi_align_args){.x_step = strides_of(x),
                               .y_step = strides_of(y),
                               .argmax_step = strides_of(&d->argmax),
                               .roi = d->rois.strides[0],
                               .roi_column = d->rois.strides[1],
                               .batch_step = d->batch.strides[0],
                               .n = x->dims[0],
                               .c = x->dims[1],
                               .h = x->dims[2],
                               .w = x->dims[3],
                               .k = y->dims[0],
                               .bins_h = y->dims[2],
                               .bins_w = y->dims[3],
                               .scale = d->scale,
                               .sampling = d->sampling,
                               .aligned = d->aligned};
}

void mica_roi_align_args_point(const mica_roi_align_desc *d, void *const *run_args,
                               mica_roi_align_args *a)
{
    a->x = run_args[MICA_ROI_ALIGN_X];
    a->rois = run_args[MICA_ROI_ALIGN_ROIS];
    a->batch = mica_tensor_given(&d->batch) ? run_args[MICA_ROI_ALIGN_BATCH] : NULL;
    a->y = run_args[MICA_ROI_ALIGN_Y];
    a->argmax = mica_tensor_given(&d->argmax) ? run_args[MICA_ROI_ALIGN_ARGMAX] : NULL;
    a->dy = run_args[MICA_ROI_ALIGN_DY];
    a->dx = run_args[MICA_ROI_ALIGN_DX];
}

/* ---- inference and checks ---- */

static mica_status infer(void *desc, mica_why *why)
{
    mica_roi_align_desc *d = desc;
    const bool fwd = mica_roi_align_is_forward(d), pool = d->mode == MICA_ROI_ALIGN_POOL;
    const mica_tensor *x = mica_roi_align_image(d);
    mica_tensor *y = fwd ? &d->y : &d->dy;
    if (!fwd && d->mode == MICA_ROI_ALIGN_MAX) return mica_invalid(why, "mode=max has no gradient");
    if (!fwd && pool && !mica_tensor_given(&d->argmax))
        return mica_invalid(why, "argmax is needed for the gradient of mode=pool");
    if (x->rank != 4)
        return mica_invalid(why, "%s has rank %d, it must be N x C x H x W", fwd ? "x" : "dx",
                            x->rank);
    const bool batch = mica_tensor_given(&d->batch);
    if (d->rois.rank != 2 || d->rois.dims[1] != (batch ? 4 : 5))
        return mica_invalid(why, "rois has rank %d and %lld columns, %s are %s", d->rois.rank,
                            (long long)(d->rois.rank ? d->rois.dims[d->rois.rank - 1] : 0),
                            batch ? "regions with batch" : "regions", batch ? "K x 4" : "K x 5");
    if (!mica_tensor_given(y)) y->dtype = x->dtype;
    if (y->rank == 0) {
        if (!d->size[0] || !d->size[1])
            return mica_invalid(why, "neither %s nor two sizes are given", fwd ? "y" : "dy");
        const int64_t dims[] = {d->rois.dims[0], x->dims[1], d->size[0], d->size[1]};
        const mica_dtype type = y->dtype;
        *y = mica_tensor_packed(type, 4, dims);
        mica_tensor_strides_like(y, x);
    }
    if (y->rank == 4 && !d->size[0] && !d->size[1])
        d->size[0] = y->dims[2], d->size[1] = y->dims[3];
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_roi_align_desc *d = desc;
    const mica_tensor *x = mica_roi_align_image(d), *y = mica_roi_align_output(d);
    const int64_t dims[] = {d->rois.dims[0], x->dims[1], d->size[0], d->size[1]};
    const mica_tensor want = mica_tensor_packed(x->dtype, 4, dims);
    MICA_TRY(mica_tensor_same_dims(y, mica_roi_align_is_forward(d) ? "y" : "dy", &want,
                                   "regions, channels and size", why));
    if (d->rois.dtype != MICA_F32 && d->rois.dtype != x->dtype)
        return mica_invalid(why, "rois is %s, it must be f32 or %s as x",
                            mica_dtype_name(d->rois.dtype), mica_dtype_name(x->dtype));
    if (d->sampling < 0 || d->sampling > MOST_SAMPLES)
        return mica_invalid(why, "sampling is %lld, 0 to %d are legal", (long long)d->sampling,
                            MOST_SAMPLES);
    if (d->argmax.dtype == MICA_S32 && x->dims[3] > 0 && x->dims[2] > INT32_MAX / x->dims[3])
        return mica_invalid(why, "argmax is s32, planes of x have %lld elements",
                            (long long)(x->dims[2] * x->dims[3]));
    return MICA_OK;
}

/* ---- numbers ---- */

static int64_t reach(int64_t elements, int64_t bins, int64_t sampling)
{
    const int64_t by_length = elements / (bins ? bins : 1) + 2;
    return sampling && 2 * sampling < by_length ? 2 * sampling : by_length;
}

static int64_t terms(const void *desc)
{
    const mica_roi_align_desc *d = desc;
    const mica_tensor *x = mica_roi_align_image(d), *y = mica_roi_align_output(d);
    int64_t n = y->dims[0] * y->dims[2] * y->dims[3];
    if (mica_roi_align_is_forward(d))
        n = d->mode == MICA_ROI_ALIGN_AVG ? reach(x->dims[2], y->dims[2], d->sampling) *
                                                reach(x->dims[3], y->dims[3], d->sampling)
                                          : 1;
    return n > 0 ? n : 1;
}

static bool is_power_of_two(int64_t n)
{
    return n > 0 && !(n & (n - 1));
}

/* Regions then begin at halves and have bins of 1, 2 or 4 elements. */
static bool exact(const void *desc)
{
    const mica_roi_align_desc *d = desc;
    int exponent;
    if (d->mode == MICA_ROI_ALIGN_POOL) return true;
    const double fraction = frexp(d->scale, &exponent);
    const bool plain = d->rois.dtype == MICA_F32 || d->rois.dtype == MICA_F64;
    return plain && fraction == 0.5 && exponent > -6 && exponent < 4 && d->sampling <= 4 &&
           (d->sampling == 0 || is_power_of_two(d->sampling)) && terms(d) <= 2048;
}

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_roi_align_desc *d = desc;
    (void)bytes;
    const mica_tensor *x = mica_roi_align_image(d), *y = mica_roi_align_output(d);
    *flops = 2.0 * (double)mica_tensor_count(y) *
             (double)reach(x->dims[2], y->dims[2], d->sampling) *
             (double)reach(x->dims[3], y->dims[3], d->sampling);
}

/* ---- fills ---- */

static int64_t whole(uint64_t seed, uint64_t i, int64_t n)
{
    return n > 0 ? (int64_t)(mica_random_bits(seed, i) % (uint64_t)n) : 0;
}

/* From where to where along an axis, in elements. */
static void fill_axis(const mica_roi_align_desc *d, mica_fill fill, uint64_t seed, int64_t k,
                      int64_t size, int64_t bins, double ends[2])
{
    const double offset = d->aligned && d->mode != MICA_ROI_ALIGN_POOL ? 0.5 : 0;
    const double u = mica_random_uniform(seed, (uint64_t)k), n = (double)size;
    const double v = mica_random_uniform(seed ^ 1, (uint64_t)k);
    if (fill == MICA_FILL_EXACT && d->mode != MICA_ROI_ALIGN_POOL) {
        const double length = (double)((1 << whole(seed ^ 2, (uint64_t)k, 3)) * bins);
        ends[0] = floor(2 * (u * (n + 3) - 2)) / 2 + offset;
        ends[1] = ends[0] + length;
        return;
    }
    ends[0] = u * (n + 1) - 1;
    ends[1] = ends[0] + v * v * (n + 2);
    if (d->mode == MICA_ROI_ALIGN_POOL && !mica_roi_align_is_forward(d))
        ends[0] = u * n / 4, ends[1] = n - v * n / 4; /* positions at random lie in bins */
    if (fill != MICA_FILL_EXTREME) return;
    if (k % 3 == 1) ends[0] = rint(ends[0]), ends[1] = rint(ends[1]);
    if (k % 5 == 2) ends[1] = ends[0] - v * n; /* the wrong way round */
    if (k % 7 == 3) ends[0] -= 3 * n, ends[1] += 2 * n;
    if (k % 11 == 4) ends[1] = ends[0];
}

static void fill_rois(const mica_roi_align_desc *d, mica_fill fill, uint64_t seed, double *values)
{
    const mica_tensor *x = mica_roi_align_image(d);
    const int columns = (int)d->rois.dims[1];
    for (int64_t k = 0; k < d->rois.dims[0]; k++, values += columns) {
        double w[2], h[2];
        double *v = values + columns - 4;
        fill_axis(d, fill, seed, k, x->dims[3], d->size[1], w);
        fill_axis(d, fill, seed ^ 0x407, k, x->dims[2], d->size[0], h);
        v[0] = w[0], v[1] = h[0], v[2] = w[1], v[3] = h[1];
        for (int i = 0; i < 4; i++)
            v[i] = mica_fill_rounded(d->rois.dtype, d->scale != 0 ? v[i] / d->scale : v[i]);
        if (columns == 5)
            values[0] = mica_fill_rounded(
                d->rois.dtype, (double)whole(seed ^ 3, (uint64_t)k, x->dims[0] + (k % 8 == 7)));
    }
}

static bool fill(const void *desc, const double *scalars, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_roi_align_desc *d = desc;
    const mica_tensor *x = mica_roi_align_image(d);
    (void)scalars;
    if (arg == MICA_ROI_ALIGN_ROIS && kind != MICA_FILL_EDGES && x->dims[0] > 0) {
        fill_rois(d, kind, seed, values);
        return true;
    }
    if (arg != MICA_ROI_ALIGN_BATCH && arg != MICA_ROI_ALIGN_ARGMAX) return false;
    const int64_t most = arg == MICA_ROI_ALIGN_BATCH ? x->dims[0] : x->dims[2] * x->dims[3];
    const int64_t count = mica_tensor_count(arg == MICA_ROI_ALIGN_BATCH ? &d->batch : &d->argmax);
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)whole(seed, (uint64_t)i, most + (i % 8 == 7)) - (i % 16 == 15);
    return true;
}

void mica_roi_align_contract(const void *desc, const mica_config *config, mica_contract *contract)
{
    const mica_roi_align_desc *d = desc;
    (void)config;
    if (d->mode != MICA_ROI_ALIGN_POOL || !mica_roi_align_is_forward(d)) return;
    contract->n_seq = contract->n_outer = 0;
    contract->ulps = 0;
}

static const mica_engine *const engines[] = {&mica_roi_align_cpu, &mica_engine_ref,
                                             &mica_roi_align_cuda, NULL};

const mica_op mica_op_roi_align = {
    .name = "roi_align",
    .doc = "regions of pictures pooled to one size, and the gradient",
    .desc_size = sizeof(mica_roi_align_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .dim = dim,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = 8,
    .fill = fill,
    .reference = mica_roi_align_reference,
    .engines = engines,
};
