/* SPDX-License-Identifier: Apache-2.0
 * The cache of plans of graphs: one plan for what is equal in everything, another one for what is
 * not; bounded in bytes; shared by threads. */
#include "unit/graph_run.h"
#include "base/memory.h"
#include "plan/context.h"

#include <pthread.h>

static const char *const block =
    "input x = f32:6x8\nconstant w = f32:8x5 0.5\nscalar f = 1.5\noutput y\n"
    "gemm a=@x b=@w c=@t alpha=@f\nactivation act=relu x=@t y=@y\n";

static mica_graph_plan *plan_of(mica_context *c, const char *text, const mica_graph_options *o)
{
    mica_graph *g = graph_of(text);
    mica_graph_plan *plan;
    if (mica_graph_plan_create(c, g, o, &plan) != MICA_OK) fail_msg("%s\n%s", mica_error(), text);
    mica_graph_destroy(g);
    return plan;
}

static mica_graph_stats stats_of(const mica_context *c)
{
    mica_graph_stats stats;
    assert_int_equal(mica_graph_cache_stats(c, &stats), MICA_OK);
    return stats;
}

static void equal_graphs_share_a_plan(void **state)
{
    (void)state;
    const mica_graph_stats before = stats_of(context);
    const mica_graph_options zero = {.size = sizeof zero}, named = {.without = "gated"};
    mica_graph_plan *a = plan_of(context, block, NULL), *b = plan_of(context, block, &zero);
    assert_ptr_equal(a, b);
    mica_graph_plan *c = plan_of(context, block, &named), *d = plan_of(context, block, &named);
    assert_ptr_equal(c, d);
    assert_ptr_not_equal(a, c);
    const mica_graph_stats after = stats_of(context);
    assert_int_equal(after.hits - before.hits, 2);
    assert_int_equal(after.misses - before.misses, 2);
    assert_int_equal(after.plans - before.plans, 2);
    /* at least the values of the constant, in the key, the graph and the plan */
    assert_true(after.bytes - before.bytes > 2 * 3 * 8 * 5 * 4);
    mica_graph_plan_destroy(a);
    graph_run r = {.plan = b};
    run_plan(&r, true); /* the other's is as good as before */
    forget_run(&r);
    mica_graph_plan_destroy(c);
    mica_graph_plan_destroy(d);
}

/* Built in C with the same statements it is the same graph; views, aliases and descriptors count.
 */
static void whatever_differs_counts(void **state)
{
    (void)state;
    static const char *const others[] = {
        /* a name, a shape, strides, a type, a value of a constant, a default, a kind */
        "input q = f32:6x8\nconstant w = f32:8x5 0.5\nscalar f = 1.5\noutput y\n"
        "gemm a=@q b=@w c=@t alpha=@f\nactivation act=relu x=@t y=@y\n",
        "input x = f32:7x8\nconstant w = f32:8x5 0.5\nscalar f = 1.5\noutput y\n"
        "gemm a=@x b=@w c=@t alpha=@f\nactivation act=relu x=@t y=@y\n",
        "input x = f32:6x8:9x1\nconstant w = f32:8x5 0.5\nscalar f = 1.5\noutput y\n"
        "gemm a=@x b=@w c=@t alpha=@f\nactivation act=relu x=@t y=@y\n",
        "input x = bf16:6x8\nconstant w = bf16:8x5 0.5\nscalar f = 1.5\noutput y\n"
        "gemm a=@x b=@w c=@t alpha=@f\nactivation act=relu x=@t y=@y\n",
        "input x = f32:6x8\nconstant w = f32:8x5 0.25\nscalar f = 1.5\noutput y\n"
        "gemm a=@x b=@w c=@t alpha=@f\nactivation act=relu x=@t y=@y\n",
        "input x = f32:6x8\nconstant w = f32:8x5 0.5\nscalar f = 1.25\noutput y\n"
        "gemm a=@x b=@w c=@t alpha=@f\nactivation act=relu x=@t y=@y\n",
        "inout x = f32:6x8\nconstant w = f32:8x5 0.5\nscalar f = 1.5\noutput y\n"
        "gemm a=@x b=@w c=@t alpha=@f\nactivation act=relu x=@t y=@y\n",
        /* an operation, a field, a scalar by value, an output more, who reads what */
        "input x = f32:6x8\nconstant w = f32:8x5 0.5\nscalar f = 1.5\noutput y\n"
        "gemm a=@x b=@w c=@t alpha=@f\nsoftmax axis=1 x=@t y=@y\n",
        "input x = f32:6x8\nconstant w = f32:8x5 0.5\nscalar f = 1.5\noutput y\n"
        "gemm a=@x b=@w c=@t alpha=@f\nactivation act=gelu x=@t y=@y\n",
        "input x = f32:6x8\nconstant w = f32:8x5 0.5\nscalar f = 1.5\noutput y\n"
        "gemm a=@x b=@w c=@t alpha=1.5\nactivation act=relu x=@t y=@y\n",
        "input x = f32:6x8\nconstant w = f32:8x5 0.5\nscalar f = 1.5\noutput y\noutput t\n"
        "gemm a=@x b=@w c=@t alpha=@f\nactivation act=relu x=@t y=@y\n",
        "input x = f32:6x8\nconstant w = f32:8x5 0.5\nscalar f = 1.5\noutput y\n"
        "gemm a=f32:6x7:8x1@x b=f32:7x5@w c=@t alpha=@f\nactivation act=relu x=@t y=@y\n",
        "input x = f32:6x8\nconstant w = f32:8x5 0.5\nscalar f = 1.5\noutput y\n"
        "gemm a=f32:6x7:8x1@x+1 b=f32:7x5@w c=@t alpha=@f\nactivation act=relu x=@t y=@y\n",
    };
    enum { OTHERS = sizeof others / sizeof *others, OPTIONS = 6 };
    const mica_options nodes[] = {{.engine = "ref"},
                                  {.workspace_limit = 1 << 20},
                                  {.nondeterministic = true},
                                  {.mode = MICA_MODE_MODEL}};
    const mica_graph_options options[OPTIONS] = {
        {.mode = MICA_GRAPH_UNFUSED}, {.without = "epilogue"}, {.nodes = &nodes[0]},
        {.nodes = &nodes[1]},         {.nodes = &nodes[2]},    {.nodes = &nodes[3]}};
    mica_graph_plan *plans[1 + OTHERS + OPTIONS] = {plan_of(context, block, NULL)};
    for (int i = 0; i < OTHERS; i++) plans[1 + i] = plan_of(context, others[i], NULL);
    for (int i = 0; i < OPTIONS; i++) plans[1 + OTHERS + i] = plan_of(context, block, &options[i]);
    for (int i = 0; i < 1 + OTHERS + OPTIONS; i++)
        for (int k = 0; k < i; k++)
            if (plans[i] == plans[k]) fail_msg("%d and %d share a plan", i, k);
    for (int i = 0; i < 1 + OTHERS + OPTIONS; i++) mica_graph_plan_destroy(plans[i]);
}

static void bounded_in_bytes(void **state)
{
    (void)state;
    enum { LIMIT = 256 << 10 };
    mica_context *c;
    char text[200];
    assert_int_equal(mica_context_create("cpu", &c), MICA_OK);
    assert_true(stats_of(c).limit == 64 << 20);
    assert_int_equal(mica_graph_cache_limit(c, -1), MICA_INVALID);
    assert_int_equal(mica_graph_cache_limit(c, LIMIT), MICA_OK);
    for (int i = 0; i < 200; i++) {
        snprintf(text, sizeof text,
                 "input x = f32:%d\noutput y\nactivation act=relu x=@x y=@t\nreduce x=@t y=@y\n",
                 1 + i);
        mica_graph_plan_destroy(plan_of(c, text, NULL));
        assert_true(stats_of(c).bytes <= LIMIT);
    }
    const mica_graph_stats full = stats_of(c);
    if (full.plans < 3 || full.plans > 199) fail_msg("%lld plans are kept", (long long)full.plans);
    mica_graph_plan_destroy(plan_of(c, text, NULL)); /* the last one is there, the first is not */
    assert_int_equal(stats_of(c).hits, full.hits + 1);
    /* constants of more than the bound: planned, run, not kept */
    mica_graph_plan *large =
        plan_of(c, "constant w = f32:80000 1\noutput y\nreduce x=@w y=@y\n", NULL);
    mica_graph_plan *again =
        plan_of(c, "constant w = f32:80000 1\noutput y\nreduce x=@w y=@y\n", NULL);
    assert_ptr_not_equal(large, again);
    assert_true(stats_of(c).bytes <= LIMIT);
    assert_int_equal(mica_graph_cache_limit(c, 0), MICA_OK);
    assert_int_equal(stats_of(c).plans, 0);
    assert_int_equal(stats_of(c).bytes, 0);
    mica_graph_plan *a = plan_of(c, block, NULL), *b = plan_of(c, block, NULL);
    assert_ptr_not_equal(a, b);
    /* without plans no plans of graphs */
    assert_int_equal(mica_graph_cache_limit(c, LIMIT), MICA_OK);
    mica_graph_plan_destroy(plan_of(c, block, NULL));
    assert_int_equal(stats_of(c).plans, 1);
    assert_int_equal(mica_context_cache_limit(c, 0), MICA_OK);
    assert_int_equal(stats_of(c).plans, 0);
    assert_int_equal(stats_of(c).bytes, 0);
    assert_true(stats_of(c).limit == LIMIT);
    mica_context_destroy(c); /* plans outlive their context */
    graph_run r = {.plan = a};
    run_plan(&r, true);
    forget_run(&r);
    mica_graph_plan_destroy(b);
    mica_graph_plan_destroy(large);
    mica_graph_plan_destroy(again);
}

/* What leaves is released behind the lock: others find plans meanwhile. */
static mica_plan_cache bare = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static int released;
static void retain_none(void *value)
{
    (void)value;
}
static void release_open(void *value)
{
    (void)value;
    assert_int_equal(pthread_mutex_trylock(&bare.mutex), 0);
    pthread_mutex_unlock(&bare.mutex);
    released++;
}
static size_t thousand(const void *value)
{
    (void)value;
    return 1000;
}

static void released_behind_the_lock(void **state)
{
    (void)state;
    static const mica_cached kind = {retain_none, release_open, thousand};
    int64_t key;
    mica_plan_cache_limit(&bare, 5000);
    for (key = 0; key < 9; key++)
        mica_plan_cache_add(&bare, &key, sizeof key, mica_plan_key_hash(&key, sizeof key), &kind,
                            &released);
    assert_true(bare.count > 2 && bare.count < 9);
    assert_int_equal(released, 9 - bare.count);
    mica_plan_cache_limit(&bare, 0);
    assert_int_equal(released, 9);
    assert_int_equal(bare.count, 0);
    assert_int_equal(bare.bytes, 0);
}

static mica_context *shared;
static void *hammer(void *seed)
{
    unsigned r = (unsigned)(uintptr_t)seed;
    for (int i = 0; i < 400; i++) {
        char text[200];
        float x[8], y = 0, want = 0;
        mica_graph *g = NULL;
        mica_graph_plan *plan = NULL;
        r = r * 1103515245u + 12345u;
        const int n = 1 + (int)(r >> 16) % 8;
        for (int k = 0; k < n; k++) x[k] = (float)(k - 3), want += x[k] > 0 ? x[k] : 0;
        snprintf(text, sizeof text,
                 "input x = f32:%d\noutput y\nactivation act=relu x=@x y=@t\nreduce x=@t y=@y\n",
                 n);
        void *tensors[] = {x, &y}, *space = aligned_alloc(256, 4096);
        bool right = mica_graph_from_text(text, &g) == MICA_OK &&
                     mica_graph_plan_create(shared, g, NULL, &plan) == MICA_OK &&
                     mica_graph_plan_workspace(plan) <= 4096 &&
                     mica_graph_plan_run(plan, &(mica_graph_run){.tensors = tensors,
                                                                 .workspace = space}) == MICA_OK;
        mica_graph_plan_destroy(plan);
        mica_graph_destroy(g);
        free(space);
        if (!right || y != want) return (void *)1;
    }
    return NULL;
}

static void shared_by_threads(void **state)
{
    (void)state;
    pthread_t threads[8];
    assert_int_equal(mica_context_create("cpu", &shared), MICA_OK);
    mica_graph_cache_limit(shared, 32 << 10); /* plans leave while others run them */
    for (uintptr_t i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, (void *)(i + 1)), 0);
    for (int i = 0; i < 8; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    const mica_graph_stats stats = stats_of(shared);
    assert_int_equal(stats.hits + stats.misses, 8 * 400);
    assert_true(stats.hits > 0);
    mica_context_destroy(shared);
}

/* Each allocation of a hit, and of a miss, fails once. */
static void memory_may_run_out(void **state)
{
    (void)state;
    mica_graph *g = graph_of(block);
    for (int kept = 0; kept < 2; kept++)
        for (long n = 1;; n++) {
            mica_graph_plan *plan = NULL;
            if (!kept) mica_graph_cache_limit(context, 0);
            mica_graph_cache_limit(context, 1 << 20);
            mica_fault_set(MICA_FAULT_ALLOC, n, false);
            mica_status status = mica_graph_plan_create(context, g, NULL, &plan);
            const bool all = mica_fault_count(MICA_FAULT_ALLOC) < n;
            mica_fault_set(MICA_FAULT_ALLOC, 0, false);
            mica_graph_plan_destroy(plan);
            if (all) break;
            if (status != MICA_OK && status != MICA_OUT_OF_MEMORY)
                fail_msg("%ld: %s", n, mica_error());
        }
    mica_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_graphs_share_a_plan), cmocka_unit_test(whatever_differs_counts),
        cmocka_unit_test(bounded_in_bytes),          cmocka_unit_test(released_behind_the_lock),
        cmocka_unit_test(shared_by_threads),         cmocka_unit_test(memory_may_run_out)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
