/* SPDX-License-Identifier: Apache-2.0
 * Multi-head attention with its projections: fields, arguments, inference, checks, cost. */
#include "ops/mha/mha.h"

#include <math.h>
#include <string.h>

static const char *const passes[] = {"fwd", "bwd_data", "bwd_weights", NULL};
static const char *const causal_spellings[] = {"none", "top_left", "bottom_right", NULL};
static const char *const align_spellings[] = {"top_left", "bottom_right", NULL};
static const char *const compute_spellings[] = {"default", "tf32", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_mha_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "fwd, bwd_data or bwd_weights"),
    FIELD(q, TENSOR, .zero = "needed", .doc = "B x Sq x Eq; bwd_data: its gradient"),
    FIELD(k, TENSOR, .zero = "inferred", .doc = "B x Sk x Ek; likewise, as q"),
    FIELD(v, TENSOR, .zero = "inferred", .doc = "B x Sk x Ev; likewise, as k"),
    FIELD(heads, I64, .def = 1, .doc = "H"),
    FIELD(kv_heads, I64, .positive = true, .zero = "heads", .doc = "Hk"),
    FIELD(head_dim, I64, .apart = true, .zero = "by wq, else Eq / heads", .doc = "D"),
    FIELD(value_dim, I64, .apart = true, .zero = "by wv, else head_dim", .doc = "Dv"),
    FIELD(wq, TENSOR, .zero = "inferred", .doc = "H D x Eq; bwd_weights: its gradient"),
    FIELD(wk, TENSOR, .zero = "inferred", .doc = "Hk D x Ek; likewise"),
    FIELD(wv, TENSOR, .zero = "inferred", .doc = "Hk Dv x Ev; likewise"),
    FIELD(wo, TENSOR, .zero = "inferred", .doc = "Eo x H Dv; likewise"),
    FIELD(bq, TENSOR, .zero = "none", .doc = "H D; bwd_weights: its gradient; not in bwd_data"),
    FIELD(bk, TENSOR, .zero = "none", .doc = "Hk D, likewise"),
    FIELD(bv, TENSOR, .zero = "none", .doc = "Hk Dv, likewise"),
    FIELD(bo, TENSOR, .zero = "none", .doc = "Eo, likewise"),
    FIELD(out, TENSOR, .zero = "inferred", .doc = "B x Sq x Eo; backward: its gradient"),
    FIELD(qh, TENSOR, .zero = "inferred", .doc = "B x H x Sq x D: projected queries"),
    FIELD(kh, TENSOR, .zero = "inferred", .doc = "B x Hk x Sk x D: projected keys"),
    FIELD(vh, TENSOR, .zero = "inferred", .doc = "B x Hk x Sk x Dv: projected values"),
    FIELD(oh, TENSOR, .zero = "inferred", .doc = "B x H x Sq x Dv: what the heads give"),
    FIELD(lse, TENSOR, .zero = "inferred", .doc = "B x H x Sq: logarithms of the sums"),
    FIELD(doh, TENSOR, .zero = "inferred", .doc = "bwd_data: gradient of oh"),
    FIELD(dqh, TENSOR, .zero = "inferred", .doc = "gradient of qh"),
    FIELD(dkh, TENSOR, .zero = "inferred", .doc = "gradient of kh"),
    FIELD(dvh, TENSOR, .zero = "inferred", .doc = "gradient of vh"),
    FIELD(scale, F64, .apart = true, .zero = "1 / sqrt(D), or 1 if D is 0", .doc = "of scores"),
    FIELD(causal, ENUM, .spellings = causal_spellings, .doc = "no key right of the diagonal"),
    FIELD(mask, TENSOR, .zero = "none",
          .doc = "B x H x Sq x Sk or 1s, bool or u8: 0 where a query does not attend"),
    FIELD(compute, ENUM, .spellings = compute_spellings,
          .doc = "tf32 allows f32 inputs to be rounded to 11 bits"),
    FIELD(soft_cap, F64, .zero = "none", .doc = "scores become soft_cap tanh(score / soft_cap)"),
    FIELD(window_left, I64, .positive = true, .zero = "all",
          .doc = "keys up to the diagonal, itself counted"),
    FIELD(window_right, I64, .positive = true, .zero = "all",
          .doc = "keys from the diagonal on, itself counted"),
    FIELD(align, ENUM, .spellings = align_spellings,
          .doc = "corner in which the diagonal lies; of causal, if that is set"),
    FIELD(slopes, TENSOR, .zero = "none",
          .doc = "H: ALiBi, scores - slope * distance from the diagonal"),
    FIELD(bias, TENSOR, .zero = "none", .doc = "B x H x Sq x Sk or 1s: added to scores"),
    FIELD(sinks, TENSOR, .zero = "none", .doc = "H: a logit that only takes part in the sum"),
    FIELD(dropout, F64, .zero = "none", .doc = "probability that a weight of attention is dropped"),
    FIELD(rng, TENSOR, .zero = "inferred with dropout", .doc = "dropout: s64, {seed, offset}"),
    FIELD(cu_q, TENSOR, .zero = "none", .doc = "packed q: s32, N + 1 offsets"),
    FIELD(cu_k, TENSOR, .zero = "none", .doc = "packed k and v: s32, N + 1 offsets"),
    FIELD(seq_q, TENSOR, .zero = "none", .doc = "padded q: s32, N lengths"),
    FIELD(seq_k, TENSOR, .zero = "none", .doc = "padded k and v: s32, N lengths"),
    FIELD(dbias, TENSOR, .zero = "none", .doc = "bwd_data: gradient of bias"),
    FIELD(dsinks, TENSOR, .zero = "none", .doc = "bwd_data: gradient of sinks"),
    FIELD(max_q, I64, .positive = true, .zero = "unknown",
          .doc = "longest expected sequence of queries, to choose by"),
    FIELD(max_k, I64, .positive = true, .zero = "unknown",
          .doc = "longest expected sequence of keys, to choose by"),
};

static const mica_scalar scalars[] = {[MICA_MHA_BETA] = {"beta", 0}};

mha_sizes mha_sizes_of(const mica_mha_desc *d)
{
    return (mha_sizes){d->q.dims[0], d->q.dims[1], d->k.dims[0], d->k.dims[1],
                       d->heads,     d->kv_heads,  d->head_dim,  d->value_dim,
                       d->q.dims[2], d->k.dims[2], d->v.dims[2], d->out.dims[2]};
}

static int64_t dim(const void *desc, char letter)
{
    const mha_sizes s = mha_sizes_of(desc);
    const struct {
        char letter;
        int64_t size;
    } sizes[] = {{'B', s.batch}, {'S', s.rows},     {'C', s.key_batch}, {'T', s.keys},
                 {'H', s.heads}, {'G', s.kv_heads}, {'D', s.d},         {'E', s.dv},
                 {'Q', s.eq},    {'K', s.ek},       {'V', s.ev},        {'O', s.eo}};
    int i = 0;
    if (letter == 'N') { /* sequences */
        const mica_mha_desc *d = desc;
        return mica_tensor_given(&d->cu_q) ? d->cu_q.dims[0] - 1 : s.batch;
    }
    while (sizes[i].letter != letter) i++;
    return sizes[i].size;
}

#define SUMS (MICA_TYPE(F64) | MICA_TYPE(F32))
#define ARG(member, FWD, DATA, WEIGHTS, TYPES, ...)                                                \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_mha_desc, member), .dir = {FWD, DATA, WEIGHTS},   \
        .types = TYPES, __VA_ARGS__                                                                \
    }
#define ALWAYS(N) .need = {N, N, N}
#define BETWEEN(FWD, DATA, WEIGHTS)                                                                \
    .need = {(FWD)*MICA_INFERRED, (DATA)*MICA_INFERRED, (WEIGHTS)*MICA_INFERRED}
static const mica_arg args[] = {
    [MICA_MHA_Q] = ARG(q, MICA_IN, MICA_OUT, MICA_IN, MICA_FLOATS, ALWAYS(MICA_NEEDED)),
    [MICA_MHA_K] = ARG(k, MICA_IN, MICA_OUT, MICA_IN, MICA_FLOATS, ALWAYS(MICA_INFERRED),
                       .like = "q", .dims = "CxTxK"),
    [MICA_MHA_V] = ARG(v, MICA_IN, MICA_OUT, MICA_IN, MICA_FLOATS, ALWAYS(MICA_INFERRED),
                       .like = "k", .dims = "CxTxV"),
    [MICA_MHA_WQ] = ARG(wq, MICA_IN, MICA_IN, MICA_OUT, MICA_FLOATS, ALWAYS(MICA_INFERRED),
                        .like = "q", .dims = "HDxQ"),
    [MICA_MHA_WK] = ARG(wk, MICA_IN, MICA_IN, MICA_OUT, MICA_FLOATS, ALWAYS(MICA_INFERRED),
                        .like = "q", .dims = "GDxK"),
    [MICA_MHA_WV] = ARG(wv, MICA_IN, MICA_IN, MICA_OUT, MICA_FLOATS, ALWAYS(MICA_INFERRED),
                        .like = "q", .dims = "GExV"),
    [MICA_MHA_WO] = ARG(wo, MICA_IN, MICA_IN, MICA_OUT, MICA_FLOATS, ALWAYS(MICA_INFERRED),
                        .like = "q", .dims = "OxHE"),
    [MICA_MHA_BQ] = ARG(bq, MICA_IN, MICA_UNUSED, MICA_OUT, MICA_FLOATS, .dims = "HD"),
    [MICA_MHA_BK] = ARG(bk, MICA_IN, MICA_UNUSED, MICA_OUT, MICA_FLOATS, .dims = "GD"),
    [MICA_MHA_BV] = ARG(bv, MICA_IN, MICA_UNUSED, MICA_OUT, MICA_FLOATS, .dims = "GE"),
    [MICA_MHA_BO] = ARG(bo, MICA_IN, MICA_UNUSED, MICA_OUT, MICA_FLOATS, .dims = "O"),
    [MICA_MHA_OUT] = ARG(out, MICA_OUT, MICA_IN, MICA_IN, MICA_FLOATS, ALWAYS(MICA_INFERRED),
                         .like = "q", .dims = "BxSxO"),
    [MICA_MHA_QH] = ARG(qh, MICA_OUT, MICA_IN, MICA_UNUSED, MICA_FLOATS, BETWEEN(1, 1, 0),
                        .like = "q", .dims = "BxHxSxD"),
    [MICA_MHA_KH] = ARG(kh, MICA_OUT, MICA_IN, MICA_UNUSED, MICA_FLOATS, BETWEEN(1, 1, 0),
                        .like = "q", .dims = "CxGxTxD"),
    [MICA_MHA_VH] = ARG(vh, MICA_OUT, MICA_IN, MICA_UNUSED, MICA_FLOATS, BETWEEN(1, 1, 0),
                        .like = "q", .dims = "CxGxTxE"),
    [MICA_MHA_OH] = ARG(oh, MICA_OUT, MICA_IN, MICA_IN, MICA_FLOATS, BETWEEN(1, 1, 1), .like = "q",
                        .dims = "BxHxSxE"),
    [MICA_MHA_LSE] = ARG(lse, MICA_OUT, MICA_IN, MICA_UNUSED, SUMS, BETWEEN(1, 1, 0), .like = "q",
                         .dims = "BxHxS", .sums = true),
    [MICA_MHA_DOH] = ARG(doh, MICA_UNUSED, MICA_OUT, MICA_UNUSED, MICA_FLOATS, BETWEEN(0, 1, 0),
                         .like = "q", .dims = "BxHxSxE"),
    [MICA_MHA_DQH] = ARG(dqh, MICA_UNUSED, MICA_OUT, MICA_IN, MICA_FLOATS, BETWEEN(0, 1, 1),
                         .like = "q", .dims = "BxHxSxD"),
    [MICA_MHA_DKH] = ARG(dkh, MICA_UNUSED, MICA_OUT, MICA_IN, MICA_FLOATS, BETWEEN(0, 1, 1),
                         .like = "q", .dims = "CxGxTxD"),
    [MICA_MHA_DVH] = ARG(dvh, MICA_UNUSED, MICA_OUT, MICA_IN, MICA_FLOATS, BETWEEN(0, 1, 1),
                         .like = "q", .dims = "CxGxTxE"),
    [MICA_MHA_MASK] =
        ARG(mask, MICA_IN, MICA_IN, MICA_UNUSED, MICA_TYPE(U8) | MICA_TYPE(BOOL), BETWEEN(0, 0, 0)),
    [MICA_MHA_SLOPES] =
        ARG(slopes, MICA_IN, MICA_IN, MICA_UNUSED, SUMS, .like = "q", .dims = "H", .sums = true),
    [MICA_MHA_BIAS] = ARG(bias, MICA_IN, MICA_IN, MICA_UNUSED, MICA_FLOATS, BETWEEN(0, 0, 0)),
    [MICA_MHA_SINKS] =
        ARG(sinks, MICA_IN, MICA_IN, MICA_UNUSED, MICA_FLOATS, .like = "q", .dims = "H"),
    [MICA_MHA_RNG] = ARG(rng, MICA_IN, MICA_IN, MICA_UNUSED, MICA_TYPE(S64), .dims = "2"),
    [MICA_MHA_CU_Q] = ARG(cu_q, MICA_IN, MICA_IN, MICA_UNUSED, MICA_TYPE(S32), BETWEEN(0, 0, 0)),
    [MICA_MHA_CU_K] = ARG(cu_k, MICA_IN, MICA_IN, MICA_UNUSED, MICA_TYPE(S32), BETWEEN(0, 0, 0)),
    [MICA_MHA_SEQ_Q] = ARG(seq_q, MICA_IN, MICA_IN, MICA_UNUSED, MICA_TYPE(S32), .dims = "N"),
    [MICA_MHA_SEQ_K] = ARG(seq_k, MICA_IN, MICA_IN, MICA_UNUSED, MICA_TYPE(S32), .dims = "N"),
    [MICA_MHA_DBIAS] = ARG(dbias, MICA_UNUSED, MICA_OUT, MICA_UNUSED, MICA_FLOATS, .with = "bias"),
    [MICA_MHA_DSINKS] = ARG(dsinks, MICA_UNUSED, MICA_OUT, MICA_UNUSED, MICA_FLOATS,
                            .like = "sinks", .with = "sinks"),
};
enum { ARGS = sizeof args / sizeof *args };

mica_attention_desc mha_attention(const mica_mha_desc *d)
{
    bool forward = d->pass == MICA_MHA_FWD;
    return (mica_attention_desc){.pass = forward ? MICA_ATTENTION_FWD : MICA_ATTENTION_BWD,
                                 .q = d->qh,
                                 .k = d->kh,
                                 .v = d->vh,
                                 .out = d->oh,
                                 .lse = d->lse,
                                 .dout = d->doh,
                                 .dq = d->dqh,
                                 .dk = d->dkh,
                                 .dv = d->dvh,
                                 .dbias = d->dbias,
                                 .dsinks = d->dsinks,
                                 .scale = d->scale,
                                 .soft_cap = d->soft_cap,
                                 .causal = d->causal,
                                 .window_left = d->window_left,
                                 .window_right = d->window_right,
                                 .align = d->align,
                                 .slopes = d->slopes,
                                 .bias = d->bias,
                                 .mask = d->mask,
                                 .sinks = d->sinks,
                                 .dropout = d->dropout,
                                 .rng = d->rng,
                                 .cu_q = d->cu_q,
                                 .cu_k = d->cu_k,
                                 .seq_q = d->seq_q,
                                 .seq_k = d->seq_k,
                                 .max_q = d->max_q,
                                 .max_k = d->max_k,
                                 .compute = d->compute};
}

/* ---- inference ---- */

/* Completes t, if it is absent or has a type only. */
static void infer_tensor(mica_tensor *t, mica_dtype type, int rank, const int64_t *dims)
{
    if (t->rank) return;
    if (mica_tensor_given(t)) type = t->dtype;
    *t = mica_tensor_packed(type, rank, dims);
}

/* Heads side by side in each row. */
static void infer_heads(mica_tensor *t, mica_dtype type, int64_t batch, int64_t heads, int64_t rows,
                        int64_t columns)
{
    if (t->rank) return;
    mica_tensor order = mica_tensor_packed(type, 4, (int64_t[]){batch, rows, heads, columns});
    int64_t between = order.strides[2];
    order.strides[2] = order.strides[1], order.strides[1] = between;
    infer_tensor(t, type, 4, (const int64_t[]){batch, heads, rows, columns});
    memcpy(t->strides, order.strides, sizeof t->strides);
}

static mica_status divide(int64_t width, int64_t heads, const char *what, int64_t *each,
                          mica_why *why)
{
    *each = width / heads;
    if (width % heads == 0) return MICA_OK;
    return mica_invalid(why, "%lld %s are no multiple of %lld heads", (long long)width, what,
                        (long long)heads);
}

static mica_status infer_numbers(mica_mha_desc *d, mica_why *why)
{
    const int64_t most = MICA_MOST_ELEMENTS;
    if (!d->kv_heads) d->kv_heads = d->heads;
    if (d->heads < 1 || d->heads > most || d->kv_heads < 1 || d->heads % d->kv_heads)
        return mica_invalid(why, "%lld heads, %lld of keys: there is one, and it is a multiple",
                            (long long)d->heads, (long long)d->kv_heads);
    if (d->head_dim == MICA_ZERO_INT) {
        d->head_dim = 0;
    } else if (!d->head_dim) {
        int64_t width = d->wq.rank == 2 ? d->wq.dims[0] : d->q.dims[2];
        MICA_TRY(divide(width, d->heads, d->wq.rank == 2 ? "rows of wq" : "columns of q",
                        &d->head_dim, why));
    }
    if (d->value_dim == MICA_ZERO_INT)
        d->value_dim = 0;
    else if (!d->value_dim && d->wv.rank == 2)
        MICA_TRY(divide(d->wv.dims[0], d->kv_heads, "rows of wv", &d->value_dim, why));
    else if (!d->value_dim)
        d->value_dim = d->head_dim;
    const int64_t dims[] = {d->head_dim, d->value_dim};
    for (int i = 0; i < 2; i++)
        if (dims[i] < 0 || dims[i] > MHA_MAX_DIM)
            return mica_invalid(why, "%s is %lld; heads of 0 to %d are legal",
                                i ? "value_dim" : "head_dim", (long long)dims[i], MHA_MAX_DIM);
    if (mica_left_out(d->scale)) d->scale = d->head_dim ? 1 / sqrt((double)d->head_dim) : 1;
    return MICA_OK;
}

static void infer_between(mica_mha_desc *d)
{
    mica_dtype t = d->q.dtype, stat = t == MICA_F64 ? MICA_F64 : MICA_F32;
    mha_sizes s = mha_sizes_of(d);
    const bool forward = d->pass == MICA_MHA_FWD, weights = d->pass == MICA_MHA_BWD_WEIGHTS;
    if (!weights) {
        infer_heads(&d->qh, t, s.batch, s.heads, s.rows, s.d);
        infer_heads(&d->kh, t, s.key_batch, s.kv_heads, s.keys, s.d);
        infer_heads(&d->vh, t, s.key_batch, s.kv_heads, s.keys, s.dv);
        infer_tensor(&d->lse, stat, 3, (const int64_t[]){s.batch, s.heads, s.rows});
    }
    infer_heads(&d->oh, t, s.batch, s.heads, s.rows, s.dv);
    if (forward) return;
    if (!weights) infer_heads(&d->doh, t, s.batch, s.heads, s.rows, s.dv);
    infer_heads(&d->dqh, t, s.batch, s.heads, s.rows, s.d);
    infer_heads(&d->dkh, t, s.key_batch, s.kv_heads, s.keys, s.d);
    infer_heads(&d->dvh, t, s.key_batch, s.kv_heads, s.keys, s.dv);
}

/* As attention has it. */
static void infer_scores(mica_mha_desc *d)
{
    if (d->causal == MICA_ATTENTION_BOTTOM_RIGHT) d->align = MICA_ATTENTION_ALIGN_BOTTOM_RIGHT;
    if (d->dropout != 0)
        infer_tensor(&d->rng, MICA_S64, 1, (const int64_t[]){2});
    else if (!d->rng.rank)
        memset(&d->rng, 0, sizeof d->rng);
    if (mica_tensor_given(&d->dbias) && mica_tensor_given(&d->bias))
        infer_tensor(&d->dbias, d->bias.dtype, 4, d->bias.dims);
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_mha_desc *d = desc;
    const mica_tensor *inputs[] = {&d->q, &d->k, &d->v};
    for (int i = 0; i < 3; i++) {
        if (i && !inputs[i]->rank) continue;
        if (!mica_tensor_given(inputs[i]) || inputs[i]->rank != 3)
            return mica_invalid(why, "%s has rank %d; q, k and v have 3 dimensions", args[i].name,
                                inputs[i]->rank);
    }
    infer_tensor(&d->k, d->q.dtype, 3, d->q.dims);
    infer_tensor(&d->v, d->k.dtype, 3, d->k.dims);
    MICA_TRY(infer_numbers(d, why));
    mica_dtype t = d->q.dtype;
    if (!d->out.rank) {
        int64_t width = d->wo.rank == 2 ? d->wo.dims[0] : d->q.dims[2];
        infer_tensor(&d->out, t, 3, (const int64_t[]){d->q.dims[0], d->q.dims[1], width});
    }
    if (d->out.rank != 3) return mica_invalid(why, "out has rank %d, it must have 3", d->out.rank);
    infer_between(d);
    infer_scores(d);
    return MICA_OK;
}

/* ---- checks ---- */

/* Rows, and columns of all heads, are counted together, also beside a 0. */
static mica_status check_sizes(const mha_sizes *s, mica_why *why)
{
    double rows = fmax((double)s->batch, 1) * fmax((double)s->rows, 1);
    double keys = fmax((double)s->key_batch, 1) * fmax((double)s->keys, 1);
    double all = fmax(rows, keys) * (double)s->heads;
    if (all > (double)MICA_MOST_ELEMENTS)
        return mica_invalid(why,
                            "%lld x %lld and %lld x %lld rows, %lld heads: at most 2^48 are legal",
                            (long long)s->batch, (long long)s->rows, (long long)s->key_batch,
                            (long long)s->keys, (long long)s->heads);
    return MICA_OK;
}

static mica_status check_types(const mica_mha_desc *d, mica_why *why)
{
    mica_dtype type = d->q.dtype, stat = type == MICA_F64 ? MICA_F64 : MICA_F32;
    for (int i = 0; i < MICA_MHA_MASK; i++) {
        const mica_tensor *t = mica_op_tensor(&mica_op_mha, d, i);
        bool bias = i >= MICA_MHA_BQ && i <= MICA_MHA_BO;
        bool gradient = i >= MICA_MHA_WQ && i <= MICA_MHA_WO && d->pass == MICA_MHA_BWD_WEIGHTS;
        if (!mica_tensor_given(t)) continue;
        if (i == MICA_MHA_LSE ? t->dtype == stat : t->dtype == type) continue;
        if ((bias || gradient) && t->dtype == stat) continue;
        return mica_invalid(why, "%s is %s, it must be %s%s", args[i].name,
                            mica_dtype_name(t->dtype),
                            mica_dtype_name(i == MICA_MHA_LSE ? stat : type),
                            (bias || gradient) && type != stat ? " or f32" : "");
    }
    return MICA_OK;
}

/* What scores are made of is attention's to judge. */
static mica_status check_attention(const mica_mha_desc *d, mica_why *why)
{
    mica_attention_desc child = mha_attention(d), resolved = {0};
    if (d->pass == MICA_MHA_BWD_WEIGHTS) return MICA_OK;
    return mica_op_resolve_child("attention", &child, &resolved, why);
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_mha_desc *d = desc;
    mha_sizes s = mha_sizes_of(d);
    if (!isfinite(d->scale)) return mica_invalid(why, "scale is %g, it must be finite", d->scale);
    MICA_TRY(check_types(d, why));
    MICA_TRY(check_sizes(&s, why));
    return check_attention(d, why);
}

/* ---- numbers ---- */

static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_mha_desc *d = desc;
    mha_sizes s = mha_sizes_of(d);
    double h = (double)s.heads, g = (double)s.kv_heads, width = (double)s.d, dv = (double)s.dv;
    double queries = (double)s.batch * (double)s.rows, keys = (double)s.key_batch * (double)s.keys;
    double projections = queries * h * (width * (double)s.eq + dv * (double)s.eo) +
                         keys * g * (width * (double)s.ek + dv * (double)s.ev);
    *flops = 0;
    if (d->pass != MICA_MHA_BWD_WEIGHTS) {
        mica_attention_desc child = mha_attention(d);
        mica_op_find("attention")->cost(&child, flops, bytes);
    }
    *flops += 2 * projections;
}

static int64_t largest(int count, const int64_t *numbers)
{
    int64_t most = 0;
    for (int i = 0; i < count; i++)
        if (numbers[i] > most) most = numbers[i];
    return most;
}

/* The longest sum, its bias and beta, and the roundings of a softmax. */
static int64_t terms(const void *desc)
{
    const mica_mha_desc *d = desc;
    mha_sizes s = mha_sizes_of(d);
    if (d->pass == MICA_MHA_BWD_WEIGHTS)
        return largest(2, (int64_t[]){s.batch * s.rows, s.key_batch * s.keys}) + 4;
    mica_attention_desc child = mha_attention(d);
    int64_t attention = mica_op_find("attention")->terms(&child);
    return largest(8, (int64_t[]){s.eq, s.ek, s.ev, s.eo, s.heads * s.d, s.heads * s.dv, s.d,
                                  attention}) +
           4;
}

/* Sums of products only. */
static bool exact(const void *desc)
{
    return ((const mica_mha_desc *)desc)->pass == MICA_MHA_BWD_WEIGHTS;
}

static const mica_engine *const engines[] = {&mica_mha_compose, &mica_engine_ref,
                                             &mica_mha_compose_cuda, NULL};

const mica_op mica_op_mha = {
    .name = "mha",
    .doc = "multi-head attention with its four projections, and both gradients",
    .desc_size = sizeof(mica_mha_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = ARGS,
    .scalars = scalars,
    .scalar_count = sizeof scalars / sizeof *scalars,
    .infer = infer,
    .dim = dim,
    .check = check,
    .cost = cost,
    .terms = terms,
    .exact = exact,
    .ulps = 8,
    .fill = mha_fill,
    .reference = mha_reference,
    .engines = engines,
};
