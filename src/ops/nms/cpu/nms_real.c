/* SPDX-License-Identifier: Apache-2.0
 * A list of boxes of nms on the CPU. */
#include "ops/nms/cpu/nms_cpu.h"
#include "ops/convert/cpu/real.h"

#include <math.h>
#include <string.h>

#define NMS          static inline
#define mul_of(a, b) ((a) * (b))
#include "ops/nms/nms_body.h"

#if REAL_F64
#define LIST_OF mica_nms_list_f64
#else
#define LIST_OF mica_nms_list_f32
size_t mica_nms_room(int64_t n, size_t real)
{
    const size_t each = 2 * (2 * sizeof(uint64_t)) + 2 * sizeof(int64_t) + 10 * real;
    return ((size_t)n * each + 63) / 64 * 64;
}
#endif

typedef struct item {
    uint64_t key; /* rises as the score falls */
    int64_t index;
} item;

/* Boxes that suppress, in arrays, with their classes. */
typedef struct suppressors {
    real *low[2], *high[2], *area;
    int64_t *class, count;
} suppressors;

typedef struct work {
    item *items[2];
    real *column[5]; /* of boxes; scores */
    int64_t *class;
    suppressors s;
} work;

static void open_room(work *w, void *room, int64_t n)
{
    item *items = room;
    for (int i = 0; i < 2; i++, items += n) w->items[i] = items;
    int64_t *classes = (int64_t *)(void *)items;
    w->class = classes, w->s.class = classes + n;
    real *reals = (real *)(void *)(classes + 2 * n);
    for (int i = 0; i < 5; i++, reals += n) w->column[i] = reals;
    for (int i = 0; i < 2; i++, reals += n) w->s.low[i] = reals;
    for (int i = 0; i < 2; i++, reals += n) w->s.high[i] = reals;
    w->s.area = reals;
    w->s.count = 0;
}

static uint64_t key_of(real score)
{
    const double v = score == 0 ? 0 : (double)score; /* -0 is 0 */
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits >> 63 ? bits : ~(bits | (uint64_t)1 << 63);
}

/* Stable: of equal keys the first index stays first. Returns where the result is. */
static item *sort(work *w, int64_t n)
{
    item *from = w->items[0], *to = w->items[1];
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t first = 0; first < n; first += 2 * width) {
            const int64_t middle = first + width < n ? first + width : n;
            const int64_t end = middle + width < n ? middle + width : n;
            int64_t a = first, b = middle;
            for (int64_t i = first; i < end; i++)
                to[i] =
                    b == end || (a < middle && from[a].key <= from[b].key) ? from[a++] : from[b++];
        }
        item *swap = from;
        from = to, to = swap;
    }
    return from;
}

CLONES static int suppressed(const suppressors *s, const nms_box *box, int64_t class, real offset,
                             real threshold)
{
    enum { PIECE = 128 };
    const real *low0 = s->low[0], *low1 = s->low[1], *high0 = s->high[0], *high1 = s->high[1];
    for (int64_t from = 0; from < s->count; from += PIECE) {
        const int64_t end = from + PIECE < s->count ? from + PIECE : s->count;
        int hit = 0;
        for (int64_t i = from; i < end; i++) {
            const real first0 = low0[i] > box->low[0] ? low0[i] : box->low[0];
            const real first1 = low1[i] > box->low[1] ? low1[i] : box->low[1];
            const real last0 = high0[i] < box->high[0] ? high0[i] : box->high[0];
            const real last1 = high1[i] < box->high[1] ? high1[i] : box->high[1];
            const real w = last0 - first0 + offset, h = last1 - first1 + offset;
            const real common = mul_of(w, h);
            const real ratio = common / (s->area[i] + box->area - common);
            hit |= (w > 0) & (h > 0) & (common > 0) & (ratio > threshold) & (s->class[i] == class);
        }
        if (hit) return 1;
    }
    return 0;
}

int64_t LIST_OF(const mica_nms_desc *d, const mica_nms_args *a, int64_t list, void *room,
                int32_t *kept)
{
    work w;
    const int64_t n = a->n, b = list / a->per_batch, c = list % a->per_batch;
    const real offset = (real)d->offset, threshold = (real)a->iou, least = (real)a->score;
    int64_t count = 0, found = 0;
    open_room(&w, room, n);
    for (int k = 0; k < 4; k++)
        real_load(d->boxes.dtype, a->boxes, b * a->box_batch + k * a->box_column, a->box_n,
                  w.column[k], n);
    real_load(d->scores.dtype, a->scores, b * a->score_batch + c * a->score_class, a->score_n,
              w.column[4], n);
    if (a->classes)
        mica_to_s64(d->classes.dtype, a->classes, b * a->class_batch, a->class_n, w.class, n);
    for (int64_t i = 0; i < n; i++) {
        const real v = w.column[4][i];
        if (v > least || (least == -(real)INFINITY && v == v))
            w.items[0][count++] = (item){key_of(v), i};
    }
    const item *sorted = sort(&w, count);
    for (int64_t p = 0; p < count && found < a->limit; p++) {
        const int64_t i = sorted[p].index, class = a->classes ? w.class[i] : 0;
        const nms_box box = nms_box_make(w.column[0][i], w.column[1][i], w.column[2][i],
                                         w.column[3][i], d->format == MICA_NMS_CENTER, offset);
        if (box.area > 0) {
            if (suppressed(&w.s, &box, class, offset, threshold)) continue;
            const int64_t at = w.s.count++;
            for (int k = 0; k < 2; k++) w.s.low[k][at] = box.low[k], w.s.high[k][at] = box.high[k];
            w.s.area[at] = box.area, w.s.class[at] = class;
        }
        kept[found++] = (int32_t)i;
    }
    return found;
}
