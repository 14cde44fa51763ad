/* SPDX-License-Identifier: Apache-2.0
 * Convolution, the truth: sums in double precision, their terms in order, over any strides and
 * types; tiles only spare conversions. */
#include "ops/conv/conv.h"

#include "cpu/cpu.h"
#include "ops/convert/integer.h"

#include <math.h>
#include <string.h>

typedef struct sums {
    double value, magnitude;
} sums;

/* Each pass is a matrix product. Rows are what a result has on the image's side, and columns its
 * channel on the other; terms come in steps, of which a row sees some, and each step has one for
 * every channel or image:
 *
 *           rows                      columns   steps              terms   left   right
 *   FWD     images, output pixels     k         taps               c       a      f
 *   DGRAD   images, pixels of a       c         taps               k       b      f
 *   WGRAD   channels c, taps          k         output pixels      n       a      b
 *
 * A tile of it spares conversions; every sum has its terms in order. */
enum { TILE = 8, CHUNK = 32 };
typedef double lanes __attribute__((vector_size(TILE * sizeof(double))));
typedef int64_t lanes_bits __attribute__((vector_size(TILE * sizeof(double))));

typedef struct product {
    int kind;
    const mica_conv_geometry *g;
    const mica_view *left, *right;
    const long long *row_size, *step_size, *left_size; /* along the axes */
    const long long *left_stride, *right_stride;
    int64_t outer, columns, terms; /* outer: of images or channels among the rows */
    int64_t left_outer, left_group, left_term;
    int64_t right_base, right_group, right_column, right_term;
} product;

/* Where the rows of a tile are in the left operand, as far as the axes of a step are known. */
typedef struct places {
    bool inside[TILE], any;
    int64_t offset[TILE];
} places;

typedef struct tile {
    int64_t group, row, column, at[3][TILE]; /* at: the rows' positions along the axes */
    int rows, columns;
    lanes sum[TILE], mag[TILE]; /* of the columns; a lane is a row */
} tile;

static product product_of(int kind, const mica_conv_geometry *g, const mica_view *a,
                          const mica_view *b, const mica_view *f)
{
    product p = {.kind = kind,
                 .g = g,
                 .left = a,
                 .right = f,
                 .row_size = g->out,
                 .step_size = g->tap,
                 .left_size = g->in,
                 .left_stride = g->a.s,
                 .right_stride = g->f.s,
                 .outer = g->n,
                 .columns = g->k,
                 .terms = g->c,
                 .left_outer = g->a.n,
                 .left_group = g->a.g,
                 .left_term = g->a.c,
                 .right_base = g->f_base,
                 .right_group = g->f.g,
                 .right_column = g->f.n,
                 .right_term = g->f.c};
    if (kind == MICA_CONV_KIND_DGRAD) {
        p.left = b, p.left_size = g->out, p.left_stride = g->b.s;
        p.row_size = g->in, p.columns = g->c, p.terms = g->k;
        p.left_outer = g->b.n, p.left_group = g->b.g, p.left_term = g->b.c;
        p.right_column = g->f.c, p.right_term = g->f.n;
    } else if (kind == MICA_CONV_KIND_WGRAD) {
        p.right = b, p.right_stride = g->b.s;
        p.row_size = g->tap, p.step_size = g->out, p.outer = g->c, p.terms = g->n;
        p.left_outer = g->a.c, p.left_term = g->a.n;
        p.right_base = 0, p.right_group = g->b.g, p.right_column = g->b.c, p.right_term = g->b.n;
    }
    return p;
}

/* Where a row at `at` sees the left operand in a step along an axis; false: outside of it. */
static bool seen(const product *p, int axis, int64_t at, int64_t step, int64_t *position)
{
    int64_t stride = p->g->stride[axis], dilation = p->g->dilation[axis], pad = p->g->pad[axis];
    int64_t v = p->kind == MICA_CONV_KIND_FWD     ? at * stride - pad + step * dilation
                : p->kind == MICA_CONV_KIND_DGRAD ? at + pad - step * dilation
                                                  : step * stride - pad + at * dilation;
    if (p->kind == MICA_CONV_KIND_DGRAD && stride > 1) {
        if (v < 0 || v % stride != 0) return false;
        v /= stride;
    }
    *position = v;
    return v >= 0 && v < p->left_size[axis];
}

/* Takes a step along an axis. */
static void advance(const product *p, const tile *t, int axis, int64_t step, const places *from,
                    places *to)
{
    to->any = false;
    for (int i = 0; i < t->rows; i++) {
        int64_t position;
        to->inside[i] = from->inside[i] && seen(p, axis, t->at[axis][i], step, &position);
        if (!to->inside[i]) continue;
        to->offset[i] = from->offset[i] + position * p->left_stride[axis];
        to->any = true;
    }
}

/* All terms of one step; what a row does not see counts for nothing, infinities included. */
static void add_step(const product *p, tile *t, const places *at, int64_t right)
{
    lanes left[CHUNK];
    double factor[TILE][CHUNK];
    for (int64_t first = 0; first < p->terms; first += CHUNK) {
        int depth = p->terms - first < CHUNK ? (int)(p->terms - first) : CHUNK;
        for (int i = 0; i < TILE; i++)
            for (int c = 0; c < depth; c++)
                left[c][i] = i < t->rows && at->inside[i]
                                 ? mica_get(p->left, at->offset[i] + (first + c) * p->left_term)
                                 : 0;
        for (int j = 0; j < t->columns; j++)
            for (int c = 0; c < depth; c++)
                factor[j][c] = mica_get(p->right, right + (t->column + j) * p->right_column +
                                                      (first + c) * p->right_term);
        for (int j = 0; j < t->columns; j++) {
            lanes sum = t->sum[j], mag = t->mag[j];
            for (int c = 0; c < depth; c++) {
                lanes term = left[c] * factor[j][c];
                sum += term;
                mag += (lanes)((lanes_bits)term & INT64_MAX);
            }
            for (int i = 0; i < t->rows; i++)
                if (at->inside[i]) t->sum[j][i] = sum[i], t->mag[j][i] = mag[i];
        }
    }
}

static void sum_tile(const product *p, tile *t)
{
    places start = {.any = true}, s0, s1, s2;
    for (int i = 0; i < t->rows; i++) {
        int64_t row = t->row + i;
        for (int d = 2; d >= 0; d--) t->at[d][i] = row % p->row_size[d], row /= p->row_size[d];
        start.inside[i] = true;
        start.offset[i] = t->group * p->left_group + row * p->left_outer;
    }
    int64_t base = p->right_base + t->group * p->right_group;
    for (int64_t i0 = 0; i0 < p->step_size[0]; i0++) {
        advance(p, t, 0, i0, &start, &s0);
        for (int64_t i1 = 0; s0.any && i1 < p->step_size[1]; i1++) {
            advance(p, t, 1, i1, &s0, &s1);
            for (int64_t i2 = 0; s1.any && i2 < p->step_size[2]; i2++) {
                advance(p, t, 2, i2, &s1, &s2);
                if (s2.any)
                    add_step(p, t, &s2,
                             base + i0 * p->right_stride[0] + i1 * p->right_stride[1] +
                                 i2 * p->right_stride[2]);
            }
        }
    }
}

/* Offset in the output, and in the residual, of the element that `at` names. */
static int64_t out_offset(int kind, const mica_conv_geometry *g, const mica_conv_strides *s,
                          const int64_t at[5])
{
    /* channels of all groups follow one another: group * g.g + channel * g.c = channel * s.c */
    int64_t o = kind == MICA_CONV_KIND_WGRAD ? g->f_base + at[1] * s->c : at[1] * s->c;
    o += at[0] * s->n;
    for (int d = 0; d < 3; d++) o += at[d + 2] * s->s[d];
    return o;
}

static void merge_max(sums *most, sums s)
{
    if (isnan(s.value) || fabs(s.value) > most->value) most->value = fabs(s.value);
    if (!(s.magnitude <= most->magnitude)) most->magnitude = s.magnitude;
}

/* From alpha * sum + beta * old to y. */
static void finish(const mica_conv_desc *d, const mica_view *args, int64_t i, int64_t channel,
                   int64_t offset, int64_t residual, sums s, sums *most)
{
    mica_epilogue e = mica_conv_epilogue(d);
    const mica_view *scale_y = &args[MICA_CONV_SCALE_Y], *aux = &args[MICA_CONV_AUX];
    int act = mica_epilogue_act(d->epilogue), from[] = {0, act}, to[] = {act, MICA_MAX_STEPS};
    for (int part = 0; part < 2; part++) {
        mica_epilogue_apply_some(&e, from[part], to[part], &args[MICA_CONV_BIAS],
                                 &args[MICA_CONV_SCALE], &args[MICA_CONV_SHIFT],
                                 &args[MICA_CONV_RESIDUAL], channel, residual, &s.value,
                                 &s.magnitude);
        if (part == 0 && aux->data) mica_put(aux, mica_offset(&aux->t, i), s.value, s.magnitude);
    }
    merge_max(most, s);
    if (scale_y->data) {
        double f = mica_get(scale_y, 0);
        s.value *= f;
        s.magnitude *= fabs(f);
    }
    mica_put(&args[MICA_CONV_Y], offset, mica_saturate_e5m2(d->y.dtype, s.value), s.magnitude);
}

typedef struct results {
    const mica_conv_desc *desc;
    const mica_view *args;
    const mica_conv_geometry *g;
    mica_conv_roles r;
    product p;
    double alpha, beta;
} results;

/* From the sum of row i and column j of a tile to the result. */
static void finish_element(const results *x, const tile *t, int i, int j, sums *most)
{
    const mica_conv_geometry *g = x->g;
    const mica_conv_strides *strides[] = {&g->b, &g->a, &g->f};
    const mica_view *out = &x->args[x->r.out];
    int64_t area = x->p.row_size[0] * x->p.row_size[1] * x->p.row_size[2];
    int64_t outer = (t->row + i) / area, channel = t->group * x->p.columns + t->column + j;
    bool wgrad = x->r.kind == MICA_CONV_KIND_WGRAD;
    int64_t at[5] = {wgrad ? channel : outer, wgrad ? outer : channel, t->at[0][i], t->at[1][i],
                     t->at[2][i]};
    int64_t o = out_offset(x->r.kind, g, strides[x->r.kind], at);
    sums s = {x->alpha * t->sum[j][i], fabs(x->alpha) * t->mag[j][i]};
    if (x->beta != 0) {
        double old = x->beta * mica_get(out, o);
        s.value += old, s.magnitude += fabs(old);
    }
    if (x->r.out != MICA_CONV_Y) {
        mica_put(out, o, s.value, s.magnitude);
        return;
    }
    int64_t index = (at[0] * out->t.dims[1] + at[1]) * area + (t->row + i) % area;
    finish(x->desc, x->args, index, at[1], o, out_offset(x->r.kind, g, &g->residual, at), s, most);
}

/* Returns the largest result and the largest magnitude. */
static sums compute_all(const results *x)
{
    const product *p = &x->p;
    int64_t rows = p->outer * p->row_size[0] * p->row_size[1] * p->row_size[2];
    int64_t down = conv_ceil_div(rows, TILE), across = conv_ceil_div(p->columns, TILE);
    int64_t tiles = x->g->groups * down * across;
    sums most = {0, 0};
#pragma omp parallel num_threads(mica_cpu_threads())
    {
        sums mine = {0, 0};
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < tiles; i++) {
            tile t = {.group = i / (down * across),
                      .row = i / across % down * TILE,
                      .column = i % across * TILE};
            t.rows = rows - t.row < TILE ? (int)(rows - t.row) : TILE;
            t.columns = p->columns - t.column < TILE ? (int)(p->columns - t.column) : TILE;
            sum_tile(p, &t);
            for (int n = 0; n < t.rows * t.columns; n++)
                finish_element(x, &t, n % t.rows, n / t.rows, &mine);
        }
#pragma omp critical
        merge_max(&most, mine);
    }
    return most;
}

/* What y holds where this value is put. */
static double stored(mica_dtype d, double v)
{
    char cell[16];
    mica_dtype_store(d)(cell, 0, v);
    return mica_dtype_load(d)(cell, 0);
}

/* What the sums of a channel may be off by, as multiples of phi, beside the errors of the values: a
 * few values that are rounded to the other neighbour, and the additions, which may be of f32. */
typedef struct slack {
    double flip, additions;
} slack;

static slack slack_of(const mica_conv_desc *d, int64_t count)
{
    mica_contract c;
    mica_op_contract(&mica_op_conv, d, &c);
    double phi = mica_contract_phi(&c), root = 4 * sqrt((double)count);
    double most = (double)count < root ? (double)count : root;
    return (slack){3 * 2 * mica_dtype_unit(d->y.dtype) / phi, most * c.unit / phi};
}

static void channel_stats(const mica_conv_desc *d, const mica_view *args, int64_t channel)
{
    const mica_view *y = &args[MICA_CONV_Y];
    int64_t channels = y->t.dims[1], count = mica_tensor_count(&y->t) / channels;
    int64_t inner = y->t.dims[0] > 0 ? count / y->t.dims[0] : 0;
    sums sum = {0, 0}, square = {0, 0};
    double most = 0, total = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t o = mica_offset(&y->t, (i / inner * channels + channel) * inner + i % inner);
        double v = stored(d->y.dtype, mica_get(y, o)), m = y->mag ? y->mag[o] : 0;
        sum.value += v;
        sum.magnitude += m;
        square.value += v * v;
        square.magnitude += (2 * fabs(v) + 0x1p-8 * m) * m;
        total += fabs(v);
        most = fmax(most, fabs(v));
    }
    slack s = slack_of(d, count);
    sum.magnitude += s.flip * most + s.additions * total;
    square.magnitude += 2 * s.flip * most * most + s.additions * square.value;
    const mica_view *to[] = {&args[MICA_CONV_STAT_SUM], &args[MICA_CONV_STAT_SQUARE]};
    if (to[0]->data) mica_put(to[0], channel * to[0]->t.strides[0], sum.value, sum.magnitude);
    if (to[1]->data) mica_put(to[1], channel * to[1]->t.strides[0], square.value, square.magnitude);
}

void mica_conv_reference(const void *desc, const mica_view *args, const double *scalars)
{
    mica_conv_desc d = *(const mica_conv_desc *)desc;
    /* the views' strides count: results may be packed doubles */
    d.x = args[MICA_CONV_X].t;
    d.w = args[MICA_CONV_W].t;
    d.y = args[MICA_CONV_Y].t;
    if (args[MICA_CONV_RESIDUAL].data) d.residual = args[MICA_CONV_RESIDUAL].t;
    mica_conv_geometry g;
    mica_conv_geometry_make(&d, &g);
    mica_conv_roles r = mica_conv_roles_of(&d);
    results x = {.desc = desc,
                 .args = args,
                 .g = &g,
                 .r = r,
                 .alpha = scalars[MICA_CONV_ALPHA],
                 .beta = scalars[MICA_CONV_BETA]};
    x.p = product_of(r.kind, &g, &args[r.a], &args[r.b], &args[r.f]);
    sums most = compute_all(&x);
    const mica_view *amax = &args[MICA_CONV_AMAX];
    if (amax->data) mica_put(amax, 0, most.value, most.magnitude);
    if (!conv_has_batch_stats(desc)) return;
#pragma omp parallel for schedule(static) num_threads(mica_cpu_threads())
    for (int64_t k = 0; k < args[MICA_CONV_Y].t.dims[1]; k++) channel_stats(desc, args, k);
}
