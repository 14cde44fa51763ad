/* SPDX-License-Identifier: Apache-2.0
 * Plans of graphs and CUDA graphs, on a driver that keeps books: what a run does can be captured,
 * and replays record once, change in place what changed, and leave nothing behind. */
#define _GNU_SOURCE
#include "mica/mica.h"
#include "plan/context.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>

/* A product, a chain that stays apart, a norm with a memory that is set: several launches. */
static const char *const text =
    "input x = f32:64x32\ninput w = f32:32x48\nscalar f = 1.5\noutput y\noutput z\n"
    "gemm a=@x b=@w c=@t alpha=@f\nsoftmax axis=1 x=@t y=@y\n"
    "activation act=gelu x=@x y=@z\n";
enum { TENSORS = 4, X = 0, W, Y, Z, BYTES = 64 * 48 * 4, ROOM = 1 << 20 };

static mica_context *context;
static mica_graph *graph;
static void *blocks[2 * TENSORS], *spaces[2], *stream;

static int (*begin_capture)(void *, int);
static int (*end_capture)(void *, void **);
static int (*instantiate)(void **, void *, unsigned long long);
static int (*launch_graph)(void *, void *);
static int (*drop_graph)(void *), (*drop_exec)(void *);

static int open_all(void **state)
{
    int (*retain)(void **, int), (*push)(void *);
    void *device;
    (void)state;
    help_find(help_driver, "cuDevicePrimaryCtxRetain", &retain);
    help_find(help_driver, "cuCtxPushCurrent_v2", &push);
    help_find(help_driver, "cuStreamBeginCapture_v2", &begin_capture);
    help_find(help_driver, "cuStreamEndCapture", &end_capture);
    help_find(help_driver, "cuGraphInstantiateWithFlags", &instantiate);
    help_find(help_driver, "cuGraphLaunch", &launch_graph);
    help_find(help_driver, "cuGraphDestroy", &drop_graph);
    help_find(help_driver, "cuGraphExecDestroy", &drop_exec);
    if (mica_context_create("cuda:0", &context) || mica_graph_from_text(text, &graph)) return 1;
    if (retain(&device, 0) || push(device)) return 1; /* for captures of our own */
    for (int i = 0; i < 2 * TENSORS; i++)
        if (mica_malloc(context, BYTES, &blocks[i])) return 1;
    for (int i = 0; i < 2; i++)
        if (mica_malloc(context, ROOM, &spaces[i])) return 1;
    return mica_stream_create(context, &stream) != MICA_OK;
}

static int close_all(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * TENSORS; i++) mica_free(context, blocks[i]);
    for (int i = 0; i < 2; i++) mica_free(context, spaces[i]);
    mica_stream_destroy(context, stream);
    mica_graph_destroy(graph);
    mica_context_destroy(context);
    const fake_books books = help_books();
    return books.graphs || books.execs || books.streams || books.allocations || books.modules;
}

static mica_graph_plan *plan_of(bool replay)
{
    const mica_graph_options o = {.mode = MICA_GRAPH_UNFUSED, .replay = replay};
    mica_graph_plan *plan;
    if (mica_graph_plan_create(context, graph, &o, &plan) != MICA_OK) fail_msg("%s", mica_error());
    assert_true(mica_graph_plan_workspace(plan) <= ROOM);
    return plan;
}

static int steps_of(const mica_graph_plan *plan)
{
    mica_graph_step step;
    int count = 0;
    while (mica_graph_plan_step(plan, count, &step) == MICA_OK) count++;
    return count;
}

/* other: bit i: tensor i lies elsewhere, bit TENSORS: the workspace does. */
static mica_status run_at(const mica_graph_plan *plan, int other, double factor, void *where)
{
    void *tensors[TENSORS];
    for (int i = 0; i < TENSORS; i++) tensors[i] = blocks[i + (other >> i & 1) * TENSORS];
    return mica_graph_plan_run(plan, &(mica_graph_run){.tensors = tensors,
                                                       .scalars = &factor,
                                                       .workspace = spaces[other >> TENSORS & 1],
                                                       .stream = where});
}

static mica_graph_replays replays_of(const mica_graph_plan *plan)
{
    mica_graph_replays r;
    assert_int_equal(mica_graph_plan_replays(plan, &r), MICA_OK);
    return r;
}

/* ---- captured by the user ---- */

static void a_run_only_enqueues(void **state)
{
    (void)state;
    for (int replay = 0; replay < 2; replay++) {
        mica_graph_plan *plan = plan_of(replay);
        for (int before = 0; before < 2; before++) { /* a replay that has recorded, too */
            void *made = NULL;
            const fake_books from = help_books();
            assert_int_equal(begin_capture(stream, 0), 0);
            if (run_at(plan, 0, 1, stream) != MICA_OK) fail_msg("%s", mica_error());
            assert_int_equal(end_capture(stream, &made), 0);
            const fake_books to = help_books();
            assert_true(to.captured - from.captured >= steps_of(plan));
            assert_int_equal(to.launches, from.launches);
            assert_int_equal(to.replayed, from.replayed);
            assert_int_equal(to.synchronized, from.synchronized);
            assert_int_equal(to.allocations, from.allocations);
            assert_int_equal(to.errors, from.errors);
            assert_int_equal(to.graphs, from.graphs + 1);
            drop_graph(made);
            assert_int_equal(run_at(plan, 0, 1, stream), MICA_OK);
        }
        mica_graph_plan_destroy(plan);
    }
}

/* ---- replays ---- */

static void the_same_run_is_one_launch(void **state)
{
    (void)state;
    mica_graph_plan *plan = plan_of(true);
    const fake_books from = help_books();
    assert_int_equal(run_at(plan, 0, 1, stream), MICA_OK);
    const fake_books first = help_books();
    const long nodes = first.captured - from.captured;
    assert_true(nodes >= 3);
    assert_int_equal(first.launches, from.launches);
    assert_int_equal(first.replayed - from.replayed, nodes);
    assert_int_equal(first.execs - from.execs, 1);
    for (int i = 0; i < 5; i++) assert_int_equal(run_at(plan, 0, 1, i % 2 ? NULL : stream), 0);
    const fake_books last = help_books();
    assert_int_equal(last.captured, first.captured);
    assert_int_equal(last.changed, first.changed);
    assert_int_equal(last.replayed - first.replayed, 5 * nodes);
    assert_true(last.calls - first.calls <= 5 * 10); /* contexts, one question, one launch */
    assert_int_equal(last.synchronized, from.synchronized);
    const mica_graph_replays r = replays_of(plan);
    assert_int_equal(r.recorded, 1);
    assert_int_equal(r.launched, 6);
    assert_int_equal(r.updated, 0);
    mica_graph_plan_destroy(plan);
    assert_int_equal(help_books().execs, from.execs);
    assert_int_equal(help_books().graphs, from.graphs);
}

/* Steps that have what changed, and no others: gemm x, w, f; softmax y; activation x, z. */
static void what_changed_is_changed_in_place(void **state)
{
    (void)state;
    static const struct {
        int other;
        double factor;
        int steps;
    } runs[] = {{1 << W, 1, 1}, {1 << W, 2, 1},       {1 << W, 2, 0},
                {1 << X, 2, 2}, /* x and w: gemm, activation */
                {0, 2, 2},      {1 << Y, 2, 1},       {1 << Y | 1 << Z, 2, 1},
                {0, 2, 2},      {1 << TENSORS, 2, 2}, {1 << TENSORS | 15, 1, 3}};
    mica_graph_plan *plan = plan_of(true);
    assert_int_equal(steps_of(plan), 3);
    assert_int_equal(run_at(plan, 0, 1, stream), MICA_OK);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const mica_graph_replays before = replays_of(plan);
        const fake_books from = help_books();
        if (run_at(plan, runs[i].other, runs[i].factor, stream)) fail_msg("%s", mica_error());
        const mica_graph_replays after = replays_of(plan);
        const fake_books to = help_books();
        if (after.updated - before.updated != runs[i].steps)
            fail_msg("run %zu: %lld steps", i, (long long)(after.updated - before.updated));
        assert_true(to.changed - from.changed >= runs[i].steps);
        assert_true(!runs[i].steps == (to.changed == from.changed));
        assert_int_equal(after.recorded, 1);
        assert_int_equal(to.captured, from.captured);
        assert_int_equal(to.launches, from.launches);
    }
    mica_graph_plan_destroy(plan);
}

/* A replay says INVALID as other plans do, and goes on. */
static void bad_pointers_are_refused(void **state)
{
    (void)state;
    mica_graph_plan *plan = plan_of(true);
    void *tensors[TENSORS] = {blocks[0], blocks[1], blocks[2], blocks[2]};
    const mica_graph_run overlap = {.tensors = tensors, .workspace = spaces[0], .stream = stream};
    assert_int_equal(mica_graph_plan_run(plan, &overlap), MICA_INVALID);
    assert_int_equal(run_at(plan, 0, 1, stream), MICA_OK);
    assert_int_equal(mica_graph_plan_run(plan, &overlap), MICA_INVALID);
    assert_int_equal(run_at(plan, 1, 1, stream), MICA_OK);
    assert_int_equal(replays_of(plan).recorded, 1);
    mica_graph_plan_destroy(plan);
}

/* Each call of a recording, and of a change, fails once: a status or a run one by one, and the next
 * run is whole. */
static void every_call_may_fail(void **state)
{
    (void)state;
    const fake_books start = help_books();
    for (int changing = 0; changing < 2; changing++)
        for (long n = 1; n < 200; n++) {
            mica_graph_plan *plan = plan_of(true);
            if (changing) assert_int_equal(run_at(plan, 0, 1, stream), MICA_OK);
            const fake_books from = help_books();
            help_fail("*", 1, n, false);
            const mica_status status = run_at(plan, 7, 2, stream);
            help_fail("*", 0, 0, false);
            const fake_books to = help_books();
            if (status == MICA_OK && to.errors == from.errors) n = 200;
            if (status == MICA_OK)
                assert_true(to.replayed > from.replayed || to.launches > from.launches);
            const fake_books again = help_books();
            if (run_at(plan, 7, 2, stream)) fail_msg("%ld: %s", n, mica_error());
            const fake_books end = help_books();
            assert_true(end.replayed - again.replayed + end.launches - again.launches >= 3);
            mica_graph_plan_destroy(plan);
            const fake_books left = help_books();
            if (left.execs != start.execs || left.graphs != start.graphs ||
                left.streams != start.streams)
                fail_msg("%d %ld: %ld execs, %ld graphs, %ld streams", changing, n, left.execs,
                         left.graphs, left.streams);
        }
}

static mica_graph_plan *shared;
static void *run_often(void *other)
{
    for (int i = 0; i < 300; i++)
        if (run_at(shared, (int)(uintptr_t)other ^ (i & 1), 1, NULL)) return (void *)1;
    return NULL;
}

static void threads_share_one(void **state)
{
    (void)state;
    pthread_t threads[4];
    shared = plan_of(true);
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_often, (void *)(i * 4)), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    const mica_graph_replays r = replays_of(shared);
    assert_int_equal(r.recorded, 1);
    assert_true(r.launched > 0 && r.launched <= 4 * 300);
    mica_graph_plan_destroy(shared);
}

static void a_replay_is_its_callers_own(void **state)
{
    (void)state;
    mica_graph_plan *a = plan_of(true), *b = plan_of(true), *c = plan_of(false);
    assert_true(a != b && a != c);
    assert_int_equal(run_at(c, 0, 1, stream), MICA_OK);
    assert_int_equal(replays_of(c).launched, 0);
    mica_graph_plan_destroy(a);
    mica_graph_plan_destroy(b);
    mica_graph_plan_destroy(c);
    assert_int_equal(mica_graph_plan_replays(NULL, NULL), MICA_INVALID);
}

/* Plans that leave the cache give memory back: not so that it ends a capture of anybody's. */
static void eviction_spares_captures(void **state)
{
    (void)state;
    static const char *const constant = "input x = f32:4x%d\nconstant w = f32:%dx4 1\noutput y\n"
                                        "gemm a=@x b=@w c=@y\n";
    for (int mode = 0; mode < 2; mode++) {
        mica_graph_plan *plan = plan_of(false);
        void *made = NULL;
        for (int n = 1; n < 5; n++) {
            char other[200];
            mica_graph *g;
            mica_graph_plan *evicted;
            snprintf(other, sizeof other, constant, 16 * n, 16 * n);
            assert_int_equal(mica_graph_from_text(other, &g), MICA_OK);
            assert_int_equal(mica_graph_plan_create(context, g, NULL, &evicted), MICA_OK);
            mica_graph_plan_destroy(evicted);
            mica_graph_destroy(g);
        }
        const fake_books from = help_books();
        assert_int_equal(begin_capture(stream, mode), 0);
        assert_int_equal(mica_graph_cache_limit(context, 0), MICA_OK);
        assert_int_equal(run_at(plan, 0, 1, stream), MICA_OK);
        const int code = end_capture(stream, &made);
        if (code) fail_msg("mode %d: the capture ended with %d", mode, code);
        assert_true(help_books().allocations <= from.allocations - 4);
        drop_graph(made);
        mica_graph_plan_destroy(plan);
        assert_int_equal(mica_graph_cache_limit(context, 64 << 20), MICA_OK);
    }
}

/* The fake notices it: memory that is given back in the thread's own mode ends the capture. */
static void the_fake_ends_captures(void **state)
{
    (void)state;
    int (*give_back)(unsigned long long), (*take)(unsigned long long *, size_t);
    unsigned long long memory;
    void *made = NULL;
    help_find(help_driver, "cuMemFree_v2", &give_back);
    help_find(help_driver, "cuMemAlloc_v2", &take);
    assert_int_equal(take(&memory, 16), 0);
    assert_int_equal(begin_capture(stream, 0), 0);
    assert_int_equal(give_back(memory), 900);
    assert_int_equal(end_capture(stream, &made), 901);
    assert_int_equal(give_back(memory), 0);
}

/* Each extents' plan records a graph of its own. */
static void plans_of_extents_are_replayed(void **state)
{
    (void)state;
    static const char *const open = "extent N = 1..64\ninput x = f32:{N}x32\noutput y\n"
                                    "activation act=gelu x=@x y=@t\nsoftmax axis=1 x=@t y=@y\n";
    const mica_graph_options o = {.mode = MICA_GRAPH_UNFUSED, .replay = true};
    const mica_graph_dynamic_options d = {.plans = &o};
    const fake_books from = help_books();
    mica_graph_dynamic *dynamic;
    mica_graph *g;
    assert_int_equal(mica_graph_from_text(open, &g), MICA_OK);
    if (mica_graph_dynamic_create(context, g, &d, &dynamic)) fail_msg("%s", mica_error());
    mica_graph_destroy(g);
    for (int64_t n = 60; n <= 64; n++)
        for (int i = 0; i < 2; i++) {
            mica_graph_plan *plan;
            void *tensors[] = {blocks[0], blocks[1]};
            assert_int_equal(mica_graph_dynamic_plan(dynamic, &n, &plan), MICA_OK);
            const mica_graph_run run = {
                .tensors = tensors, .workspace = spaces[0], .stream = stream};
            if (mica_graph_plan_run(plan, &run)) fail_msg("%s", mica_error());
            assert_int_equal(replays_of(plan).recorded, 1);
            assert_int_equal(replays_of(plan).launched, i + 1);
            mica_graph_plan_destroy(plan);
        }
    assert_int_equal(help_books().execs, from.execs + 5);
    mica_graph_dynamic_destroy(dynamic);
    assert_int_equal(help_books().execs, from.execs);
}

/* ---- recurrent nets, whose blocks wait for one another ---- */

/* All steps are one cooperative launch, the last one of forward without hy. */
static const char *const recurrent = "input x = f16:3x2x8\ninput w = f16:1664\noutput y\n"
                                     "rnn cell=lstm hidden=16 x=@x w=@w y=@y\n";

static mica_graph_plan *recurrent_plan(bool replay)
{
    const mica_options nodes = {.engine = "persistent"};
    const mica_graph_options o = {.nodes = &nodes, .replay = replay};
    mica_graph_plan *plan = NULL;
    mica_graph *g;
    if (mica_graph_from_text(recurrent, &g) || mica_graph_plan_create(context, g, &o, &plan))
        fail_msg("%s", mica_error());
    mica_graph_destroy(g);
    assert_true(mica_graph_plan_workspace(plan) <= ROOM);
    return plan;
}

static mica_status run_recurrent(const mica_graph_plan *plan, int first, int space)
{
    void *tensors[3] = {blocks[first], blocks[first + 1], blocks[first + 2]};
    return mica_graph_plan_run(
        plan, &(mica_graph_run){.tensors = tensors, .workspace = spaces[space], .stream = stream});
}

/* The fake's kernels do nothing: what is 0 was set. */
static bool has_zeros(const char *from, size_t bytes)
{
    for (size_t i = 0; i + sizeof(int) <= bytes; i += sizeof(int))
        if (!memcmp(from + i, &(int){0}, sizeof(int))) return true;
    return false;
}

static void last_was_cooperative(void)
{
    const fake_launch last = help_launch();
    assert_string_equal(last.kernel, "rnn_persistent");
    assert_true(last.cooperative);
    assert_false(last.overlaps);
}

static void a_persistent_rnn_is_captured(void **state)
{
    (void)state;
    mica_graph_plan *plan = recurrent_plan(false);
    assert_int_equal(run_recurrent(plan, 0, 0), MICA_OK);
    last_was_cooperative();
    void *made = NULL, *exec = NULL;
    const fake_books from = help_books();
    assert_int_equal(begin_capture(stream, 0), 0);
    if (run_recurrent(plan, 0, 0) != MICA_OK) fail_msg("%s", mica_error());
    assert_int_equal(end_capture(stream, &made), 0);
    const fake_books to = help_books();
    assert_true(to.captured - from.captured >= 3); /* a product, counters, all steps */
    assert_int_equal(to.launches, from.launches);
    assert_int_equal(to.synchronized, from.synchronized);
    assert_int_equal(to.errors, from.errors);
    /* Counters are set to 0 by a node: each launch of the graph begins with them. */
    assert_int_equal(instantiate(&exec, made, 0), 0);
    memset(spaces[0], 0x7f, mica_graph_plan_workspace(plan));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(launch_graph(exec, stream), 0);
        last_was_cooperative();
        assert_true(has_zeros(spaces[0], mica_graph_plan_workspace(plan)));
        memset(spaces[0], 0x7f, mica_graph_plan_workspace(plan));
    }
    assert_int_equal(drop_exec(exec), 0);
    drop_graph(made);
    mica_graph_plan_destroy(plan);
}

static void a_persistent_rnn_is_replayed(void **state)
{
    (void)state;
    mica_graph_plan *plan = recurrent_plan(true);
    const fake_books from = help_books();
    for (int i = 0; i < 2; i++) {
        if (run_recurrent(plan, 0, 0)) fail_msg("%s", mica_error());
        last_was_cooperative();
    }
    const fake_books same = help_books();
    const long nodes = same.captured - from.captured;
    assert_true(nodes >= 3);
    assert_int_equal(same.replayed - from.replayed, 2 * nodes);
    assert_int_equal(same.changed, from.changed);
    for (int i = 0; i < 2; i++) { /* elsewhere: nodes are changed, and stay cooperative */
        memset(spaces[1], 0x7f, mica_graph_plan_workspace(plan));
        if (run_recurrent(plan, 3, 1)) fail_msg("%s", mica_error());
        last_was_cooperative();
        assert_true(has_zeros(spaces[1], mica_graph_plan_workspace(plan)));
    }
    const fake_books other = help_books();
    assert_int_equal(other.changed - same.changed, nodes);
    assert_int_equal(other.launches, from.launches);
    const mica_graph_replays r = replays_of(plan);
    assert_int_equal(r.recorded, 1);
    assert_int_equal(r.launched, 4);
    assert_int_equal(r.updated, 1);
    mica_graph_plan_destroy(plan);
}

/* A change keeps a node's attributes: a launch that is cooperative now, or no longer, is another
 * one. */
static void a_change_keeps_attributes(void **state)
{
    (void)state;
    const mica_kernel_spec spec = {"ops/rnn/rnn_persistent.cu", "rnn_persistent", "", 0};
    const char args[256] = {0};
    mica_kernel *kernel;
    if (mica_kernel_get(context->cuda, &spec, &kernel)) fail_msg("%s", mica_error());
    for (int was = 0; was < 2; was++)
        for (int is = 0; is < 2; is++) {
            mica_replay *r;
            mica_grid grid = {.grid = {4}, .block = {32}, .cooperative = was};
            assert_int_equal(mica_replay_create(context->cuda, &r), MICA_OK);
            assert_int_equal(mica_replay_record(r), MICA_OK);
            mica_status status = mica_kernel_launch(kernel, &grid, mica_replay_stream(r), args);
            assert_int_equal(mica_replay_recorded(r, status), MICA_OK);
            grid.cooperative = is;
            assert_int_equal(mica_replay_update(r), MICA_OK);
            mica_replay_seek(r, 0);
            status = mica_kernel_launch(kernel, &grid, mica_replay_stream(r), args);
            assert_int_equal(status, MICA_OK);
            assert_int_equal(mica_replay_at(r), was == is ? 1 : -1);
            assert_int_equal(mica_replay_updated(r), was == is);
            mica_replay_destroy(r);
        }
    mica_kernel_put(kernel);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_run_only_enqueues),
                                       cmocka_unit_test(the_same_run_is_one_launch),
                                       cmocka_unit_test(what_changed_is_changed_in_place),
                                       cmocka_unit_test(bad_pointers_are_refused),
                                       cmocka_unit_test(every_call_may_fail),
                                       cmocka_unit_test(threads_share_one),
                                       cmocka_unit_test(eviction_spares_captures),
                                       cmocka_unit_test(the_fake_ends_captures),
                                       cmocka_unit_test(plans_of_extents_are_replayed),
                                       cmocka_unit_test(a_replay_is_its_callers_own),
                                       cmocka_unit_test(a_persistent_rnn_is_captured),
                                       cmocka_unit_test(a_persistent_rnn_is_replayed),
                                       cmocka_unit_test(a_change_keeps_attributes)};
    help_begin(__FILE__);
    help_fakes();
    unsetenv("MICA_KERNEL_DIR"); /* the kernels are mica's own */
    const int failed = cmocka_run_group_tests(tests, open_all, close_all);
    help_end();
    return failed;
}
