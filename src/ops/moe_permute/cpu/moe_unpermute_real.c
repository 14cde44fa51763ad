/* SPDX-License-Identifier: Apache-2.0
 * Tokens, rows and choices of moe_unpermute on the CPU, in pieces of the first-level cache. */
#include "ops/moe_permute/cpu/moe_permute_cpu.h"
#include "ops/convert/cpu/real.h"

#include <string.h>

#if REAL_F64
#define SUM_OF moe_sum_f64
#define ROW_OF moe_row_f64
#define DOT_OF moe_dot_f64
#else
#define SUM_OF moe_sum_f32
#define ROW_OF moe_row_f32
#define DOT_OF moe_dot_f32
#endif

enum { PIECE = 512, LANES = 16 };

CLONES static void add_scaled(real *sum, real w, const real *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) sum[i] += w * x[i];
}

CLONES static void scale_by(real *x, real w, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] *= w;
}

/* n is a multiple of LANES. */
CLONES static void add_products(real *lanes, const real *a, const real *b, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) lanes[l] += a[i + l] * b[i + l];
}

static real weight_of(const mica_moe_unpermute_desc *d, const mica_run *run, int64_t c)
{
    real w = 1;
    if (mica_tensor_given(&d->weights))
        real_load(d->weights.dtype, run->args[MICA_MOE_UNPERMUTE_WEIGHTS],
                  moe_choice_offset(&d->weights, c), 1, &w, 1);
    return w;
}

static int64_t row_of(const mica_moe_unpermute_desc *d, const mica_run *run, int64_t c)
{
    const int64_t r = moe_map_get(&d->places, run->args[MICA_MOE_UNPERMUTE_PLACES],
                                  moe_choice_offset(&d->places, c));
    return r >= 0 && r < d->x.dims[0] ? r : -1;
}

static void load(const mica_tensor *t, const void *data, int64_t row, int64_t first, real *to,
                 int64_t n)
{
    real_load(t->dtype, data, row * t->strides[0] + first * t->strides[1], t->strides[1], to, n);
}

static void store(const mica_tensor *t, void *data, int64_t row, int64_t first, const real *from,
                  int64_t n)
{
    real_store(t->dtype, data, row * t->strides[0] + first * t->strides[1], t->strides[1], from, n);
}

void SUM_OF(const mica_moe_unpermute_desc *d, const mica_run *run, int64_t token)
{
    const int64_t columns = d->x.dims[1], k = d->places.dims[1];
    MICA_ALIGNED real sum[PIECE], x[PIECE];
    for (int64_t first = 0; first < columns; first += PIECE) {
        const int64_t n = columns - first < PIECE ? columns - first : PIECE;
        memset(sum, 0, sizeof sum);
        for (int64_t c = token * k; c < (token + 1) * k; c++) {
            const int64_t r = row_of(d, run, c);
            if (r < 0) continue;
            load(&d->x, run->args[MICA_MOE_UNPERMUTE_X], r, first, x, n);
            add_scaled(sum, weight_of(d, run, c), x, n);
        }
        store(&d->y, run->args[MICA_MOE_UNPERMUTE_Y], token, first, sum, n);
    }
}

void ROW_OF(const mica_moe_unpermute_desc *d, const mica_run *run, int64_t row)
{
    const int64_t columns = d->x.dims[1], choices = mica_tensor_count(&d->places);
    const int64_t c =
        moe_map_get(&d->rows, run->args[MICA_MOE_UNPERMUTE_ROWS], row * d->rows.strides[0]);
    const bool there = c >= 0 && c < choices;
    const real w = there ? weight_of(d, run, c) : 0;
    MICA_ALIGNED real v[PIECE] = {0};
    for (int64_t first = 0; first < columns; first += PIECE) {
        const int64_t n = columns - first < PIECE ? columns - first : PIECE;
        if (there) {
            load(&d->dy, run->args[MICA_MOE_UNPERMUTE_DY], c / d->places.dims[1], first, v, n);
            scale_by(v, w, n);
        }
        store(&d->dx, run->args[MICA_MOE_UNPERMUTE_DX], row, first, v, n);
    }
}

void DOT_OF(const mica_moe_unpermute_desc *d, const mica_run *run, int64_t choice)
{
    const int64_t columns = d->x.dims[1], r = row_of(d, run, choice), k = d->places.dims[1];
    MICA_ALIGNED real x[PIECE] = {0}, dy[PIECE] = {0}, lanes[LANES] = {0};
    real sum = 0;
    for (int64_t first = 0; r >= 0 && first < columns; first += PIECE) {
        const int64_t n = columns - first < PIECE ? columns - first : PIECE;
        const int64_t whole = (n + LANES - 1) / LANES * LANES;
        for (int64_t i = n; i < whole; i++) x[i] = dy[i] = 0;
        load(&d->x, run->args[MICA_MOE_UNPERMUTE_X], r, first, x, n);
        load(&d->dy, run->args[MICA_MOE_UNPERMUTE_DY], choice / k, first, dy, n);
        add_products(lanes, x, dy, whole);
    }
    for (int l = 0; l < LANES; l++) sum += lanes[l];
    store(&d->dweights, run->args[MICA_MOE_UNPERMUTE_DWEIGHTS], choice / k, choice % k, &sum, 1);
}
