/* SPDX-License-Identifier: Apache-2.0
 * Graphs with extents that have names: their text, plans for all that lies in a bucket, what is
 * refused, what is kept and saved. */
#include "unit/graph_run.h"
#include "base/memory.h"

#include <pthread.h>

/* Rows by row, along them, and a reduction over them; constants; an epilogue, a softmax and a norm
 * to rewrite; a view with an offset. */
static const char *const network = "extent N = 1..70\n"
                                   "input  x = f32:{N}x16\n"
                                   "input  both = f32:{2*N}x8\n"
                                   "constant w = f32:16x8 0.25\n"
                                   "constant b = f32:8 -0.5\n"
                                   "output y\noutput total\noutput p\n"
                                   "gemm a=@x b=@w c=@t\n"
                                   "pointwise expr=relu(x0+x1) x0=@t x1=f32:1x8@b y0=@u\n"
                                   "pointwise expr=x0+x1 x0=@u x1=f32:{N}x8@both+{8*N} y0=@v\n"
                                   "softmax x=@v y=@p axis=1\n"
                                   "reduce kind=sum axes=0 x=@v y=@total\n"
                                   "norm kind=rms x=@v y=@y\n";

/* Attention of one head over S places, of a batch of B. */
static const char *const heads =
    "extent B = 1..5\nextent S = 2..40 buckets=8,24\n"
    "input q = f32:{B}x2x{S}x8\ninput k = f32:{B}x2x{S}x8\ninput v = f32:{B}x2x{S}x8\n"
    "output o\n"
    "attention q=@q k=@k v=@v out=@o causal=top_left\n";

static mica_graph_dynamic *dynamic_of(const char *text, const mica_graph_dynamic_options *o)
{
    mica_graph *g = graph_of(text);
    mica_graph_dynamic *d;
    if (mica_graph_dynamic_create(context, g, o, &d) != MICA_OK)
        fail_msg("%s\n%s", mica_error(), text);
    mica_graph_destroy(g);
    return d;
}

static mica_graph_plan *plan_at(mica_graph_dynamic *d, const int64_t *extents)
{
    mica_graph_plan *plan;
    if (mica_graph_dynamic_plan(d, extents, &plan) != MICA_OK) fail_msg("%s", mica_error());
    return plan;
}

static mica_graph_dynamic_stats stats_of(mica_graph_dynamic *d)
{
    mica_graph_dynamic_stats s;
    assert_int_equal(mica_graph_dynamic_count(d, &s), MICA_OK);
    return s;
}

/* A plan, run, and the references of the graph that has those extents as numbers. */
static bool same_results(mica_graph_plan *plan, const char *text, const int64_t *extents)
{
    mica_graph *g = graph_of(text), *fixed;
    const mica_options reference = {.engine = "ref"};
    const mica_graph_options separate = {.mode = MICA_GRAPH_SEPARATE, .nodes = &reference};
    assert_int_equal(mica_graph_fix(g, extents, &fixed), MICA_OK);
    graph_run a = {.plan = plan}, b = run_graph(fixed, &separate, false);
    bool same = true;
    run_plan(&a, false);
    for (int i = 0; i < GRAPH_MOST && (a.values[i] || b.values[i]); i++) {
        same &= a.counts[i] == b.counts[i];
        for (int64_t k = 0; same && k < a.counts[i]; k++)
            same = fabs(a.values[i][k] - b.values[i][k]) <= GRAPH_NEAR * (1 + fabs(b.values[i][k]));
    }
    forget_run(&a);
    forget_run(&b);
    mica_graph_destroy(g);
    mica_graph_destroy(fixed);
    return same;
}

static void every_extent_is_exact(void **state)
{
    (void)state;
    mica_graph_dynamic *d = dynamic_of(network, NULL);
    size_t space = 0;
    for (int64_t n = 1; n <= 70; n++) {
        size_t bytes;
        mica_graph_plan *plan = plan_at(d, &n);
        assert_int_equal(mica_graph_dynamic_workspace(d, &n, &bytes), MICA_OK);
        assert_int_equal(mica_graph_plan_workspace(plan), bytes);
        /* a bucket begins behind a power of 2 */
        if ((n - 1) & (n - 2)) assert_int_equal(bytes, space);
        space = bytes;
        if (!same_results(plan, network, &n)) fail_msg("N=%lld is wrong", (long long)n);
    }
    const mica_graph_dynamic_stats s = stats_of(d);
    assert_int_equal(s.buckets, 8); /* 1 2 4 8 16 32 64 70 */
    assert_int_equal(s.anew, 0);
    assert_int_equal(s.plans, 70 - 8);
    mica_graph_dynamic_destroy(d);
}

/* The comparison above sees a plan of other extents than were asked for. */
static void a_neighbour_is_noticed(void **state)
{
    (void)state;
    mica_graph_dynamic *d = dynamic_of(network, NULL);
    for (int64_t n = 33; n <= 64; n++) {
        const int64_t other = n == 33 ? 34 : n - 1;
        if (same_results(plan_at(d, &other), network, &n))
            fail_msg("the plan of N=%lld passes as that of %lld", (long long)other, (long long)n);
    }
    mica_graph_dynamic_destroy(d);
}

static void several_extents(void **state)
{
    (void)state;
    mica_graph_dynamic *d = dynamic_of(heads, NULL);
    for (int64_t b = 1; b <= 5; b++)
        for (int64_t s = 2; s <= 40; s += 1 + s / 9) {
            const int64_t extents[] = {b, s};
            if (!same_results(plan_at(d, extents), heads, extents))
                fail_msg("B=%lld, S=%lld is wrong", (long long)b, (long long)s);
        }
    const mica_graph_dynamic_stats stats = stats_of(d);
    assert_int_equal(stats.buckets, 4 * 3); /* 1 2 4 5 and 8 24 40 */
    mica_graph_dynamic_destroy(d);
}

/* The rewrites, engines and configs of a bucket are those of its plans. */
static void choices_are_the_buckets(void **state)
{
    (void)state;
    const int64_t end = 64, inside = 37;
    mica_graph_dynamic *d = dynamic_of(network, NULL);
    mica_graph_plan *bucket = plan_at(d, &end), *plan = plan_at(d, &inside);
    mica_graph_step a, b;
    mica_graph_attempt taken;
    int steps = 0, rewrites = 0;
    for (; mica_graph_plan_step(bucket, steps, &a) == MICA_OK; steps++) {
        assert_int_equal(mica_graph_plan_step(plan, steps, &b), MICA_OK);
        assert_string_equal(mica_plan_engine(a.plan), mica_plan_engine(b.plan));
        assert_string_equal(mica_plan_config(a.plan), mica_plan_config(b.plan));
        assert_string_equal(a.nodes, b.nodes);
    }
    assert_int_equal(mica_graph_plan_step(plan, steps, &b), MICA_INVALID);
    assert_true(steps < 6);
    for (; mica_graph_plan_attempt(plan, rewrites, &taken) == MICA_OK; rewrites++)
        assert_true(taken.taken);
    assert_true(rewrites > 0);
    mica_graph_plan_destroy(bucket);
    mica_graph_plan_destroy(plan);
    mica_graph_dynamic_destroy(d);
}

/* A view that is all of its tensor at the end of the bucket, and at no other extents: there the two
 * nodes are one launch, elsewhere two. */
static void what_does_not_hold_is_chosen_anew(void **state)
{
    (void)state;
    static const char *const text = "extent N = 33..64\ninput x = f32:64x16\ninput w = f32:16x8\n"
                                    "output y\ngemm a=@x b=@w c=@t\n"
                                    "activation act=relu x=f32:{N}x8@t y=@y\n";
    mica_graph_dynamic *d = dynamic_of(text, NULL);
    mica_graph_step step;
    size_t bytes;
    for (int64_t n = 64; n >= 33; n--) {
        mica_graph_plan *plan = plan_at(d, &n);
        assert_int_equal(mica_graph_plan_step(plan, 0, &step), MICA_OK);
        assert_string_equal(step.nodes, n == 64 ? "0 1" : "0");
        assert_int_equal(mica_graph_plan_step(plan, 1, &step), n == 64 ? MICA_INVALID : MICA_OK);
        assert_int_equal(mica_graph_dynamic_workspace(d, &n, &bytes), MICA_OK);
        assert_int_equal(bytes, n == 64 ? 0 : 64 * 8 * 4);
        assert_int_equal(mica_graph_plan_workspace(plan), bytes);
        if (!same_results(plan, text, &n)) fail_msg("N=%lld is wrong", (long long)n);
    }
    assert_int_equal(stats_of(d).anew, 31);
    assert_int_equal(stats_of(d).buckets, 1);
    mica_graph_dynamic_destroy(d);
}

static void plans_are_found_again(void **state)
{
    (void)state;
    const int64_t n = 37, end = 64;
    mica_graph_dynamic *d = dynamic_of(network, NULL);
    mica_graph_plan *a = plan_at(d, &n), *b = plan_at(d, &n), *c = plan_at(d, &end);
    assert_ptr_equal(a, b);
    const mica_graph_dynamic_stats s = stats_of(d);
    assert_int_equal(s.hits, 2);
    assert_int_equal(s.misses, 1);
    assert_int_equal(s.plans, 1);
    mica_graph_dynamic_destroy(d); /* plans live on */
    assert_true(same_results(b, network, &n));
    assert_true(same_results(c, network, &end));
    mica_graph_plan_destroy(a);
}

static void plans_are_bounded_and_constants_shared(void **state)
{
    (void)state;
    static const char *const text = "extent N = 1..900\ninput x = f32:{N}x100\n"
                                    "constant w = f32:100x1000 1\noutput y\ngemm a=@x b=@w c=@y\n";
    enum { LIMIT = 200 << 10 };
    const mica_graph_dynamic_options o = {.plan_bytes = LIMIT};
    mica_graph_dynamic *d = dynamic_of(text, &o);
    for (int64_t n = 513; n < 700; n++) {
        mica_graph_plan *plan = plan_at(d, &n);
        mica_graph_memory m;
        assert_int_equal(mica_graph_plan_memory(plan, &m), MICA_OK);
        assert_int_equal(m.constants, (400000 + 255) / 256 * 256);
        mica_graph_plan_destroy(plan);
        assert_true(stats_of(d).bytes <= LIMIT);
    }
    const mica_graph_dynamic_stats s = stats_of(d);
    if (s.plans < 2 || s.plans > 100) fail_msg("%lld plans are kept", (long long)s.plans);
    assert_int_equal(s.misses, 187);
    mica_graph_dynamic_destroy(d);
}

static void ahead(void **state)
{
    (void)state;
    const mica_graph_dynamic_options o = {.ahead = true};
    mica_graph_dynamic *d = dynamic_of(heads, &o), *none;
    assert_int_equal(stats_of(d).buckets, 4 * 3);
    const int64_t extents[] = {3, 17};
    mica_graph_plan_destroy(plan_at(d, extents));
    assert_int_equal(stats_of(d).buckets, 4 * 3);
    mica_graph_dynamic_destroy(d);
    mica_graph *g = graph_of("extent A = 1..65536\nextent B = 1..65536\ninput x = f32:{A}x{B}\n"
                             "output y\nactivation act=relu x=@x y=@y\n");
    assert_int_equal(mica_graph_dynamic_create(context, g, &o, &none), MICA_UNSUPPORTED);
    assert_non_null(strstr(mica_error(), "more than 256 buckets"));
    assert_null(none);
    mica_graph_destroy(g);
}

/* ---- refusals ---- */

static void refused(const char *text, const char *words)
{
    mica_graph *g;
    mica_graph_dynamic *d = NULL;
    mica_status status = mica_graph_from_text(text, &g);
    if (status == MICA_OK) {
        status = mica_graph_dynamic_create(context, g, NULL, &d);
        mica_graph_destroy(g);
    }
    if (status != MICA_INVALID || !strstr(mica_error(), words))
        fail_msg("%s\n%s: \"%s\" has no \"%s\"", text, mica_status_name(status), mica_error(),
                 words);
    assert_null(d);
}

static void texts_are_refused(void **state)
{
    (void)state;
    refused("extent N = 0..4\n", "the extent N is 0 to 4; a range begins at 1");
    refused("extent N = 5..4\n", "the extent N is 5 to 4");
    refused("extent N = 4\n", "line 1, column 12: \"4\": a range is expected");
    refused("extent N = 1..9 bucket=3\n", "buckets=A,B,... or nothing");
    refused("extent N = 1..9 buckets=3,3\n", "a bucket ends at 3 behind one at 3");
    refused("extent N = 1..9 buckets=12\n", "a bucket ends at 12, its range is 1 to 9");
    refused("extent N = 1..9\nextent N = 1..9\n",
            "line 2, column 8: the extent N is declared twice");
    refused("input x = f32:{N}x4\n",
            "line 1, column 16: N is no extent that a line above declares");
    refused("extent N = 1..9\ninput x = f32:{N/2}x4\n", "line 2, column 17: \"/2}x4\": '*'");
    refused("extent N = 1..9\ninput x = f32:{}\n", "column 16: \"}\": the name of an extent");
    refused("extent N = 1..9\ninput x = f32:{N\n", "'*', '+', '-' or '}' is expected");
    refused("extent N = 1..9\ninput x = f32:{N-10}\n", "{N-10} is -1, it may not be negative");
    refused("extent N = 1..9\ninput x = f32:{9000000000*N*9000000000}\n", "does not fit 63 bits");
    refused("extent N = 1..9\ninput x{N} = f32:4\n", "column 8: a name has no extents in it");
    refused("extent N = 1..9\nscalar f = {N}\n", "not in a scalar");
    refused("extent N = 1..9\nconstant c = f32:{N} 1\n", "not in a constant");
    refused("constant c = f32:1 2\nconstant c = f32:1 2\n", "line 2, column 10: c is declared");
    refused("extent N = 1..9\nactivation act=relu x=@x{N}\n", "a name has no extents in it");
    /* a column behind a value that is longer than its name */
    refused("extent N = 1..900000\ninput x = f32:{N} 3\n", "line 2, column 19: \"3\": nothing");
}

/* At some extents it is not right, though at others it is. */
static void what_does_not_meet_is_refused(void **state)
{
    (void)state;
    refused("extent N = 1..64\nextent M = 1..64\ninput x = f32:{N}x4\ninput y = f32:{M}x4\n"
            "output z\npointwise expr=x0*x1 x0=@x x1=@y y0=@z\n",
            "with N=64, M=63: node 0 (pointwise, line 6)");
    refused("extent N = 1..9\ninput x = f32:{N}\noutput y\n"
            "activation act=relu x=f32:4@x y=@y\n",
            "with N=1: node 0 (activation, line 4): x is a view of bytes 0 to 16 of x, which has");
}

static void extents_out_of_range_are_refused(void **state)
{
    (void)state;
    mica_graph_dynamic *d = dynamic_of(network, NULL);
    mica_graph_plan *plan;
    size_t bytes;
    const int64_t wrong[] = {0, -1, 71, INT64_MAX, INT64_MIN};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(mica_graph_dynamic_plan(d, &wrong[i], &plan), MICA_INVALID);
        assert_null(plan);
        assert_non_null(strstr(mica_error(), "its range is 1 to 70"));
        assert_int_equal(mica_graph_dynamic_workspace(d, &wrong[i], &bytes), MICA_INVALID);
        assert_int_equal(mica_graph_dynamic_run(d, &wrong[i], &(mica_graph_run){0}), MICA_INVALID);
    }
    assert_int_equal(mica_graph_dynamic_plan(d, NULL, &plan), MICA_INVALID);
    assert_int_equal(mica_graph_dynamic_plan(NULL, wrong, &plan), MICA_INVALID);
    mica_graph_dynamic_destroy(d);
    mica_graph *g = graph_of(network);
    assert_int_equal(mica_graph_plan_create(context, g, NULL, &plan), MICA_INVALID);
    assert_non_null(strstr(mica_error(), "the graph has extents, N among them"));
    mica_graph_destroy(g);
}

/* ---- extents of tensors ---- */

static void extents_of_tensors(void **state)
{
    (void)state;
    mica_graph *g = graph_of(network);
    int64_t n = 0;
    mica_tensor t[] = {mica_tensor_packed(MICA_F32, 2, (int64_t[]){37, 16}),
                       mica_tensor_packed(MICA_F32, 2, (int64_t[]){74, 8}),
                       {0},
                       {0},
                       {0}};
    assert_int_equal(mica_graph_extents(g, t, &n), MICA_OK);
    assert_int_equal(n, 37);
    t[1].dims[0] = 75;
    assert_int_equal(mica_graph_extents(g, t, &n), MICA_INVALID);
    assert_non_null(strstr(mica_error(), "dimension 0 of both is 75, of the graph with these "
                                         "extents 74"));
    t[0].dims[0] = 71;
    assert_int_equal(mica_graph_extents(g, t, &n), MICA_INVALID);
    assert_non_null(strstr(mica_error(), "the extent N is 71, its range is 1 to 70"));
    mica_graph_destroy(g);
    g = graph_of(heads);
    int64_t bs[2];
    mica_tensor q = mica_tensor_packed(MICA_F32, 4, (int64_t[]){3, 2, 17, 8});
    mica_tensor three[] = {q, q, q, {0}};
    assert_int_equal(mica_graph_extents(g, three, bs), MICA_OK);
    assert_int_equal(bs[0], 3);
    assert_int_equal(bs[1], 17);
    three[2].dims[2] = 16;
    assert_int_equal(mica_graph_extents(g, three, bs), MICA_INVALID);
    assert_non_null(strstr(mica_error(), "the extent S is 17 by k and 16 by dimension 2 of v"));
    three[2].rank = 3;
    three[2].dims[2] = 17;
    assert_int_equal(mica_graph_extents(g, three, bs), MICA_INVALID);
    assert_non_null(strstr(mica_error(), "v has rank 3, of the graph 4"));
    mica_graph_destroy(g);
}

/* ---- texts ---- */

static char *text_of(mica_graph_dynamic *d)
{
    const int length = mica_graph_dynamic_text(d, NULL, 0);
    char *text = malloc((size_t)length + 1);
    assert_int_equal(mica_graph_dynamic_text(d, text, (size_t)length + 1), length);
    return text;
}

static void texts_read_back(void **state)
{
    (void)state;
    char once[4000], twice[4000];
    const char *const all[] = {network, heads};
    for (int i = 0; i < 2; i++) {
        mica_graph *g = graph_of(all[i]), *again;
        assert_int_equal(mica_graph_infer(g), MICA_OK); /* of the highest extents */
        mica_graph_text(g, once, sizeof once);
        assert_int_equal(mica_graph_from_text(once, &again), MICA_OK);
        mica_graph_text(again, twice, sizeof twice);
        assert_string_equal(once, twice);
        assert_non_null(strstr(once, i ? "extent S = 2..40 buckets=8,24,40\n" : "f32:{2*N}x8\n"));
        mica_graph_destroy(g);
        mica_graph_destroy(again);
    }
}

static void statements_are_taken_whole_or_not(void **state)
{
    (void)state;
    char once[4000], twice[4000];
    mica_graph *g = graph_of(network);
    mica_graph_extent_info e;
    mica_graph_text(g, once, sizeof once);
    assert_int_equal(
        mica_graph_read(g, "extent M = 1..3\ninput z = f32:{M}x{N}\ninput z = f32:4\n"),
        MICA_INVALID);
    mica_graph_text(g, twice, sizeof twice);
    assert_string_equal(once, twice);
    assert_int_equal(mica_graph_extent_at(g, 0, &e), MICA_OK);
    assert_string_equal(e.name, "N");
    assert_int_equal(e.high, 70);
    assert_int_equal(mica_graph_extent_at(g, 1, &e), MICA_INVALID);
    mica_graph_destroy(g);
}

static void built_in_c(void **state)
{
    (void)state;
    mica_graph *g;
    const int64_t buckets[] = {16, 48}, n = 20;
    const mica_activation_desc relu = {.act = MICA_ACT_RELU};
    const mica_graph_bind binds[] = {{.arg = "x", .name = "x"}, {.arg = "y", .name = "y"}};
    mica_graph_create(&g);
    assert_int_equal(mica_graph_extent(g, "N", 1, 64, buckets, 2), MICA_OK);
    assert_int_equal(mica_graph_read(g, "input x = f32:{N}x4"), MICA_OK);
    assert_int_equal(mica_graph_tensor(g, "y", MICA_GRAPH_OUTPUT, NULL), MICA_OK);
    assert_int_equal(mica_graph_node(g, "activation", &relu, sizeof relu, binds, 2), MICA_OK);
    mica_graph_dynamic *d;
    assert_int_equal(mica_graph_dynamic_create(context, g, NULL, &d), MICA_OK);
    mica_graph_destroy(g);
    assert_true(same_results(plan_at(d, &n),
                             "extent N = 1..64\ninput x = f32:{N}x4\noutput y\n"
                             "activation act=relu x=@x y=@y\n",
                             &n));
    mica_graph_dynamic_destroy(d);
}

static void saved_with_their_buckets(void **state)
{
    (void)state;
    const int64_t extents[][2] = {{5, 17}, {3, 40}}, other[] = {1, 3};
    mica_graph_dynamic *d = dynamic_of(heads, NULL), *again;
    for (int i = 0; i < 2; i++) mica_graph_plan_destroy(plan_at(d, extents[i]));
    char *once = text_of(d);
    if (mica_graph_dynamic_from_text(context, once, NULL, &again) != MICA_OK)
        fail_msg("%s\n%s", mica_error(), once);
    char *twice = text_of(again);
    assert_string_equal(once, twice);
    assert_int_equal(stats_of(again).buckets, 2);
    assert_true(same_results(plan_at(again, extents[0]), heads, extents[0]));
    assert_int_equal(stats_of(again).buckets, 2);
    assert_true(
        same_results(plan_at(again, other), heads, other)); /* a bucket that was not there */
    assert_int_equal(stats_of(again).buckets, 3);
    mica_graph_dynamic_destroy(again);
    mica_graph_dynamic_destroy(d);
    free(once);
    free(twice);
    d = dynamic_of(network, NULL);
    const int64_t n = 37;
    mica_graph_plan_destroy(plan_at(d, &n));
    once = text_of(d);
    assert_non_null(strstr(once, "\nbucket 64\nrewrite "));
    assert_int_equal(mica_graph_dynamic_from_text(context, once, NULL, &again), MICA_OK);
    assert_true(same_results(plan_at(again, &n), network, &n));
    mica_graph_dynamic_destroy(again);
    mica_graph_dynamic_destroy(d);
    free(once);
}

/* Shared keys by a copy and by tile, dropped weights, the result in columns of an inout tensor. */
static const char *const groups =
    "extent B = 1..3\nextent Q = 1..20\nextent S = 1..24\n"
    "input q = f32:{B}x6x{Q}x8\ninput k = f32:{B}x2x{S}x8\ninput v = f32:{B}x2x{S}x6\n"
    "input rng = s64:2\ninout o = f32:{B}x6x{Q}x12\n"
    "pointwise expr=x0 x0=f32:{B}x2x3x{S}x8:{16*S}x{8*S}x0x8x1@k y0=f32:{B}x2x3x{S}x8@kx\n"
    "tile x=f32:{B}x2x1x{S}x6@v repeats=1x1x3x1x1 y=@vx\n"
    "gemm a=@q b=f32:{B}x6x8x{S}:{48*S}x{8*S}x1x8@kx c=@s alpha=0.3\n"
    "softmax axis=3 x=@s y=@p0\ndropout x=@p0 y=@p rng=@rng p=0.25 numbering=attention\n"
    "gemm a=@p b=f32:{B}x6x{S}x6@vx c=f32:{B}x6x{Q}x6:{72*Q}x{12*Q}x12x1@o+6\n";

/* The product takes its epilogue, behind which the weights that it reads, a part, are changed. */
static const char *const weights = "extent N = 1..64\ninput s = f32:{N}\noutput r\n"
                                   "input x = f32:{N}x4\ninout p = f32:32\noutput y\n"
                                   "activation act=tanh x=@s y=@r\n"
                                   "gemm a=@x b=f32:4x4@p+16 c=@u\n"
                                   "pointwise expr=x0+x1 x0=@u x1=@x y0=@y\n"
                                   "pointwise expr=x0*0.5 x0=@p y0=@p\n";

static int steps_of(mica_graph_plan *plan)
{
    mica_graph_step step;
    int count = 0;
    while (mica_graph_plan_step(plan, count, &step) == MICA_OK) count++;
    return count;
}

static void rewrites_of_parts_hold_in_their_bucket(void **state)
{
    (void)state;
    const int64_t of_groups[][3] = {{2, 16, 16}, {2, 15, 13}, {2, 9, 11}, {3, 20, 24},
                                    {3, 17, 17}, {1, 1, 1},   {1, 2, 1},  {1, 1, 7}};
    const int64_t of_weights[] = {64, 37, 33, 32, 31, 1, 2, 3};
    for (int saved = 0; saved < 2; saved++)
        for (int which = 0; which < 2; which++) {
            const char *text = which ? weights : groups;
            mica_graph_dynamic *d = dynamic_of(text, NULL);
            for (int i = 0; i < 8; i++) {
                const int64_t *at = which ? &of_weights[i] : of_groups[i];
                mica_graph_plan *plan = plan_at(d, at);
                const int steps = steps_of(plan);
                if (steps != (which ? 3 : 1)) fail_msg("%d steps, %d of\n%s", steps, i, text);
                if (!same_results(plan, text, at)) fail_msg("%d is wrong of\n%s", i, text);
                if (!saved || i) continue;
                char *once = text_of(d);
                mica_graph_dynamic_destroy(d);
                if (mica_graph_dynamic_from_text(context, once, NULL, &d) != MICA_OK)
                    fail_msg("%s\n%s", mica_error(), once);
                free(once);
            }
            assert_int_equal(stats_of(d).anew, 0);
            mica_graph_dynamic_destroy(d);
        }
}

/* A plan of the highest extents, as numbers, is in the cache: it is not the graph's. */
static void names_are_not_in_the_cache(void **state)
{
    (void)state;
    const int64_t n = 70;
    mica_graph *g = graph_of(network), *fixed;
    mica_graph_plan *plan;
    assert_int_equal(mica_graph_fix(g, &n, &fixed), MICA_OK);
    assert_int_equal(mica_graph_plan_create(context, fixed, NULL, &plan), MICA_OK);
    mica_graph_plan_destroy(plan);
    assert_int_equal(mica_graph_plan_create(context, g, NULL, &plan), MICA_INVALID);
    assert_non_null(strstr(mica_error(), "the graph has extents, N among them"));
    assert_null(plan);
    mica_graph_destroy(fixed);
    mica_graph_destroy(g);
}

static void what_options_may_not_be(void **state)
{
    (void)state;
    const mica_options prompt = {.prompt = true, .nondeterministic = true};
    const mica_graph_options replay = {.replay = true, .nodes = &prompt};
    const mica_graph_dynamic_options waits = {.plans = &replay}, less = {.plan_bytes = -1};
    mica_graph *g = graph_of(network);
    mica_graph_dynamic *d = dynamic_of(network, NULL), *other;
    char *text = text_of(d);
    assert_int_equal(mica_graph_dynamic_create(context, g, &waits, &other), MICA_UNSUPPORTED);
    assert_non_null(strstr(mica_error(), "prompt"));
    assert_int_equal(mica_graph_dynamic_from_text(context, text, &waits, &other), MICA_UNSUPPORTED);
    assert_int_equal(mica_graph_dynamic_create(context, g, &less, &other), MICA_INVALID);
    assert_non_null(strstr(mica_error(), "plan_bytes"));
    assert_int_equal(mica_graph_dynamic_from_text(context, text, &less, &other), MICA_INVALID);
    assert_null(other);
    mica_graph_dynamic_destroy(d);
    mica_graph_destroy(g);
    free(text);
}

/* Each allocation on the way fails once: a status, and nothing is lost. */
static void memory_may_run_out(void **state)
{
    (void)state;
    const int64_t inside = 37;
    for (long n = 1;; n++) {
        mica_graph *g = NULL;
        mica_graph_dynamic *d = NULL;
        mica_graph_plan *plan = NULL;
        mica_fault_set(MICA_FAULT_ALLOC, n, false);
        mica_status status = mica_graph_from_text(weights, &g);
        if (status == MICA_OK) status = mica_graph_dynamic_create(context, g, NULL, &d);
        if (status == MICA_OK) status = mica_graph_dynamic_plan(d, &inside, &plan);
        const bool all = mica_fault_count(MICA_FAULT_ALLOC) < n;
        mica_fault_set(MICA_FAULT_ALLOC, 0, false);
        mica_graph_plan_destroy(plan);
        mica_graph_dynamic_destroy(d);
        mica_graph_destroy(g);
        if (all) break;
        if (status != MICA_OK && status != MICA_OUT_OF_MEMORY) fail_msg("%ld: %s", n, mica_error());
    }
}

static void not_read(const char *text, const char *from, const char *to, mica_status want,
                     const char *words)
{
    mica_graph_dynamic *d;
    char other[4000];
    const char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(other, sizeof other, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    const mica_status status = mica_graph_dynamic_from_text(context, other, NULL, &d);
    if (status != want || !strstr(mica_error(), words))
        fail_msg("%s\n%s: \"%s\" has no \"%s\"", other, mica_status_name(status), mica_error(),
                 words);
    assert_null(d);
}

static void saved_texts_that_are_wrong(void **state)
{
    (void)state;
    const int64_t n = 37;
    mica_graph_dynamic *d = dynamic_of(network, NULL);
    mica_graph_plan_destroy(plan_at(d, &n));
    char *text = text_of(d);
    not_read(text, "mica_graph_dynamic", "mica_graph_plan", MICA_INVALID, "line 1");
    not_read(text, "device cuda=0", "device cuda=1", MICA_UNSUPPORTED, "plans are for one device");
    not_read(text, "bucket 64", "bucket 71", MICA_INVALID, "its range is 1 to 70");
    not_read(text, "bucket 64", "bucket 64 1", MICA_INVALID, "1 extents are expected");
    not_read(text, "bucket 64", "bucket", MICA_INVALID, "1 extents are expected");
    not_read(text, "\nrewrite ", "\nrewrite no", MICA_UNSUPPORTED, "line 4: what was chosen");
    not_read(text, "\nchoice ", "\nchoice no", MICA_UNSUPPORTED, "line 4: what was chosen");
    not_read(text, "\ngraph\n", "\n", MICA_INVALID, "no line is \"graph\"");
    not_read(text, "extent N", "extent M", MICA_INVALID, "behind line");
    free(text);
    mica_graph_dynamic_destroy(d);
}

/* ---- threads ---- */

typedef struct asking {
    mica_graph_dynamic *d;
    int seed;
} asking;

static void *ask(void *user)
{
    const asking *a = user;
    uint64_t h = (uint64_t)a->seed;
    for (int i = 0; i < 300; i++) {
        h = h * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const int64_t n = 1 + (int64_t)(h >> 33) % 70;
        mica_graph_plan *plan;
        mica_graph_tensor_info x;
        if (mica_graph_dynamic_plan(a->d, &n, &plan) != MICA_OK) return "no plan";
        mica_graph_plan_tensor(plan, mica_graph_plan_index(plan, "x"), &x);
        if (x.tensor.dims[0] != n) return "a plan of other extents";
        mica_graph_plan_destroy(plan);
    }
    return NULL;
}

static void threads_share_it(void **state)
{
    (void)state;
    const mica_graph_dynamic_options o = {.plan_bytes = 200 << 10};
    mica_graph_dynamic *d = dynamic_of(network, &o);
    pthread_t threads[4];
    asking a[4];
    for (int i = 0; i < 4; i++) {
        a[i] = (asking){d, i};
        pthread_create(&threads[i], NULL, ask, &a[i]);
    }
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        if (wrong) fail_msg("%s", (const char *)wrong);
    }
    const mica_graph_dynamic_stats s = stats_of(d);
    assert_int_equal(s.hits + s.misses, 4 * 300);
    assert_true(s.bytes <= s.limit);
    mica_graph_dynamic_destroy(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_extent_is_exact),
        cmocka_unit_test(a_neighbour_is_noticed),
        cmocka_unit_test(several_extents),
        cmocka_unit_test(choices_are_the_buckets),
        cmocka_unit_test(what_does_not_hold_is_chosen_anew),
        cmocka_unit_test(plans_are_found_again),
        cmocka_unit_test(plans_are_bounded_and_constants_shared),
        cmocka_unit_test(ahead),
        cmocka_unit_test(texts_are_refused),
        cmocka_unit_test(what_does_not_meet_is_refused),
        cmocka_unit_test(extents_out_of_range_are_refused),
        cmocka_unit_test(extents_of_tensors),
        cmocka_unit_test(texts_read_back),
        cmocka_unit_test(statements_are_taken_whole_or_not),
        cmocka_unit_test(built_in_c),
        cmocka_unit_test(saved_with_their_buckets),
        cmocka_unit_test(saved_texts_that_are_wrong),
        cmocka_unit_test(rewrites_of_parts_hold_in_their_bucket),
        cmocka_unit_test(names_are_not_in_the_cache),
        cmocka_unit_test(what_options_may_not_be),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(threads_share_it),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
