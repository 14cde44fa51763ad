/* SPDX-License-Identifier: Apache-2.0
 * Plans of graphs as text: rebuilt in this and in another process they are the same launches and
 * give the same bits; a text of another version, device or form is refused with value and rule. */
#include "unit/graph_run.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const graphs[] = {
    "input a = f32:9x16\ninput b = f32:16x12\noutput y\ngemm a=@a b=@b c=@t\n"
    "activation act=relu x=@t y=@y\n",
    /* constants, run-time scalars, views, results that nobody wants */
    "input a = f32:9x16\nconstant w = f32:16x2 0.25\nconstant c = f32:2 -1 0.5\nscalar f = 1.5\n"
    "output y\ngemm a=@a b=@w c=@t alpha=@f\npointwise expr=x0+x1 x0=@t x1=@c y0=@u\n"
    "pointwise expr=tanh(x0) x0=f32:9x8:16x1@a+8 y0=@z\nreduce x=@z y=@y\n"
    "pointwise expr=x0*2;x0+1 x0=@u y0=@v\n",
    /* in place, at a place among the lines */
    "inout x = f32:6x7\noutput y\noutput z\npointwise expr=x0*3 x0=@x y0=@y\n"
    "pointwise expr=x0+1 x0=@x y0=@x\npointwise expr=x0*x0 x0=@x y0=@z\n",
    "input x = f32:2x8x9x7\ninput w = f32:12x8x3x3\ninput v = f32:12x1x1\noutput y\n"
    "conv x=@x w=@w y=@t pad=1x1\npointwise expr=relu(x0+x1) x0=@t x1=@v y0=@u\n"
    "reduce kind=mean axes=-1,-2 x=@u y=@y\n",
    "input q = f32:2x3x9x8\ninput k = f32:2x3x11x8\ninput v = f32:2x3x11x6\noutput o\n"
    "gemm a=@q b=f32:2x3x8x11:264x88x1x8@k c=@s\npointwise expr=where(i3<=i2,x0*0.3,-inf) x0=@s "
    "y0=@t\nsoftmax x=@t axis=3 y=@p\ngemm a=@p b=@v c=@o\n",
    "input x = bf16:6x32\ninput w = bf16:32\noutput y\ntransform x=@x y=f32@f\n"
    "reduce map=x0*x0 kind=mean axes=-1 keepdims=1 x=@f y=@v\n"
    "pointwise expr=rsqrt(x0+1e-6) x0=@v y0=@r\npointwise expr=x0*x1*x2 x0=@f x1=@r x2=@w "
    "y0=bf16@y\n",
};
enum { GRAPHS = sizeof graphs / sizeof *graphs };

static char *text_of(const mica_graph_plan *plan)
{
    const int length = mica_graph_plan_text(plan, NULL, 0);
    char *text = malloc((size_t)length + 1);
    assert_int_equal(mica_graph_plan_text(plan, text, (size_t)length + 1), length);
    return text;
}

static void same_launches(const mica_graph_plan *a, const mica_graph_plan *b)
{
    mica_graph_step s, t;
    int i = 0;
    for (; mica_graph_plan_step(a, i, &s) == MICA_OK; i++) {
        assert_int_equal(mica_graph_plan_step(b, i, &t), MICA_OK);
        assert_string_equal(mica_plan_engine(s.plan), mica_plan_engine(t.plan));
        assert_string_equal(mica_plan_config(s.plan), mica_plan_config(t.plan));
        assert_string_equal(s.nodes, t.nodes);
    }
    assert_int_not_equal(mica_graph_plan_step(b, i, &t), MICA_OK);
    assert_int_equal(mica_graph_plan_workspace(a), mica_graph_plan_workspace(b));
}

static double microseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void plans_come_back(void **state)
{
    (void)state;
    for (int i = 0; i < GRAPHS; i++)
        for (int mode = 0; mode <= MICA_GRAPH_SEPARATE; mode++) {
            const mica_graph_options o = {.mode = (mica_graph_mode)mode};
            mica_graph *g = graph_of(graphs[i]);
            const double begin = microseconds();
            graph_run a = run_graph(g, &o, false), b = {0};
            const double middle = microseconds();
            char *text = text_of(a.plan);
            if (mica_graph_plan_from_text(context, text, &b.plan) != MICA_OK)
                fail_msg("%s\n%s", mica_error(), text);
            const double end = microseconds();
            same_launches(a.plan, b.plan);
            char *again = text_of(b.plan);
            assert_string_equal(text, again);
            run_plan(&b, false);
            agree(&a, &b, 0, text);
            print_message("graph %d, %s: %.0f us to plan and run, %.0f us from text\n", i,
                          mode ? mode == 1 ? "unfused" : "separate" : "fused", middle - begin,
                          end - middle);
            free(text);
            free(again);
            forget_run(&a);
            forget_run(&b);
            mica_graph_destroy(g);
        }
}

static uint64_t digest(const graph_run *r)
{
    uint64_t h = 1;
    for (int i = 0; r->values[i]; i++)
        for (int64_t k = 0; k < r->counts[i]; k++) {
            uint64_t bits;
            memcpy(&bits, &r->values[i][k], sizeof bits);
            h = (h ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
            h ^= h >> 29;
        }
    return h;
}

/* Another process, which knows the text alone, finds the same bits. */
static void another_process_rebuilds(void **state)
{
    (void)state;
    for (int i = 0; i < GRAPHS; i++) {
        char path[] = "/tmp/mica_plan_XXXXXX", command[128];
        unsigned long long found = 0;
        mica_graph *g = graph_of(graphs[i]);
        graph_run a = run_graph(g, NULL, false);
        char *text = text_of(a.plan);
        const int file = mkstemp(path);
        assert_true(file >= 0);
        assert_int_equal(write(file, text, strlen(text)), (ssize_t)strlen(text));
        close(file);
        snprintf(command, sizeof command, "/proc/%d/exe %s", (int)getpid(), path);
        FILE *child = popen(command, "r");
        assert_non_null(child);
        assert_int_equal(fscanf(child, "%llx", &found), 1);
        assert_int_equal(pclose(child), 0);
        assert_true(found == digest(&a));
        unlink(path);
        free(text);
        forget_run(&a);
        mica_graph_destroy(g);
    }
}

static int rebuild(const char *path)
{
    static char text[1 << 16];
    graph_run r = {0};
    FILE *f = fopen(path, "r");
    if (!f || open_context(NULL)) return 1;
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    if (mica_graph_plan_from_text(context, text, &r.plan) != MICA_OK) return 2;
    run_plan(&r, false);
    printf("%llx\n", (unsigned long long)digest(&r));
    forget_run(&r);
    return close_context(NULL);
}

/* `text` with the first `from` replaced. */
static void refused(const char *text, const char *from, const char *to, mica_status status,
                    const char *words)
{
    char changed[1 << 14];
    mica_graph_plan *plan;
    const char *at = strstr(text, from);
    if (!at) fail_msg("no \"%s\" in\n%s", from, text);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    const mica_status got = mica_graph_plan_from_text(context, changed, &plan);
    if (got != status || !strstr(mica_error(), words))
        fail_msg("%s: \"%s\" has no \"%s\"\n%s", mica_status_name(got), mica_error(), words,
                 changed);
    assert_null(plan);
}

static void other_texts_are_refused(void **state)
{
    (void)state;
    mica_graph *g = graph_of(graphs[1]);
    graph_run a = run_graph(g, NULL, false);
    char *text = text_of(a.plan), head[64];
    mica_device_info device;
    mica_context_info(context, &device);
    snprintf(head, sizeof head, "units=%d", device.units);
    refused(text, mica_version(), "0.0.1", MICA_UNSUPPORTED,
            "line 1: mica_graph_plan 0.0.1, this is ");
    refused(text, head, "units=77", MICA_UNSUPPORTED, "line 2: device cuda=0 arch=0 units=77");
    refused(text, "cuda=0", "cuda=1", MICA_UNSUPPORTED, ": plans are for one device");
    refused(text, "mica_graph_plan", "mica_plan", MICA_INVALID, "line 1: \"mica_plan ");
    refused(text, "mode fused", "mode fast", MICA_INVALID,
            "line 3: mode fast: known are fused, unfused and separate");
    refused(text, "choice ", "choice nobody", MICA_UNSUPPORTED,
            "node 0 (gemm, line 6): saved with nobody");
    refused(text, "choice ", "choice a b c\nchoice ", MICA_INVALID,
            "line 4: \"a b c\": ENGINE|CONFIG|NODES is expected");
    refused(text, "choice ", "choice cpu||0\nchoice ", MICA_INVALID, "have a choice");
    refused(text, "\ngraph\n", "\ngraph x\n", MICA_UNSUPPORTED, "nothing is expected behind graph");
    refused(text, "output y", "output y = f32:4 5", MICA_INVALID, "the graph: line ");
    refused(text, "a=f32:9x16@a", "a=f32:9x15@a", MICA_INVALID, "node 0 (gemm");
    /* cut anywhere: a status, or a plan where nothing but the end of a number or a newline lacks */
    for (size_t n = 0; n < strlen(text); n++) {
        mica_graph_plan *plan;
        char *cut = strndup(text, n);
        mica_graph_plan_from_text(context, cut, &plan);
        mica_graph_plan_destroy(plan);
        free(cut);
    }
    mica_graph_plan *plan;
    assert_int_equal(mica_graph_plan_from_text(context, NULL, &plan), MICA_INVALID);
    assert_int_equal(mica_graph_plan_from_text(NULL, text, &plan), MICA_INVALID);
    assert_int_equal(mica_graph_plan_text(NULL, head, sizeof head), 0);
    free(text);
    forget_run(&a);
    mica_graph_destroy(g);
}

int main(int argc, char **argv)
{
    if (argc == 2) return rebuild(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_come_back),
        cmocka_unit_test(another_process_rebuilds),
        cmocka_unit_test(other_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
