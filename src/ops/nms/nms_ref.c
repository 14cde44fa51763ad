/* SPDX-License-Identifier: Apache-2.0
 * The truth of non-maximum suppression: list by list, the highest score of what is left is selected
 * and leaves out those that it overlaps. */
#include "ops/nms/nms.h"
#include "cpu/scratch.h"

#include <math.h>
#include <string.h>

/* A list. */
typedef struct truth {
    const mica_nms_desc *d;
    const mica_view *args;
    const double *thresholds;
    int64_t n, per_batch, b, c;
    uint8_t *done; /* bits: left out, selected or suppressed */
} truth;

static bool is_left(const truth *t, int64_t i)
{
    return !(t->done[i / 8] >> i % 8 & 1);
}

static void leave_out(const truth *t, int64_t i)
{
    t->done[i / 8] |= (uint8_t)(1 << i % 8);
}

static double score(const truth *t, int64_t i)
{
    const mica_view *v = &t->args[MICA_NMS_SCORES];
    return mica_get(v, mica_offset(&v->t, (t->b * t->per_batch + t->c) * t->n + i));
}

/* Each operation is rounded to what IoUs are formed in: twice, which for these is as if once. */
static double r(const truth *t, double v)
{
    return mica_nms_real(t->d) == MICA_F64 ? v : (double)(float)v;
}

/* Low ends along both axes, then high ends. */
static void find_corners(const truth *t, int64_t i, double box[4])
{
    const mica_view *boxes = &t->args[MICA_NMS_BOXES];
    double v[4];
    for (int k = 0; k < 4; k++)
        v[k] = mica_get(boxes, mica_offset(&boxes->t, (t->b * t->n + i) * 4 + k));
    for (int k = 0; k < 2; k++) {
        const bool center = t->d->format == MICA_NMS_CENTER;
        const bool swap = !center && v[k + 2] < v[k];
        const double half = r(t, v[k + 2] / 2);
        box[k] = center ? r(t, v[k] - half) : v[swap ? k + 2 : k];
        box[k + 2] = center ? r(t, v[k] + half) : v[swap ? k : k + 2];
    }
}

static double area(const truth *t, const double *box)
{
    const double offset = (double)t->d->offset;
    const double w = r(t, r(t, box[2] - box[0]) + offset);
    const double h = r(t, r(t, box[3] - box[1]) + offset);
    return w > 0 && h > 0 ? r(t, w * h) : 0;
}

static bool suppresses(const truth *t, const double *a, int64_t i)
{
    double b[4];
    find_corners(t, i, b);
    const double common[] = {a[0] > b[0] ? a[0] : b[0], a[1] > b[1] ? a[1] : b[1],
                             a[2] < b[2] ? a[2] : b[2], a[3] < b[3] ? a[3] : b[3]};
    const double areas[] = {area(t, a), area(t, b), area(t, common)};
    if (!(areas[0] > 0 && areas[1] > 0 && areas[2] > 0)) return false;
    const double all = r(t, r(t, areas[0] + areas[1]) - areas[2]);
    return r(t, areas[2] / all) > t->thresholds[MICA_NMS_IOU_THRESHOLD];
}

static bool same_class(const truth *t, int64_t i, int64_t j)
{
    const mica_view *v = &t->args[MICA_NMS_CLASSES];
    return !v->data || mica_get(v, mica_offset(&v->t, t->b * t->n + i)) ==
                           mica_get(v, mica_offset(&v->t, t->b * t->n + j));
}

static void open_list(const truth *t)
{
    const double least = t->thresholds[MICA_NMS_SCORE_THRESHOLD];
    memset(t->done, 0, (size_t)(t->n + 7) / 8);
    for (int64_t i = 0; i < t->n; i++) {
        const double v = score(t, i);
        if (isnan(v) || (least != -INFINITY && !(v > least))) leave_out(t, i);
    }
}

/* Of what is left the first of the highest score; -1: nothing is. */
static int64_t highest(const truth *t)
{
    int64_t best = -1;
    for (int64_t i = 0; i < t->n; i++)
        if (is_left(t, i) && (best < 0 || score(t, i) > score(t, best))) best = i;
    return best;
}

static void put_row(const mica_view *selected, int64_t row, int64_t b, int64_t c, int64_t i)
{
    const int64_t *step = selected->t.strides;
    const int64_t values[] = {b, c, i};
    if (row >= selected->t.dims[0]) return;
    if (selected->t.rank == 1) mica_put(selected, row * step[0], (double)i, 0);
    for (int k = 0; selected->t.rank == 2 && k < 3; k++)
        mica_put(selected, row * step[0] + k * step[1], (double)values[k], 0);
}

void mica_nms_reference(const void *desc, const mica_view *views, const double *thresholds)
{
    const mica_nms_desc *d = desc;
    const mica_view *selected = &views[MICA_NMS_SELECTED];
    truth t = {.d = d, .args = views, .thresholds = thresholds, .n = mica_nms_boxes(d)};
    int64_t count = 0;
    t.per_batch = d->boxes.rank == 3 ? d->scores.dims[1] : 1;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    t.done = mica_scratch_take((size_t)(t.n + 7) / 8);
    for (int64_t l = 0; l < mica_nms_lists(d); l++) {
        t.b = l / t.per_batch, t.c = l % t.per_batch;
        open_list(&t);
        for (int64_t taken = 0; d->limit == 0 || taken < d->limit; taken++) {
            const int64_t best = highest(&t);
            double box[4];
            if (best < 0) break;
            put_row(selected, count++, t.b, t.c, best);
            leave_out(&t, best);
            find_corners(&t, best, box);
            for (int64_t i = 0; i < t.n; i++)
                if (is_left(&t, i) && same_class(&t, best, i) && suppresses(&t, box, i))
                    leave_out(&t, i);
        }
    }
    for (int64_t row = count; row < d->selected.dims[0]; row++) put_row(selected, row, -1, -1, -1);
    mica_put(&views[MICA_NMS_COUNT], 0, (double)count, 0);
}
