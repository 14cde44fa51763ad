/* SPDX-License-Identifier: Apache-2.0
 * Attention: fields, arguments, inference, checks, cost. */
#include "ops/attention/attention.h"

#include <math.h>
#include <string.h>

static const char *const passes[] = {"fwd", "bwd", NULL};
static const char *const causal_spellings[] = {"none", "top_left", "bottom_right", NULL};
static const char *const align_spellings[] = {"top_left", "bottom_right", NULL};
static const char *const compute_spellings[] = {"default", "tf32", NULL};

#define FIELD(member, kind, ...) MICA_FIELD(mica_attention_desc, member, kind, __VA_ARGS__)
static const mica_field fields[] = {
    FIELD(pass, ENUM, .spellings = passes, .doc = "fwd or bwd"),
    FIELD(q, TENSOR, .zero = "needed",
          .doc = "B x H x Sq x D; of 8 bits: engines may round weights to e4m3"),
    FIELD(k, TENSOR, .zero = "inferred", .doc = "B x Hk x Sk x D; with pages P x Hk x page x D"),
    FIELD(v, TENSOR, .zero = "inferred", .doc = "B x Hk x Sk x Dv; with pages P x Hk x page x Dv"),
    FIELD(out, TENSOR, .zero = "inferred", .doc = "B x H x Sq x Dv"),
    FIELD(lse, TENSOR, .zero = "none in fwd, inferred in bwd",
          .doc = "B x H x Sq: logarithm of the sum"),
    FIELD(dout, TENSOR, .zero = "inferred", .doc = "bwd: gradient of out"),
    FIELD(dq, TENSOR, .zero = "inferred", .doc = "bwd: gradient of q"),
    FIELD(dk, TENSOR, .zero = "inferred", .doc = "bwd: gradient of k"),
    FIELD(dv, TENSOR, .zero = "inferred", .doc = "bwd: gradient of v"),
    FIELD(dbias, TENSOR, .zero = "none", .doc = "bwd: gradient of bias"),
    FIELD(dsinks, TENSOR, .zero = "none", .doc = "bwd: gradient of sinks"),
    FIELD(scale_q, TENSOR, .zero = "none", .doc = "of 8-bit q: f32, 1 element or one per key head"),
    FIELD(scale_k, TENSOR, .zero = "none", .doc = "of 8-bit k: f32, 1 element or one per key head"),
    FIELD(scale_v, TENSOR, .zero = "none", .doc = "of 8-bit v: f32, 1 element or one per key head"),
    FIELD(scale, F64, .apart = true, .zero = "1 / sqrt(D), or 1 if D is 0", .doc = "of scores"),
    FIELD(soft_cap, F64, .zero = "none", .doc = "scores become soft_cap tanh(score / soft_cap)"),
    FIELD(causal, ENUM, .spellings = causal_spellings, .doc = "no key right of the diagonal"),
    FIELD(window_left, I64, .positive = true, .zero = "all",
          .doc = "keys up to the diagonal, itself counted"),
    FIELD(window_right, I64, .positive = true, .zero = "all",
          .doc = "keys from the diagonal on, itself counted"),
    FIELD(align, ENUM, .spellings = align_spellings,
          .doc = "corner in which the diagonal lies; of causal, if that is set"),
    FIELD(slopes, TENSOR, .zero = "none",
          .doc = "H: ALiBi, scores - slope * distance from the diagonal"),
    FIELD(bias, TENSOR, .zero = "none", .doc = "B x H x Sq x Sk or 1s: added to scores"),
    FIELD(mask, TENSOR, .zero = "none",
          .doc = "likewise, bool or u8: 0 where a query does not attend"),
    FIELD(sinks, TENSOR, .zero = "none", .doc = "H: a logit that only takes part in the sum"),
    FIELD(dropout, F64, .zero = "none", .doc = "probability that a weight is dropped"),
    FIELD(rng, TENSOR, .zero = "inferred with dropout", .doc = "dropout: s64, {seed, offset}"),
    FIELD(cu_q, TENSOR, .zero = "none", .doc = "packed q: s32, N + 1 offsets"),
    FIELD(cu_k, TENSOR, .zero = "none", .doc = "packed k and v: s32, N + 1 offsets"),
    FIELD(seq_q, TENSOR, .zero = "none", .doc = "padded q: s32, N lengths"),
    FIELD(seq_k, TENSOR, .zero = "none", .doc = "padded or paged k and v: s32, N lengths"),
    FIELD(pages, TENSOR, .zero = "none", .doc = "paged k and v: s32, N x pages of a sequence"),
    FIELD(max_q, I64, .positive = true, .zero = "unknown",
          .doc = "longest expected sequence of queries, to choose by"),
    FIELD(max_k, I64, .positive = true, .zero = "unknown",
          .doc = "longest expected sequence of keys, to choose by"),
    FIELD(compute, ENUM, .spellings = compute_spellings,
          .doc = "tf32 allows f32 inputs to be rounded to 11 bits"),
    FIELD(diagonal, I64, .zero = "in its corner",
          .doc = "keys that the diagonal lies right of its corner, below 0 left of it"),
    FIELD(scores, TENSOR, .zero = "none",
          .doc = "B x H x Sq x Sk: what weights are made of, -inf where a query does not attend"),
    FIELD(weights, TENSOR, .zero = "none", .doc = "likewise: of values, before dropout"),
};

/* N sequences, H heads of D, G of keys, S and T rows of q and k; M is what lies behind N in k. */
static int64_t dim(const void *desc, char letter)
{
    const mica_attention_desc *d = desc;
    switch (letter) {
    case 'N':
        return mica_tensor_given(&d->cu_q) ? d->cu_q.dims[0] - 1 : d->q.dims[0];
    case 'B':
        return d->q.dims[0];
    case 'H':
        return d->q.dims[1];
    case 'S':
        return d->q.dims[2];
    case 'D':
        return d->q.dims[3];
    case 'M':
        return d->k.dims[0];
    case 'G':
        return d->k.dims[1];
    case 'T':
        return d->k.dims[2];
    default: /* E */
        return d->v.dims[3];
    }
}

#define EIGHT_BITS (MICA_TYPE(E4M3) | MICA_TYPE(E5M2))
#define SUMS       (MICA_TYPE(F64) | MICA_TYPE(F32))
#define ARG(member, fwd, bwd, TYPES, ...)                                                          \
    {                                                                                              \
        .name = #member, .tensor = offsetof(mica_attention_desc, member), .dir = {fwd, bwd},       \
        .types = TYPES, __VA_ARGS__                                                                \
    }
#define ALWAYS(N) .need = {N, N}
#define BACKWARD  .need = {0, MICA_INFERRED}
static const mica_arg args[] = {
    [MICA_ATTENTION_Q] = ARG(q, MICA_IN, MICA_IN, MICA_FLOATS | EIGHT_BITS, ALWAYS(MICA_NEEDED)),
    [MICA_ATTENTION_K] = ARG(k, MICA_IN, MICA_IN, MICA_FLOATS | EIGHT_BITS | MICA_TYPE(S8),
                             ALWAYS(MICA_INFERRED), .like = "q", .dims = "MxGxTxD"),
    [MICA_ATTENTION_V] = ARG(v, MICA_IN, MICA_IN, MICA_FLOATS | EIGHT_BITS | MICA_TYPE(S8),
                             ALWAYS(MICA_INFERRED), .like = "k", .dims = "MxGxTxE"),
    [MICA_ATTENTION_OUT] = ARG(out, MICA_OUT, MICA_IN, MICA_FLOATS, ALWAYS(MICA_INFERRED),
                               .like = "q", .dims = "BxHxSxE"),
    [MICA_ATTENTION_LSE] =
        ARG(lse, MICA_OUT, MICA_IN, SUMS, BACKWARD, .like = "q", .dims = "BxHxS", .sums = true),
    [MICA_ATTENTION_DOUT] = ARG(dout, MICA_UNUSED, MICA_IN, MICA_FLOATS, BACKWARD, .like = "out"),
    [MICA_ATTENTION_DQ] = ARG(dq, MICA_UNUSED, MICA_OUT, MICA_FLOATS, BACKWARD, .like = "q"),
    [MICA_ATTENTION_DK] = ARG(dk, MICA_UNUSED, MICA_OUT, MICA_FLOATS, BACKWARD, .like = "k"),
    [MICA_ATTENTION_DV] = ARG(dv, MICA_UNUSED, MICA_OUT, MICA_FLOATS, BACKWARD, .like = "v"),
    [MICA_ATTENTION_DBIAS] = ARG(dbias, MICA_UNUSED, MICA_OUT, MICA_FLOATS, .with = "bias"),
    [MICA_ATTENTION_DSINKS] =
        ARG(dsinks, MICA_UNUSED, MICA_OUT, MICA_FLOATS, .like = "sinks", .with = "sinks"),
    [MICA_ATTENTION_SCALE_Q] = ARG(scale_q, MICA_IN, MICA_UNUSED, MICA_TYPE(F32), .refused = true),
    [MICA_ATTENTION_SCALE_K] = ARG(scale_k, MICA_IN, MICA_UNUSED, MICA_TYPE(F32), .refused = true),
    [MICA_ATTENTION_SCALE_V] = ARG(scale_v, MICA_IN, MICA_UNUSED, MICA_TYPE(F32), .refused = true),
    [MICA_ATTENTION_SLOPES] =
        ARG(slopes, MICA_IN, MICA_IN, SUMS, .like = "q", .dims = "H", .sums = true),
    [MICA_ATTENTION_BIAS] = ARG(bias, MICA_IN, MICA_IN, MICA_FLOATS, ALWAYS(0)),
    [MICA_ATTENTION_MASK] = ARG(mask, MICA_IN, MICA_IN, MICA_TYPE(U8) | MICA_TYPE(BOOL), ALWAYS(0)),
    [MICA_ATTENTION_SINKS] = ARG(sinks, MICA_IN, MICA_IN, MICA_FLOATS, .like = "q", .dims = "H"),
    [MICA_ATTENTION_RNG] = ARG(rng, MICA_IN, MICA_IN, MICA_TYPE(S64), .dims = "2"),
    [MICA_ATTENTION_CU_Q] = ARG(cu_q, MICA_IN, MICA_IN, MICA_TYPE(S32), ALWAYS(0)),
    [MICA_ATTENTION_CU_K] = ARG(cu_k, MICA_IN, MICA_IN, MICA_TYPE(S32), ALWAYS(0)),
    [MICA_ATTENTION_SEQ_Q] = ARG(seq_q, MICA_IN, MICA_IN, MICA_TYPE(S32), .dims = "N"),
    [MICA_ATTENTION_SEQ_K] = ARG(seq_k, MICA_IN, MICA_IN, MICA_TYPE(S32), .dims = "N"),
    [MICA_ATTENTION_PAGES] = ARG(pages, MICA_IN, MICA_IN, MICA_TYPE(S32), ALWAYS(0)),
    [MICA_ATTENTION_SCORES] = ARG(scores, MICA_OUT, MICA_UNUSED, MICA_FLOATS, .like = "q",
                                  .dims = "BxHxSxT", .refused = true),
    [MICA_ATTENTION_WEIGHTS] = ARG(weights, MICA_OUT, MICA_UNUSED, MICA_FLOATS, .like = "q",
                                   .dims = "BxHxSxT", .refused = true),
};

/* ---- inference ---- */

/* Completes t, if it is absent or has a type only. */
static void infer_tensor(mica_tensor *t, mica_dtype type, int rank, const int64_t *dims,
                         const mica_tensor *order)
{
    if (t->rank) return;
    if (mica_tensor_given(t)) type = t->dtype;
    *t = mica_tensor_packed(type, rank, dims);
    if (order) mica_tensor_strides_like(t, order);
}

static bool is_eight_bit(mica_dtype t)
{
    return t == MICA_E4M3 || t == MICA_E5M2 || t == MICA_S8;
}

static mica_status infer(void *desc, mica_why *why)
{
    mica_attention_desc *d = desc;
    const mica_tensor *given[] = {&d->q, &d->k, &d->v};
    for (int i = 0; i < 3; i++) {
        if (i && !given[i]->rank) continue;
        if (!mica_tensor_given(given[i]) || given[i]->rank != 4)
            return mica_invalid(why, "%s has rank %d; q, k and v have 4 dimensions", args[i].name,
                                given[i]->rank);
    }
    infer_tensor(&d->k, d->q.dtype, 4, d->q.dims, &d->q);
    infer_tensor(&d->v, d->k.dtype, 4, d->k.dims, &d->k);
    const int64_t *q = d->q.dims;
    const int64_t out_dims[] = {q[0], q[1], q[2], d->v.dims[3]};
    mica_dtype out = is_eight_bit(d->q.dtype) ? MICA_F32 : d->q.dtype;
    infer_tensor(&d->out, out, 4, out_dims, &d->q);
    if (mica_left_out(d->scale)) d->scale = q[3] ? 1 / sqrt((double)q[3]) : 1;
    if (d->causal == MICA_ATTENTION_BOTTOM_RIGHT) d->align = MICA_ATTENTION_ALIGN_BOTTOM_RIGHT;
    if (d->dropout != 0)
        infer_tensor(&d->rng, MICA_S64, 1, (const int64_t[]){2}, NULL);
    else if (!d->rng.rank)
        memset(&d->rng, 0, sizeof d->rng);
    if (mica_tensor_given(&d->dbias) && mica_tensor_given(&d->bias))
        infer_tensor(&d->dbias, d->dbias.dtype, 4, d->bias.dims, NULL);
    return MICA_OK;
}

/* ---- checks ---- */

static bool is_narrow(mica_dtype t)
{
    return t == MICA_F32 || t == MICA_F16 || t == MICA_BF16;
}

static mica_status bad_type(const mica_tensor *t, const char *name, const char *rule, mica_why *why)
{
    return mica_invalid(why, "%s is %s, it must be %s", name, mica_dtype_name(t->dtype), rule);
}

static mica_status check_input_types(const mica_attention_desc *d, mica_why *why)
{
    mica_dtype q = d->q.dtype;
    bool bwd = d->pass == MICA_ATTENTION_BWD;
    if (!mica_dtype_is_common(q) && q != MICA_E4M3 && q != MICA_E5M2)
        return bad_type(&d->q, "q", "f64, f32, f16, bf16, e4m3 or e5m2", why);
    if (bwd && is_eight_bit(q)) return bad_type(&d->q, "q", "f64, f32, f16 or bf16 in bwd", why);
    const mica_tensor *kv[] = {&d->k, &d->v};
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "v" : "k";
        mica_dtype t = kv[i]->dtype;
        bool eight = is_eight_bit(t);
        if (eight != is_eight_bit(d->k.dtype))
            return mica_invalid(why, "v is %s, k %s; both or none have 8 bits",
                                mica_dtype_name(d->v.dtype), mica_dtype_name(d->k.dtype));
        if (eight && bwd) return bad_type(kv[i], name, "of q's type in bwd", why);
        if (is_eight_bit(q) && (!eight || t == MICA_S8))
            return bad_type(kv[i], name, "e4m3 or e5m2 beside an 8-bit q", why);
        if (!is_eight_bit(q) && t != q && !(eight && is_narrow(q)))
            return bad_type(kv[i], name, "of q's type, or of 8 bits beside f32, f16 or bf16", why);
    }
    return MICA_OK;
}

static mica_status check_output_types(const mica_attention_desc *d, mica_why *why)
{
    mica_dtype q = d->q.dtype;
    bool eight = is_eight_bit(q);
    const mica_tensor *likes[] = {&d->out, &d->dout,   &d->dq,     &d->dk,
                                  &d->dv,  &d->scores, &d->weights};
    const char *const names[] = {"out", "dout", "dq", "dk", "dv", "scores", "weights"};
    for (int i = 0; i < 7; i++) {
        if (!mica_tensor_given(likes[i])) continue;
        mica_dtype t = likes[i]->dtype;
        if (eight ? !is_narrow(t) : t != q && !(t == MICA_F32 && q != MICA_F64))
            return bad_type(likes[i], names[i],
                            eight           ? "f32, f16 or bf16 with an 8-bit q"
                            : q == MICA_F64 ? "f64 with an f64 q"
                                            : "of q's type or f32",
                            why);
    }
    const mica_tensor *floats[] = {&d->bias, &d->sinks, &d->dbias, &d->dsinks};
    const char *const float_names[] = {"bias", "sinks", "dbias", "dsinks"};
    for (int i = 0; i < 4; i++) {
        if (!mica_tensor_given(floats[i])) continue;
        if (q == MICA_F64 ? floats[i]->dtype != MICA_F64 : !is_narrow(floats[i]->dtype))
            return bad_type(floats[i], float_names[i],
                            q == MICA_F64 ? "f64 with an f64 q" : "f32, f16 or bf16", why);
    }
    return MICA_OK;
}

/* t, if given, has exactly these dimensions. */
static mica_status check_dims(const mica_tensor *t, const char *name, int rank, const int64_t *dims,
                              mica_why *why)
{
    if (!mica_tensor_given(t)) return MICA_OK;
    if (t->rank != rank)
        return mica_invalid(why, "%s has rank %d, it must have %d", name, t->rank, rank);
    for (int i = 0; i < rank; i++)
        if (t->dims[i] != dims[i])
            return mica_invalid(why, "dimension %d of %s is %lld, it must be %lld", i, name,
                                (long long)t->dims[i], (long long)dims[i]);
    return MICA_OK;
}

static mica_status check_heads(const mica_attention_desc *d, mica_why *why)
{
    const int64_t *q = d->q.dims, *k = d->k.dims, *v = d->v.dims;
    if (q[3] > ATTENTION_MAX_DIM || v[3] > ATTENTION_MAX_DIM)
        return mica_invalid(why, "D is %lld, Dv %lld; heads of at most %d are legal",
                            (long long)q[3], (long long)v[3], ATTENTION_MAX_DIM);
    if (k[1] ? q[1] % k[1] != 0 : q[1] != 0)
        return mica_invalid(why, "q has %lld heads, k %lld: it must be a multiple", (long long)q[1],
                            (long long)k[1]);
    return MICA_OK;
}

/* ---- lengths ---- */

static mica_status check_offsets(const mica_tensor *cu, const char *name, const mica_tensor *seq,
                                 const mica_tensor *rows, const char *rows_name, mica_why *why)
{
    if (!mica_tensor_given(cu)) return MICA_OK;
    if (cu->rank != 1 || cu->dims[0] < 1)
        return mica_invalid(why, "%s has rank %d and %lld elements, it is a list of N + 1", name,
                            cu->rank, (long long)mica_tensor_count(cu));
    if (rows->dims[0] != 1)
        return mica_invalid(why, "with %s %s is 1 x H x rows x D, it begins with %lld", name,
                            rows_name, (long long)rows->dims[0]);
    if (mica_tensor_given(seq))
        return mica_invalid(why, "%s and seq_%s exclude each other", name, rows_name);
    return MICA_OK;
}

static mica_status check_lengths(const mica_attention_desc *d, mica_why *why)
{
    MICA_TRY(check_offsets(&d->cu_q, "cu_q", &d->seq_q, &d->q, "q", why));
    MICA_TRY(check_offsets(&d->cu_k, "cu_k", &d->seq_k, &d->k, "k", why));
    bool paged = mica_tensor_given(&d->pages);
    if (paged && mica_tensor_given(&d->cu_k))
        return mica_invalid(why, "pages and cu_k exclude each other");
    if (paged && !mica_tensor_given(&d->seq_k))
        return mica_invalid(why, "with pages seq_k is needed: it says how many keys count");
    if (paged && d->pass == MICA_ATTENTION_BWD)
        return mica_invalid(why, "pages are for fwd: gradients of a pool have no meaning");
    if (paged && d->pages.rank != 2)
        return mica_invalid(why, "pages has rank %d, it must have 2", d->pages.rank);
    if (paged && (double)d->pages.dims[1] * (double)d->k.dims[2] > (double)MICA_MOST_ELEMENTS)
        return mica_invalid(why, "%lld pages of %lld keys: at most 2^48 keys are legal",
                            (long long)d->pages.dims[1], (long long)d->k.dims[2]);
    int64_t n = mica_tensor_given(&d->cu_q) ? d->cu_q.dims[0] - 1 : d->q.dims[0];
    int64_t m = mica_tensor_given(&d->cu_k) ? d->cu_k.dims[0] - 1
                : paged                     ? d->pages.dims[0]
                                            : d->k.dims[0];
    if (n != m)
        return mica_invalid(why, "q has %lld sequences, k %lld; they must agree", (long long)n,
                            (long long)m);
    return MICA_OK;
}

/* ---- what enters scores ---- */

static mica_status check_broadcast(const mica_attention_desc *d, const mica_tensor *t,
                                   const char *name, mica_why *why)
{
    if (!mica_tensor_given(t)) return MICA_OK;
    attention_shape s;
    attention_shape_make(d, &s);
    if (mica_tensor_given(&d->cu_q) || mica_tensor_given(&d->cu_k))
        return mica_invalid(why, "%s is for batches: packed sequences have no common rows", name);
    if (t->rank != 4) return mica_invalid(why, "%s has rank %d, it must have 4", name, t->rank);
    const int64_t dims[] = {s.sequences, s.heads, s.rows, s.keys};
    for (int i = 0; i < 4; i++)
        if (t->dims[i] != 1 && t->dims[i] != dims[i])
            return mica_invalid(why, "dimension %d of %s is %lld, it must be 1 or %lld", i, name,
                                (long long)t->dims[i], (long long)dims[i]);
    return MICA_OK;
}

static mica_status check_scale_tensor(const mica_attention_desc *d, const mica_tensor *t,
                                      const char *name, const mica_tensor *of, mica_why *why)
{
    if (!mica_tensor_given(t)) return MICA_OK;
    if (!is_eight_bit(of->dtype))
        return mica_invalid(why, "%s is for 8-bit types, %s is %s", name, name + 6,
                            mica_dtype_name(of->dtype));
    if (t->rank != 1 || (t->dims[0] != 1 && t->dims[0] != d->k.dims[1]))
        return mica_invalid(why, "%s has %lld elements in %d dimensions, it is a list of 1 or %lld",
                            name, (long long)mica_tensor_count(t), t->rank,
                            (long long)d->k.dims[1]);
    return MICA_OK;
}

/* scores and weights have common rows and keys, and are made by products of q and k as they are. */
static mica_status check_results(const mica_attention_desc *d, mica_why *why)
{
    const char *name = mica_tensor_given(&d->scores)    ? "scores"
                       : mica_tensor_given(&d->weights) ? "weights"
                                                        : NULL;
    if (!name) return MICA_OK;
    if (mica_tensor_given(&d->cu_q) || mica_tensor_given(&d->cu_k) || mica_tensor_given(&d->pages))
        return mica_invalid(
            why, "%s are for batches: packed and paged sequences have no common rows", name);
    if (is_eight_bit(d->k.dtype))
        return mica_invalid(why, "%s are for q and k of 16 bits and more, k is %s", name,
                            mica_dtype_name(d->k.dtype));
    return MICA_OK;
}

static mica_status check_extras(const mica_attention_desc *d, mica_why *why)
{
    MICA_TRY(check_broadcast(d, &d->bias, "bias", why));
    MICA_TRY(check_broadcast(d, &d->mask, "mask", why));
    MICA_TRY(check_dims(&d->dbias, "dbias", 4, d->bias.dims, why));
    if (mica_tensor_given(&d->rng) && d->dropout == 0)
        return mica_invalid(why, "rng without dropout");
    MICA_TRY(check_results(d, why));
    MICA_TRY(check_scale_tensor(d, &d->scale_q, "scale_q", &d->q, why));
    MICA_TRY(check_scale_tensor(d, &d->scale_k, "scale_k", &d->k, why));
    return check_scale_tensor(d, &d->scale_v, "scale_v", &d->v, why);
}

static mica_status check_numbers(const mica_attention_desc *d, mica_why *why)
{
    if (!isfinite(d->scale)) return mica_invalid(why, "scale is %g, it must be finite", d->scale);
    if (!(d->soft_cap >= 0) || !isfinite(d->soft_cap))
        return mica_invalid(why, "soft_cap is %g, it must be 0 or positive", d->soft_cap);
    if (!(d->dropout >= 0 && d->dropout < 1))
        return mica_invalid(why, "dropout is %g, it must be 0 or more and below 1", d->dropout);
    const int64_t numbers[] = {d->window_left, d->window_right, d->max_q, d->max_k};
    const char *const names[] = {"window_left", "window_right", "max_q", "max_k"};
    for (int i = 0; i < 4; i++)
        if (numbers[i] < 0 || (i >= 2 && numbers[i] > MICA_MOST_ELEMENTS))
            return mica_invalid(why, "%s is %lld, it must be 0 or more and max_* at most 2^48",
                                names[i], (long long)numbers[i]);
    if (d->diagonal < -MICA_MOST_ELEMENTS || d->diagonal > MICA_MOST_ELEMENTS)
        return mica_invalid(why, "diagonal is %lld, at most 2^48 keys to a side are legal",
                            (long long)d->diagonal);
    if (d->causal != MICA_ATTENTION_NOT_CAUSAL && d->window_right)
        return mica_invalid(why, "window_right is %lld, but causal leaves nothing on the right",
                            (long long)d->window_right);
    if (d->causal == MICA_ATTENTION_TOP_LEFT && d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT)
        return mica_invalid(why, "causal=top_left and align=bottom_right contradict each other");
    return MICA_OK;
}

static mica_status check(const void *desc, mica_why *why)
{
    const mica_attention_desc *d = desc;
    MICA_TRY(check_input_types(d, why));
    MICA_TRY(check_output_types(d, why));
    MICA_TRY(check_heads(d, why));
    MICA_TRY(check_lengths(d, why));
    MICA_TRY(check_extras(d, why));
    return check_numbers(d, why);
}

/* ---- numbers ---- */

/* Pairs of a query and a key of one head, all sequences as long as they can be. Packed ones are
 * taken as equally long. */
static double pairs(const mica_attention_desc *d)
{
    attention_shape s;
    attention_shape_make(d, &s);
    double n = (double)s.sequences, rows = (double)s.rows, keys = (double)s.keys;
    if (n > 0 && mica_tensor_given(&d->cu_q)) rows = d->max_q ? (double)d->max_q : rows / n;
    if (n > 0 && mica_tensor_given(&d->cu_k)) keys = d->max_k ? (double)d->max_k : keys / n;
    double seen = 0;
    /* At most so many rows are looked at; between them it is a straight line. */
    enum { SAMPLES = 256 };
    int64_t q = (int64_t)rows, k = (int64_t)keys, shift = attention_shift(d, q, k);
    int64_t samples = q < SAMPLES ? q : SAMPLES;
    for (int64_t i = 0; i < samples; i++) {
        int64_t row = samples == q ? i : (int64_t)(((double)i + 0.5) * rows / SAMPLES);
        attention_range r = attention_range_of(d, shift, k, row);
        seen += (double)(r.to - r.from) * rows / (double)samples;
    }
    return n * (double)s.heads * seen;
}

/* Two products forward, five backward. */
static void cost(const void *desc, double *flops, double *bytes)
{
    const mica_attention_desc *d = desc;
    (void)bytes;
    double qk = 2 * (double)d->q.dims[3], pv = 2 * (double)d->v.dims[3];
    *flops = pairs(d) * (d->pass == MICA_ATTENTION_FWD ? qk + pv : 3 * qk + 2 * pv);
}

mica_status attention_check_results(const mica_attention_desc *d, mica_why *why)
{
    if (mica_tensor_given(&d->scores))
        return mica_refuse(why, "scores are wanted: compose has them");
    if (mica_tensor_given(&d->weights))
        return mica_refuse(why, "weights are wanted: compose has them");
    return MICA_OK;
}

mica_status attention_check_corner(const mica_attention_desc *d, mica_why *why)
{
    MICA_TRY(attention_check_results(d, why));
    if (d->diagonal)
        return mica_refuse(why, "diagonal is %lld, this engine's lies in a corner",
                           (long long)d->diagonal);
    return MICA_OK;
}

static const mica_engine *const engines[] = {&mica_attention_bf16,
                                             &mica_attention_cpu,
                                             &mica_attention_compose,
                                             &mica_engine_ref,
                                             &mica_attention_decode,
                                             &mica_attention_latent,
                                             &mica_attention_sm90,
                                             &mica_attention_sm90_f8,
                                             &mica_attention_sm90_bwd,
                                             &mica_attention_sm80,
                                             &mica_attention_cuda,
                                             &mica_attention_compose_cuda,
                                             NULL};

const mica_op mica_op_attention = {
    .name = "attention",
    .doc = "scaled dot-product attention, and its gradients",
    .desc_size = sizeof(mica_attention_desc),
    .fields = fields,
    .field_count = sizeof fields / sizeof *fields,
    .args = args,
    .arg_count = sizeof args / sizeof *args,
    .infer = infer,
    .dim = dim,
    .check = check,
    .cost = cost,
    .terms = attention_terms,
    .exact = attention_exact,
    .ulps = 4,
    .fill = attention_fill,
    .reference = attention_reference,
    .engines = engines,
};
