/* SPDX-License-Identifier: Apache-2.0
 * Attention on sequences that lie one behind another (ragged tensors), in parts and as cuDNN's
 * single operations, both passes, with lengths or their sums: against plain loops. Memory ends with
 * the last row that counts, and a row behind results that has to stay as it was. */
#include "backend_attention_test.h"

enum { MOST = 4 };
#define LEFT 6.5 /* in memory that is not to be written */

static const int32_t len_q[] = {3, 9, 1}, len_k[] = {5, 2, 7};
static const int32_t some_q[] = {0, 4, 2}, some_k[] = {3, 6, 0};

static const problem problems[] = {
    {MICA_BF16, 3, 2, 2, 9, 8, 16, .stats = true, .len_q = len_q, .len_k = len_k},
    {MICA_F16, 3, 4, 2, 10, 7, 8, .stats = true, .len_q = len_q, .len_k = len_k, .causal = true},
    {MICA_F16, 3, 4, 1, 5, 9, 16, .stats = true, .len_q = some_q, .len_k = some_k, .scale = 0.3f},
    {MICA_BF16, 3, 2, 2, 9, 8, 16, .stats = true, .len_q = len_q, .len_k = len_k, .keep = 0.75},
};

/* ---- one tensor: total x H x D with a row more ---- */

typedef struct row_memory {
    array flat;
    void *offsets;
    desc offsets_desc;
    const int32_t *lengths;
    int64_t begin[MOST];
} row_memory;

/* Of a padded array, whose rows it takes; position n of `fresh`: elements of a row of another
 * tensor that lies beside it. */
static row_memory ravel(builder *b, array *from, const int32_t *lengths, int64_t uid, bool wide)
{
    row_memory r = {.lengths = lengths};
    const int64_t heads = from->t.dims[1], columns = from->t.dims[3], batch = from->t.dims[0];
    int64_t total = 0, numbers[MOST + 1];
    int32_t narrow[MOST + 1];
    for (int64_t n = 0; n <= batch; n++) {
        if (n < batch) r.begin[n] = total;
        numbers[n] = total * heads * columns, narrow[n] = (int32_t)numbers[n];
        if (n < batch) total += lengths[n];
    }
    r.flat =
        array_of(mica_tensor_packed(from->t.dtype, 3, (const int64_t[]){total + 1, heads, columns}),
                 type_of(from->t.dtype));
    for (int64_t i = 0; i < r.flat.count; i++) r.flat.v[i] = LEFT;
    for (int64_t n = 0; n < batch; n++)
        for (int64_t i = 0; i < lengths[n]; i++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t c = 0; c < columns; c++)
                    r.flat.v[((r.begin[n] + i) * heads + h) * columns + c] =
                        from->v[place(from, n, h, i, c)];
    array_write(&r.flat);
    from->t.strides[0] = INT32_MAX; /* as PyTorch has it */
    from->t.strides[1] = columns, from->t.strides[2] = heads * columns, from->t.strides[3] = 1;
    const size_t size = wide ? 8 : 4;
    assert_int_equal(mica_malloc(memory, (int64_t)size * (batch + 1), &r.offsets), MICA_OK);
    assert_int_equal(mica_upload(memory, r.offsets, wide ? (void *)numbers : (void *)narrow,
                                 (int64_t)size * (batch + 1), NULL),
                     MICA_OK);
    const mica_tensor t = packed(wide ? MICA_S64 : MICA_S32, (int)batch + 1, 1, 1, 1);
    r.offsets_desc = real(b, 30 + uid, t, r.offsets);
    b->offsets[uid] = r.offsets_desc;
    return r;
}

static void rows_are(const row_memory *r, const array *like, const double *expected, double units,
                     double magnitude)
{
    const int64_t heads = like->t.dims[1], columns = like->t.dims[3];
    double *wanted = calloc((size_t)r->flat.count, sizeof *wanted);
    for (int64_t i = 0; i < r->flat.count; i++) wanted[i] = LEFT;
    for (int64_t n = 0; n < like->t.dims[0]; n++)
        for (int64_t i = 0; i < r->lengths[n]; i++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t c = 0; c < columns; c++)
                    wanted[((r->begin[n] + i) * heads + h) * columns + c] =
                        expected[place(like, n, h, i, c)];
    double *found = array_read(&r->flat);
    for (int64_t i = 0; i < r->flat.count; i++) {
        const double bound = units * unit_of(r->flat.t.dtype) * fmax(fabs(wanted[i]), magnitude);
        const bool same = isinf(wanted[i]) && found[i] == wanted[i];
        if (!same && !(fabs(found[i] - wanted[i]) <= (wanted[i] == LEFT ? 0 : bound)))
            fail_msg("element %lld: %.9g, not %.9g", (long long)i, found[i], wanted[i]);
    }
    free(found);
    free(wanted);
}

/* ---- a whole problem ---- */

enum { Q, K, V, O, STATS, DOUT, DQ, DK, DV, ARRAYS };

typedef struct setting {
    values s;
    builder b;
    row_memory rows[ARRAYS];
    bool is_ragged[ARRAYS];
    void *lengths[2];
    array *arrays[ARRAYS];
    float low;
} setting;

static void close_setting(setting *t)
{
    for (int i = 0; i < ARRAYS; i++)
        if (t->is_ragged[i]) {
            array_free(&t->rows[i].flat);
            mica_free(memory, t->rows[i].offsets);
        }
    for (int i = 0; i < 2; i++) mica_free(memory, t->lengths[i]);
    tear_down(&t->s);
}

/* sums: lengths as their sums. keep_padded: tensors that are not ragged, as a mask of bits. */
static void open_setting(setting *t, const problem *p, bool sums, unsigned keep_padded, double *out,
                         bool wide)
{
    static const int64_t uids[] = {0, 1, 2, 3, 8, 9, 10, 12, 13};
    t->s = set_up(p);
    t->low = -INFINITY;
    t->b = (builder){.p = p, .s = &t->s};
    array *const all[] = {&t->s.q,    &t->s.k,  &t->s.v,  &t->s.o, &t->s.stats,
                          &t->s.dout, &t->s.dq, &t->s.dk, &t->s.dv};
    memcpy(t->arrays, all, sizeof all);
    if (out) {
        forward(p, &t->s, out, t->s.stats.v);
        memcpy(t->s.o.v, out, (size_t)t->s.o.count * sizeof *out);
        array_write(&t->s.o);
        array_write(&t->s.stats);
    }
    for (int i = 0; i < 2; i++) {
        const int32_t *from = i ? p->len_k : p->len_q;
        int32_t numbers[MOST + 1] = {0};
        for (int n = 0; n < p->b; n++) numbers[n + sums] = from[n] + (sums ? numbers[n] : 0);
        assert_int_equal(mica_malloc(memory, 4 * (p->b + sums), &t->lengths[i]), MICA_OK);
        assert_int_equal(mica_upload(memory, t->lengths[i], numbers, 4 * (p->b + sums), NULL),
                         MICA_OK);
        const desc d = real(&t->b, 50 + i, packed(MICA_S32, p->b + sums, 1, 1, 1), t->lengths[i]);
        *(i ? &t->b.seq_k : &t->b.seq_q) = d;
    }
    for (int i = 0; i < ARRAYS; i++) {
        const bool keys = i == K || i == V || i == DK || i == DV;
        t->is_ragged[i] = !(keep_padded >> i & 1);
        if (!t->is_ragged[i]) continue;
        t->rows[i] = ravel(&t->b, t->arrays[i], keys ? p->len_k : p->len_q, uids[i], wide && i % 2);
        if (i >= DQ || (!out && (i == O || i == STATS))) { /* results */
            for (int64_t k = 0; k < t->rows[i].flat.count; k++) t->rows[i].flat.v[k] = LEFT;
            array_write(&t->rows[i].flat);
        }
        mica_free(memory, t->arrays[i]->data);
        t->arrays[i]->data = NULL;
    }
}

/* The pointer of an array where it lies. */
static void *at_of(const setting *t, int i)
{
    return t->is_ragged[i] ? t->rows[i].flat.data : t->arrays[i]->data;
}

static desc given(setting *t, int i, int64_t uid)
{
    return real(&t->b, uid, t->arrays[i]->t, at_of(t, i));
}

static void result_is(const setting *t, int i, const double *expected, double units, double size)
{
    if (t->is_ragged[i])
        rows_are(&t->rows[i], t->arrays[i], expected, units, size);
    else
        array_is(t->arrays[i], expected, units, size);
}

static void put_dropout(setting *t, desc op, int seed, int offset, int probability)
{
    const mica_tensor one = shaped(MICA_S64, 1, 1, 1, 1, false);
    if (t->b.p->keep == 0) return;
    put_desc(op, seed, real(&t->b, 6, one, t->s.random[0]));
    put_desc(op, offset, real(&t->b, 7, one, t->s.random[1]));
    put_float(op, probability, (float)(1 - t->b.p->keep));
}

static void one_fwd(const problem *p, bool sums, unsigned keep_padded)
{
    setting t = {0};
    open_setting(&t, p, sums, keep_padded, NULL, sums);
    double *out = calloc((size_t)t.s.o.count, sizeof *out);
    double *stats = calloc((size_t)t.s.stats.count, sizeof *stats);
    forward(p, &t.s, out, stats);
    desc op = make(BT_OP_SDPA_FWD);
    put_desc(op, AT_OP_SDPA_FWD_Q, given(&t, Q, 0));
    put_desc(op, AT_OP_SDPA_FWD_K, given(&t, K, 1));
    put_desc(op, AT_OP_SDPA_FWD_V, given(&t, V, 2));
    put_desc(op, AT_OP_SDPA_FWD_O, given(&t, O, 3));
    put_desc(op, AT_OP_SDPA_FWD_STATS, given(&t, STATS, 8));
    put_desc(op, AT_OP_SDPA_FWD_SCALE, number(&t.b, 5, &t.s.scale));
    put_desc(op, sums ? AT_OP_SDPA_FWD_CU_SEQ_LEN_Q : AT_OP_SDPA_FWD_SEQ_LEN_Q, t.b.seq_q);
    put_desc(op, sums ? AT_OP_SDPA_FWD_CU_SEQ_LEN_KV : AT_OP_SDPA_FWD_SEQ_LEN_KV, t.b.seq_k);
    put_dropout(&t, op, AT_OP_SDPA_FWD_SEED, AT_OP_SDPA_FWD_OFFSET, AT_OP_SDPA_FWD_DROPOUT);
    finish(op);
    add(&t.b, op);
    desc plan = plan_attention(&t.b, "attention pass=fwd");
    for (int again = 0; again < 2; again++) {
        SUCCEEDS(run_plan(plan, t.b.uid_count, t.b.uids, t.b.pointers));
        result_is(&t, O, out, 4, 1);
        if (t.is_ragged[STATS]) result_is(&t, STATS, stats, 64, 4);
    }
    drop(plan);
    free(out);
    free(stats);
    close_setting(&t);
}

static void one_bwd(const problem *p, bool sums, unsigned keep_padded)
{
    setting t = {0};
    double *out = calloc((size_t)(p->b * p->h * p->sq * p->d), sizeof *out);
    open_setting(&t, p, sums, keep_padded, out, sums);
    double *dq = calloc((size_t)t.s.q.count, sizeof *dq),
           *dk = calloc((size_t)t.s.k.count, sizeof *dk);
    double *dv = calloc((size_t)t.s.v.count, sizeof *dv);
    backward(p, &t.s, out, dq, dk, dv);
    desc op = make(BT_OP_SDPA_BWD);
    put_desc(op, AT_OP_SDPA_BWD_Q, given(&t, Q, 0));
    put_desc(op, AT_OP_SDPA_BWD_K, given(&t, K, 1));
    put_desc(op, AT_OP_SDPA_BWD_V, given(&t, V, 2));
    put_desc(op, AT_OP_SDPA_BWD_O, given(&t, O, 3));
    put_desc(op, AT_OP_SDPA_BWD_STATS, given(&t, STATS, 8));
    put_desc(op, AT_OP_SDPA_BWD_DO, given(&t, DOUT, 9));
    put_desc(op, AT_OP_SDPA_BWD_DQ, given(&t, DQ, 10));
    put_desc(op, AT_OP_SDPA_BWD_DK, given(&t, DK, 12));
    put_desc(op, AT_OP_SDPA_BWD_DV, given(&t, DV, 13));
    put_desc(op, AT_OP_SDPA_BWD_SCALE, number(&t.b, 5, &t.s.scale));
    put_desc(op, sums ? AT_OP_SDPA_BWD_CU_SEQ_LEN_Q : AT_OP_SDPA_BWD_SEQ_LEN_Q, t.b.seq_q);
    put_desc(op, sums ? AT_OP_SDPA_BWD_CU_SEQ_LEN_KV : AT_OP_SDPA_BWD_SEQ_LEN_KV, t.b.seq_k);
    put_dropout(&t, op, AT_OP_SDPA_BWD_SEED, AT_OP_SDPA_BWD_OFFSET, AT_OP_SDPA_BWD_DROPOUT);
    finish(op);
    add(&t.b, op);
    desc plan = plan_attention(&t.b, "attention pass=bwd");
    SUCCEEDS(run_plan(plan, t.b.uid_count, t.b.uids, t.b.pointers));
    result_is(&t, DQ, dq, 8, 2);
    result_is(&t, DK, dk, 8, 2);
    result_is(&t, DV, dv, 8, 2);
    drop(plan);
    free(out);
    free(dq);
    free(dk);
    free(dv);
    close_setting(&t);
}

static void one_operation(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        problem p = problems[i];
        p.causal = false; /* that is a graph of its own */
        for (int sums = 0; sums < 2; sums++) {
            one_fwd(&p, sums, 0);
            one_bwd(&p, sums, 0);
        }
        one_fwd(&p, false, 1u << K | 1u << V | 1u << STATS);
        one_bwd(&p, true, 1u << STATS | 1u << O);
    }
}

/* Lengths in parts, of padded tensors and of ragged ones. */
static void in_parts(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int backwards = 0; backwards < 2; backwards++) {
            const problem *p = &problems[i];
            setting t = {0};
            double *out = calloc((size_t)(p->b * p->h * p->sq * p->d), sizeof *out);
            open_setting(&t, p, false, 0, backwards ? out : NULL, true);
            double *stats = calloc((size_t)t.s.stats.count, sizeof *stats);
            double *dq = calloc((size_t)t.s.q.count, sizeof *dq);
            double *dk = calloc((size_t)t.s.k.count, sizeof *dk);
            double *dv = calloc((size_t)t.s.v.count, sizeof *dv);
            t.b.low = number(&t.b, 60, &t.low);
            for (int k = 0; k < ARRAYS; k++)
                if (t.is_ragged[k]) t.arrays[k]->data = at_of(&t, k);
            if (!backwards) {
                forward(p, &t.s, out, stats);
                build_forward(&t.b);
            } else {
                backward(p, &t.s, out, dq, dk, dv);
                build_backward(&t.b);
            }
            for (int k = 0; k < ARRAYS; k++)
                if (t.is_ragged[k]) t.arrays[k]->data = NULL;
            desc plan =
                plan_attention(&t.b, backwards ? "attention pass=bwd" : "attention pass=fwd");
            SUCCEEDS(run_plan(plan, t.b.uid_count, t.b.uids, t.b.pointers));
            if (!backwards) {
                result_is(&t, O, out, 4, 1);
                result_is(&t, STATS, stats, 64, 4);
            } else {
                result_is(&t, DQ, dq, 8, 2);
                result_is(&t, DK, dk, 8, 2);
                result_is(&t, DV, dv, 8, 2);
            }
            drop(plan);
            free(out);
            free(stats);
            free(dq);
            free(dk);
            free(dv);
            close_setting(&t);
        }
}

/* A ragged tensor of an operation that is no attention, or whose lengths are not known. */
static void refusals(void **unused)
{
    (void)unused;
    problem p = problems[0];
    setting t = {0};
    char text[256];
    open_setting(&t, &p, false, 0, NULL, false);
    desc op = make(BT_OP_SDPA_FWD);
    put_desc(op, AT_OP_SDPA_FWD_Q, given(&t, Q, 0));
    put_desc(op, AT_OP_SDPA_FWD_K, given(&t, K, 1));
    put_desc(op, AT_OP_SDPA_FWD_V, given(&t, V, 2));
    put_desc(op, AT_OP_SDPA_FWD_O, given(&t, O, 3));
    finish(op);
    desc g = graph_of(1, &op);
    assert_null(config_of(g, HEURISTIC_A, 0, NULL));
    cudnnGetLastErrorString(text, sizeof text);
    assert_non_null(strstr(text, "lengths of sequences"));
    drop(g);
    drop(op);
    op = pointwise(PW_IDENTITY, t.b.tensors[t.b.tensor_count - 1], NULL, NULL,
                   t.b.tensors[t.b.tensor_count - 4], -1, 1);
    g = graph_of(1, &op);
    assert_null(config_of(g, HEURISTIC_A, 0, NULL));
    cudnnGetLastErrorString(text, sizeof text);
    assert_non_null(strstr(text, "is ragged"));
    drop(g);
    drop(op);
    for (int i = 0; i < t.b.tensor_count; i++) drop(t.b.tensors[i]);
    close_setting(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_operation), cmocka_unit_test(in_parts),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
