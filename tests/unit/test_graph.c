/* SPDX-License-Identifier: Apache-2.0
 * Graphs: text, inference, order, memory, runs, and what is refused. */
#include "unit/graph_run.h"
#include "base/memory.h"

#include <time.h>

static const char network[] = "# two layers\n"
                              "input  x = f32:2x3x9x8\n"
                              "input  w1 = f32:5x3x3x3\n"
                              "input  b1 = f32:5\n"
                              "input  w2 = f32:360x4\n"
                              "output y\n"
                              "conv x=@x w=@w1 y=@t1 pad=1x1 epilogue=bias bias=@b1\n"
                              "activation act=relu x=@t1 y=@t2   # as a matrix from here on\n"
                              "gemm a=f32:2x360@t2 b=@w2 c=@y\n";

static void a_network_runs(void **state)
{
    (void)state;
    fuses_to(network, 2, 1);
    mica_graph *g = graph_of(network);
    mica_graph_tensor_info info;
    assert_int_equal(mica_graph_infer(g), MICA_OK);
    assert_int_equal(mica_graph_tensor_at(g, 4, &info), MICA_OK);
    assert_string_equal(info.name, "y");
    assert_int_equal(info.tensor.rank, 2);
    assert_int_equal(info.tensor.dims[1], 4);
    mica_graph_destroy(g);
}

static void text_reads_back(void **state)
{
    (void)state;
    static const char *const texts[] = {
        network,
        "input x = f32:4x6\nconstant c = f32:6 1 2 3.5 -4 5 6\nconstant h = bf16 0.5\n"
        "scalar a = 0.25\noutput y = bf16:4x6\ninout z = f32:4x6\n"
        "pointwise expr=x0*x1+x2*s0 x0=@x x1=@c x2=@h y0=@y s0=@a\n"
        "pointwise expr=x0+x1*s1 x0=@z x1=@x y0=@z s1=0.5\n",
        "input x = f32:4x6\noutput y\ntensor t = bf16:4x6:1x4\n"
        "pointwise expr=x0 x0=f32:2x3:6x2@x+2 y0=@y\npointwise expr=-x0 x0=@x y0=@t\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char once[2000], twice[2000];
        mica_graph *g = graph_of(texts[i]);
        assert_true(mica_graph_text(g, once, sizeof once) < (int)sizeof once);
        assert_int_equal(mica_graph_infer(g), MICA_OK);
        mica_graph *again = graph_of(once);
        mica_graph_text(again, twice, sizeof twice);
        assert_string_equal(once, twice);
        mica_graph_text(g, twice, sizeof twice); /* inference adds nothing */
        assert_string_equal(once, twice);
        mica_graph_destroy(again);
        mica_graph_destroy(g);
        graph_run r = agrees_whole(once, 1e-5, false);
        forget_run(&r);
    }
}

static void built_in_c(void **state)
{
    (void)state;
    mica_graph *g;
    const mica_tensor x = mica_tensor_packed(MICA_F32, 2, (int64_t[]){3, 5});
    const float half[] = {0.5f};
    const mica_tensor one = mica_tensor_packed(MICA_F32, 1, (int64_t[]){1});
    const mica_gemm_desc d = {.compute = MICA_COMPUTE_DEFAULT};
    const mica_pointwise_desc p = {.expr = "x0*x1"};
    assert_int_equal(mica_graph_create(&g), MICA_OK);
    assert_int_equal(mica_graph_tensor(g, "x", MICA_GRAPH_INPUT, &x), MICA_OK);
    assert_int_equal(mica_graph_constant(g, "half", &one, half), MICA_OK);
    assert_int_equal(mica_graph_scalar(g, "factor", 2), MICA_OK);
    assert_int_equal(mica_graph_tensor(g, "y", MICA_GRAPH_OUTPUT, NULL), MICA_OK);
    const mica_tensor turned = {MICA_F32, 2, {5, 3}, {1, 5}, 0};
    mica_gemm_desc with_view = d;
    with_view.b = turned;
    const mica_graph_bind first[] = {{.arg = "a", .name = "x"},
                                     {.arg = "b", .name = "x"},
                                     {.arg = "c", .name = "t"},
                                     {.arg = "alpha", .name = "factor"}};
    const mica_graph_bind second[] = {
        {.arg = "x0", .name = "t"}, {.arg = "x1", .name = "half"}, {.arg = "y0", .name = "y"}};
    assert_int_equal(mica_graph_node(g, "gemm", &with_view, sizeof with_view, first, 4), MICA_OK);
    assert_int_equal(mica_graph_node(g, "pointwise", &p, sizeof p, second, 3), MICA_OK);
    mica_graph_plan *plan;
    if (mica_graph_plan_create(context, g, NULL, &plan) != MICA_OK) fail_msg("%s", mica_error());
    mica_graph_destroy(g);
    float values[15], result[9], want[9] = {0};
    for (int i = 0; i < 15; i++) values[i] = (float)(i % 7) - 3;
    for (int i = 0; i < 9; i++)
        for (int k = 0; k < 5; k++) want[i] += values[i / 3 * 5 + k] * values[i % 3 * 5 + k];
    void *tensors[2];
    tensors[mica_graph_plan_index(plan, "x")] = values;
    tensors[mica_graph_plan_index(plan, "y")] = result;
    assert_int_equal(mica_graph_plan_index(plan, "t"), -1);
    assert_int_equal(mica_graph_plan_index(plan, "half"), -1);
    assert_int_equal(mica_graph_plan_index(plan, "factor"), 0);
    size_t bytes = mica_graph_plan_workspace(plan);
    void *space = aligned_alloc(256, bytes + 256);
    const double factors[] = {6};
    mica_graph_run run = {.tensors = tensors, .workspace = space};
    assert_int_equal(mica_graph_plan_run(plan, &run), MICA_OK);
    for (int i = 0; i < 9; i++) assert_float_equal(result[i], want[i], 0);
    run.scalars = factors;
    assert_int_equal(mica_graph_plan_run(plan, &run), MICA_OK);
    for (int i = 0; i < 9; i++) assert_float_equal(result[i], 3 * want[i], 0);
    tensors[mica_graph_plan_index(plan, "y")] = values;
    assert_int_equal(mica_graph_plan_run(plan, &run), MICA_INVALID);
    assert_non_null(strstr(mica_error(), "overlaps"));
    tensors[mica_graph_plan_index(plan, "y")] = NULL;
    assert_int_equal(mica_graph_plan_run(plan, &run), MICA_INVALID);
    tensors[mica_graph_plan_index(plan, "y")] = (char *)result + 1;
    assert_int_equal(mica_graph_plan_run(plan, &run), MICA_INVALID);
    free(space);
    mica_graph_plan_destroy(plan);
}

/* Nodes that change a tensor in place divide the lines before and behind them. */
static void changes_in_place_keep_the_order_of_lines(void **state)
{
    (void)state;
    mica_graph *g = graph_of("input x = f32:4\ninout w = f32:4\noutput before\noutput behind\n"
                             "pointwise expr=x0 x0=@w y0=@before\n"
                             "pointwise expr=x0+x1 x0=@w x1=@x y0=@w\n"
                             "pointwise expr=x0*2 x0=@w y0=@behind\n");
    mica_graph_plan *plan;
    assert_int_equal(mica_graph_plan_create(context, g, NULL, &plan), MICA_OK);
    float x[] = {1, 2, 3, 4}, w[] = {10, 20, 30, 40}, before[4], behind[4];
    void *tensors[] = {x, w, before, behind};
    void *space = aligned_alloc(256, mica_graph_plan_workspace(plan) + 256);
    const mica_graph_run run = {.tensors = tensors, .workspace = space};
    assert_int_equal(mica_graph_plan_run(plan, &run), MICA_OK);
    for (int i = 0; i < 4; i++) {
        assert_float_equal(before[i], 10 * (float)(i + 1), 0);
        assert_float_equal(w[i], 11 * (float)(i + 1), 0);
        assert_float_equal(behind[i], 22 * (float)(i + 1), 0);
    }
    free(space);
    mica_graph_plan_destroy(plan);
    mica_graph_destroy(g);
    /* a node that reads the old content waits for another one, and the change for it */
    g = graph_of("input x = f32:4\ninout w = f32:4\noutput before\n"
                 "pointwise expr=x0+x1 x0=@w x1=@late y0=@before\n"
                 "pointwise expr=x0+x1 x0=@w x1=@x y0=@w\n"
                 "pointwise expr=x0*2 x0=@x y0=@late\n");
    const mica_graph_options unfused = {.mode = MICA_GRAPH_UNFUSED};
    assert_int_equal(mica_graph_plan_create(context, g, &unfused, &plan), MICA_OK);
    float old[] = {100, 200, 300, 400};
    void *three[] = {x, old, before};
    space = aligned_alloc(256, mica_graph_plan_workspace(plan) + 256);
    const mica_graph_run again = {.tensors = three, .workspace = space};
    assert_int_equal(mica_graph_plan_run(plan, &again), MICA_OK);
    for (int i = 0; i < 4; i++) {
        assert_float_equal(before[i], 102 * (float)(i + 1), 0);
        assert_float_equal(old[i], 101 * (float)(i + 1), 0);
    }
    free(space);
    mica_graph_plan_destroy(plan);
    mica_graph_destroy(g);
    /* beta reads the old content, too */
    graph_run r = agrees_whole("input a = f32:4x5\ninput b = f32:5x6\ninout c = f32:4x6\n"
                               "gemm a=@a b=@b c=@c beta=0.5\n",
                               1e-5, false);
    forget_run(&r);
    invalid("input a = f32:4x5\ninput b = f32:5x6\noutput c = f32:4x6\n"
            "gemm a=@a b=@b c=@c beta=0.5\n",
            "node 0 (gemm, line 4): c is bound to c, which no node writes before");
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"input x\n", "line 1, column 7: x: a tensor is needed"},
        {"input x = f32\n", "its dimensions are needed"},
        {"input x = f32:4\ninput x = f32:4\n", "line 2, column 7: x is declared twice"},
        {"input 7x = f32:4\n", "line 1, column 7: \"7x\" is no name"},
        {"input x = f99:4\n", "line 1, column 11: tensor \"f99:4\""},
        {"input x = f32:4 5\n", "line 1, column 17: \"5\": nothing is expected here"},
        {"\n\n  convolve x=@x\n", "line 3, column 3: \"convolve\" is no operation"},
        {"input x = f32:4\npointwise expr=-x0 x0=@x z=@y\n",
         "line 2, column 26: pointwise has no argument z"},
        {"input x = f32:4\npointwise expr=-x0 x0=@x x0=@x\n", "column 26: x0 stands twice"},
        {"input x = f32:4\npointwise expr=-x0 x0=@x+y\n",
         "column 26: \"y\": the number of an element"},
        {"input x = f32:4\npointwise expr=-x0 nothing x0=@x\n", "a field is written name=value"},
        {"scalar a = one\n", "line 1, column 12: \"one\": a number is expected"},
        {"scalar a = 1\ninput a = f32:2\n", "a is a scalar"},
        {"scalar a = 1\npointwise expr=-x0 x0=@a\n", "a is a scalar"},
        {"input x = f32:4\npointwise expr=x0*s0 x0=@x y0=@y s0=@b\n",
         "no scalar of that name is declared"},
        {"constant c = f32:3 1 2\n", "2 values, the tensor has 3 elements"},
        {"constant c = f32:3 1 2 3 4\n", "more values than the tensor has elements, 3"},
        {"output y\n", "the output y is written by no node"},
        {"output y\npointwise expr=-x0 x0=@x y0=@y\n",
         "node 0 (pointwise, line 2): x0 is bound to x, which no node writes"},
        {"input x = f32:4\noutput y\npointwise expr=-x0 x0=@x y0=@y\npointwise expr=x0 x0=@x "
         "y0=@y\n",
         "node 1 (pointwise, line 4): it writes y, as node 0 (pointwise, line 3) does"},
        {"input x = f32:4\npointwise expr=-x0 x0=@x y0=@x\n", "it writes x, which is an input"},
        {"input x = f32:4\noutput y\npointwise expr=x0+x1 x0=@x x1=@b y0=@a\n"
         "pointwise expr=-x0 x0=@a y0=@b\npointwise expr=-x0 x0=@b y0=@y\n",
         "a cycle: it waits for node"},
        {"input x = f32:4x5\ninput w = f32:6x7\ngemm a=@x b=@w c=@y\n", "node 0 (gemm, line 3): "},
        {"input x = f32:4x5\ninput w = f64:5x7\ngemm a=@x b=@w c=@y\n", "node 0 (gemm, line 3): "},
        {"input x = f32:4x5\ntensor t = f32:5x4\npointwise expr=-x0 x0=@x y0=@t\n",
         "node 0 (pointwise, line 3)"},
        {"input x = f32:4\noutput y = bf16:4\npointwise expr=-x0 x0=@x y0=f32@y\n",
         "y0 is f32, y is bf16; they must agree"},
        {"input x = f32:4\npointwise expr=-x0 x0=f32:5@x y0=@y\n",
         "x0 is a view of bytes 0 to 20 of x, which has 0 to 16"},
        {"input x = f32:4\npointwise expr=-x0 x0=f32:2@x+3 y0=@y\n",
         "x0 is a view of bytes 12 to 20 of x"},
        {"input x = f32:4\npointwise expr=-x0 x0=s32:4@x y0=@y\n",
         "x0 is a view of type s32, x is f32"},
        {"input x = f32:4\npointwise expr=-x0 x0=@x dx0=@y\n",
         "dx0 is bound to y, pass fwd has no dx0"},
        {"input x = f32:1x3x8x8\ninput w = f32:4x3x3x3\nconv x=@x w=@w amax=@a y=@y\n",
         "amax is bound to a, but is not there: give its type, amax=f32@a"},
        {"input x = f32:1x3x8x8\nconv x=@x w=f32:4x3x3x3 y=@y\n", "w is bound to no tensor"},
        {"input x = f32:1x3x8x8\ninput w = f32:4x3x3x3\nreduce x=@x y=@s\n"
         "conv x=@x w=@w epilogue=bias bias=@s y=@y\n",
         "bias has 4 elements, s, which it is bound to, one"},
        {"input x = f32:281474976710656x281474976710656\n", "elements"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) invalid(rows[i].text, rows[i].words);
}

/* A statement that fails leaves the graph as it was. */
static void reading_is_all_or_nothing(void **state)
{
    (void)state;
    char before[400], after[400];
    mica_graph *g = graph_of("input x = f32:4\npointwise expr=-x0 x0=@x y0=@t\n");
    mica_graph_text(g, before, sizeof before);
    assert_int_equal(mica_graph_read(g, "output t\nconstant c = f32:2 1\nscalar a = 1\n"
                                        "pointwise expr=x0 x0=@t y0=@u\nwrong\n"),
                     MICA_INVALID);
    mica_graph_text(g, after, sizeof after);
    assert_string_equal(before, after);
    assert_int_equal(mica_graph_read(g, "output u\npointwise expr=x0 x0=@t y0=@u\n"), MICA_OK);
    assert_int_equal(mica_graph_infer(g), MICA_OK);
    mica_graph_destroy(g);
}

/* Where the tensor lies in the workspace of the plan. */
static int64_t place_of(const mica_graph_plan *plan, const char *name)
{
    mica_graph_step step;
    mica_graph_tensor_info info;
    int64_t offset;
    for (int s = 0, arg; mica_graph_plan_step(plan, s, &step) == MICA_OK; s++)
        for (int i = 0; i < step.binds; i++) {
            assert_int_equal(mica_graph_plan_bound(plan, s, i, &arg, &info, &offset), MICA_OK);
            if (!strcmp(info.name, name)) return offset;
        }
    fail_msg("%s is nowhere", name);
    return -1;
}

/* A result lies where an input lay if the operation allows that and nobody else reads the input. */
static void results_take_the_place_of_inputs(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool same;
    } rows[] = {
        {"gemm a=@x b=@x residual=@t c=@c epilogue=residual\n", true},
        {"gemm a=@x b=@t residual=@t c=@c epilogue=residual\n", false},
        {"gemm a=@x b=@x residual=@t c=@c epilogue=residual\noutput z\n"
         "pointwise expr=-x0 x0=@t y0=@z\n",
         false},
        {"gemm a=@x b=@x residual=f32:8x8:1x8@t c=@c epilogue=residual\n", false},
        {"gemm a=@x b=@x residual=@x c=@c epilogue=residual\noutput z\nsoftmax x=@t axis=0 y=@z\n",
         false},
        {"pointwise expr=x0+x1 x0=@x x1=@t y0=@c\n", false}, /* y0 may lie on x0 */
        {"pointwise expr=x0+x1 x0=@t x1=@x y0=@c\n", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[600];
        const mica_graph_options unfused = {.mode = MICA_GRAPH_UNFUSED};
        mica_graph_plan *plan;
        snprintf(
            text, sizeof text,
            "input x = f32:8x8\noutput y\nsoftmax x=@x axis=1 y=@t\n%ssoftmax x=@c axis=1 y=@y\n",
            rows[i].text);
        mica_graph *g = graph_of(text);
        assert_int_equal(mica_graph_plan_create(context, g, &unfused, &plan), MICA_OK);
        if ((place_of(plan, "t") == place_of(plan, "c")) != rows[i].same)
            fail_msg("%s: t at %lld, c at %lld", text, (long long)place_of(plan, "t"),
                     (long long)place_of(plan, "c"));
        mica_graph_plan_destroy(plan);
        mica_graph_destroy(g);
        graph_run r = agrees_whole(text, 1e-5, false);
        forget_run(&r);
    }
}

/* Forward activations are kept for a way back: a chain as training has it. */
static void memory_is_near_the_bound(void **state)
{
    (void)state;
    enum { LAYERS = 50 };
    char *text = malloc(100000);
    size_t n = 0;
    uint64_t seed = 1;
    int64_t size[LAYERS + 1];
#define ADD(...) n += (size_t)snprintf(text + n, 100000 - n, __VA_ARGS__)
    for (int i = 0; i <= LAYERS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size[i] = 64 * (1 + (int64_t)(seed >> 33) % 60);
    }
    ADD("input a0 = f32:1x%lld\noutput d0\n", (long long)size[0]);
    for (int i = 0; i < LAYERS; i++)
        ADD("constant w%d = f32:%lldx%lld 0.01\n", i, (long long)size[i], (long long)size[i + 1]);
    for (int i = 0; i < LAYERS; i++)
        ADD("gemm a=@a%d b=@w%d c=@z%d\nactivation act=gelu x=@z%d y=@a%d\n", i, i, i, i, i + 1);
    ADD("pointwise expr=x0*2 x0=@a%d y0=@d%d\n", LAYERS, LAYERS);
    for (int i = LAYERS - 1; i >= 0; i--) {
        ADD("activation pass=bwd act=gelu x=@z%d dy=@d%d dx=@e%d\n", i, i + 1, i);
        ADD("gemm a=@e%d b=f32:%lldx%lld:t@w%d c=@d%d\n", i, (long long)size[i + 1],
            (long long)size[i], i, i);
    }
#undef ADD
    mica_graph *g = graph_of(text);
    mica_graph_plan *plan;
    mica_graph_memory m;
    if (mica_graph_plan_create(context, g, NULL, &plan) != MICA_OK) fail_msg("%s", mica_error());
    assert_int_equal(mica_graph_plan_memory(plan, &m), MICA_OK);
    print_message("training chain: %zu bytes, at least %zu, side by side %zu\n", m.workspace,
                  m.least, m.tensors);
    assert_true((double)m.workspace <= 1.02 * (double)m.least);
    assert_true(m.workspace < m.tensors / 2);
    mica_graph_plan_destroy(plan);
    mica_graph_destroy(g);
    free(text);
}

static void many_nodes_take_seconds(void **state)
{
    (void)state;
    enum { NODES = 100000 };
    char *text = malloc((size_t)NODES * 64 + 200);
    size_t n = (size_t)sprintf(text, "input t0 = f32:4\noutput t%d\n", NODES);
    for (int i = NODES; i > 0; i--) /* backwards: nothing is in order yet */
        n += (size_t)sprintf(text + n, "pointwise expr=x0+1 x0=@t%d y0=@t%d\n", i - 1, i);
    clock_t start = clock();
    mica_graph *g = graph_of(text);
    mica_graph_plan *plan;
    const mica_graph_options o = {.mode = MICA_GRAPH_UNFUSED};
    if (mica_graph_plan_create(context, g, &o, &plan) != MICA_OK) fail_msg("%s", mica_error());
    print_message("%d nodes: %.2f s\n", NODES, (double)(clock() - start) / CLOCKS_PER_SEC);
    assert_true(mica_graph_plan_workspace(plan) <= 512);
    float x[4] = {1, 2, 3, 4}, y[4];
    void *tensors[] = {x, y}, *space = aligned_alloc(256, 512);
    assert_int_equal(
        mica_graph_plan_run(plan, &(mica_graph_run){.tensors = tensors, .workspace = space}),
        MICA_OK);
    for (int i = 0; i < 4; i++) assert_float_equal(y[i], x[i] + (float)NODES, 0);
    mica_graph_plan_destroy(plan);
    mica_graph_destroy(g);
    free(space);
    free(text);
}

/* Each allocation on the way fails once: a status, and nothing is lost. */
static void memory_may_run_out(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        mica_graph *g = NULL;
        mica_graph_plan *plan = NULL;
        mica_fault_set(MICA_FAULT_ALLOC, n, false);
        mica_status status = mica_graph_from_text(network, &g);
        if (status == MICA_OK) status = mica_graph_plan_create(context, g, NULL, &plan);
        const bool all = mica_fault_count(MICA_FAULT_ALLOC) < n;
        mica_fault_set(MICA_FAULT_ALLOC, 0, false);
        mica_graph_plan_destroy(plan);
        mica_graph_destroy(g);
        if (all) break;
        if (status != MICA_OK && status != MICA_OUT_OF_MEMORY) fail_msg("%ld: %s", n, mica_error());
    }
}

static void empty_graphs_and_tensors(void **state)
{
    (void)state;
    mica_graph *g = graph_of("");
    mica_graph_plan *plan;
    assert_int_equal(mica_graph_plan_create(context, g, NULL, &plan), MICA_OK);
    assert_int_equal(mica_graph_plan_run(plan, &(mica_graph_run){0}), MICA_OK);
    mica_graph_plan_destroy(plan);
    mica_graph_destroy(g);
    graph_run r = agrees_whole("input x = f32:0x5\ninput w = f32:5x6\noutput y\noutput z\n"
                               "gemm a=@x b=@w c=@t\nactivation act=relu x=@t y=@y\n"
                               "reduce x=@t axes=0 y=@z\n",
                               0, false);
    forget_run(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_network_runs),
        cmocka_unit_test(text_reads_back),
        cmocka_unit_test(built_in_c),
        cmocka_unit_test(changes_in_place_keep_the_order_of_lines),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(reading_is_all_or_nothing),
        cmocka_unit_test(results_take_the_place_of_inputs),
        cmocka_unit_test(memory_is_near_the_bound),
        cmocka_unit_test(many_nodes_take_seconds),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(empty_graphs_and_tensors),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
