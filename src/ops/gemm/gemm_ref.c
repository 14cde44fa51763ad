/* SPDX-License-Identifier: Apache-2.0
 * gemm: the truth. Each element is one sum over k in order, in double precision; tiles only spare
 * conversions. */
#include "ops/gemm/gemm_shape.h"
#include "ops/shared/integer.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { TILE = 8, CHUNK = 64 };

typedef struct tile {
    int64_t row, col;
    int rows, cols;
    double sum[TILE][TILE], mag[TILE][TILE];
} tile;

typedef struct matrices {
    const mica_gemm_desc *desc;
    const mica_view *args;
    double alpha, beta;
    int64_t m, n, k, batches;
} matrices;

static int64_t batch_offset(const mica_tensor *c, const mica_tensor *t, int64_t item)
{
    int64_t offset = 0;
    for (int i = 0; i < c->rank - 2; i++) {
        int64_t dim = c->dims[c->rank - 3 - i];
        offset += item % dim * gemm_batch_stride(t, i);
        item /= dim;
    }
    return offset;
}

static int at_most(int64_t left, int limit)
{
    return left < limit ? (int)left : limit;
}

/* Scales of blocks go into the factors: a product of few digits is exact in double. */
static double scale_of_a(const matrices *x, int64_t row, int64_t k)
{
    const mica_view *s = &x->args[MICA_GEMM_SCALE_A];
    if (!gemm_has_blocks(x->desc)) return 1;
    return mica_get(s, row * s->t.strides[0] + k / GEMM_BLOCK * s->t.strides[1]);
}

static double scale_of_b(const matrices *x, int64_t k, int64_t col)
{
    const mica_view *s = &x->args[MICA_GEMM_SCALE_B];
    if (!gemm_has_blocks(x->desc)) return 1;
    return mica_get(s, k / GEMM_BLOCK * s->t.strides[0] + col / GEMM_BLOCK * s->t.strides[1]);
}

static void multiply(const matrices *x, tile *t, int64_t a_at, int64_t b_at)
{
    const mica_view *a = &x->args[MICA_GEMM_A], *b = &x->args[MICA_GEMM_B];
    int64_t a_m = a->t.strides[a->t.rank - 2], a_k = a->t.strides[a->t.rank - 1];
    int64_t b_k = b->t.strides[b->t.rank - 2], b_n = b->t.strides[b->t.rank - 1];
    double ax[TILE][CHUNK], bx[CHUNK][TILE];
    memset(bx, 0, sizeof bx);
    for (int64_t k = 0; k < x->k; k += CHUNK) {
        int depth = at_most(x->k - k, CHUNK); /* within a block of scales */
        double fa[TILE] = {0}, fb[TILE] = {0};
        for (int i = 0; i < t->rows; i++) fa[i] = scale_of_a(x, t->row + i, k);
        for (int j = 0; j < t->cols; j++) fb[j] = scale_of_b(x, k, t->col + j);
        for (int p = 0; p < depth; p++) {
            for (int i = 0; i < t->rows; i++)
                ax[i][p] = fa[i] * mica_get(a, a_at + (t->row + i) * a_m + (k + p) * a_k);
            for (int j = 0; j < t->cols; j++)
                bx[p][j] = fb[j] * mica_get(b, b_at + (k + p) * b_k + (t->col + j) * b_n);
        }
        for (int i = 0; i < t->rows; i++)
            for (int p = 0; p < depth; p++)
                for (int j = 0; j < TILE; j++) {
                    double product = ax[i][p] * bx[p][j];
                    t->sum[i][j] += product;
                    t->mag[i][j] += fabs(product);
                }
    }
}

static void scale_by(const mica_view *s, int64_t line, double *v, double *m)
{
    if (!s->data) return;
    double f = mica_get(s, line * gemm_scale_stride(&s->t));
    *v *= f;
    *m *= fabs(f);
}

static void finish(const matrices *x, int64_t row, int64_t col, int64_t c_at, int64_t r_at,
                   double v, double m)
{
    const mica_view *c = &x->args[MICA_GEMM_C];
    v *= x->alpha;
    m *= fabs(x->alpha);
    if (!gemm_has_blocks(x->desc)) {
        scale_by(&x->args[MICA_GEMM_SCALE_A], row, &v, &m);
        scale_by(&x->args[MICA_GEMM_SCALE_B], col, &v, &m);
    }
    if (x->beta != 0) {
        double old = x->beta * mica_get(c, c_at);
        v += old;
        m += fabs(old);
    }
    mica_epilogue e = gemm_epilogue(x->desc);
    mica_epilogue_apply(&e, &x->args[MICA_GEMM_BIAS], &x->args[MICA_GEMM_SCALE],
                        &x->args[MICA_GEMM_SHIFT], &x->args[MICA_GEMM_RESIDUAL], col, r_at, &v, &m);
    mica_put(c, c_at, mica_round_integer(x->desc->c.dtype, v), m);
}

static int64_t offset_in(const mica_tensor *c, const mica_tensor *t, int64_t item, int64_t row,
                         int64_t col)
{
    return batch_offset(c, t, item) + row * t->strides[t->rank - 2] + col * t->strides[t->rank - 1];
}

static void compute_tile(const matrices *x, int64_t item, int64_t row, int64_t col)
{
    const mica_view *v = x->args;
    const mica_tensor *c = &v[MICA_GEMM_C].t, *r = &v[MICA_GEMM_RESIDUAL].t;
    tile t = {.row = row,
              .col = col,
              .rows = at_most(x->m - row, TILE),
              .cols = at_most(x->n - col, TILE)};
    multiply(x, &t, batch_offset(c, &v[MICA_GEMM_A].t, item),
             batch_offset(c, &v[MICA_GEMM_B].t, item));
    for (int i = 0; i < t.rows; i++)
        for (int j = 0; j < t.cols; j++) {
            int64_t r_at = v[MICA_GEMM_RESIDUAL].data ? offset_in(c, r, item, row + i, col + j) : 0;
            finish(x, row + i, col + j, offset_in(c, c, item, row + i, col + j), r_at, t.sum[i][j],
                   t.mag[i][j]);
        }
}

void gemm_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_tensor *a = &args[MICA_GEMM_A].t, *c = &args[MICA_GEMM_C].t;
    matrices x = {.desc = desc,
                  .args = args,
                  .alpha = scalars[MICA_GEMM_ALPHA],
                  .beta = scalars[MICA_GEMM_BETA],
                  .m = c->dims[c->rank - 2],
                  .n = c->dims[c->rank - 1],
                  .k = a->dims[a->rank - 1]};
    int64_t count = mica_tensor_count(c);
    if (count == 0) return;
    x.batches = count / (x.m * x.n);
    int64_t down = (x.m + TILE - 1) / TILE, across = (x.n + TILE - 1) / TILE;
    int64_t tiles = x.batches * down * across;
#pragma omp parallel for num_threads(mica_cpu_threads()) schedule(static)
    for (int64_t i = 0; i < tiles; i++)
        compute_tile(&x, i / (down * across), i / across % down * TILE, i % across * TILE);
}
