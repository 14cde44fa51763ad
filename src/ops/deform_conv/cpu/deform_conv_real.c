/* SPDX-License-Identifier: Apache-2.0
 * Deformable convolution on the CPU: places of some pixels of a row are found once for all channels
 * of an offset group (or a share of them), each of which is then gathered and summed, or, for the
 * gradient of x, added to what it read, in the order of taps and pixels. */
#include "ops/deform_conv/deform_conv.h"
#include "ops/convert/cpu/real.h"

#include <math.h>
#include <string.h>

#define DEFORM       static inline
#define add_of(a, b) ((a) + (b))
#if REAL_F64
#define floor_of floor
#define LOOPS    mica_deform_conv_loops_f64
#else
#define floor_of floorf
#define LOOPS    mica_deform_conv_loops_f32
#endif
#include "ops/deform_conv/deform_conv_body.h"

enum { PIECE = 64, CORNERS = 4 };

/* Of the corners of each pixel; its weights and those of derivatives along H and W. */
typedef struct places {
    int64_t at[CORNERS][PIECE]; /* 0 where nothing is read */
    real weight[CORNERS][PIECE], along_h[CORNERS][PIECE], along_w[CORNERS][PIECE], mask[PIECE];
    int n;
} places;

typedef struct tap {
    int64_t image, group, number, row; /* number: of the tap */
} tap;

/* step: of the axes of what is read or added to. */
static void find_places(const mica_deform_conv_args *a, mica_dtype type, const tap *t,
                        int64_t first, const long long *step, places *p)
{
    const mica_deform_conv_axis *axis = a->axis;
    const long long *os = a->offset_step.at, *ms = a->mask_step.at;
    const int64_t k = t->group * a->taps + t->number;
    real offset[2][PIECE];
    for (int i = 0; i < 2; i++)
        real_load(type, a->offset,
                  t->image * os[0] + (2 * k + i) * os[1] + t->row * os[2] + first * os[3], os[3],
                  offset[i], p->n);
    for (int i = 0; i < p->n; i++) p->mask[i] = 1;
    if (a->mask)
        real_load(type, a->mask, t->image * ms[0] + k * ms[1] + t->row * ms[2] + first * ms[3],
                  ms[3], p->mask, p->n);
    const int64_t r = t->number / axis[1].taps, s = t->number % axis[1].taps;
    for (int i = 0; i < p->n; i++) {
        const deform_pair h = deform_pair_of(
            t->row * axis[0].stride - axis[0].pad + r * axis[0].dilation, offset[0][i], axis[0].in);
        const deform_pair w =
            deform_pair_of((first + i) * axis[1].stride - axis[1].pad + s * axis[1].dilation,
                           offset[1][i], axis[1].in);
        for (int c = 0; c < CORNERS; c++) {
            const bool inside = h.slope[c / 2] != 0 && w.slope[c % 2] != 0;
            p->weight[c][i] = h.weight[c / 2] * w.weight[c % 2];
            p->along_h[c][i] = h.slope[c / 2] * w.weight[c % 2];
            p->along_w[c][i] = h.weight[c / 2] * w.slope[c % 2];
            p->at[c][i] = inside ? (h.first + c / 2) * step[0] + (w.first + c % 2) * step[1] : 0;
        }
    }
}

/* Elements of one channel; there is one at least. */
static void gather(mica_dtype type, const void *x, int64_t base, const places *p,
                   real v[CORNERS][PIECE])
{
    uint16_t bits[PIECE];
    for (int c = 0; c < CORNERS; c++) {
        if (type == REAL_TYPE) {
            const real *from = (const real *)x + base;
            for (int i = 0; i < p->n; i++) v[c][i] = from[p->at[c][i]];
            continue;
        }
        const uint16_t *from = (const uint16_t *)x + base;
        for (int i = 0; i < p->n; i++) bits[i] = from[p->at[c][i]];
        real_load(type, bits, 0, 1, v[c], p->n);
    }
}

CLONES static void add_corners(const places *p, real v[CORNERS][PIECE], real *sum)
{
    for (int i = 0; i < p->n; i++) {
        real s = 0;
        for (int c = 0; c < CORNERS; c++) s += p->weight[c][i] != 0 ? p->weight[c][i] * v[c][i] : 0;
        sum[i] = s * p->mask[i];
    }
}

static tap tap_of(const mica_deform_conv_args *a, int64_t row)
{
    tap t;
    t.row = row % a->axis[0].out, row /= a->axis[0].out;
    t.number = row % a->taps, row /= a->taps;
    t.group = row % a->offset_groups, t.image = row / a->offset_groups;
    return t;
}

static int piece(const mica_deform_conv_args *a, int64_t q)
{
    return a->axis[1].out - q < PIECE ? (int)(a->axis[1].out - q) : PIECE;
}

/* Where the columns of a channel have a tap's pixels from q on. */
static int64_t in_columns(const mica_deform_conv_args *a, const tap *t, int64_t c, int64_t q)
{
    return t->image * a->column_image + (c * a->taps + t->number) * a->column_row +
           t->row * a->axis[1].out + q;
}

static void write_columns(const mica_deform_conv_args *a, mica_dtype type, int64_t row)
{
    const bool empty = a->axis[0].in * a->axis[1].in == 0;
    const tap t = tap_of(a, row);
    places p;
    real v[CORNERS][PIECE], sum[PIECE];
    for (int64_t q = 0; q < a->axis[1].out; q += PIECE) {
        p.n = piece(a, q);
        find_places(a, type, &t, q, a->x_step.at + 2, &p);
        for (int64_t e = 0; e < a->of_group; e++) {
            const int64_t c = t.group * a->of_group + e;
            memset(v, 0, sizeof v);
            if (!empty) gather(type, a->x, t.image * a->x_step.at[0] + c * a->x_step.at[1], &p, v);
            add_corners(&p, v, sum);
            real_store(type, a->columns, in_columns(a, &t, c, q), 1, sum, p.n);
        }
    }
}

/* ---- gradients ---- */

CLONES static void add_products(int n, real v[CORNERS][PIECE], const real *g,
                                real dot[CORNERS][PIECE])
{
    for (int c = 0; c < CORNERS; c++)
        for (int i = 0; i < n; i++) dot[c][i] += g[i] * v[c][i];
}

/* Elements that have no part are left out, whatever they are. */
CLONES static void interpolate(int n, real weight[CORNERS][PIECE], real dot[CORNERS][PIECE],
                               real *sum)
{
    for (int i = 0; i < n; i++) {
        real s = 0;
        for (int c = 0; c < CORNERS; c++) s += weight[c][i] != 0 ? weight[c][i] * dot[c][i] : 0;
        sum[i] = s;
    }
}

static void store_slopes(const mica_deform_conv_args *a, mica_dtype type, const tap *t, int64_t q,
                         places *p, real dot[CORNERS][PIECE])
{
    const long long *os = a->doffset_step.at, *ms = a->dmask_step.at;
    const int64_t k = t->group * a->taps + t->number;
    real sum[PIECE];
    for (int i = 0; i < 2 && a->doffset; i++) {
        interpolate(p->n, i ? p->along_w : p->along_h, dot, sum);
        for (int e = 0; e < p->n; e++) sum[e] *= p->mask[e];
        real_store(type, a->doffset,
                   t->image * os[0] + (2 * k + i) * os[1] + t->row * os[2] + q * os[3], os[3], sum,
                   p->n);
    }
    if (!a->dmask) return;
    interpolate(p->n, p->weight, dot, sum);
    real_store(type, a->dmask, t->image * ms[0] + k * ms[1] + t->row * ms[2] + q * ms[3], ms[3],
               sum, p->n);
}

static void find_slopes(const mica_deform_conv_args *a, mica_dtype type, int64_t row)
{
    const bool empty = a->axis[0].in * a->axis[1].in == 0;
    const tap t = tap_of(a, row);
    places p;
    real v[CORNERS][PIECE], dot[CORNERS][PIECE], g[PIECE];
    for (int64_t q = 0; q < a->axis[1].out; q += PIECE) {
        p.n = piece(a, q);
        find_places(a, type, &t, q, a->x_step.at + 2, &p);
        memset(dot, 0, sizeof dot);
        for (int64_t e = 0; e < a->of_group && !empty; e++) {
            const int64_t c = t.group * a->of_group + e;
            gather(type, a->x, t.image * a->x_step.at[0] + c * a->x_step.at[1], &p, v);
            real_load(type, a->columns, in_columns(a, &t, c, q), 1, g, p.n);
            add_products(p.n, v, g, dot);
        }
        store_slopes(a, type, &t, q, &p, dot);
    }
}

/* Of a tap's row of pixels. */
static void add_row(const mica_deform_conv_args *a, mica_dtype type, const tap *t, int64_t first,
                    int64_t end, real *sums)
{
    const long long step[] = {a->axis[1].in, 1};
    const int64_t plane = a->axis[0].in * a->axis[1].in;
    places p;
    real g[PIECE];
    for (int64_t q = 0; q < a->axis[1].out; q += PIECE) {
        p.n = piece(a, q);
        find_places(a, type, t, q, step, &p);
        for (int corner = 0; corner < CORNERS; corner++)
            for (int i = 0; i < p.n; i++) p.along_h[corner][i] = p.weight[corner][i] * p.mask[i];
        for (int64_t c = first; c < end; c++) {
            real *to = sums + (c - first) * plane;
            real_load(type, a->columns, in_columns(a, t, c, q), 1, g, p.n);
            for (int i = 0; i < p.n; i++)
                for (int corner = 0; corner < CORNERS; corner++)
                    if (p.weight[corner][i] != 0)
                        to[p.at[corner][i]] += p.along_h[corner][i] * g[i];
        }
    }
}

static void sum_share(const mica_deform_conv_args *a, const mica_tensor *dx, int64_t share,
                      void *sums, void *to)
{
    const int64_t shares = (a->of_group + MICA_DEFORM_CONV_SHARE - 1) / MICA_DEFORM_CONV_SHARE;
    const int64_t part = share % shares, group = share / shares % a->offset_groups;
    const int64_t image = share / shares / a->offset_groups;
    const int64_t first = group * a->of_group + part * MICA_DEFORM_CONV_SHARE;
    const int64_t group_end = (group + 1) * a->of_group;
    const int64_t end =
        first + MICA_DEFORM_CONV_SHARE < group_end ? first + MICA_DEFORM_CONV_SHARE : group_end;
    const int64_t h = a->axis[0].in, w = a->axis[1].in;
    real *own = (real *)sums + (image * a->channels + first) * h * w;
    memset(own, 0, (size_t)((end - first) * h * w) * sizeof *own);
    for (int64_t k = 0; k < a->taps; k++)
        for (int64_t p = 0; p < a->axis[0].out; p++)
            add_row(a, dx->dtype, &(tap){image, group, k, p}, first, end, own);
    for (int64_t c = first; c < end; c++)
        for (int64_t i = 0; i < h; i++, own += w)
            real_store(dx->dtype, to,
                       image * dx->strides[0] + c * dx->strides[1] + i * dx->strides[2],
                       dx->strides[3], own, w);
}

const mica_deform_conv_loops LOOPS = {
    .columns = write_columns, .slopes = find_slopes, .sum = sum_share};
