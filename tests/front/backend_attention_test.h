/* SPDX-License-Identifier: Apache-2.0
 * Attention for tests: values and what is expected of them, and the graphs that cuDNN's frontend
 * makes. Each graph has to become mica's attention: that is looked up in the text of the plan. */
#ifndef BACKEND_ATTENTION_TEST_H
#define BACKEND_ATTENTION_TEST_H

#include "backend_test.h"

typedef struct problem {
    mica_dtype type;
    int b, h, hk, sq, sk, d;
    bool rows_first; /* B x S x H x D in memory */
    bool causal, bias, stats;
    int odd; /* none that mica knows: 1 a tanh, 2 the bias scaled too, 3 scores used elsewhere */
    double keep;                  /* 0: no dropout */
    float scale;                  /* 0: 1 / sqrt(d) */
    const int32_t *len_q, *len_k; /* of each sequence; NULL: sq, sk */
} problem;

typedef struct values {
    array q, k, v, o, bias, stats, dout, dq, dk, dv, d, sum;
    float scale, fill, factor, drop_scale;
    int64_t seed, offset;
    void *random[2];  /* seed and offset on the device */
    double *p, *mask; /* B x H x Sq x Sk */
} values;

static inline mica_tensor shaped(mica_dtype type, int b, int h, int s, int d, bool rows_first)
{
    mica_tensor t = mica_tensor_packed(type, 4, (const int64_t[]){b, h, s, d});
    if (!rows_first) return t;
    t.strides[1] = d, t.strides[2] = (int64_t)h * d;
    return t;
}

static inline mica_tensor swapped(mica_tensor t)
{
    const int64_t dim = t.dims[2], stride = t.strides[2];
    t.dims[2] = t.dims[3], t.strides[2] = t.strides[3];
    t.dims[3] = dim, t.strides[3] = stride;
    return t;
}

static inline array random_array(mica_tensor t)
{
    array a = array_of(t, type_of(t.dtype));
    for (int64_t i = 0; i < a.count; i++) a.v[i] = (draw(65) - 32) / 32.0;
    array_write(&a);
    return a;
}

static inline array empty_array(mica_tensor t)
{
    array a = array_of(t, type_of(t.dtype));
    for (int64_t i = 0; i < a.count; i++) a.v[i] = NAN;
    array_write(&a);
    return a;
}

/* Philox4x32-10. */
static inline void philox(uint64_t seed, const uint32_t *counter, uint32_t *words)
{
    uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, c[4];
    memcpy(c, counter, sizeof c);
    for (int round = 0; round < 10; round++, k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u) {
        const uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t next[] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                                 (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        memcpy(c, next, sizeof c);
    }
    memcpy(words, c, sizeof c);
}

static inline double kept(const problem *p, const values *s, int64_t n, int64_t h, int64_t i,
                          int64_t j)
{
    uint32_t words[4];
    if (p->keep == 0) return 1;
    philox((uint64_t)s->seed,
           (const uint32_t[]){(uint32_t)j / 4, (uint32_t)i, (uint32_t)(n * p->h + h),
                              (uint32_t)s->offset},
           words);
    return words[j % 4] < (uint32_t)floor((1 - (double)(float)p->keep) * 0x1p32) ? 0 : 1;
}

static inline int64_t place(const array *a, int64_t n, int64_t h, int64_t i, int64_t j)
{
    return ((n * a->t.dims[1] + h) * a->t.dims[2] + i) * a->t.dims[3] + j;
}

static inline values set_up(const problem *p)
{
    values s = {.fill = -INFINITY, .seed = 0x123456789abcdef, .offset = 7, .factor = 1};
    s.scale = p->scale > 0 ? p->scale : (float)(1 / sqrt(p->d));
    s.q = random_array(shaped(p->type, p->b, p->h, p->sq, p->d, p->rows_first));
    s.k = random_array(shaped(p->type, p->b, p->hk, p->sk, p->d, p->rows_first));
    s.v = random_array(shaped(p->type, p->b, p->hk, p->sk, p->d, p->rows_first));
    s.o = empty_array(s.q.t);
    s.stats = empty_array(shaped(MICA_F32, p->b, p->h, p->sq, 1, false));
    s.bias = random_array(shaped(p->type, p->b, 1, p->sq, p->sk, false));
    s.dout = random_array(shaped(p->type, p->b, p->h, p->sq, p->d, false));
    s.dq = empty_array(s.q.t);
    s.dk = empty_array(s.k.t);
    s.dv = empty_array(s.v.t);
    s.d = empty_array(s.stats.t);
    s.sum = empty_array(shaped(MICA_F32, p->b, p->h, p->sq, p->d, false));
    s.drop_scale = p->keep > 0 ? (float)(1 / p->keep) : 1;
    if (p->keep > 0) s.factor = (float)p->keep;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mica_malloc(memory, 8, &s.random[i]), MICA_OK);
        assert_int_equal(mica_upload(memory, s.random[i], i ? &s.offset : &s.seed, 8, NULL),
                         MICA_OK);
    }
    const size_t weights = (size_t)(p->b * p->h * p->sq * p->sk);
    s.p = calloc(weights, sizeof *s.p);
    s.mask = calloc(weights, sizeof *s.mask);
    return s;
}

static inline void tear_down(values *s)
{
    array *all[] = {&s->q,    &s->k,  &s->v,  &s->o,  &s->bias, &s->stats,
                    &s->dout, &s->dq, &s->dk, &s->dv, &s->d,    &s->sum};
    for (int i = 0; i < 12; i++) array_free(all[i]);
    for (int i = 0; i < 2; i++) mica_free(memory, s->random[i]);
    free(s->p);
    free(s->mask);
}

static inline bool is_padding(const problem *p, int64_t n, int64_t i, int64_t j)
{
    return p->len_q && (i >= p->len_q[n] || j >= p->len_k[n]);
}

/* Weights, statistics and results, in double precision. */
static inline void forward(const problem *p, values *s, double *out, double *stats)
{
    for (int64_t n = 0; n < p->b; n++)
        for (int64_t h = 0; h < p->h; h++)
            for (int64_t i = 0; i < p->sq; i++) {
                const int64_t g = h / (p->h / p->hk), row = (n * p->h + h) * p->sq + i;
                double *w = s->p + row * p->sk, *m = s->mask + row * p->sk, sum = 0,
                       max = -INFINITY;
                for (int64_t j = 0; j < p->sk; j++) {
                    double dot = 0;
                    for (int64_t c = 0; c < p->d; c++)
                        dot += s->q.v[place(&s->q, n, h, i, c)] * s->k.v[place(&s->k, n, g, j, c)];
                    w[j] = dot * (double)s->scale;
                    if (p->odd == 1) w[j] = tanh(w[j]);
                    if (p->bias)
                        w[j] += s->bias.v[place(&s->bias, n, 0, i, j)] *
                                (p->odd == 2 ? (double)s->scale : 1);
                    if (p->causal && j > i) w[j] = -INFINITY;
                    if (is_padding(p, n, i, j)) w[j] = -INFINITY;
                    max = fmax(max, w[j]);
                    m[j] = kept(p, s, n, h, i, j);
                }
                const bool none = isinf(max); /* it attends to nothing */
                for (int64_t j = 0; j < p->sk; j++) sum += none ? 0 : exp(w[j] - max);
                for (int64_t j = 0; j < p->sk; j++) w[j] = none ? 0 : exp(w[j] - max) / sum;
                stats[row] = none ? -INFINITY : max + log(sum);
                for (int64_t c = 0; c < p->d; c++) {
                    double total = 0;
                    for (int64_t j = 0; j < p->sk; j++)
                        total +=
                            w[j] * m[j] * (double)s->drop_scale * s->v.v[place(&s->v, n, g, j, c)];
                    out[row * p->d + c] = total;
                }
            }
}

static inline void backward(const problem *p, values *s, const double *out, double *dq, double *dk,
                            double *dv)
{
    for (int64_t n = 0; n < p->b; n++)
        for (int64_t h = 0; h < p->h; h++)
            for (int64_t i = 0; i < p->sq; i++) {
                const int64_t g = h / (p->h / p->hk), row = (n * p->h + h) * p->sq + i;
                const double *w = s->p + row * p->sk, *m = s->mask + row * p->sk;
                double rows = 0;
                for (int64_t c = 0; c < p->d; c++)
                    rows += s->dout.v[place(&s->dout, n, h, i, c)] * out[row * p->d + c];
                for (int64_t j = 0; j < p->sk; j++) {
                    double dp = 0;
                    for (int64_t c = 0; c < p->d; c++) {
                        const double o = s->dout.v[place(&s->dout, n, h, i, c)];
                        dp += o * s->v.v[place(&s->v, n, g, j, c)];
                        dv[place(&s->v, n, g, j, c)] += w[j] * m[j] * (double)s->drop_scale * o;
                    }
                    const double ds =
                        (dp * m[j] * (double)s->drop_scale - rows) * w[j] * (double)s->scale;
                    for (int64_t c = 0; c < p->d; c++) {
                        dq[row * p->d + c] += ds * s->k.v[place(&s->k, n, g, j, c)];
                        dk[place(&s->k, n, g, j, c)] += ds * s->q.v[place(&s->q, n, h, i, c)];
                    }
                }
            }
}

/* ---- graphs ---- */

typedef struct builder {
    const problem *p;
    values *s;
    desc ops[40], tensors[80];
    int op_count, tensor_count, virtual_uid;
    int64_t uids[40];
    void *pointers[40];
    int uid_count;
    desc q, kt, scale, bias, fill, seed, offset, stats;
    desc seq_q, seq_k, low; /* lengths of sequences, and what hides the rest */
    desc offsets[16];       /* of the ragged tensors, by unique id */
} builder;

static inline desc keep(builder *b, desc d)
{
    assert_true(b->tensor_count < 80);
    return b->tensors[b->tensor_count++] = d;
}

static inline desc real(builder *b, int64_t uid, mica_tensor t, void *data)
{
    b->uids[b->uid_count] = uid;
    b->pointers[b->uid_count++] = data;
    if (uid >= 16 || !b->offsets[uid]) return keep(b, tensor_desc(uid, &t, 'r'));
    desc d = make(BT_TENSOR);
    put_int(d, AT_TENSOR_DATA_TYPE, BW_DATA_TYPE, (int)type_of(t.dtype));
    put(d, AT_TENSOR_DIMENSIONS, BW_INT64, t.rank, t.dims);
    put(d, AT_TENSOR_STRIDES, BW_INT64, t.rank, t.strides);
    put_wide(d, AT_TENSOR_UNIQUE_ID, uid);
    put_wide(d, AT_TENSOR_BYTE_ALIGNMENT, 16);
    put_desc(d, AT_TENSOR_RAGGED_OFFSET, b->offsets[uid]);
    finish(d);
    return keep(b, d);
}

static inline desc number(builder *b, int64_t uid, float *value)
{
    const mica_tensor t = shaped(MICA_F32, 1, 1, 1, 1, false);
    b->uids[b->uid_count] = uid;
    b->pointers[b->uid_count++] = value;
    return keep(b, tensor_desc(uid, &t, 'n'));
}

static inline desc made(builder *b, mica_tensor t)
{
    return keep(b, tensor_desc(100 + b->virtual_uid++, &t, 'v'));
}

static inline void add(builder *b, desc op)
{
    b->ops[b->op_count++] = op;
}

static inline mica_tensor scores_of(const problem *p, mica_dtype type)
{
    return shaped(type, p->b, p->h, p->sq, p->sk, false);
}

static inline void common(builder *b)
{
    const problem *p = b->p;
    const mica_tensor one = shaped(MICA_S64, 1, 1, 1, 1, false);
    b->q = real(b, 0, b->s->q.t, b->s->q.data);
    b->kt = real(b, 1, swapped(b->s->k.t), b->s->k.data);
    b->scale = number(b, 5, &b->s->scale);
    if (p->bias) b->bias = real(b, 4, b->s->bias.t, b->s->bias.data);
    if (p->causal) b->fill = number(b, 11, &b->s->fill);
    if (p->keep == 0) return;
    b->seed = real(b, 6, one, b->s->random[0]);
    b->offset = real(b, 7, one, b->s->random[1]);
}

static inline desc hidden(builder *b, desc scores)
{
    const problem *p = b->p;
    desc row = made(b, scores_of(p, MICA_S32)), col = made(b, scores_of(p, MICA_S32));
    desc mask = made(b, scores_of(p, MICA_BOOL)), out = made(b, scores_of(p, MICA_F32));
    add(b, pointwise(PW_GEN_INDEX, scores, NULL, NULL, row, 2, 1));
    add(b, pointwise(PW_GEN_INDEX, scores, NULL, NULL, col, 3, 1));
    add(b, pointwise(PW_CMP_GE, row, col, NULL, mask, -1, 1));
    add(b, pointwise(PW_SELECT, scores, b->fill, mask, out, -1, 1));
    return out;
}

static inline desc padded(builder *b, desc scores)
{
    const problem *p = b->p;
    desc row = made(b, scores_of(p, MICA_S32)), col = made(b, scores_of(p, MICA_S32));
    desc rows = made(b, scores_of(p, MICA_BOOL)), cols = made(b, scores_of(p, MICA_BOOL));
    desc both = made(b, scores_of(p, MICA_BOOL)), out = made(b, scores_of(p, MICA_F32));
    add(b, pointwise(PW_GEN_INDEX, scores, NULL, NULL, row, 2, 1));
    add(b, pointwise(PW_GEN_INDEX, scores, NULL, NULL, col, 3, 1));
    add(b, pointwise(PW_CMP_LT, row, b->seq_q, NULL, rows, -1, 1));
    add(b, pointwise(PW_CMP_LT, col, b->seq_k, NULL, cols, -1, 1));
    add(b, pointwise(PW_AND, rows, cols, NULL, both, -1, 1));
    add(b, pointwise(PW_SELECT, scores, b->low, both, out, -1, 1));
    return out;
}

static inline desc scores(builder *b)
{
    const problem *p = b->p;
    desc product = made(b, scores_of(p, MICA_F32)), scaled = made(b, scores_of(p, MICA_F32));
    add(b, matmul(b->q, b->kt, product));
    if (p->odd == 2) {
        desc biased = made(b, scores_of(p, MICA_F32));
        add(b, pointwise(PW_ADD, product, b->bias, NULL, biased, -1, 1));
        add(b, pointwise(PW_MUL, biased, b->scale, NULL, scaled, -1, 1));
        return scaled;
    }
    add(b, pointwise(PW_MUL, product, b->scale, NULL, scaled, -1, 1));
    if (p->odd == 3)
        add(b, reduction(CUDNN_REDUCE_TENSOR_MAX, scaled, real(b, 50, b->s->d.t, b->s->d.data)));
    if (p->odd == 1) {
        desc bent = made(b, scores_of(p, MICA_F32));
        add(b, pointwise(101, scaled, NULL, NULL, bent, -1, 1));
        scaled = bent;
    }
    if (p->bias) {
        desc biased = made(b, scores_of(p, MICA_F32));
        add(b, pointwise(PW_ADD, scaled, b->bias, NULL, biased, -1, 1));
        scaled = biased;
    }
    return b->seq_q ? padded(b, scaled) : scaled;
}

static inline void build_forward(builder *b)
{
    const problem *p = b->p;
    const mica_tensor rows = shaped(MICA_F32, p->b, p->h, p->sq, 1, false);
    common(b);
    desc v = real(b, 2, b->s->v.t, b->s->v.data), o = real(b, 3, b->s->o.t, b->s->o.data);
    desc s = scores(b);
    if (p->causal) s = hidden(b, s);
    desc max = made(b, rows), less = made(b, scores_of(p, MICA_F32));
    desc e = made(b, scores_of(p, MICA_F32)), sum = made(b, rows), log = made(b, rows);
    desc stats = p->stats ? real(b, 8, b->s->stats.t, b->s->stats.data) : made(b, rows);
    desc w = made(b, scores_of(p, p->keep > 0 ? MICA_F32 : p->type));
    add(b, reduction(CUDNN_REDUCE_TENSOR_MAX, s, max));
    add(b, pointwise(PW_SUB, s, max, NULL, less, -1, 1));
    add(b, pointwise(PW_EXP, less, NULL, NULL, e, -1, 1));
    add(b, reduction(CUDNN_REDUCE_TENSOR_ADD, e, sum));
    add(b, pointwise(PW_LOG, sum, NULL, NULL, log, -1, 1));
    add(b, pointwise(PW_ADD, max, log, NULL, stats, -1, 1));
    add(b, pointwise(PW_DIV, e, sum, NULL, w, -1, 1));
    if (p->keep > 0) {
        desc mask = made(b, scores_of(p, MICA_F32)), some = made(b, scores_of(p, MICA_F32));
        desc drop_scale = number(b, 9, &b->s->drop_scale), grown = made(b, scores_of(p, p->type));
        add(b, bernoulli(b->seed, b->offset, mask, p->keep));
        add(b, pointwise(PW_MUL, w, mask, NULL, some, -1, 1));
        add(b, pointwise(PW_MUL, some, drop_scale, NULL, grown, -1, 1));
        w = grown;
    }
    add(b, matmul(w, v, o));
}

/* dK or dV: of as many heads as the queries, then summed. */
static inline void gradient(builder *b, desc weights, desc with, desc result, const array *like)
{
    const problem *p = b->p;
    desc turned = made(b, swapped(shaped(p->type, p->b, p->h, p->sq, p->sk, false)));
    add(b, reshape(weights, turned));
    if (p->h == p->hk) {
        add(b, matmul(turned, with, result));
        return;
    }
    desc wide = made(b, shaped(p->type, p->b, p->h, p->sk, (int)like->t.dims[3], false));
    add(b, matmul(turned, with, wide));
    add(b, reduction(CUDNN_REDUCE_TENSOR_ADD, wide, result));
}

static inline void build_backward(builder *b)
{
    const problem *p = b->p;
    values *s = b->s;
    const mica_tensor rows = shaped(MICA_F32, p->b, p->h, p->sq, 1, false);
    const mica_tensor wide = scores_of(p, MICA_F32);
    common(b);
    desc vt = real(b, 2, swapped(s->v.t), s->v.data), o = real(b, 3, s->o.t, s->o.data);
    desc dout = real(b, 9, s->dout.t, s->dout.data), stats = real(b, 8, s->stats.t, s->stats.data);
    desc dq = real(b, 10, s->dq.t, s->dq.data), dk = real(b, 12, s->dk.t, s->dk.data);
    desc dv = real(b, 13, s->dv.t, s->dv.data), d = real(b, 14, s->d.t, s->d.data);
    desc sum = real(b, 25, s->sum.t, s->sum.data), factor = number(b, 15, &s->factor);
    desc mask = NULL, drop_scale = NULL;
    if (p->keep > 0) {
        mask = made(b, wide);
        drop_scale = number(b, 16, &s->drop_scale);
        add(b, bernoulli(b->seed, b->offset, mask, (double)(float)p->keep));
    }
    desc products = made(b, s->sum.t), plain = made(b, rows);
    add(b, pointwise(PW_MUL, dout, o, NULL, products, -1, 1));
    add(b, reduction(CUDNN_REDUCE_TENSOR_ADD, products, plain));
    add(b, pointwise(PW_MUL, plain, factor, NULL, d, -1, 1));
    desc less = made(b, wide), w = made(b, wide), used;
    add(b, pointwise(PW_SUB, scores(b), stats, NULL, less, -1, 1));
    if (p->causal) less = hidden(b, less);
    add(b, pointwise(PW_EXP, less, NULL, NULL, w, -1, 1));
    used = w;
    if (p->keep > 0) {
        desc some = made(b, wide);
        used = made(b, wide);
        add(b, pointwise(PW_MUL, w, mask, NULL, some, -1, 1));
        add(b, pointwise(PW_MUL, some, drop_scale, NULL, used, -1, 1));
    }
    gradient(b, used, dout, dv, &s->v);
    desc dp = made(b, wide);
    add(b, matmul(dout, vt, dp));
    if (p->keep > 0) {
        desc some = made(b, wide);
        add(b, pointwise(PW_MUL, dp, mask, NULL, some, -1, 1));
        dp = some;
    }
    desc apart = made(b, wide), times = made(b, wide), ds = made(b, scores_of(p, p->type));
    add(b, pointwise(PW_SUB, dp, d, NULL, apart, -1, 1));
    add(b, pointwise(PW_MUL, apart, w, NULL, times, -1, 1));
    if (p->keep > 0) {
        desc grown = made(b, wide);
        add(b, pointwise(PW_MUL, times, drop_scale, NULL, grown, -1, 1));
        times = grown;
    }
    add(b, pointwise(PW_MUL, times, b->scale, NULL, ds, -1, 1));
    gradient(b, ds, b->q, dk, &s->k);
    mica_tensor turned = s->k.t;
    turned.dtype = MICA_F32;
    desc k = made(b, turned);
    add(b, reshape(b->kt, k));
    add(b, matmul(ds, k, sum));
    add(b, pointwise(PW_IDENTITY, sum, NULL, NULL, dq, -1, 1));
}

/* The plan, of which the text says that it is attention and nothing like its parts. */
static inline desc plan_attention(builder *b, const char *pass)
{
    desc g = graph_of(b->op_count, b->ops), config = config_of(g, HEURISTIC_A, 0, NULL);
    int64_t length = 0;
    if (!config) {
        char text[1024];
        cudnnGetLastErrorString(text, sizeof text);
        fail_msg("no configuration: %s", text);
    }
    desc plan = plan_of(config);
    for (int i = 0; i < b->op_count; i++) drop(b->ops[i]);
    for (int i = 0; i < b->tensor_count; i++) drop(b->tensors[i]);
    drop(g);
    drop(config);
    SUCCEEDS(cudnnBackendGetAttribute(plan, AT_PLAN_JSON, BW_CHAR, 0, &length, NULL));
    char *json = calloc(1, (size_t)length + 1);
    SUCCEEDS(cudnnBackendGetAttribute(plan, AT_PLAN_JSON, BW_CHAR, length, NULL, json));
    if (b->p->odd ? !strstr(json, "gemm") || strstr(json, "attention")
                  : !strstr(json, pass) || strstr(json, "gemm"))
        fail_msg("not as it should be: %s", json);
    free(json);
    return plan;
}

#endif
