/* SPDX-License-Identifier: Apache-2.0
 * gemm: the truth. Each element is one sum over k in order, in double precision; tiles only spare
 * conversions. */
#include "ops/gemm/gemm_shape.h"
#include "ops/convert/integer.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <math.h>
#include <string.h>

enum { TILE = 16, CHUNK = 64, LANES = 8, VECTORS = TILE / LANES };
typedef double lanes __attribute__((vector_size(LANES * sizeof(double))));
typedef int64_t lanes_bits __attribute__((vector_size(LANES * sizeof(double))));

/* Columns are those of the product: with a gate every second one, or half of them. */
typedef struct tile {
    int64_t row, col, step;
    int rows, cols;
    lanes sum[TILE][VECTORS], mag[TILE][VECTORS]; /* a lane is a column */
} tile;

typedef struct matrices {
    const mica_gemm_desc *desc;
    const mica_view *args;
    double alpha, beta;
    int64_t m, n, k, batches;
    int64_t step, partner; /* columns from gate to gate, and to what it is for */
} matrices;

/* A value and its magnitude. */
typedef struct result {
    double v, m;
} result;

/* Where an element of c lies in everything. */
typedef struct element {
    int64_t item, row, col;
} element;

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
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double(*ax)[CHUNK] = mica_scratch_take(TILE * sizeof *ax);
    lanes(*bx)[CHUNK] = mica_scratch_zeroed(VECTORS * sizeof *bx);
    for (int64_t k = 0; k < x->k; k += CHUNK) {
        int depth = at_most(x->k - k, CHUNK); /* within a block of scales */
        for (int i = 0; i < t->rows; i++) {
            double scale = scale_of_a(x, t->row + i, k);
            for (int p = 0; p < depth; p++)
                ax[i][p] = scale * mica_get(a, a_at + (t->row + i) * a_m + (k + p) * a_k);
        }
        for (int j = 0; j < t->cols; j++) {
            int64_t col = t->col + j * t->step;
            double scale = scale_of_b(x, k, col);
            for (int p = 0; p < depth; p++)
                bx[j / LANES][p][j % LANES] = scale * mica_get(b, b_at + (k + p) * b_k + col * b_n);
        }
        for (int i = 0; i < t->rows; i++)
            for (int v = 0; v * LANES < t->cols; v++) {
                lanes sum = t->sum[i][v], mag = t->mag[i][v];
                for (int p = 0; p < depth; p++) {
                    lanes product = ax[i][p] * bx[v][p];
                    sum += product;
                    mag += (lanes)((lanes_bits)product & INT64_MAX);
                }
                t->sum[i][v] = sum;
                t->mag[i][v] = mag;
            }
    }
}

static void scale_by(const mica_view *s, int64_t line, result *r)
{
    if (!s->data) return;
    double f = mica_get(s, line * gemm_scale_stride(&s->t));
    r->v *= f;
    r->m *= fabs(f);
}

static int64_t offset_in(const matrices *x, int arg, element at, int64_t col)
{
    const mica_tensor *t = &x->args[arg].t;
    return batch_offset(&x->args[MICA_GEMM_C].t, t, at.item) + at.row * t->strides[t->rank - 2] +
           col * t->strides[t->rank - 1];
}

static void add_old(const matrices *x, element at, result *r)
{
    if (x->beta == 0) return;
    double old = x->beta * mica_get(&x->args[MICA_GEMM_C], offset_in(x, MICA_GEMM_C, at, at.col));
    r->v += old;
    r->m += fabs(old);
}

/* Steps `from` to before `to`, of column `col` of the product. */
static void apply(const matrices *x, int from, int to, element at, int64_t col, result *r)
{
    const mica_view *v = x->args;
    mica_epilogue e = gemm_epilogue(x->desc);
    int64_t r_at = 0;
    if (v[MICA_GEMM_RESIDUAL].data) r_at = offset_in(x, MICA_GEMM_RESIDUAL, at, at.col);
    mica_epilogue_apply_some(&e, from, to, &v[MICA_GEMM_BIAS], &v[MICA_GEMM_SCALE],
                             &v[MICA_GEMM_SHIFT], &v[MICA_GEMM_RESIDUAL], col, r_at, &r->v, &r->m);
}

/* From the sum of column `col` to what stands before the activation. */
static result before_activation(const matrices *x, element at, int64_t col, result r)
{
    r.v *= x->alpha;
    r.m *= fabs(x->alpha);
    if (!gemm_has_blocks(x->desc)) {
        scale_by(&x->args[MICA_GEMM_SCALE_A], at.row, &r);
        scale_by(&x->args[MICA_GEMM_SCALE_B], col, &r);
    }
    if (!x->desc->gate) add_old(x, at, &r);
    apply(x, 0, mica_epilogue_act(x->desc->epilogue), at, col, &r);
    if (x->args[MICA_GEMM_AUX].data)
        mica_put(&x->args[MICA_GEMM_AUX], offset_in(x, MICA_GEMM_AUX, at, col), r.v, r.m);
    return r;
}

/* An error of a factor counts as often as the other factor, and errors of both, of less than 2^-8
 * of their magnitudes, as a part of their product. */
static result product(result a, result b)
{
    return (result){a.v * b.v, fabs(a.v) * b.m + fabs(b.v) * a.m + 0x1p-8 * a.m * b.m};
}

static void merge_max(result *most, result r)
{
    if (isnan(r.v) || fabs(r.v) > most->v) most->v = fabs(r.v);
    if (!(r.m <= most->m)) most->m = r.m;
}

/* partner: the sum that goes with a gate. */
static void finish(const matrices *x, element at, result sum, result partner, result *most)
{
    const mica_gemm_desc *d = x->desc;
    int act = mica_epilogue_act(d->epilogue);
    int64_t col = at.col * x->step;
    result r = before_activation(x, at, col, sum);
    apply(x, act, act + 1, at, col, &r);
    if (d->gate) {
        r = product(r, before_activation(x, at, col + x->partner, partner));
        add_old(x, at, &r);
    }
    apply(x, act + 1, MICA_MAX_STEPS, at, col, &r);
    merge_max(most, r);
    scale_by(&x->args[MICA_GEMM_SCALE_C], 0, &r);
    r.v = mica_saturate_e5m2(d->c.dtype, r.v);
    /* Of floating sums the truth is what comes before the rounding, which is judged with them. */
    if (mica_dtype_is_integer(d->a.dtype)) r.v = mica_round_integer(d->c.dtype, r.v);
    mica_put(&x->args[MICA_GEMM_C], offset_in(x, MICA_GEMM_C, at, at.col), r.v, r.m);
}

/* Sums of a tile of c: of the gates, or of what they are for. */
static void sum_tile(const matrices *x, int64_t item, int64_t row, int64_t col, tile *t)
{
    const mica_view *v = x->args;
    const mica_tensor *c = &v[MICA_GEMM_C].t;
    *t = (tile){.row = row,
                .col = col,
                .step = x->step,
                .rows = at_most(x->m - row, TILE),
                .cols = t->cols};
    multiply(x, t, batch_offset(c, &v[MICA_GEMM_A].t, item),
             batch_offset(c, &v[MICA_GEMM_B].t, item));
}

static result sum_in(const tile *t, int i, int j)
{
    return (result){t->sum[i][j / LANES][j % LANES], t->mag[i][j / LANES][j % LANES]};
}

static void compute_tile(const matrices *x, int64_t item, int64_t row, int64_t col, result *most)
{
    tile t = {.cols = at_most(x->n - col, TILE)}, partner = t;
    sum_tile(x, item, row, col * x->step, &t);
    if (x->desc->gate) sum_tile(x, item, row, col * x->step + x->partner, &partner);
    for (int i = 0; i < t.rows; i++)
        for (int j = 0; j < t.cols; j++)
            finish(x, (element){item, row + i, col + j}, sum_in(&t, i, j), sum_in(&partner, i, j),
                   most);
}

static void compute_all(const matrices *x, result *most)
{
    int64_t down = (x->m + TILE - 1) / TILE, across = (x->n + TILE - 1) / TILE;
    int64_t tiles = x->batches * down * across;
#pragma omp parallel num_threads(mica_cpu_threads())
    {
        result mine = {0, 0};
#pragma omp for schedule(static)
        for (int64_t i = 0; i < tiles; i++)
            compute_tile(x, i / (down * across), i / across % down * TILE, i % across * TILE,
                         &mine);
#pragma omp critical
        merge_max(most, mine);
    }
}

void gemm_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_gemm_desc *d = desc;
    const mica_tensor *a = &args[MICA_GEMM_A].t, *c = &args[MICA_GEMM_C].t;
    bool pairs = d->gate == MICA_GEMM_GATE_PAIRS;
    int64_t count = mica_tensor_count(c);
    matrices x = {.desc = desc,
                  .args = args,
                  .alpha = scalars[MICA_GEMM_ALPHA],
                  .beta = scalars[MICA_GEMM_BETA],
                  .m = c->dims[c->rank - 2],
                  .n = c->dims[c->rank - 1],
                  .k = a->dims[a->rank - 1],
                  .step = pairs ? 2 : 1};
    x.partner = pairs ? 1 : x.n;
    result most = {0, 0};
    if (count > 0) {
        x.batches = count / (x.m * x.n);
        compute_all(&x, &most);
    }
    if (args[MICA_GEMM_AMAX].data) mica_put(&args[MICA_GEMM_AMAX], 0, most.v, most.m);
}
