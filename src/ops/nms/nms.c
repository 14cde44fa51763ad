/* SPDX-License-Identifier: Apache-2.0
 * Non-maximum suppression: tables, inference, checks, fills. */
#include "ops/nms/nms.h"
#include "base/random.h"

#include <math.h>

enum { MOST_BOXES = 1 << 22, MOST_LISTS = 1 << 24 };

static const char *const formats[] = {"corners", "center", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_nms_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(format, ENUM, .spellings = formats,
          .doc = "two opposite corners, or the middle and extents"),
    FIELD(boxes, TENSOR, .zero = "needed", .doc = "boxes, N x 4 or batch x N x 4"),
    FIELD(scores, TENSOR, .zero = "inferred, of one class",
          .doc = "their scores, N or batch x classes x N"),
    FIELD(classes, TENSOR, .zero = "none",
          .doc = "classes of boxes that do not suppress each other's, N or batch x N"),
    FIELD(selected, TENSOR, .zero = "inferred",
          .doc = "indices of selected boxes, or rows of image, class, index; then -1"),
    FIELD(count, TENSOR, .zero = "inferred", .doc = "how many are selected"),
    FIELD(limit, I64, .zero = "no limit", .positive = true, .doc = "most boxes of a list"),
    FIELD(offset, I64, .doc = "added to widths and heights: 1 where corners name pixels"),
};

#define ARG(member) #member, offsetof(mica_nms_desc, member)
static const mica_arg args[] = {
    [MICA_NMS_BOXES] = {ARG(boxes), {MICA_IN}, .types = MICA_FLOATS, .need = {MICA_NEEDED}},
    [MICA_NMS_SCORES] = {ARG(scores), {MICA_IN}, .types = MICA_FLOATS, .same = "boxes"},
    [MICA_NMS_CLASSES] = {ARG(classes), {MICA_IN}, .types = MICA_INDICES},
    [MICA_NMS_SELECTED] = {ARG(selected), {MICA_OUT}, .types = MICA_INDICES},
    [MICA_NMS_COUNT] = {ARG(count), {MICA_OUT}, .types = MICA_INDICES},
};

static const mica_scalar scalars[] = {
    [MICA_NMS_IOU_THRESHOLD] = {"iou_threshold", 0},
    [MICA_NMS_SCORE_THRESHOLD] = {"score_threshold", -INFINITY},
};

/* ---- inference and checks ---- */

/* Of its own type, where it has one. */
static void infer_tensor(mica_tensor *t, mica_dtype type, int rank, const int64_t *dims)
{
    *t = mica_tensor_packed(mica_tensor_given(t) ? t->dtype : type, rank, dims);
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_nms_desc *d = desc;
    const mica_tensor *boxes = &d->boxes;
    mica_tensor *scores = &d->scores;
    if (boxes->rank < 2 || boxes->rank > 3 || boxes->dims[boxes->rank - 1] != 4)
        return mica_invalid(why,
                            "boxes has rank %d and rows of %lld, N x 4 and batch x N x 4 are "
                            "legal",
                            boxes->rank,
                            (long long)(boxes->rank ? boxes->dims[boxes->rank - 1] : 0));
    const bool batch = boxes->rank == 3;
    const int64_t n = mica_nms_boxes(d), b = boxes->dims[0];
    if (scores->rank == 0)
        infer_tensor(scores, boxes->dtype, batch ? 3 : 1, (int64_t[]){batch ? b : n, 1, n});
    if (d->classes.rank == 0 && mica_tensor_given(&d->classes))
        infer_tensor(&d->classes, MICA_S64, boxes->rank - 1, boxes->dims);
    if (scores->rank != (batch ? 3 : 1))
        return mica_invalid(why, "scores has rank %d, of boxes of rank %d they are %s",
                            scores->rank, boxes->rank, batch ? "batch x classes x N" : "N");
    if (d->limit < 0)
        return mica_invalid(why, "limit is %lld, it must be above 0", (long long)d->limit);
    if (mica_nms_boxes(d) > MOST_BOXES)
        return mica_invalid(why, "a list has %lld boxes, %d are legal",
                            (long long)mica_nms_boxes(d), MOST_BOXES);
    if (batch && (double)scores->dims[0] * (double)scores->dims[1] > MOST_LISTS)
        return mica_invalid(why, "there are %lld x %lld lists, %d are legal",
                            (long long)scores->dims[0], (long long)scores->dims[1], MOST_LISTS);
    const int64_t rows = mica_nms_lists(d) * mica_nms_limit(d);
    if (d->selected.rank == 0)
        infer_tensor(&d->selected, MICA_S64, batch ? 2 : 1, (int64_t[]){rows, 3});
    if (d->count.rank == 0) infer_tensor(&d->count, MICA_S64, 1, (int64_t[]){1});
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_nms_desc *d = desc;
    const bool batch = d->boxes.rank == 3;
    const int64_t n = mica_nms_boxes(d), b = batch ? d->boxes.dims[0] : 1;
    if (d->scores.dims[d->scores.rank - 1] != n || (batch && d->scores.dims[0] != b))
        return mica_invalid(why, "scores are of %lld x %lld boxes, there are %lld x %lld",
                            (long long)(batch ? d->scores.dims[0] : 1),
                            (long long)d->scores.dims[d->scores.rank - 1], (long long)b,
                            (long long)n);
    if (mica_tensor_given(&d->classes)) {
        const int64_t dims[] = {batch ? b : n, n};
        const mica_tensor want = mica_tensor_packed(d->classes.dtype, batch ? 2 : 1, dims);
        MICA_TRY(mica_tensor_same_dims(&d->classes, "classes", &want, "boxes", why));
    }
    if (d->selected.rank != (batch ? 2 : 1) || (batch && d->selected.dims[1] != 3))
        return mica_invalid(why, "selected has rank %d, it must be %s", d->selected.rank,
                            batch ? "rows x 3" : "rows");
    if (d->count.rank != 1 || d->count.dims[0] != 1)
        return mica_invalid(why, "count has %lld elements, it must have 1",
                            (long long)mica_tensor_count(&d->count));
    if (d->offset < 0 || d->offset > 1)
        return mica_invalid(why, "offset is %lld, 0 and 1 are legal", (long long)d->offset);
    if (d->count.dtype == MICA_S32 && mica_nms_lists(d) * mica_nms_limit(d) > INT32_MAX)
        return mica_invalid(why, "count is s32, there may be %lld boxes",
                            (long long)(mica_nms_lists(d) * mica_nms_limit(d)));
    return MICA_OK;
}

/* ---- numbers ---- */

static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

/* Half of all pairs of boxes, were none suppressed. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_nms_desc *d = desc;
    const double n = (double)mica_nms_boxes(d);
    (void)bytes;
    *flops = 8 * (double)mica_nms_lists(d) * n * n;
}

void mica_nms_args_make(const mica_nms_desc *d, mica_nms_args *a)
{
    const bool batch = d->boxes.rank == 3, classes = mica_tensor_given(&d->classes);
    const int64_t *box = d->boxes.strides + (batch ? 1 : 0);
    *a = (mica_nms_args){.box_batch = batch ? d->boxes.strides[0] : 0,
                         .box_n = box[0],
                         .box_column = box[1],
                         .score_batch = batch ? d->scores.strides[0] : 0,
                         .score_class = batch ? d->scores.strides[1] : 0,
                         .score_n = d->scores.strides[batch ? 2 : 0],
                         .class_batch = batch && classes ? d->classes.strides[0] : 0,
                         .class_n = classes ? d->classes.strides[batch ? 1 : 0] : 0,
                         .selected_row = d->selected.strides[0],
                         .selected_column = batch ? d->selected.strides[1] : 0,
                         .n = mica_nms_boxes(d),
                         .per_batch = batch ? d->scores.dims[1] : 1,
                         .lists = mica_nms_lists(d),
                         .limit = mica_nms_limit(d),
                         .rows = d->selected.dims[0]};
}

/* The largest real that is not above: reals are above it if they are above the number. */
static double rounded_down(mica_dtype real, double v)
{
    const float f = (float)v;
    if (real == MICA_F64) return v;
    return (double)f > v ? (double)nextafterf(f, -INFINITY) : (double)f;
}

void mica_nms_args_point(const mica_plan *plan, const mica_run *run, mica_nms_args *a)
{
    const mica_nms_desc *d = plan->desc;
    a->boxes = run->args[MICA_NMS_BOXES];
    a->scores = run->args[MICA_NMS_SCORES];
    a->classes = mica_tensor_given(&d->classes) ? run->args[MICA_NMS_CLASSES] : NULL;
    a->selected = run->args[MICA_NMS_SELECTED];
    a->count = run->args[MICA_NMS_COUNT];
    a->iou = rounded_down(mica_nms_real(d), mica_run_scalar(plan, run, MICA_NMS_IOU_THRESHOLD));
    a->score = rounded_down(mica_nms_real(d), mica_run_scalar(plan, run, MICA_NMS_SCORE_THRESHOLD));
}

/* ---- fills ---- */

static int64_t whole(uint64_t seed, uint64_t i, int64_t n)
{
    return (int64_t)(mica_random_bits(seed, i) % (uint64_t)n);
}

/* Boxes in clusters, so that IoUs of all sizes are there; with small integers, exactly equal ones.
 */
static void fill_box(const mica_nms_desc *d, mica_fill fill, uint64_t seed, uint64_t i, double *v)
{
    const uint64_t cluster = (uint64_t)whole(seed ^ 1, i, 6);
    const int64_t kind = fill == MICA_FILL_EXTREME ? whole(seed ^ 2, i, 12) : 11;
    for (int k = 0; k < 2; k++) {
        const uint64_t own = 2 * i + (uint64_t)k, base = 2 * cluster + (uint64_t)k;
        double from = 40 * mica_random_uniform(seed ^ 3, base);
        double size = 20 + 20 * mica_random_uniform(seed ^ 4, base);
        from += 10 * (mica_random_uniform(seed ^ 5, own) - 0.5);
        size *= 0.75 + 0.5 * mica_random_uniform(seed ^ 6, own);
        if (fill == MICA_FILL_EXACT)
            from = (double)whole(seed ^ 7, own, 5), size = (double)(1 << whole(seed ^ 8, own, 3));
        if (kind == 0) size = 0;
        if (kind == 1) from += size, size = -size;
        if (kind == 2 + k) from = k ? NAN : INFINITY;
        if (kind == 4) from *= 1e18, size *= 1e18;
        if (kind == 5) from *= 1e-30, size *= 1e-30;
        const bool center = d->format == MICA_NMS_CENTER;
        v[k] = center ? from + size / 2 : from;
        v[k + 2] = center ? size : from + size;
    }
    for (int k = 0; k < 4; k++) v[k] = mica_fill_rounded(d->boxes.dtype, v[k]);
}

/* A third of the scores are one of a few: ties. */
static double fill_score(const mica_nms_desc *d, mica_fill fill, uint64_t seed, uint64_t i)
{
    static const double edges[] = {NAN, INFINITY, -INFINITY, 0, -0.0, 0.5};
    double v = mica_random_uniform(seed, i);
    if (fill == MICA_FILL_EXACT || whole(seed ^ 1, i, 3) == 0) v = floor(v * 8) / 8;
    if (fill == MICA_FILL_RANGE) v = (v - 0.5) * 1e30;
    if (fill == MICA_FILL_EXTREME && whole(seed ^ 2, i, 4) == 0) v = edges[whole(seed ^ 3, i, 6)];
    return mica_fill_rounded(d->scores.dtype, v);
}

static bool fill(const void *desc, const double *unused, int arg, mica_fill kind, uint64_t seed,
                 double *values)
{
    const mica_nms_desc *d = desc;
    const int64_t boxes = mica_tensor_count(&d->boxes) / 4, scores = mica_tensor_count(&d->scores);
    (void)unused;
    if (kind == MICA_FILL_EDGES && arg != MICA_NMS_CLASSES) return false;
    seed = mica_random_bits(seed, (uint64_t)arg + 0x235);
    if (arg == MICA_NMS_BOXES)
        for (int64_t i = 0; i < boxes; i++) fill_box(d, kind, seed, (uint64_t)i, values + 4 * i);
    else if (arg == MICA_NMS_SCORES)
        for (int64_t i = 0; i < scores; i++) values[i] = fill_score(d, kind, seed, (uint64_t)i);
    else
        for (int64_t i = 0; i < boxes; i++) values[i] = (double)(whole(seed, (uint64_t)i, 3) - 1);
    return true;
}

static const mica_engine *const engines[] = {&mica_nms_cpu, &mica_engine_ref, &mica_nms_cuda, NULL};

const mica_op mica_op_nms = {
    .name = "nms",
    .doc = "non-maximum suppression of boxes",
    .desc_size = sizeof(mica_nms_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .check = check,
    .cost = cost,
    .exact = exact,
    .fill = fill,
    .reference = mica_nms_reference,
    .engines = engines,
};
