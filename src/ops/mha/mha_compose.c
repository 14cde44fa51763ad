/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose", on the CPU and on GPUs: multi-head attention as child plans, each on whatever
 * engine is best for it. Projections are products of whole rows (batch and rows counted together,
 * heads side by side) with the bias in the epilogue; attention is a plan of its own; sums for the
 * gradients of biases are products with a row of ones. Tensors between the steps are the caller's.
 * Where a tensor's rows or columns do not lie at one distance, a copy in the workspace takes its
 * place. Its time is that of its parts, one after the other. */
#include "ops/mha/mha.h"
#include "base/memory.h"
#include "mica/gemm.h"
#include "mica/transform.h"

#include <string.h>

/* Four projections with a copy of both sides, four sums, and the ones. */
enum { MOST_STEPS = 20, STEP_ARGS = 20 };

/* Memory: an argument of the run, or (arg < 0) workspace. */
typedef struct place {
    int arg;
    size_t at;
} place;

/* A child plan to be. */
typedef struct step {
    const char *op;
    size_t size;
    union {
        mica_gemm_desc gemm;
        mica_attention_desc attention;
        mica_transform_desc transform;
    } d;
    int args[STEP_ARGS]; /* of the child */
    place from[STEP_ARGS];
    int arg_count;
    bool last; /* takes beta */
} step;

/* All steps; bytes of what they leave to each other. */
typedef struct steps {
    const mica_mha_desc *d;
    mha_sizes s;
    step list[MOST_STEPS];
    int count;
    size_t scratch;
} steps;

/* A tensor as a matrix. */
typedef struct matrix {
    mica_tensor t;
    place from;
} matrix;

typedef struct state {
    int count;
    struct {
        mica_plan *plan;
        int args[STEP_ARGS];
        place from[STEP_ARGS];
        int arg_count;
        bool last;
    } list[MOST_STEPS];
    size_t scratch_at, child_at;
} state;

/* ---- matrices ---- */

static step *next(steps *p, const char *op, size_t size)
{
    step *s = &p->list[p->count++];
    *s = (step){.op = op, .size = size};
    return s;
}

static void bind(step *s, int arg, place from)
{
    s->args[s->arg_count] = arg;
    s->from[s->arg_count++] = from;
}

static place scratch(steps *p, const mica_tensor *t)
{
    place at = {-1, p->scratch};
    p->scratch +=
        ((size_t)mica_tensor_count(t) * (size_t)mica_dtype_bits(t->dtype) / 8 + 255) / 256 * 256;
    return at;
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

static void copy(steps *p, const mica_tensor *x, place from, const mica_tensor *y, place to,
                 bool last)
{
    step *s = next(p, "transform", sizeof s->d.transform);
    s->d.transform = (mica_transform_desc){.x = *x, .y = *y};
    bind(s, MICA_TRANSFORM_X, from);
    bind(s, MICA_TRANSFORM_Y, to);
    s->last = last;
}

static matrix read_matrix(steps *p, int arg)
{
    const mica_tensor *t = tensor_of(p, arg);
    matrix m = {.from = {arg, 0}};
    if (as_matrix(t, &m.t)) return m;
    mica_tensor packed = side_by_side(t);
    m.from = scratch(p, &packed);
    copy(p, t, (place){arg, 0}, &packed, m.from, false);
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

static step *product(steps *p, const mica_tensor *a, place a_from, const mica_tensor *b,
                     place b_from, const mica_tensor *c, place to)
{
    step *s = next(p, "gemm", sizeof s->d.gemm);
    s->d.gemm = (mica_gemm_desc){.a = *a, .b = *b, .c = *c, .compute = p->d->compute};
    bind(s, MICA_GEMM_A, a_from);
    bind(s, MICA_GEMM_B, b_from);
    bind(s, MICA_GEMM_C, to);
    return s;
}

/* y = x w^T + bias, or x w (turned). bias: -1 for none. */
static void project(steps *p, int x, int w, bool turned, int bias, int y, bool last)
{
    const mica_tensor *t = tensor_of(p, y);
    if (mica_tensor_count(t) == 0) return;
    matrix from = read_matrix(p, x), to = {.from = {y, 0}};
    mica_tensor weights = turned ? *tensor_of(p, w) : transposed(tensor_of(p, w));
    mica_tensor packed = side_by_side(t);
    bool direct = as_matrix(t, &to.t);
    if (!direct) {
        as_matrix(&packed, &to.t);
        to.from = scratch(p, &packed);
    }
    step *s = product(p, &from.t, from.from, &weights, (place){w, 0}, &to.t, to.from);
    s->last = last && direct;
    if (bias >= 0 && mica_tensor_given(tensor_of(p, bias))) {
        s->d.gemm.epilogue[0] = MICA_STEP_BIAS;
        s->d.gemm.bias = *tensor_of(p, bias);
        bind(s, MICA_GEMM_BIAS, (place){bias, 0});
    }
    if (!direct) copy(p, &packed, to.from, t, (place){y, 0}, last);
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
        mica_tensor a = transposed(&from.t);
        product(p, &a, from.from, &inputs.t, inputs.from, dw, (place){w, 0})->last = true;
    }
    if (!biases) return;
    mica_tensor a = ones->t, c = {.dtype = db->dtype,
                                  .rank = 2,
                                  .dims = {1, db->dims[0]},
                                  .strides = {db->dims[0], db->strides[0]}};
    a.dims[1] = from.t.dims[0];
    product(p, &a, ones->from, &from.t, from.from, &c, (place){bias, 0})->last = true;
}

/* A row of ones: nothing summed up, and clipped to from 1 to 1. */
static matrix make_ones(steps *p)
{
    mica_dtype type = p->d->q.dtype;
    int64_t queries = p->s.batch * p->s.rows, keys = p->s.key_batch * p->s.keys;
    int64_t n = queries > keys ? queries : keys;
    mica_tensor a = mica_tensor_packed(type, 2, (int64_t[]){1, 0});
    mica_tensor b = mica_tensor_packed(type, 2, (int64_t[]){0, n});
    matrix m = {.t = mica_tensor_packed(type, 2, (int64_t[]){1, n})};
    m.from = scratch(p, &m.t);
    if (n == 0) return m;
    step *s = product(p, &a, m.from, &b, m.from, &m.t, m.from);
    s->d.gemm.epilogue[0] = MICA_STEP_ACT + MICA_ACT_CLIP;
    s->d.gemm.act_a = s->d.gemm.act_b = 1;
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
_Static_assert((int)STEP_ARGS >= (int)ATTENTION_ARGS, "a step holds all arguments of attention");

static void attend(steps *p)
{
    const mica_op *op = mica_op_find("attention");
    mica_attention_desc child = mha_attention(p->d);
    int64_t results = 0;
    for (int i = 0; i < op->arg_count; i++)
        if (mica_op_dir(op, &child, i) == MICA_OUT)
            results += mica_tensor_count(mica_op_tensor(op, &child, i));
    if (results == 0) return;
    step *s = next(p, op->name, sizeof child);
    s->d.attention = child;
    for (int i = 0; i < ATTENTION_ARGS; i++)
        if (mica_tensor_given(tensor_of(p, attention_args[i][0])))
            bind(s, attention_args[i][1], (place){attention_args[i][0], 0});
}

static void make_steps(const mica_mha_desc *d, steps *p)
{
    p->d = d;
    p->s = mha_sizes_of(d);
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

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc, (void)device, (void)why;
    return MICA_OK;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    (void)config;
    steps *p = mica_alloc(sizeof *p);
    if (!p) return 0;
    make_steps(desc, p);
    double ms = 0;
    for (int i = 0; i < p->count; i++) {
        _Alignas(16) char resolved[MICA_MAX_DESC] = {0};
        const mica_op *op = mica_op_find(p->list[i].op);
        mica_why why = {""};
        if (mica_op_resolve_child(op->name, &p->list[i].d, resolved, &why) == MICA_OK)
            ms += mica_op_predict(op, resolved, device, device->cuda);
    }
    mica_release(p);
    return ms;
}

/* Children run one after the other: they share what they need. */
static mica_status build(mica_plan *plan)
{
    state *st;
    size_t most = 0;
    MICA_TRY(mica_plan_state(plan, sizeof *st, &st));
    steps *p = mica_alloc(sizeof *p);
    if (!p) return mica_fail_memory(sizeof *p);
    make_steps(plan->desc, p);
    mica_status status = mica_book(plan, "copies", p->scratch, &st->scratch_at);
    for (int i = 0; i < p->count && status == MICA_OK; i++) {
        const step *s = &p->list[i];
        mica_plan *child = NULL;
        status = mica_plan_child_create(plan, s->op, &s->d, s->size, NULL, &child, NULL);
        if (status != MICA_OK) break;
        st->list[i].plan = child;
        st->list[i].arg_count = s->arg_count;
        st->list[i].last = s->last;
        memcpy(st->list[i].args, s->args, sizeof s->args);
        memcpy(st->list[i].from, s->from, sizeof s->from);
        if (child->workspace > most) most = child->workspace;
    }
    st->count = p->count;
    mica_release(p);
    if (status == MICA_OK) status = mica_book(plan, "child plans", most, &st->child_at);
    return status;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *st = plan->state;
    const double scaled[] = {1, mica_run_scalar(plan, r, MICA_MHA_BETA)};
    for (int i = 0; i < st->count; i++) {
        mica_run child = {.workspace = mica_at(r, st->child_at), .stream = r->stream};
        for (int a = 0; a < st->list[i].arg_count; a++) {
            place from = st->list[i].from[a];
            child.args[st->list[i].args[a]] =
                from.arg < 0 ? mica_at(r, st->scratch_at + from.at) : r->args[from.arg];
        }
        if (st->list[i].last) child.scalars = scaled;
        MICA_TRY(mica_plan_child_run(st->list[i].plan, &child));
    }
    return MICA_OK;
}

const mica_engine mica_mha_compose = {
    .name = "compose", .accepts = accepts, .predict = predict, .build = build, .run = run};

const mica_engine mica_mha_compose_cuda = {.name = "compose",
                                           .cuda = true,
                                           .accepts = accepts,
                                           .predict = predict,
                                           .build = build,
                                           .run = run};
