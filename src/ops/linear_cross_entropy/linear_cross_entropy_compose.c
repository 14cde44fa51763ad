/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose": classes in chunks. Forward, for each chunk a product that makes its logits,
 * their logarithm of a sum of exponentials, what the label's logit is if it is among them, and with
 * smoothing their sum; at the end the rows' losses from these numbers of all chunks. With gradients
 * the chunk's logits again, the gradient of these in x's type, and the products with x and w. Cost:
 * 2 N V K each of 1 product, with gradients of 2 to 4; N V elements of 4 bytes that are written and
 * read three times, with gradients six times and some. */
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "mica/gather.h"
#include "mica/gemm.h"
#include "base/format.h"
#include "ops/compose/held.h"

#include <string.h>

typedef mica_held held;

typedef struct steps {
    const mica_linear_cross_entropy_desc *d;
    mica_compose list;
    mica_dtype real;
    int64_t rows, width, classes, chunks; /* N, K, V */
    held labels;
    held sums, own, all;         /* of chunks and rows: logsumexp, the label's logit, all logits */
    held lse, share, places, dx; /* of rows, of one; places of classes in a chunk; a sum of dx */
} steps;

static held temporary(steps *p, mica_dtype type, int rank, const int64_t *dims)
{
    return mica_held_temporary(&p->list, type, rank, dims);
}

/* What begins with element i of the first dimension. */
static held from_row(const held *h, int64_t i)
{
    return mica_held_part(*h, 0, i, h->t.dims[0]);
}

/* Row i alone, without its dimension. */
static held row(const held *h, int64_t i)
{
    held r = from_row(h, i);
    r.t = mica_tensor_packed(h->t.dtype, 1, &h->t.dims[1]);
    return r;
}

/* A number of each row, or of each class of a chunk, as elements of N x classes. */
static held spread(held h, const mica_tensor *dims, int along)
{
    const int64_t stride = h.t.rank ? h.t.strides[0] : 0;
    h.t.rank = 2;
    memcpy(h.t.dims, dims->dims, sizeof h.t.dims);
    h.t.strides[0] = along == 0 ? stride : 0;
    h.t.strides[1] = along == 1 ? stride : 0;
    return h;
}

/* ---- steps ---- */

static void expression(steps *p, const char *text, held y, const held *x, int count)
{
    mica_held_expression(&p->list, text, y, x, count);
}

static void reduction(steps *p, mica_reduce_kind kind, int axis, held x, held y)
{
    mica_held_reduction(&p->list, kind, axis, x, y);
}

/* c = a b, and what `residual` has. */
static void product(steps *p, held a, held b, held c, const held *residual)
{
    mica_gemm_desc g = {.a = a.t, .b = b.t, .c = c.t};
    if (residual) g.epilogue[0] = MICA_STEP_RESIDUAL, g.residual = residual->t;
    mica_compose_step(&p->list, "gemm", &g, sizeof g, NULL);
    mica_compose_bind(&p->list, MICA_GEMM_A, a.at);
    mica_compose_bind(&p->list, MICA_GEMM_B, b.at);
    mica_compose_bind(&p->list, MICA_GEMM_C, c.at);
    if (residual) mica_compose_bind(&p->list, MICA_GEMM_RESIDUAL, residual->at);
}

/* ---- chunks ---- */

typedef struct chunk {
    int64_t index, first, count;
    held w, logits;
} chunk;

static chunk begin_chunk(steps *p, int64_t index)
{
    const mica_linear_cross_entropy_desc *d = p->d;
    chunk c = {.index = index, .first = index * d->chunk};
    c.count = p->classes - c.first < d->chunk ? p->classes - c.first : d->chunk;
    const held w = mica_held_arg(&d->w, MICA_LINEAR_CROSS_ENTROPY_W);
    c.w = from_row(&w, c.first);
    c.w.t.dims[0] = c.count;
    c.logits = temporary(p, p->real, 2, (int64_t[]){p->rows, c.count});
    product(p, mica_held_arg(&d->x, MICA_LINEAR_CROSS_ENTROPY_X), mica_held_transposed(c.w),
            c.logits, NULL);
    return c;
}

/* The label's logit, 0 if it is not of this chunk. */
static void find_own(steps *p, const chunk *c)
{
    char text[48];
    const held index = temporary(p, MICA_S64, 1, &p->rows);
    mica_format(text, sizeof text, "s64(x0)-%lld", (long long)c->first);
    expression(p, text, index, &p->labels, 1);
    held column = index, own = row(&p->own, c->index);
    column.t.rank = own.t.rank = 2;
    column.t.dims[1] = own.t.dims[1] = 1;
    column.t.strides[1] = own.t.strides[1] = 1;
    const mica_gather_desc g = {
        .mode = MICA_GATHER_ELEMENTS, .x = c->logits.t, .index = column.t, .y = own.t, .axis = 1};
    mica_compose_step(&p->list, "gather", &g, sizeof g, NULL);
    mica_compose_bind(&p->list, MICA_GATHER_X, c->logits.at);
    mica_compose_bind(&p->list, MICA_GATHER_INDEX, index.at);
    mica_compose_bind(&p->list, MICA_GATHER_Y, own.at);
}

static void forward(steps *p)
{
    const mica_linear_cross_entropy_desc *d = p->d;
    const int64_t dims[] = {p->chunks, p->rows};
    const bool each = d->reduction == MICA_REDUCE_NONE, smooth = d->smoothing > 0;
    p->sums = temporary(p, p->real, 2, dims);
    p->own = temporary(p, p->real, 2, dims);
    if (smooth) p->all = temporary(p, p->real, 2, dims);
    for (int64_t i = 0; i < p->chunks; i++) {
        const chunk c = begin_chunk(p, i);
        reduction(p, MICA_REDUCE_KIND_LOGSUMEXP, 1, c.logits, row(&p->sums, i));
        if (smooth) reduction(p, MICA_REDUCE_KIND_SUM, 1, c.logits, row(&p->all, i));
        find_own(p, &c);
    }
    p->lse = temporary(p, p->real, 1, &p->rows);
    const held own = temporary(p, p->real, 1, &p->rows), all = temporary(p, p->real, 1, &p->rows);
    reduction(p, MICA_REDUCE_KIND_LOGSUMEXP, 0, p->sums, p->lse);
    reduction(p, MICA_REDUCE_KIND_SUM, 0, p->own, own);
    if (smooth) reduction(p, MICA_REDUCE_KIND_SUM, 0, p->all, all);
    if (mica_tensor_given(&d->lse))
        expression(p, "x0", mica_held_arg(&d->lse, MICA_LINEAR_CROSS_ENTROPY_LSE), &p->lse, 1);
    const held loss = mica_held_arg(&d->loss, MICA_LINEAR_CROSS_ENTROPY_LOSS);
    const held losses = each ? loss : temporary(p, p->real, 1, &p->rows);
    char text[256], counts[64] = "1.0";
    mica_text t = {text, sizeof text, 0};
    if (d->ignore) mica_text_add(&t, "where(x0==%lld,0.0,", (long long)d->ignore_index);
    mica_text_add(&t, "where(x0<0||x0>=%lld,nan,x1-%.17g*x2", (long long)p->classes,
                  1 - d->smoothing);
    if (smooth) mica_text_add(&t, "-%.17g*x3", d->smoothing / (double)p->classes);
    mica_text_add(&t, d->ignore ? "))" : ")");
    const held in[] = {p->labels, p->lse, own, all};
    expression(p, text, losses, in, smooth ? 4 : 3);
    if (each) return;
    /* The divisor, and a gradient's share. */
    held total = temporary(p, p->real, 0, NULL), single = loss;
    single.t = mica_tensor_packed(loss.t.dtype, 0, NULL);
    reduction(p, MICA_REDUCE_KIND_SUM, -1, losses, total);
    if (d->reduction == MICA_REDUCE_SUM) {
        expression(p, "x0", single, &total, 1);
        return;
    }
    const held counted = temporary(p, p->real, 1, &p->rows), count = temporary(p, p->real, 0, NULL);
    if (d->ignore)
        mica_format(counts, sizeof counts, "where(x0==%lld,0.0,1.0)", (long long)d->ignore_index);
    expression(p, counts, counted, &p->labels, d->ignore);
    reduction(p, MICA_REDUCE_KIND_SUM, -1, counted, count);
    expression(p, "x0/x1", single, (const held[]){total, count}, 2);
    p->share = temporary(p, p->real, 0, NULL);
    expression(p, "where(x0==0,0.0,1/x0)", p->share, &count, 1);
}

/* In x's type: (softmax - target) share; `place` is the label's in the chunk, or none's. */
static held logits_gradient(steps *p, const chunk *c)
{
    const mica_linear_cross_entropy_desc *d = p->d;
    char text[256];
    mica_text t = {text, sizeof text, 0};
    const held place = temporary(p, p->real, 1, &p->rows);
    const held g = temporary(p, d->x.dtype, 2, c->logits.t.dims);
    if (d->ignore) mica_text_add(&t, "where(x0==%lld,-2.0,", (long long)d->ignore_index);
    mica_text_add(&t, "where(x0<0||x0>=%lld,nan,where(x0<%lld||x0>=%lld,-1.0,x0-%lld))",
                  (long long)p->classes, (long long)c->first, (long long)(c->first + c->count),
                  (long long)c->first);
    if (d->ignore) mica_text_add(&t, ")");
    expression(p, text, place, &p->labels, 1);
    t.length = 0;
    const char *by = mica_tensor_given(&p->share.t) ? "*x4" : "";
    mica_text_add(&t, "where(x2==-2,0.0,where(x2!=x2,x2,(exp(x0-x1)-where(x2==x3,%.17g,%.17g))%s))",
                  1 - d->smoothing + d->smoothing / (double)p->classes,
                  d->smoothing / (double)p->classes, by);
    held classes = p->places;
    classes.t.dims[0] = c->count;
    const held in[] = {c->logits, spread(p->lse, &g.t, 0), spread(place, &g.t, 0),
                       spread(classes, &g.t, 1), spread(p->share, &g.t, -1)};
    expression(p, text, g, in, *by ? 5 : 4);
    return g;
}

static void backward(steps *p)
{
    const mica_linear_cross_entropy_desc *d = p->d;
    const int64_t most = p->classes < d->chunk ? p->classes : d->chunk;
    const bool dx = mica_tensor_given(&d->dx), dw = mica_tensor_given(&d->dw);
    const held to_dx = mica_held_arg(&d->dx, MICA_LINEAR_CROSS_ENTROPY_DX);
    held to_dw = mica_held_arg(&d->dw, MICA_LINEAR_CROSS_ENTROPY_DW);
    p->places = temporary(p, p->real, 1, &most);
    expression(p, "i0*1.0", p->places, NULL, 0);
    if (dx && p->chunks > 1) p->dx = temporary(p, p->real, 2, d->x.dims);
    for (int64_t i = 0; i < p->chunks; i++) {
        const chunk c = begin_chunk(p, i);
        const held g = logits_gradient(p, &c);
        if (dx) product(p, g, c.w, i == p->chunks - 1 ? to_dx : p->dx, i ? &p->dx : NULL);
        if (!dw) continue;
        held part = from_row(&to_dw, c.first);
        part.t.dims[0] = c.count;
        product(p, mica_held_transposed(g), mica_held_arg(&d->x, MICA_LINEAR_CROSS_ENTROPY_X), part,
                NULL);
    }
}

static void make_steps(const mica_linear_cross_entropy_desc *d, steps *p)
{
    memset(p, 0, sizeof *p);
    p->d = d;
    p->real = d->x.dtype == MICA_F64 ? MICA_F64 : MICA_F32;
    p->rows = d->x.dims[0], p->width = d->x.dims[1], p->classes = d->w.dims[0];
    p->chunks = (p->classes - 1) / d->chunk + 1;
    p->labels = mica_held_arg(&d->labels, MICA_LINEAR_CROSS_ENTROPY_LABELS);
    forward(p);
    if (mica_tensor_given(&d->dx) || mica_tensor_given(&d->dw)) backward(p);
}

/* ---- engine ---- */

static void list_steps(const void *desc, mica_compose *list)
{
    steps p;
    make_steps(desc, &p);
    *list = p.list;
}

const mica_engine mica_linear_cross_entropy_compose = {.name = "compose",
                                                       MICA_COMPOSED(list_steps)};

const mica_engine mica_linear_cross_entropy_compose_cuda = {
    .name = "compose", .cuda = true, MICA_COMPOSED(list_steps)};
