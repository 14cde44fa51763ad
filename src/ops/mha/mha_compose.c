/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose", on the CPU and on GPUs: multi-head attention as child plans, each on whatever
 * engine is best for it. Projections are products of whole rows (batch and rows counted together,
 * heads side by side) with the bias in the epilogue; attention is a plan of its own; sums for the
 * gradients of biases are products with a row of ones. Tensors between the steps are the caller's.
 * Where a tensor's rows or columns do not lie at one distance, a copy in the workspace takes its
 * place. Its time is that of its parts, one after the other. */
#include "mica/gemm.h"
#include "mica/transform.h"
#include "ops/compose/compose.h"
#include "ops/mha/mha.h"

#include <string.h>

/* What the steps are made for, and their list. */
typedef struct steps {
    const mica_mha_desc *d;
    mha_sizes s;
    mica_compose list;
} steps;

/* A tensor as a matrix. */
typedef struct matrix {
    mica_tensor t;
    mica_memory from;
} matrix;

/* ---- matrices ---- */

static mica_memory temporary(steps *p, const mica_tensor *t)
{
    return mica_compose_temporary(&p->list, (size_t)mica_tensor_count(t) *
                                                (size_t)mica_dtype_bits(t->dtype) / 8);
}

/* Whether dimensions a and b, b the faster, can be counted together. */
static bool merges(const mica_tensor *t, int a, int b, int64_t *stride)
{
    *stride = t->dims[b] == 1 ? t->strides[a] : t->strides[b];
    int64_t distance;
    return t->dims[a] <= 1 || t->dims[b] <= 1 ||
           (!__builtin_mul_overflow(t->dims[b], t->strides[b], &distance) &&
            distance == t->strides[a]);
}

/* B x S x E, or B x H x S x D with the columns of heads side by side, as B S rows; false if memory
 * does not lie so. */
static bool as_matrix(const mica_tensor *t, mica_tensor *m)
{
    int64_t rows, columns;
    int r = t->rank - 2; /* dimension of the rows */
    if (!merges(t, 0, r, &rows)) return false;
    if (t->rank == 3)
        columns = t->strides[2];
    else if (!merges(t, 1, 3, &columns))
        return false;
    int64_t width = t->rank == 3 ? t->dims[2] : t->dims[1] * t->dims[3];
    *m = (mica_tensor){.dtype = t->dtype,
                       .rank = 2,
                       .dims = {t->dims[0] * t->dims[r], width},
                       .strides = {rows, columns}};
    return true;
}

/* The copy that lies so: rows one after the other. */
static mica_tensor side_by_side(const mica_tensor *t)
{
    mica_tensor c = mica_tensor_packed(t->dtype, t->rank, t->dims);
    if (t->rank == 3) return c;
    int64_t row = t->dims[1] * t->dims[3];
    const int64_t strides[] = {t->dims[2] * row, t->dims[3], row, 1};
    memcpy(c.strides, strides, sizeof strides);
    return c;
}

static const mica_tensor *tensor_of(const steps *p, int arg)
{
    return mica_op_tensor(&mica_op_mha, p->d, arg);
}

static void copy(steps *p, const mica_tensor *x, mica_memory from, const mica_tensor *y,
                 mica_memory to, bool last)
{
    mica_transform_desc t = {.x = *x, .y = *y};
    mica_compose_step(&p->list, "transform", &t, sizeof t, NULL);
    mica_compose_bind(&p->list, MICA_TRANSFORM_X, from);
    mica_compose_bind(&p->list, MICA_TRANSFORM_Y, to);
    if (last) mica_compose_scale(&p->list);
}

static matrix read_matrix(steps *p, int arg)
{
    const mica_tensor *t = tensor_of(p, arg);
    matrix m = {.from = mica_compose_arg(arg)};
    if (as_matrix(t, &m.t)) return m;
    mica_tensor packed = side_by_side(t);
    m.from = temporary(p, &packed);
    copy(p, t, mica_compose_arg(arg), &packed, m.from, false);
    as_matrix(&packed, &m.t);
    return m;
}

/* ---- steps ---- */

static mica_tensor transposed(const mica_tensor *t)
{
    return (mica_tensor){.dtype = t->dtype,
                         .rank = 2,
                         .dims = {t->dims[1], t->dims[0]},
                         .strides = {t->strides[1], t->strides[0]}};
}

static void product(steps *p, mica_gemm_desc g, mica_memory a, mica_memory b, mica_memory c,
                    bool last)
{
    g.compute = p->d->compute;
    mica_compose_step(&p->list, "gemm", &g, sizeof g, NULL);
    mica_compose_bind(&p->list, MICA_GEMM_A, a);
    mica_compose_bind(&p->list, MICA_GEMM_B, b);
    mica_compose_bind(&p->list, MICA_GEMM_C, c);
    if (last) mica_compose_scale(&p->list);
}

/* y = x w^T + bias, or x w (turned). bias: -1 for none. */
static void project(steps *p, int x, int w, bool turned, int bias, int y, bool last)
{
    const mica_tensor *t = tensor_of(p, y);
    if (mica_tensor_count(t) == 0) return;
    matrix from = read_matrix(p, x), to = {.from = mica_compose_arg(y)};
    mica_tensor packed = side_by_side(t);
    bool direct = as_matrix(t, &to.t);
    bool biased = bias >= 0 && mica_tensor_given(tensor_of(p, bias));
    if (!direct) {
        as_matrix(&packed, &to.t);
        to.from = temporary(p, &packed);
    }
    mica_gemm_desc g = {
        .a = from.t, .b = turned ? *tensor_of(p, w) : transposed(tensor_of(p, w)), .c = to.t};
    if (biased) {
        g.epilogue[0] = MICA_STEP_BIAS;
        g.bias = *tensor_of(p, bias);
    }
    product(p, g, from.from, mica_compose_arg(w), to.from, last && direct);
    if (biased) mica_compose_bind(&p->list, MICA_GEMM_BIAS, mica_compose_arg(bias));
    if (!direct) copy(p, &packed, to.from, t, mica_compose_arg(y), last);
}

/* dw = dy^T x, dbias = ones dy; ones: the matrix of one row. */
static void project_weights(steps *p, int dy, int x, int w, int bias, const matrix *ones)
{
    const mica_tensor *dw = tensor_of(p, w), *db = tensor_of(p, bias);
    bool weights = mica_tensor_count(dw) > 0;
    bool biases = mica_tensor_given(db) && mica_tensor_count(db) > 0;
    if (!weights && !biases) return;
    matrix from = read_matrix(p, dy);
    if (weights) {
        matrix inputs = read_matrix(p, x);
        product(p, (mica_gemm_desc){.a = transposed(&from.t), .b = inputs.t, .c = *dw}, from.from,
                inputs.from, mica_compose_arg(w), true);
    }
    if (!biases) return;
    mica_gemm_desc g = {.a = ones->t, .b = from.t};
    g.a.dims[1] = from.t.dims[0];
    g.c = (mica_tensor){.dtype = db->dtype,
                        .rank = 2,
                        .dims = {1, db->dims[0]},
                        .strides = {db->dims[0], db->strides[0]}};
    product(p, g, ones->from, from.from, mica_compose_arg(bias), true);
}

/* A row of ones: nothing summed up, and clipped to from 1 to 1. */
static matrix make_ones(steps *p)
{
    mica_dtype type = p->d->q.dtype;
    int64_t queries = p->s.batch * p->s.rows, keys = p->s.key_batch * p->s.keys;
    int64_t n = queries > keys ? queries : keys;
    matrix m = {.t = mica_tensor_packed(type, 2, (int64_t[]){1, n})};
    m.from = temporary(p, &m.t);
    if (n == 0) return m;
    mica_gemm_desc g = {.a = mica_tensor_packed(type, 2, (int64_t[]){1, 0}),
                        .b = mica_tensor_packed(type, 2, (int64_t[]){0, n}),
                        .c = m.t,
                        .epilogue = {MICA_STEP_ACT + MICA_ACT_CLIP},
                        .act_a = 1,
                        .act_b = 1};
    product(p, g, m.from, m.from, m.from, false);
    return m;
}

/* Which argument of ours is which of attention's. */
static const int attention_args[][2] = {
    {MICA_MHA_QH, MICA_ATTENTION_Q},          {MICA_MHA_KH, MICA_ATTENTION_K},
    {MICA_MHA_VH, MICA_ATTENTION_V},          {MICA_MHA_OH, MICA_ATTENTION_OUT},
    {MICA_MHA_LSE, MICA_ATTENTION_LSE},       {MICA_MHA_DOH, MICA_ATTENTION_DOUT},
    {MICA_MHA_DQH, MICA_ATTENTION_DQ},        {MICA_MHA_DKH, MICA_ATTENTION_DK},
    {MICA_MHA_DVH, MICA_ATTENTION_DV},        {MICA_MHA_DBIAS, MICA_ATTENTION_DBIAS},
    {MICA_MHA_DSINKS, MICA_ATTENTION_DSINKS}, {MICA_MHA_SLOPES, MICA_ATTENTION_SLOPES},
    {MICA_MHA_BIAS, MICA_ATTENTION_BIAS},     {MICA_MHA_MASK, MICA_ATTENTION_MASK},
    {MICA_MHA_SINKS, MICA_ATTENTION_SINKS},   {MICA_MHA_RNG, MICA_ATTENTION_RNG},
    {MICA_MHA_CU_Q, MICA_ATTENTION_CU_Q},     {MICA_MHA_CU_K, MICA_ATTENTION_CU_K},
    {MICA_MHA_SEQ_Q, MICA_ATTENTION_SEQ_Q},   {MICA_MHA_SEQ_K, MICA_ATTENTION_SEQ_K}};
enum { ATTENTION_ARGS = sizeof attention_args / sizeof *attention_args };

static void attend(steps *p)
{
    const mica_op *op = mica_op_find("attention");
    mica_attention_desc child = mha_attention(p->d);
    int64_t results = 0;
    for (int i = 0; i < op->arg_count; i++)
        if (mica_op_dir(op, &child, i) == MICA_OUT)
            results += mica_tensor_count(mica_op_tensor(op, &child, i));
    if (results == 0) return;
    mica_compose_step(&p->list, op->name, &child, sizeof child, NULL);
    for (int i = 0; i < ATTENTION_ARGS; i++)
        if (mica_tensor_given(tensor_of(p, attention_args[i][0])))
            mica_compose_bind(&p->list, attention_args[i][1],
                              mica_compose_arg(attention_args[i][0]));
}

static void make_steps(const mica_mha_desc *d, steps *p)
{
    *p = (steps){.d = d, .s = mha_sizes_of(d)};
    if (d->pass == MICA_MHA_FWD) {
        project(p, MICA_MHA_Q, MICA_MHA_WQ, false, MICA_MHA_BQ, MICA_MHA_QH, false);
        project(p, MICA_MHA_K, MICA_MHA_WK, false, MICA_MHA_BK, MICA_MHA_KH, false);
        project(p, MICA_MHA_V, MICA_MHA_WV, false, MICA_MHA_BV, MICA_MHA_VH, false);
        attend(p);
        project(p, MICA_MHA_OH, MICA_MHA_WO, false, MICA_MHA_BO, MICA_MHA_OUT, true);
    } else if (d->pass == MICA_MHA_BWD_DATA) {
        project(p, MICA_MHA_OUT, MICA_MHA_WO, true, -1, MICA_MHA_DOH, false);
        attend(p);
        project(p, MICA_MHA_DQH, MICA_MHA_WQ, true, -1, MICA_MHA_Q, true);
        project(p, MICA_MHA_DKH, MICA_MHA_WK, true, -1, MICA_MHA_K, true);
        project(p, MICA_MHA_DVH, MICA_MHA_WV, true, -1, MICA_MHA_V, true);
    } else {
        bool biases = mica_tensor_given(&d->bq) || mica_tensor_given(&d->bk) ||
                      mica_tensor_given(&d->bv) || mica_tensor_given(&d->bo);
        matrix ones = {0};
        if (biases) ones = make_ones(p);
        project_weights(p, MICA_MHA_DQH, MICA_MHA_Q, MICA_MHA_WQ, MICA_MHA_BQ, &ones);
        project_weights(p, MICA_MHA_DKH, MICA_MHA_K, MICA_MHA_WK, MICA_MHA_BK, &ones);
        project_weights(p, MICA_MHA_DVH, MICA_MHA_V, MICA_MHA_WV, MICA_MHA_BV, &ones);
        project_weights(p, MICA_MHA_OUT, MICA_MHA_OH, MICA_MHA_WO, MICA_MHA_BO, &ones);
    }
}

/* ---- engine ---- */

static void list_steps(const void *desc, mica_compose *list)
{
    steps p;
    make_steps(desc, &p);
    *list = p.list;
}

const mica_engine mica_mha_compose = {.name = "compose", MICA_COMPOSED(list_steps)};

const mica_engine mica_mha_compose_cuda = {
    .name = "compose", .cuda = true, MICA_COMPOSED(list_steps)};
