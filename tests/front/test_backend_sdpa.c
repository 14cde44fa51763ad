/* SPDX-License-Identifier: Apache-2.0
 * Attention as one operation, with lengths, and numbers that a plan does not hold for. */
#include "backend_attention_test.h"

static const problem problems[] = {
    {MICA_BF16, 2, 2, 2, 9, 9, 16, .stats = true},
    {MICA_F16, 1, 4, 2, 7, 12, 16, .stats = true, .rows_first = true},
    {MICA_BF16, 2, 2, 2, 9, 9, 16, .stats = true, .causal = true},
    {MICA_F16, 1, 2, 2, 12, 12, 16, .stats = true, .keep = 0.8999999985},
};

static void one_operation(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        problem p = problems[i];
        for (int with = 0; with < 3; with++) {
            p.stats = with > 0;
            p.scale = with == 2 ? 0.75f : 0;
            values s = set_up(&p);
            builder b = {.p = &p, .s = &s};
            double *out = calloc((size_t)s.o.count, sizeof *out);
            double *stats = calloc((size_t)s.stats.count, sizeof *stats);
            forward(&p, &s, out, stats);
            desc op = make(BT_OP_SDPA_FWD);
            put_desc(op, AT_OP_SDPA_FWD_Q, real(&b, 0, s.q.t, s.q.data));
            put_desc(op, AT_OP_SDPA_FWD_K, real(&b, 1, s.k.t, s.k.data));
            put_desc(op, AT_OP_SDPA_FWD_V, real(&b, 2, s.v.t, s.v.data));
            put_desc(op, AT_OP_SDPA_FWD_O, real(&b, 3, s.o.t, s.o.data));
            put_desc(op, AT_OP_SDPA_FWD_SCALE, number(&b, 5, &s.scale));
            if (p.stats) put_desc(op, AT_OP_SDPA_FWD_STATS, real(&b, 8, s.stats.t, s.stats.data));
            finish(op);
            add(&b, op);
            desc plan = plan_attention(&b, "attention pass=fwd");
            for (int again = 0; again < 2; again++) {
                SUCCEEDS(run_plan(plan, b.uid_count, b.uids, b.pointers));
                array_is(&s.o, out, 4, 1);
                if (p.stats) array_is(&s.stats, stats, 64, 4);
            }
            drop(plan);
            free(out);
            free(stats);
            tear_down(&s);
        }
    }
}

/* Rows behind the lengths have no part: results there are 0. */
static void lengths(void **unused)
{
    (void)unused;
    const problem p = problems[0];
    const int32_t numbers[2][2] = {{9, 4}, {5, 9}};
    const mica_tensor each = mica_tensor_packed(MICA_S32, 4, (const int64_t[]){2, 1, 1, 1});
    values s = set_up(&p);
    builder b = {.p = &p, .s = &s};
    void *data[2];
    desc op = make(BT_OP_SDPA_FWD);
    put_desc(op, AT_OP_SDPA_FWD_Q, real(&b, 0, s.q.t, s.q.data));
    put_desc(op, AT_OP_SDPA_FWD_K, real(&b, 1, s.k.t, s.k.data));
    put_desc(op, AT_OP_SDPA_FWD_V, real(&b, 2, s.v.t, s.v.data));
    put_desc(op, AT_OP_SDPA_FWD_O, real(&b, 3, s.o.t, s.o.data));
    put_desc(op, AT_OP_SDPA_FWD_SCALE, number(&b, 5, &s.scale));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mica_malloc(memory, 8, &data[i]), MICA_OK);
        assert_int_equal(mica_upload(memory, data[i], numbers[i], 8, NULL), MICA_OK);
        put_desc(op, i ? AT_OP_SDPA_FWD_SEQ_LEN_KV : AT_OP_SDPA_FWD_SEQ_LEN_Q,
                 real(&b, 13 + i, each, data[i]));
    }
    finish(op);
    add(&b, op);
    desc plan = plan_attention(&b, "attention pass=fwd");
    SUCCEEDS(run_plan(plan, b.uid_count, b.uids, b.pointers));
    double *found = array_read(&s.o);
    for (int64_t row = 0; row < 2 * 2 * 9; row++) {
        const int64_t n = row / 18, h = row / 9 % 2, i = row % 9;
        double w[9], sum = 0;
        for (int64_t j = 0; j < numbers[1][n]; j++) {
            w[j] = 0;
            for (int64_t c = 0; c < p.d; c++)
                w[j] += s.q.v[place(&s.q, n, h, i, c)] * s.k.v[place(&s.k, n, h, j, c)];
            sum += w[j] = exp(w[j] * (double)s.scale);
        }
        for (int64_t c = 0; c < p.d; c++) {
            double o = 0;
            for (int64_t j = 0; j < numbers[1][n] && i < numbers[0][n]; j++)
                o += w[j] / sum * s.v.v[place(&s.v, n, h, j, c)];
            assert_true(fabs(found[row * p.d + c] - o) <= 4 * 0x1p-8);
        }
    }
    free(found);
    for (int i = 0; i < 2; i++) mica_free(memory, data[i]);
    drop(plan);
    tear_down(&s);
}

/* A number that the plan does not hold for is refused, never computed with. */
static void other_numbers(void **unused)
{
    (void)unused;
    values s = set_up(&problems[2]);
    builder b = {.p = &problems[2], .s = &s};
    build_forward(&b);
    desc plan = plan_attention(&b, "attention pass=fwd");
    s.fill = 0;
    assert_int_equal(run_plan(plan, b.uid_count, b.uids, b.pointers), CUDNN_STATUS_NOT_SUPPORTED);
    s.fill = -1e9f;
    SUCCEEDS(run_plan(plan, b.uid_count, b.uids, b.pointers));
    assert_int_equal(run_plan(plan, b.uid_count - 1, b.uids, b.pointers),
                     CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    drop(plan);
    tear_down(&s);
    values t = set_up(&problems[3]);
    builder c = {.p = &problems[3], .s = &t};
    build_forward(&c);
    plan = plan_attention(&c, "attention pass=fwd");
    t.drop_scale = 2;
    assert_int_equal(run_plan(plan, c.uid_count, c.uids, c.pointers), CUDNN_STATUS_NOT_SUPPORTED);
    drop(plan);
    tear_down(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_operation), cmocka_unit_test(lengths),
                                       cmocka_unit_test(other_numbers)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
