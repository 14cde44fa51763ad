/* SPDX-License-Identifier: Apache-2.0
 * Attention's gradient in many nodes: what becomes one launch, what must not and why; results are
 * those of the nodes one by one, and a graph that is a little wrong is found out. */
#include "unit/graph_run.h"

/* lse beyond most scores, as it would be: weights are small. A launch of its own */
#define LSE "pointwise expr=relu(x0)+5 x0=@l0 y0=@l\n"
#define INPUTS                                                                                     \
    "input q = f32:2x3x9x8\ninput k = f32:2x3x11x8\ninput v = f32:2x3x11x6\n"                      \
    "input o = f32:2x3x9x6\ninput do = f32:2x3x9x6\ninput l0 = f32:2x3x9x1\n" LSE
#define OUTPUTS "output dq\noutput dk\noutput dv\n"
#define DELTA                                                                                      \
    "pointwise expr=x0*x1 x0=@do x1=@o y0=@m\nreduce axes=-1 keepdims=1 x=@m y=@d0\n"              \
    "pointwise expr=x0*s0 x0=@d0 y0=@d s0=1\n"
#define SCORES "gemm a=@q b=f32:2x3x8x11:264x88x1x8@k c=@s\n"
#define SCALED SCORES "pointwise expr=x0*s0 x0=@s y0=@s1 s0=0.1\n"
#define P      "pointwise expr=x0-x1 x0=@s1 x1=@l y0=@s2\npointwise expr=exp(x0) x0=@s2 y0=@p\n"
#define DV     "transform x=@p perm=0x1x3x2 y=@pt\ngemm a=@pt b=@do c=@dv\n"
#define DP     "gemm a=@do b=f32:2x3x6x11:198x66x1x6@v c=@dp\n"
#define DS                                                                                         \
    DP "pointwise expr=x0-x1 x0=@dp x1=@d y0=@t1\npointwise expr=x0*x1 x0=@t1 x1=@p y0=@t2\n"      \
       "pointwise expr=x0*s0 x0=@t2 y0=@ds s0=0.1\n"
#define DK "transform x=@ds perm=0x1x3x2 y=@dst\ngemm a=@dst b=@q c=@dk\n"
#define DQ "gemm a=@ds b=@k c=@dq\n"

static void gradients_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int steps;
    } rows[] = {
        {INPUTS OUTPUTS DELTA SCALED P DV DS DK DQ, 2},
        /* whichever product comes last */
        {INPUTS OUTPUTS DELTA SCALED P DS DQ DK DV, 2},
        {INPUTS OUTPUTS DELTA SCALED P DS DQ DV DK, 2},
        /* transposes are views; scales belong to products; D in one node, P behind dP */
        {INPUTS OUTPUTS "gemm a=@q b=f32:2x3x8x11:264x88x1x8@k c=@s alpha=0.1\n" DP
                        "pointwise expr=exp(x0-x1) x0=@s x1=@l y0=@p\n"
                        "reduce map=x1*x0 axes=-1 keepdims=1 x=@o x1=@do y=@d\n"
                        "pointwise expr=x2*(x0-x1) x0=@dp x1=@d x2=@p y0=@ds\n"
                        "gemm a=f32:2x3x11x9:297x99x1x11@p b=@do c=@dv\n"
                        "gemm a=f32:2x3x11x9:297x99x1x11@ds b=@q c=@dk alpha=0.1\n"
                        "gemm a=@ds b=@k c=@dq alpha=0.1\n",
         2},
        /* a bias for all heads; a mask of bits; both, and a diagonal */
        {INPUTS OUTPUTS
         "input b = f32:2x1x9x11\n" DELTA SCALED
         "pointwise expr=x0+x1 x0=@s1 x1=@b y0=@sb\npointwise expr=x0-x1 x0=@sb x1=@l y0=@s2\n"
         "pointwise expr=exp(x0) x0=@s2 y0=@p\n" DV DS DK DQ,
         2},
        {INPUTS OUTPUTS "input b = bool:9x11\n" DELTA SCALED
                        "pointwise expr=where(x2,x0-x1,-inf) x0=@s1 x1=@l x2=@b y0=@s2\n"
                        "pointwise expr=exp(x0) x0=@s2 y0=@p\n" DV DS DK DQ,
         2},
        {INPUTS OUTPUTS
         "input b = f32:3x1x11\ninput c = bool:9x11\n" DELTA SCALED
         "pointwise expr=where(x2,x0+x1,-inf) x0=@s1 x1=@b x2=@c y0=@sb\n"
         "pointwise expr=where(i3<=i2+1,x0,-inf) x0=@sb y0=@sc\n"
         "pointwise expr=x0-x1 x0=@sc x1=@l y0=@s2\npointwise expr=exp(x0) x0=@s2 y0=@p\n" DV DS DK
             DQ,
         2},
        /* the diagonal from places, as large as the scores, and once for all heads */
        {INPUTS OUTPUTS DELTA SCALED
         "pointwise expr=s32(i2) y0=s32:2x3x9x11@row\npointwise expr=s32(i3) y0=s32:2x3x9x11@col\n"
         "pointwise expr=x0>=x1 x0=@row x1=@col y0=@c\npointwise expr=x0-x1 x0=@s1 x1=@l y0=@s2\n"
         "pointwise expr=where(x0,x1,-3.4e38) x0=@c x1=@s2 y0=@s3\n"
         "pointwise expr=exp(x0) x0=@s3 y0=@p\n" DV DS DK DQ,
         2},
        {INPUTS OUTPUTS DELTA SCALED
         "pointwise expr=i0>=i1 y0=bool:9x11@c\npointwise expr=x0-x1 x0=@s1 x1=@l y0=@s2\n"
         "pointwise expr=where(x0,x1,-inf) x0=@c x1=@s2 y0=@s3\n"
         "pointwise expr=exp(x0) x0=@s3 y0=@p\n" DV DS DK DQ,
         2},
        /* what is read changes behind all of it */
        {"inout q = f32:2x3x9x8\n"
         "input k = f32:2x3x11x8\ninput v = f32:2x3x11x6\n"
         "input o = f32:2x3x9x6\ninput do = f32:2x3x9x6\ninput l0 = f32:2x3x9x1\n" LSE OUTPUTS DELTA
             SCALED P DV DS DK DQ "pointwise expr=x0*2 x0=@q y0=@q\n",
         3},
        /* D and the accumulator of dQ are wanted: they are written all the same */
        {INPUTS OUTPUTS "output d\n" DELTA SCALED P DV DS DK DQ, 4},
        {INPUTS "output dk\noutput dv\noutput acc\noutput dq\n" DELTA SCALED P DV DS DK
                "gemm a=@ds b=@k c=@acc\npointwise expr=x0 x0=@acc y0=bf16@dq\n",
         3},
        /* ranks of two and three */
        {"input q = f32:9x8\ninput k = f32:11x8\ninput v = f32:11x6\ninput o = f32:9x6\n"
         "input do = f32:9x6\ninput l0 = f32:9x1\n" LSE OUTPUTS
         "reduce map=x0*x1 axes=-1 keepdims=1 x=@o x1=@do y=@d\n"
         "gemm a=@q b=f32:8x11:t@k c=@s\npointwise expr=exp(x0/2-x1) x0=@s x1=@l y0=@p\n"
         "gemm a=@do b=f32:6x11:t@v c=@dp\n"
         "pointwise expr=(x0-x1)*x2/2 x0=@dp x1=@d x2=@p y0=@ds\n"
         "gemm a=f32:11x9:t@p b=@do c=@dv\ngemm a=f32:11x9:t@ds b=@q c=@dk\ngemm a=@ds b=@k "
         "c=@dq\n",
         2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fuses_to(rows[i].text, rows[i].steps, -1);
}

/* bf16, as frameworks have it: P and dS are rounded for the products, K is widened for dQ. */
static void gradients_of_16_bits_are_found(void **state)
{
    (void)state;
    static const char text[] =
        "input q = bf16:2x3x9x8\ninput k = bf16:2x3x11x8\ninput v = bf16:2x3x11x6\n"
        "input o = bf16:2x3x9x6\ninput do = bf16:2x3x9x6\ninput l0 = f32:2x3x9x1\n" LSE OUTPUTS
        "pointwise expr=x0*x1 x0=@do x1=@o y0=f32@m\nreduce axes=-1 keepdims=1 x=@m y=@d0\n"
        "pointwise expr=x0*s0 x0=@d0 y0=@d s0=1\n"
        "gemm a=@q b=bf16:2x3x8x11:264x88x1x8@k c=f32@s\n"
        "pointwise expr=x0*s0 x0=@s y0=@s1 s0=0.1\n" P
        "transform x=@p perm=0x1x3x2 y=bf16@pt\ngemm a=@pt b=@do c=bf16@dv\n"
        "gemm a=@do b=bf16:2x3x6x11:198x66x1x6@v c=f32@dp\n"
        "pointwise expr=x0-x1 x0=@dp x1=@d y0=@t1\npointwise expr=x0*x1 x0=@t1 x1=@p y0=@t2\n"
        "pointwise expr=x0*s0 x0=@t2 y0=@ds s0=0.1\n"
        "transform x=@ds perm=0x1x3x2 y=bf16@dst\ngemm a=@dst b=@q c=bf16@dk\n"
        "transform x=@k y=f32@kf\ngemm a=@ds b=@kf c=f32@acc\n"
        "pointwise expr=x0 x0=@acc y0=bf16@dq\n";
    /* P and dS are rounded to 8 bits either here or there: 2^-9 of each term, of sums of up to 11;
     * the results once more */
    graph_run r = agrees_whole(text, 11 * 0x1p-9, true);
    if (r.steps != 2) fail_msg("%d launches\n%s", r.steps, r.reasons);
    forget_run(&r);
}

static void gradients_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {INPUTS OUTPUTS "output p\n" DELTA SCALED P DV DS DK DQ,
         "attention_grad: p, which node 7 makes, is an output of the graph"},
        {INPUTS OUTPUTS "output ds\n" DELTA SCALED P DV DS DK DQ,
         "attention_grad: ds, which node 13 makes, is an output of the graph"},
        {INPUTS OUTPUTS "output z\n" DELTA SCALED P DV DS DK DQ "reduce x=@dp y=@z kind=max\n",
         "attention_grad: dp, which node 10 makes, is read 2 times, 1 of them here"},
        {INPUTS OUTPUTS DELTA SCALED P DV DP
         "pointwise expr=(x0-x1)*x2*0.11 x0=@dp x1=@d x2=@p y0=@ds\n" DK DQ,
         "attention_grad: scores are scaled by 0.1, dq by 0.11"},
        {INPUTS OUTPUTS DELTA SCALED P DV DS "transform x=@ds perm=0x1x3x2 y=@dst\n"
                                             "gemm a=@dst b=@q c=@dk alpha=2\n" DQ,
         "attention_grad: scores are scaled by 0.1, dk by 0.2"},
        {INPUTS OUTPUTS DELTA SCALED P
         "gemm a=f32:2x3x11x9:297x99x1x11@p b=@do c=@dv alpha=2\n" DS DK DQ,
         "attention_grad: alpha of node 8 is 2"},
        {INPUTS OUTPUTS "pointwise expr=x0*x1 x0=@do x1=@o y0=@m\n"
                        "reduce axes=-1 keepdims=1 x=@m y=@d0\n"
                        "pointwise expr=x0*s0 x0=@d0 y0=@d s0=2\n" SCALED P DV DS DK DQ,
         "attention_grad: the sum that is subtracted is scaled by 2"},
        {INPUTS OUTPUTS
         "reduce map=x0*x1 kind=mean axes=-1 keepdims=1 x=@o x1=@do y=@d\n" SCALED P DV DS DK DQ,
         "attention_grad: what is subtracted is no sum over the last dimension"},
        {INPUTS OUTPUTS
         "input w = f32:2x3x9x6\n"
         "reduce map=x0*x1 axes=-1 keepdims=1 x=@o x1=@w y=@d\n" SCALED P DV DS DK DQ,
         "sums another gradient than that of the values"},
        {INPUTS OUTPUTS "input d = f32:2x3x9x1\n" SCALED P DV DS DK DQ,
         "attention_grad: what is subtracted is no sum of a product"},
        {INPUTS OUTPUTS "input k2 = f32:2x3x11x8\n" DELTA SCALED P DV DS DK
                        "gemm a=@ds b=@k2 c=@dq\n",
         "multiplies another tensor than the keys of the scores"},
        {INPUTS OUTPUTS "input w = f32:2x3x9x6\n" DELTA SCALED P
                        "transform x=@p perm=0x1x3x2 y=@pt\ngemm a=@pt b=@w c=@dv\n" DS DK DQ,
         "multiplies another tensor than the gradient that meets the values"},
        /* dv is needed before dq is there */
        {INPUTS "output dq\noutput dk\noutput z\n" DELTA SCALED P DV "reduce x=@dv y=@z\n" DS DK DQ,
         "attention_grad: dv is read by node 10, before node 17 is reached"},
        {"inout q = f32:2x3x9x8\n"
         "input k = f32:2x3x11x8\ninput v = f32:2x3x11x6\n"
         "input o = f32:2x3x9x6\ninput do = f32:2x3x9x6\ninput l0 = f32:2x3x9x1\n" LSE OUTPUTS DELTA
             SCALED P DV DS DK "pointwise expr=x0*2 x0=@q y0=@q\n" DQ,
         "attention_grad: q, which node 15 reads, is changed in place by node 16"},
        {INPUTS OUTPUTS DELTA SCALED P DV DS DK "gemm a=@ds b=@k c=@dq epilogue=relu\n",
         "attention_grad: a product has more than a, b and c"},
        {"scalar f = 0.1\n" INPUTS OUTPUTS DELTA
         "gemm a=@q b=f32:2x3x8x11:264x88x1x8@k c=@s1 alpha=@f\n" P DV DS DK DQ,
         "attention_grad: alpha of a product is a run-time scalar"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        graph_run r = agrees_whole(rows[i].text, GRAPH_NEAR, false);
        if (r.steps < 6) fail_msg("taken: %s", rows[i].text);
        if (!strstr(r.reasons, rows[i].words))
            fail_msg("no \"%s\":\n%s%s", rows[i].words, rows[i].text, r.reasons);
        forget_run(&r);
    }
}

/* Patterns that look like it and are not: no attention among the launches. */
static void others_are_left_alone(void **state)
{
    (void)state;
    static const char *const rows[] = {
        /* a number that is not far below, or rows without a key that become the mean of all */
        INPUTS OUTPUTS DELTA SCALED
        "pointwise expr=x0-x1 x0=@s1 x1=@l y0=@s2\n"
        "pointwise expr=exp(where(i3<=i2,x0,-5)) x0=@s2 y0=@p\n" DV DS DK DQ,
        INPUTS OUTPUTS DELTA SCALED
        "pointwise expr=x0-x1 x0=@s1 x1=@l y0=@s2\n"
        "pointwise expr=exp(where(i3<i2,x0,-3e38)) x0=@s2 y0=@p\n" DV DS DK DQ,
        /* keys after the query; heads instead of keys */
        INPUTS OUTPUTS DELTA SCALED
        "pointwise expr=x0-x1 x0=@s1 x1=@l y0=@s2\n"
        "pointwise expr=exp(where(i2<=i3,x0,-inf)) x0=@s2 y0=@p\n" DV DS DK DQ,
        INPUTS OUTPUTS DELTA SCALED
        "pointwise expr=x0-x1 x0=@s1 x1=@l y0=@s2\n"
        "pointwise expr=exp(where(i1<=i2,x0,-inf)) x0=@s2 y0=@p\n" DV DS DK DQ,
        /* dP is added, not reduced */
        INPUTS OUTPUTS DELTA SCALED P DV DP
        "pointwise expr=(x0+x1)*x2*0.1 x0=@dp x1=@d x2=@p y0=@ds\n" DK DQ,
        /* P of another base */
        INPUTS OUTPUTS DELTA SCALED "pointwise expr=exp2(x0-x1) x0=@s1 x1=@l y0=@p\n" DV DS DK DQ,
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        graph_run r = agrees_whole(rows[i], GRAPH_NEAR, true);
        mica_graph_step s;
        for (int k = 0; mica_graph_plan_step(r.plan, k, &s) == MICA_OK; k++) {
            char line[1024];
            mica_plan_describe(s.plan, line, sizeof line);
            if (!strncmp(line, "attention", 9)) fail_msg("taken: %s", rows[i]);
        }
        forget_run(&r);
    }
}

/* That the comparison sees what a wrong rewrite would do: the fused graph beside another one, a
 * little off, node by node. */
static void mistakes_are_seen(void **state)
{
    (void)state;
    static const char right[] = INPUTS OUTPUTS DELTA SCALED P DV DS DK DQ;
    static const char *const wrong[] = {
        /* no D; no scale in dS; the scale of the scores; a diagonal; K for Q's heads */
        INPUTS OUTPUTS
        "reduce map=x0*x1*0 axes=-1 keepdims=1 x=@o x1=@do y=@d\n" SCALED P DV DS DK DQ,
        INPUTS OUTPUTS DELTA SCALED P DV DP
        "pointwise expr=(x0-x1)*x2 x0=@dp x1=@d x2=@p y0=@ds\n" DK DQ,
        INPUTS OUTPUTS DELTA SCORES "pointwise expr=x0*s0 x0=@s y0=@s1 s0=0.11\n" P DV DS DK DQ,
        INPUTS OUTPUTS DELTA SCALED
        "pointwise expr=exp(where(i3<=i2+2,x0-x1,-inf)) x0=@s1 x1=@l y0=@p\n" DV DS DK DQ,
        INPUTS OUTPUTS DELTA SCALED P DV DS "transform x=@ds perm=0x1x3x2 y=@dst\n"
                                            "gemm a=@dst b=f32:2x3x9x8:216x0x8x1@q c=@dk\n" DQ,
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

/* The forward pass with a diagonal from places. */
static void causal_attention_is_found(void **state)
{
    (void)state;
    static const char head[] = "input q = f32:2x3x9x8\ninput k = f32:2x3x11x8\n"
                               "input v = f32:2x3x11x6\noutput o\n" SCALED;
    static const char *const taken[] = {
        "pointwise expr=where(i3<=i2,x0,-inf) x0=@s1 y0=@t\n",
        "pointwise expr=where(i2-i3+2>0,x0,-1e38) x0=@s1 y0=@t\n",
        "pointwise expr=i0>=i1 y0=bool:9x11@c\npointwise expr=where(x0,x1,-3e38) x0=@c x1=@s1 "
        "y0=@t\n",
        "pointwise expr=s32(i2) y0=s32:2x3x9x11@row\npointwise expr=s32(i3) y0=s32:2x3x9x11@col\n"
        "pointwise expr=x0>=x1 x0=@row x1=@col y0=@c\n"
        "pointwise expr=where(x0,x1,-3.4e38) x0=@c x1=@s1 y0=@t\n",
    };
    static const char *const left[] = {
        "pointwise expr=where(i3<=i2,x0,-7) x0=@s1 y0=@t\n",
        "pointwise expr=where(i3>=i2,x0,-inf) x0=@s1 y0=@t\n",
        "pointwise expr=where(i3<i2,x0,-3e38) x0=@s1 y0=@t\n",
        "pointwise expr=where(2*i3<=i2,x0,-inf) x0=@s1 y0=@t\n",
    };
    char text[2000];
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        snprintf(text, sizeof text, "%s%ssoftmax axis=3 x=@t y=@p\ngemm a=@p b=@v c=@o\n", head,
                 taken[i]);
        fuses_to(text, 1, -1);
    }
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        snprintf(text, sizeof text, "%s%ssoftmax axis=3 x=@t y=@p\ngemm a=@p b=@v c=@o\n", head,
                 left[i]);
        graph_run r = agrees_whole(text, GRAPH_NEAR, false);
        if (r.steps != 4) fail_msg("%d launches: %s", r.steps, text);
        forget_run(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_found),   cmocka_unit_test(gradients_of_16_bits_are_found),
        cmocka_unit_test(gradients_are_refused), cmocka_unit_test(others_are_left_alone),
        cmocka_unit_test(mistakes_are_seen),     cmocka_unit_test(causal_attention_is_found),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
