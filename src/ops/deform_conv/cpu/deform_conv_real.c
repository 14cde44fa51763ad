/* SPDX-License-Identifier: Apache-2.0
 * Columns of deformable convolution on the CPU: places of some pixels of a row are found once for
 * all channels of an offset group, each of which is then gathered and summed. */
#include "ops/deform_conv/deform_conv.h"
#include "ops/convert/cpu/real.h"

#include <math.h>
#include <string.h>

#define DEFORM       static inline
#define add_of(a, b) ((a) + (b))
#if REAL_F64
#define floor_of   floor
#define COLUMNS_OF mica_deform_conv_columns_f64
#else
#define floor_of   floorf
#define COLUMNS_OF mica_deform_conv_columns_f32
#endif
#include "ops/deform_conv/deform_conv_body.h"

enum { PIECE = 64, CORNERS = 4 };

/* Of the corners of each pixel. */
typedef struct places {
    int64_t at[CORNERS][PIECE];
    real weight[CORNERS][PIECE], mask[PIECE];
    int n;
} places;

typedef struct tap {
    int64_t image, group, number, row; /* number: of the tap */
} tap;

static void find_places(const mica_deform_conv_args *a, mica_dtype type, const tap *t,
                        int64_t first, places *p)
{
    const mica_deform_conv_axis *axis = a->axis;
    const long long *os = a->offset_step.at, *ms = a->mask_step.at, *xs = a->x_step.at;
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
            p->weight[c][i] = h.weight[c / 2] * w.weight[c % 2];
            p->at[c][i] =
                p->weight[c][i] != 0 ? (h.first + c / 2) * xs[2] + (w.first + c % 2) * xs[3] : 0;
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

void COLUMNS_OF(const mica_deform_conv_args *a, mica_dtype type, int64_t row)
{
    const bool empty = a->axis[0].in * a->axis[1].in == 0;
    tap t;
    t.row = row % a->axis[0].out, row /= a->axis[0].out;
    t.number = row % a->taps, row /= a->taps;
    t.group = row % a->offset_groups, t.image = row / a->offset_groups;
    places p;
    real v[CORNERS][PIECE], sum[PIECE];
    for (int64_t q = 0; q < a->axis[1].out; q += PIECE) {
        p.n = a->axis[1].out - q < PIECE ? (int)(a->axis[1].out - q) : PIECE;
        find_places(a, type, &t, q, &p);
        for (int64_t e = 0; e < a->of_group; e++) {
            const int64_t c = t.group * a->of_group + e;
            memset(v, 0, sizeof v);
            if (!empty) gather(type, a->x, t.image * a->x_step.at[0] + c * a->x_step.at[1], &p, v);
            add_corners(&p, v, sum);
            real_store(type, a->columns,
                       ((t.image * a->channels + c) * a->taps + t.number) * a->pixels +
                           t.row * a->axis[1].out + q,
                       1, sum, p.n);
        }
    }
}
