/* SPDX-License-Identifier: Apache-2.0
 * Norms in many nodes: what becomes one launch, what must not and why. */
#include "unit/graph_run.h"

#define X      "input x = f32:6x5x7\noutput y\n"
#define W      "input w = f32:7\n"
#define B      "input b = f32:7\n"
#define MEAN   "reduce kind=mean axes=-1 keepdims=1 x=@x y=@m\n"
#define CENTRE MEAN "pointwise expr=x0-x1 x0=@x x1=@m y0=@c\n"
#define ROOT   "pointwise expr=x0+1e-3 x0=@v y0=@ve\npointwise expr=rsqrt(x0) x0=@ve y0=@r\n"
#define VAR                                                                                        \
    "pointwise expr=square(x0) x0=@c y0=@q\nreduce kind=mean axes=-1 keepdims=1 x=@q y=@v\n" ROOT
#define LAYER CENTRE VAR
#define RMS   "pointwise expr=x0*x0 x0=@x y0=@q\nreduce kind=mean axes=-1 keepdims=1 x=@q y=@v\n" ROOT

static void norms_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int steps;
    } rows[] = {
        {X LAYER "pointwise expr=x0*x1 x0=@c x1=@r y0=@y\n", 1},
        {X W B LAYER "pointwise expr=x0*x1 x0=@c x1=@r y0=@n\npointwise expr=x0*x1 x0=@n x1=@w "
                     "y0=@nw\npointwise expr=x1+x0 x0=@nw x1=@b y0=@y\n",
         1},
        /* in one expression, and with nodes that compute x - mean again */
        {X W B LAYER "pointwise expr=x1*x0*x2+x3 x0=@c x1=@r x2=@w x3=@b y0=@y\n", 1},
        {X W B MEAN "reduce map=square(x0-x1) kind=mean axes=-1 keepdims=1 x=@x x1=@m y=@v\n" ROOT
                    "pointwise expr=(x0-x1)*x2*x3+x4 x0=@x x1=@m x2=@r x3=@w x4=@b y0=@y\n",
         1},
        /* sums that are divided; a quotient by the deviation; the variance as a reduction */
        {X "reduce axes=-1 keepdims=1 x=@x y=@m0\npointwise expr=x0*s0 x0=@m0 y0=@m "
           "s0=0.14285714285714285\npointwise expr=x0-x1 x0=@x x1=@m y0=@c\n"
           "reduce map=x0*x0 axes=-1 keepdims=1 x=@c y=@v\n"
           "pointwise expr=1/sqrt(x0/7+1e-3) x0=@v y0=@r\npointwise expr=x0*x1 x0=@c x1=@r y0=@y\n",
         1},
        {X W CENTRE "reduce kind=var axes=-1 keepdims=1 x=@x y=@v\n"
                    "pointwise expr=sqrt(x0+1e-3) x0=@v y0=@r\n"
                    "pointwise expr=x2*x0/x1 x0=@c x1=@r x2=@w y0=@y\n",
         1},
        /* two dimensions, which do not stay */
        {X "input w = f32:5x7\nreduce kind=mean axes=1,2 x=@x y=@m\n"
           "pointwise expr=x0-x1 x0=@x x1=f32:6x1x1@m y0=@c\n"
           "reduce map=square(x0) kind=mean axes=-1,-2 x=@c y=@v\n"
           "pointwise expr=rsqrt(x0+1e-3) x0=@v y0=@r\n"
           "pointwise expr=x0*x1*x2 x0=@c x1=f32:6x1x1@r x2=@w y0=@y\n",
         1},
        {X RMS "pointwise expr=x0*x1 x0=@x x1=@r y0=@y\n", 1},
        {X W RMS "pointwise expr=x0*x1 x0=@x x1=@r y0=@n\npointwise expr=x0*x1 x0=@w x1=@n y0=@y\n",
         1},
        {X W RMS "pointwise expr=x0*x1 x0=@x x1=@r y0=@n\n"
                 "pointwise expr=silu(x0*x1) x0=@n x1=@w y0=@y\n",
         1},
        /* statistics that are wanted are results of the norm */
        {X W B "output r\noutput m\n" LAYER
               "pointwise expr=x0*x1 x0=@c x1=@r y0=@n\npointwise expr=x0*x1+x2 x0=@n x1=@w x2=@b "
               "y0=@y\n",
         1},
        {X W "output r\noutput z\n" RMS "pointwise expr=x0*x1*x2 x0=@x x1=@r x2=@w y0=@y\n"
             "pointwise expr=x0*2 x0=@r y0=@z\n",
         2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fuses_to(rows[i].text, rows[i].steps, -1);
}

static void norms_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {X "output c\n" LAYER "pointwise expr=x0*x1 x0=@c x1=@r y0=@y\n",
         "norm: c, which node 1 makes, is an output of the graph"},
        {X "output v\n" LAYER "pointwise expr=x0*x1 x0=@c x1=@r y0=@y\n",
         "norm: v, which node 3 makes, is an output of the graph"},
        {X "output z\n" LAYER "reduce x=@c y=@z kind=max\npointwise expr=x0*x1 x0=@c x1=@r y0=@y\n",
         "norm: c, which node 1 makes, is read 3 times, 2 of them here"},
        /* x itself by the deviation, and the other way */
        {X LAYER "pointwise expr=x0*x1 x0=@x x1=@r y0=@y\n",
         "norm: what is scaled has its mean, what is squared is without"},
        {X CENTRE RMS "pointwise expr=x0*x1 x0=@c x1=@r y0=@y\n",
         "norm: what is scaled is without its mean, what is squared has it"},
        {X "input u = f32:6x5x7\n" RMS "pointwise expr=x0*x1 x0=@u x1=@r y0=@y\n",
         "norm: what is scaled and what is squared are two tensors"},
        {X "reduce kind=mean axes=-1,-2 keepdims=1 x=@x y=@m\n"
           "pointwise expr=x0-x1 x0=@x x1=@m y0=@c\n" VAR
           "pointwise expr=x0*x1 x0=@c x1=@r y0=@y\n",
         "norm: the mean is over 2 dimensions, the variance over 1"},
        /* m is read before y is reached */
        {X "output z\n" LAYER "reduce kind=max x=@m y=@z\npointwise expr=x0*x1 x0=@c x1=@r y0=@y\n",
         "norm: m is read by node 6, before node 7 is reached"},
        {X "output r\noutput z\n" RMS "pointwise expr=x0*x1 x0=@x x1=@r y0=@n\n"
           "pointwise expr=exp(x0) x0=@n y0=@y\npointwise expr=x0*2 x0=@r y0=@z\n",
         "norm: its statistics are wanted, and more follows"},
        {"inout x = f32:6x5x7\noutput y\n" RMS
         "pointwise expr=x0*2 x0=@x y0=@x\npointwise expr=x0*x1 x0=@x x1=@r y0=@y\n",
         "x, which node "},
        {X W RMS "pointwise expr=x0*x1 x0=@x x1=@r y0=@n\n"
                 "pointwise expr=x0*x1 x0=@n x1=f32:6x5x7:0x1x0@w y0=@y\n",
         "norm: f32:6x5x7:0x1x0 is not one number for each of the last 1 dimensions"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        graph_run r = agrees_whole(rows[i].text, GRAPH_NEAR, false);
        if (r.steps < 2 || !strstr(r.reasons, rows[i].words))
            fail_msg("%d launches, or no \"%s\":\n%s%s", r.steps, rows[i].words, rows[i].text,
                     r.reasons);
        forget_run(&r);
    }
}

/* What looks like a norm and is none. */
static void others_are_left_alone(void **state)
{
    (void)state;
    static const char *const rows[] = {
        /* the sum of squares; the mean over other dimensions; no eps in the root; another root */
        X "reduce map=x0*x0 axes=-1 keepdims=1 x=@x y=@v\n" ROOT
          "pointwise expr=x0*x1 x0=@x x1=@r y0=@y\n",
        X "reduce map=x0*x0 kind=mean axes=1 keepdims=1 x=@x y=@v\n" ROOT
          "pointwise expr=x0*x1 x0=@x x1=@r y0=@y\n",
        X CENTRE "reduce kind=var axes=-1 keepdims=1 correction=1 x=@x y=@v\n" ROOT
                 "pointwise expr=x0*x1 x0=@c x1=@r y0=@y\n",
        X "reduce map=abs(x0) kind=mean axes=-1 keepdims=1 x=@x y=@v\n" ROOT
          "pointwise expr=x0*x1 x0=@x x1=@r y0=@y\n",
        X "reduce map=x0*x0 kind=mean axes=-1 keepdims=1 x=@x y=@v\n"
          "pointwise expr=cbrt(x0+1e-3) x0=@v y0=@r\npointwise expr=x0/x1 x0=@x x1=@r y0=@y\n",
        X RMS "pointwise expr=x0*x1*2 x0=@x x1=@r y0=@y\n",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        graph_run r = agrees_whole(rows[i], GRAPH_NEAR, false);
        mica_graph_step s;
        for (int k = 0; mica_graph_plan_step(r.plan, k, &s) == MICA_OK; k++) {
            char line[1024];
            mica_plan_describe(s.plan, line, sizeof line);
            if (!strncmp(line, "norm", 4)) fail_msg("taken: %s", rows[i]);
        }
        forget_run(&r);
    }
}

/* The fused graph beside others, a little off, node by node: the comparison sees them. */
static void mistakes_are_seen(void **state)
{
    (void)state;
    static const char right[] =
        X W B LAYER "pointwise expr=x0*x1*x2+x3 x0=@c x1=@r x2=@w x3=@b y0=@y\n";
    static const char *const wrong[] = {
        X W B RMS "pointwise expr=x0*x1*x2+x3 x0=@x x1=@r x2=@w x3=@b y0=@y\n",
        X W B CENTRE "pointwise expr=square(x0) x0=@c y0=@q\n"
                     "reduce kind=mean axes=-1 keepdims=1 x=@q y=@v\n"
                     "pointwise expr=rsqrt(x0+5e-3) x0=@v y0=@r\n"
                     "pointwise expr=x0*x1*x2+x3 x0=@c x1=@r x2=@w x3=@b y0=@y\n",
        X W B LAYER "pointwise expr=x0*x1*x2 x0=@c x1=@r x2=@w y0=@y\n",
        X W B LAYER "pointwise expr=x0*x1+x2 x0=@c x1=@r x2=@b y0=@y\n",
        X W B CENTRE "reduce kind=var correction=1 axes=-1 keepdims=1 x=@x y=@v\n" ROOT
                     "pointwise expr=x0*x1*x2+x3 x0=@c x1=@r x2=@w x3=@b y0=@y\n",
    };
    mica_graph *g = graph_of(right);
    graph_run a = run_graph(g, NULL, false);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const mica_graph_options separate = {.mode = MICA_GRAPH_SEPARATE};
        mica_graph *h = graph_of(wrong[i]);
        graph_run b = run_graph(h, &separate, false);
        bool seen = false;
        for (int t = 0; a.values[t]; t++)
            for (int64_t k = 0; k < a.counts[t]; k++)
                seen |= !(fabs(a.values[t][k] - b.values[t][k]) <=
                          GRAPH_NEAR * (1 + fabs(b.values[t][k])));
        if (!seen) fail_msg("not seen: %s", wrong[i]);
        forget_run(&b);
        mica_graph_destroy(h);
    }
    forget_run(&a);
    mica_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_found),
        cmocka_unit_test(norms_are_refused),
        cmocka_unit_test(others_are_left_alone),
        cmocka_unit_test(mistakes_are_seen),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
