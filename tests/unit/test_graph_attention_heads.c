/* SPDX-License-Identifier: Apache-2.0
 * Attention in many nodes, where query heads share keys, weights are dropped, and the bias has a
 * gradient: what becomes one launch, what must not and why, and that a graph which is a little
 * wrong is found out. */
#include "unit/graph_run.h"

#define DROP "rng=@rng p=0.25 numbering=attention\n"

/* ---- the forward pass ---- */

/* Two heads of keys for six of queries, repeated by copies. */
#define FORWARD                                                                                    \
    "input q = f32:2x6x9x8\ninput k = f32:2x2x11x8\ninput v = f32:2x2x11x6\ninput rng = s64:2\n"   \
    "output o\n"
#define KEYS   "pointwise expr=x0 x0=f32:2x2x3x11x8:176x88x0x8x1@k y0=f32:2x2x3x11x8@kx\n"
#define VALUES "tile x=f32:2x2x1x11x6@v repeats=1x1x3x1x1 y=@vx\n"
#define SCORES "gemm a=@q b=f32:2x6x8x11:528x88x1x8@kx c=@s alpha=0.3\n"
#define OUT    "gemm a=@p b=f32:2x6x11x6@vx c=@o\n"

static void shared_keys_are_found(void **state)
{
    (void)state;
    fuses_to(FORWARD KEYS VALUES SCORES "softmax axis=3 x=@s y=@p\n" OUT, 1, 1);
    /* the group as a dimension: products broadcast; a mask for all heads; keys by a stride of 0 */
    fuses_to("input q = f32:2x2x3x9x8\ninput k = f32:2x2x1x8x11\ninput v = f32:2x2x1x11x6\n"
             "input m = f32:2x1x1x9x11\noutput o\n"
             "gemm a=@q b=@k c=@s alpha=0.3\npointwise expr=x0+x1 x0=@s x1=@m y0=@t\n"
             "softmax axis=4 x=@t y=@p\ngemm a=@p b=@v c=@o\n",
             1, -1);
    fuses_to("input q = f32:2x2x3x9x8\ninput k = f32:2x2x8x11\ninput v = f32:2x2x11x6\noutput o\n"
             "gemm a=@q b=f32:2x2x3x8x11:176x88x0x11x1@k c=@s alpha=0.3\n"
             "softmax axis=4 x=@s y=@p\ngemm a=@p b=f32:2x2x3x11x6:132x66x0x6x1@v c=@o\n",
             1, -1);
    /* one head of keys for all */
    fuses_to("input q = f32:2x6x9x8\ninput k = f32:2x1x8x11\ninput v = f32:2x1x11x6\noutput o\n"
             "gemm a=@q b=@k c=@s alpha=0.3\nsoftmax axis=3 x=@s y=@p\ngemm a=@p b=@v c=@o\n",
             1, -1);
    /* the copies are wanted: they stay */
    fuses_to(FORWARD "output kx\n" KEYS VALUES SCORES "softmax axis=3 x=@s y=@p\n" OUT, 2, 1);
}

static void shared_keys_are_refused(void **state)
{
    (void)state;
    /* query head h reads key head h % 2: the copies lie behind one another */
    static const char other[] =
        "input q = f32:2x6x9x8\ninput k = f32:2x2x11x8\ninput v = f32:2x6x11x6\noutput o\n"
        "tile x=@k repeats=1x3x1x1 y=@kx\ngemm a=@q b=f32:2x6x8x11:528x88x1x8@kx c=@s alpha=0.3\n"
        "softmax axis=3 x=@s y=@p\ngemm a=@p b=@v c=@o\n";
    fuses_to(other, 2, 1); /* six heads of keys, which the copy makes */
    stays("input q = f32:2x2x3x9x8\ninput k = f32:2x1x3x8x11\ninput v = f32:2x2x3x11x6\noutput o\n"
          "gemm a=@q b=@k c=@s alpha=0.3\nsoftmax axis=4 x=@s y=@p\ngemm a=@p b=@v c=@o\n",
          3, "3 heads are repeated behind one another, not head by head");
    stays("input q = f32:2x2x3x9x8\ninput k = f32:2x2x3x8x11\ninput v = f32:2x2x3x11x6\n"
          "input m = f32:2x1x3x9x11\noutput o\ngemm a=@q b=@k c=@s alpha=0.3\n"
          "pointwise expr=x0+x1 x0=@s x1=@m y0=@t\nsoftmax axis=4 x=@t y=@p\ngemm a=@p b=@v c=@o\n",
          3, "2 groups of 3 heads lie 0 and 99 apart, not behind one another");
    /* keys of four dimensions belong to the second of five, not to the first */
    stays("input q = f32:2x2x3x9x8\ninput k = f32:2x1x8x11\ninput v = f32:2x2x1x11x6\noutput o\n"
          "gemm a=@q b=@k c=@s alpha=0.3\nsoftmax axis=4 x=@s y=@p\ngemm a=@p b=@v c=@o\n",
          3, "attention: ");
}

static void dropped_weights_are_found(void **state)
{
    (void)state;
    fuses_to(FORWARD KEYS VALUES SCORES "softmax axis=3 x=@s y=@p0\ndropout x=@p0 y=@p " DROP OUT,
             1, 1);
    stays(FORWARD KEYS VALUES SCORES
          "softmax axis=3 x=@s y=@p0\ndropout x=@p0 y=@p rng=@rng p=0.25\n" OUT,
          6, "the dropout of node 4 draws by index");
    stays(FORWARD "output m\n" KEYS VALUES SCORES
                  "softmax axis=3 x=@s y=@p0\ndropout x=@p0 y=@p mask=u8@m " DROP OUT,
          6, "node 4 has another result, m");
    stays(FORWARD "input r = f32:2x6x9x11\n" KEYS VALUES SCORES
                  "softmax axis=3 x=@s y=@p0\ndropout x=@p0 y=@p residual=@r " DROP OUT,
          6, "the dropout of node 4 adds a residual");
    stays(FORWARD KEYS VALUES SCORES "softmax axis=3 x=@s y=@p0\ndropout x=@p0 y=@p rng=@rng p=1 "
                                     "numbering=attention\n" OUT,
          6, "node 4 drops everything");
}

/* ---- the gradient ---- */

#define INPUTS                                                                                     \
    "input q = f32:2x6x9x8\ninput k = f32:2x2x11x8\ninput v = f32:2x2x11x6\n"                      \
    "input o = f32:2x6x9x6\ninput do = f32:2x6x9x6\ninput l0 = f32:2x6x9x1\n"                      \
    "pointwise expr=relu(x0)+5 x0=@l0 y0=@l\noutput dq\noutput dk\noutput dv\n"
#define RNG        "input rng = s64:2\n"
#define DELTA      "reduce map=x0*x1 axes=-1 keepdims=1 x=@do x1=@o y=@d\n"
#define S          "gemm a=@q b=f32:2x6x8x11:528x88x1x8@kx c=@s\n"
#define P          "pointwise expr=exp(x0*0.1-x1) x0=@s x1=@l y0=@p\n"
#define DV         "gemm a=f32:2x6x11x9:594x99x1x11@p b=@do c=@dvx\n"
#define DVX        "reduce axes=2 x=f32:2x2x3x11x6@dvx y=@dv\n"
#define DP         "gemm a=@do b=f32:2x6x6x11:396x66x1x6@vx c=@dp\n"
#define DS         "pointwise expr=(x0-x1)*x2*0.1 x0=@dp x1=@d x2=@p y0=@ds\n"
#define DK         "gemm a=f32:2x6x11x9:594x99x1x11@ds b=@q c=@dkx\n"
#define DKX        "reduce axes=2 x=f32:2x2x3x11x8@dkx y=@dk\n"
#define DQ         "gemm a=@ds b=f32:2x6x11x8@kx c=@dq\n"
#define DROPPED_DV "dropout x=@p y=@pd " DROP "gemm a=f32:2x6x11x9:594x99x1x11@pd b=@do c=@dvx\n"
#define DROPPED_DP                                                                                 \
    "gemm a=@do b=f32:2x6x6x11:396x66x1x6@vx c=@dp0\ndropout pass=bwd dy=@dp0 dx=@dp " DROP

/* Heads of five dimensions, and a bias for each head. */
#define FIVE                                                                                       \
    "input q = f32:2x2x3x9x8\ninput k = f32:2x2x1x11x8\ninput v = f32:2x2x1x11x6\n"                \
    "input o = f32:2x2x3x9x6\ninput do = f32:2x2x3x9x6\ninput l0 = f32:2x2x3x9x1\n"                \
    "input b = f32:2x3x1x11\n"                                                                     \
    "pointwise expr=relu(x0)+5 x0=@l0 y0=@l\noutput dq\noutput dk\noutput dv\noutput db\n" DELTA   \
    "gemm a=@q b=f32:2x2x1x8x11:176x88x88x1x8@k c=@s\n"                                            \
    "pointwise expr=exp(x0*0.1+x2-x1) x0=@s x1=@l x2=@b y0=@p\n"                                   \
    "gemm a=f32:2x2x3x11x9:594x297x99x1x11@p b=@do c=@dvx\nreduce axes=2 x=@dvx y=@dv\n"           \
    "gemm a=@do b=f32:2x2x1x6x11:132x66x66x1x6@v c=@dp\n"
#define FIVE_DS                                                                                    \
    "pointwise expr=(x0-x1)*x2 x0=@dp x1=@d x2=@p y0=@dl\npointwise expr=x0*0.1 x0=@dl y0=@ds\n"
#define FIVE_DKQ                                                                                   \
    "gemm a=f32:2x2x3x11x9:594x297x99x1x11@ds b=@q c=@dkx\n"                                       \
    "reduce axes=2 x=@dkx y=@dk keepdims=1\ngemm a=@ds b=@k c=@dq\n"

/* A bias as large as the scores, whose gradient is not summed. */
#define FULL                                                                                       \
    "input q = f32:2x3x9x8\ninput k = f32:2x3x11x8\ninput v = f32:2x3x11x6\n"                      \
    "input o = f32:2x3x9x6\ninput do = f32:2x3x9x6\ninput l0 = f32:2x3x9x1\n"                      \
    "input b = f32:2x3x9x11\noutput dq\noutput dk\noutput dv\noutput db\n"                         \
    "pointwise expr=relu(x0)+5 x0=@l0 y0=@l\n" DELTA                                               \
    "gemm a=@q b=f32:2x3x8x11:264x88x1x8@k c=@s\n"                                                 \
    "pointwise expr=exp(x0*0.1+x2-x1) x0=@s x1=@l x2=@b y0=@p\n"                                   \
    "gemm a=f32:2x3x11x9:297x99x1x11@p b=@do c=@dv\n"                                              \
    "gemm a=@do b=f32:2x3x6x11:198x66x1x6@v c=@dp\n"                                               \
    "pointwise expr=(x0-x1)*x2 x0=@dp x1=@d x2=@p y0=@db\n"                                        \
    "pointwise expr=x0*0.1 x0=@db y0=@ds\n"
#define FULL_DKQ "gemm a=f32:2x3x11x9:297x99x1x11@ds b=@q c=@dk\ngemm a=@ds b=@k c=@dq\n"

static const char grouped[] = INPUTS KEYS VALUES DELTA S P DV DVX DP DS DK DKX DQ;
static const char dropped[] =
    INPUTS RNG KEYS VALUES DELTA S P DROPPED_DV DVX DROPPED_DP DS DK DKX DQ;
static const char biased[] = FIVE FIVE_DS FIVE_DKQ "reduce axes=0,3 keepdims=1 x=@dl y=@db\n";

static void gradients_are_found(void **state)
{
    (void)state;
    fuses_to(grouped, 2, -1);
    /* whichever comes last: a sum over a group too */
    fuses_to(INPUTS KEYS VALUES DELTA S P DP DS DQ DK DKX DV DVX, 2, -1);
    fuses_to(INPUTS KEYS VALUES DELTA S P DP DS DQ DV DVX DK DKX, 2, -1);
    fuses_to(dropped, 2, -1);
    fuses_to(biased, 2, -1);
    /* the sum for the bias in front of the products, without what it reduced */
    fuses_to(FIVE FIVE_DS "reduce axes=0,3 x=@dl y=@db\n" FIVE_DKQ, 2, -1);
    fuses_to(FULL FULL_DKQ, 2, -1);
    fuses_to(FULL "output z\n" FULL_DKQ "reduce kind=max x=@db y=@z\n", 3, -1);
    /* one head of keys: the sum leaves no dimension */
    fuses_to("input q = f32:2x6x9x8\ninput k = f32:2x1x11x8\ninput v = f32:2x1x11x6\n"
             "input o = f32:2x6x9x6\ninput do = f32:2x6x9x6\ninput l0 = f32:2x6x9x1\n"
             "pointwise expr=relu(x0)+5 x0=@l0 y0=@l\noutput dq\noutput dk\noutput dv\n" DELTA
             "gemm a=@q b=f32:2x1x8x11:88x88x1x8@k c=@s\n" P DV "reduce axes=1 x=@dvx y=@dv\n"
             "gemm a=@do b=f32:2x1x6x11:66x66x1x6@v c=@dp\n" DS DK
             "reduce axes=1 keepdims=1 x=@dkx y=@dk\ngemm a=@ds b=@k c=@dq\n",
             2, -1);
}

static void gradients_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {INPUTS "output dkx\n" KEYS VALUES DELTA S P DV DVX DP DS DK DKX DQ,
         "attention_grad: dk has 6 heads and no sum for the 2 of the keys"},
        {INPUTS KEYS VALUES DELTA S P DV DVX DP DS DK
         "reduce axes=1 x=f32:2x3x2x11x8@dkx y=@dk\n" DQ,
         "attention_grad: dk has 6 heads and no sum for the 2 of the keys"},
        {INPUTS KEYS VALUES DELTA S P DV DVX DP DS DK
         "reduce axes=2 x=f32:2x3x2x11x8@dkx y=@dk\n" DQ,
         "leaves 3 heads, the keys have 2"},
        {INPUTS RNG KEYS VALUES DELTA S P DV DVX DROPPED_DP DS DK DKX DQ,
         "attention_grad: node 9 drops some of the gradient of the weights, nobody of the weights"},
        {INPUTS RNG KEYS VALUES DELTA S P DROPPED_DV DVX DP DS DK DKX DQ,
         "attention_grad: node 6 drops some of the weights, nobody of their gradient"},
        {INPUTS RNG KEYS VALUES DELTA S P DROPPED_DV DVX
         "gemm a=@do b=f32:2x6x6x11:396x66x1x6@vx c=@dp0\n"
         "dropout pass=bwd dy=@dp0 dx=@dp rng=@rng p=0.5 numbering=attention\n" DS DK DKX DQ,
         "drops 0.25 of the weights, node 10 0.5 of their gradient"},
        {INPUTS RNG
         "input rng2 = s64:2\n" KEYS VALUES DELTA S P DROPPED_DV DVX
         "gemm a=@do b=f32:2x6x6x11:396x66x1x6@vx c=@dp0\n"
         "dropout pass=bwd dy=@dp0 dx=@dp rng=@rng2 p=0.25 numbering=attention\n" DS DK DKX DQ,
         "drop by two rng"},
        {INPUTS RNG KEYS VALUES DELTA S P
         "dropout x=@p y=@pd rng=@rng p=0.25\ngemm a=f32:2x6x11x9:594x99x1x11@pd b=@do c=@dvx\n" DVX
             DROPPED_DP DS DK DKX DQ,
         "draws by index"},
        {FIVE FIVE_DS FIVE_DKQ "reduce axes=0,1,3 keepdims=1 x=@dl y=@db\n",
         "sums over some heads, not all"},
        {FIVE FIVE_DS FIVE_DKQ "reduce axes=3 keepdims=1 x=@dl y=@db\n",
         "keeps dimension 0 of 4 of the gradient of the bias, of which it has 1"},
        {FIVE "pointwise expr=(x0-x1)*x2*2 x0=@dp x1=@d x2=@p y0=@dl\n"
              "pointwise expr=x0*0.05 x0=@dl y0=@ds\n" FIVE_DKQ
              "reduce axes=0,3 keepdims=1 x=@dl y=@db\n",
         "the gradient of the bias is scaled by 2"},
        {INPUTS "output db\n" KEYS VALUES DELTA S P DV DVX DP DS DK DKX DQ
                "reduce axes=0 x=@ds y=@db\n",
         "sums a gradient of scores that have no bias"},
        {FULL "output z\nreduce kind=max x=@db y=@z\n" FULL_DKQ,
         "attention_grad: db is read by node 8, before node 10 is reached"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        graph_run r = agrees_whole(rows[i].text, GRAPH_NEAR, false);
        mica_graph_step s;
        char line[1024];
        for (int k = 0; mica_graph_plan_step(r.plan, k, &s) == MICA_OK; k++) {
            mica_plan_describe(s.plan, line, sizeof line);
            if (!strncmp(line, "attention", 9)) fail_msg("taken: %s", rows[i].text);
        }
        if (!strstr(r.reasons, rows[i].words))
            fail_msg("no \"%s\":\n%s%s", rows[i].words, rows[i].text, r.reasons);
        forget_run(&r);
    }
}

/* That the comparison sees what a wrong rewrite would do. */
static void mistakes_are_seen(void **state)
{
    (void)state;
    static const struct {
        const char *right, *wrong;
    } rows[] = {
        /* the other heads of a group; no sum; another share, other words, no dropout of dP */
        {grouped, INPUTS KEYS VALUES DELTA S P DV DVX DP DS DK
         "reduce axes=1 x=f32:2x3x2x11x8@dkx y=@dk\n" DQ},
        {grouped, INPUTS KEYS VALUES DELTA S P DV
         "pointwise expr=x0 x0=f32:2x2x11x6:396x198x6x1@dvx y0=@dv\n" DP DS DK DKX DQ},
        {dropped, INPUTS RNG KEYS VALUES DELTA S P DROPPED_DV DVX
         "gemm a=@do b=f32:2x6x6x11:396x66x1x6@vx c=@dp0\n"
         "dropout pass=bwd dy=@dp0 dx=@dp rng=@rng p=0.26 numbering=attention\n" DS DK DKX DQ},
        {dropped, INPUTS RNG KEYS VALUES DELTA S P DROPPED_DV DVX
         "gemm a=@do b=f32:2x6x6x11:396x66x1x6@vx c=@dp0\n"
         "dropout pass=bwd dy=@dp0 dx=@dp rng=@rng p=0.25\n" DS DK DKX DQ},
        {dropped, INPUTS RNG KEYS VALUES DELTA S P DROPPED_DV DVX DP DS DK DKX DQ},
        /* the bias of other keys; with the scale of the scores */
        {biased, FIVE FIVE_DS FIVE_DKQ
         "reduce axes=0,3 keepdims=1 x=f32:2x2x3x9x11:594x297x0x11x1@dl y=@db\n"},
        {biased, FIVE FIVE_DS FIVE_DKQ "reduce axes=0,3 keepdims=1 x=@ds y=@db\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const mica_graph_options separate = {.mode = MICA_GRAPH_SEPARATE};
        mica_graph *g = graph_of(rows[i].right), *h = graph_of(rows[i].wrong);
        graph_run a = run_graph(g, NULL, false), b = run_graph(h, &separate, false);
        bool seen = false;
        for (int t = 0; a.values[t]; t++) {
            assert_int_equal(a.counts[t], b.counts[t]);
            for (int64_t k = 0; k < a.counts[t]; k++)
                seen |= !(fabs(a.values[t][k] - b.values[t][k]) <=
                          GRAPH_NEAR * (1 + fabs(b.values[t][k])));
        }
        if (!seen) fail_msg("not seen: %s", rows[i].wrong);
        forget_run(&a);
        forget_run(&b);
        mica_graph_destroy(g);
        mica_graph_destroy(h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_keys_are_found),     cmocka_unit_test(shared_keys_are_refused),
        cmocka_unit_test(dropped_weights_are_found), cmocka_unit_test(gradients_are_found),
        cmocka_unit_test(gradients_are_refused),     cmocka_unit_test(mistakes_are_seen),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
