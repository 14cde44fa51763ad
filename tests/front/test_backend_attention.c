/* SPDX-License-Identifier: Apache-2.0
 * Attention in the parts that cuDNN's frontend makes of it, both passes, against plain loops:
 * groups of heads, causal, bias, dropout. */
#include "backend_attention_test.h"

static void run_forward(const problem *p)
{
    values s = set_up(p);
    builder b = {.p = p, .s = &s};
    double *out = calloc((size_t)s.o.count, sizeof *out);
    double *stats = calloc((size_t)s.stats.count, sizeof *stats);
    forward(p, &s, out, stats);
    build_forward(&b);
    desc plan = plan_attention(&b, "attention pass=fwd");
    SUCCEEDS(run_plan(plan, b.uid_count, b.uids, b.pointers));
    array_is(&s.o, out, 4, 1);
    if (p->stats) array_is(&s.stats, stats, 64, 4);
    drop(plan);
    free(out);
    free(stats);
    tear_down(&s);
}

static void run_backward(const problem *p)
{
    values s = set_up(p);
    builder b = {.p = p, .s = &s};
    double *out = calloc((size_t)s.o.count, sizeof *out);
    double *dq = calloc((size_t)s.q.count, sizeof *dq), *dk = calloc((size_t)s.k.count, sizeof *dk);
    double *dv = calloc((size_t)s.v.count, sizeof *dv);
    forward(p, &s, out, s.stats.v);
    memcpy(s.o.v, out, (size_t)s.o.count * sizeof *out);
    array_write(&s.o);
    array_write(&s.stats);
    backward(p, &s, out, dq, dk, dv);
    build_backward(&b);
    desc plan = plan_attention(&b, "attention pass=bwd");
    SUCCEEDS(run_plan(plan, b.uid_count, b.uids, b.pointers));
    array_is(&s.dq, dq, 8, 2);
    array_is(&s.dk, dk, 8, 2);
    array_is(&s.dv, dv, 8, 2);
    drop(plan);
    free(out);
    free(dq);
    free(dk);
    free(dv);
    tear_down(&s);
}

#define PLAIN .stats = true

static const problem problems[] = {
    {MICA_BF16, 2, 2, 2, 9, 9, 16, PLAIN},
    {MICA_F16, 1, 4, 2, 7, 12, 16, PLAIN, .rows_first = true},
    {MICA_BF16, 2, 2, 2, 9, 9, 16, PLAIN, .causal = true},
    {MICA_BF16, 1, 4, 1, 8, 8, 16, PLAIN, .causal = true, .rows_first = true},
    {MICA_BF16, 2, 2, 2, 6, 10, 16, PLAIN, .bias = true, .scale = 0.5f},
    {MICA_F16, 1, 2, 2, 12, 12, 16, PLAIN, .keep = 0.8999999985},
    {MICA_BF16, 2, 2, 2, 8, 12, 16, PLAIN, .bias = true, .keep = 0.8999999985},
    {MICA_F32, 1, 2, 1, 5, 6, 8, PLAIN, .causal = true, .bias = true},
};

static void parts_forward(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) run_forward(&problems[i]);
    problem inference = problems[2];
    inference.stats = false;
    run_forward(&inference);
}

/* What is no attention that mica knows runs in its parts, with groups of heads too. */
static void node_by_node(void **unused)
{
    (void)unused;
    for (int i = 2; i < 5; i++)
        for (int odd = 1; odd <= 3; odd++) {
            problem p = problems[i];
            p.odd = odd;
            if (odd != 2 || p.bias) run_forward(&p);
        }
}

static void parts_backward(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) run_backward(&problems[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_forward),
                                       cmocka_unit_test(node_by_node),
                                       cmocka_unit_test(parts_backward)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
