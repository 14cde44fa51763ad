/* SPDX-License-Identifier: Apache-2.0
 * Random graphs with fan-out, residuals, in-place candidates and outputs in the middle: fused,
 * unfused and node by node give the same. In f64, where nothing but the order of additions may
 * differ, a wrong operand shows. */
#include "unit/graph_run.h"

enum { SEEDS = 80, NODES = 14, TEXT = 8000 };

static uint64_t state_of;

static int draw(int n)
{
    state_of = state_of * 6364136223846793005u + 1442695040888963407u;
    return (int)((state_of >> 33) % (uint64_t)n);
}

typedef struct drawing {
    char text[TEXT];
    size_t length;
    const char *type;
    int tensors; /* t0 .., all of 2x3x4x4 */
    bool used[NODES + 8], output[NODES + 8];
} drawing;

static void add(drawing *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(drawing *d, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    d->length += (size_t)vsnprintf(d->text + d->length, TEXT - d->length, format, list);
    va_end(list);
    assert_true(d->length < TEXT);
}

/* Often one of the last, so that chains come about. */
static int pick(drawing *d)
{
    int t = draw(3) ? d->tensors - 1 - draw(d->tensors < 2 ? 1 : 2) : draw(d->tensors);
    d->used[t] = true;
    return t;
}

static void add_node(drawing *d)
{
    static const char *const unary[] = {
        "tanh(x0)", "relu(x0)",      "x0*0.5",  "sigmoid(x0)", "where(i3<=i2,x0,-1)",
        "-x0",      "silu(x0)-0.25", "x0*s0+s1"};
    static const char *const binary[] = {"x0+x1",          "x0*x1",       "relu(x0+x1)",
                                         "x0*0.5-x1*0.25", "tanh(x1)*x0", "where(x0>x1,x0,x1*0.5)"};
    static const char *const acts[] = {"relu", "gelu", "tanh", "hard_swish", "elu"};
    static const char *const kinds[] = {"mean", "max", "norm2"};
    const int a = pick(d), b = pick(d), out = d->tensors;
    switch (draw(12)) {
    case 0:
    case 1: {
        const char *expr = unary[draw(8)];
        add(d, "pointwise expr=%s x0=@t%d y0=@t%d%s\n", expr, a, out,
            strstr(expr, "s0") ? " s0=-0.5 s1=@bend" : "");
        break;
    }
    case 2:
    case 3:
        if (a != b)
            add(d, "pointwise expr=%s x0=@t%d x1=@t%d y0=@t%d\n", binary[draw(6)], a, b, out);
        else
            add(d, "pointwise expr=x0*x0 x0=@t%d y0=@t%d\n", a, out);
        break;
    case 4:
        add(d, "activation act=%s x=@t%d y=@t%d\n", acts[draw(5)], a, out);
        break;
    case 5:
        add(d, "softmax axis=%d x=@t%d y=@t%d\n", draw(4), a, out);
        break;
    case 6:
        add(d, "gemm a=@t%d b=@t%d c=@t%d alpha=0.25\n", a, b, out);
        break;
    case 7:
        add(d, "conv x=@t%d w=@w y=@t%d pad=1x1\n", a, out);
        break;
    case 8: /* channels' bias and a scale of them */
        add(d, "pointwise expr=%s x0=@t%d x1=@%s y0=@t%d\n", draw(2) ? "x0+x1" : "x0*x1", a,
            draw(2) ? "channel" : "column", out);
        break;
    case 9:
        add(d, "reduce kind=%s axes=%d keepdims=1 x=@t%d y=@r%d\n", kinds[draw(3)], draw(4), a,
            out);
        add(d, "pointwise expr=x0-x1 x0=@t%d x1=@r%d y0=@t%d\n", b, out, out);
        break;
    case 10: /* a batch of matrices, turned */
        add(d, "pointwise expr=x0+0.5*x1 x0=%s:2x3x4x4:48x16x1x4@t%d x1=@column y0=@t%d\n", d->type,
            a, out);
        break;
    default:
        add(d, "norm x=@t%d scale=@column bias=@column y=@t%d\n", a, out);
    }
    d->tensors++;
}

static const char *graph_of_seed(drawing *d, int seed, const char *type)
{
    *d = (drawing){.type = type};
    state_of = (uint64_t)seed * 7919 + 17;
    for (int i = 0; i < 20; i++) draw(2);
    const int inputs = 1 + draw(3);
    for (int i = 0; i < inputs; i++) add(d, "input t%d = %s:2x3x4x4\n", i, type);
    add(d,
        "input w = %s:3x3x3x3\ninput channel = %s:3x1x1\ninput column = %s:4\nscalar bend = "
        "0.125\n",
        type, type, type);
    d->tensors = inputs;
    for (int i = 0; i < NODES; i++) add_node(d);
    for (int i = inputs; i < d->tensors; i++)
        if (!d->used[i] || draw(8) == 0) add(d, "output t%d\n", i);
    return d->text;
}

static void modes_agree(void **state)
{
    (void)state;
    int launches = 0, nodes = 0;
    static drawing d;
    for (int seed = 0; seed < SEEDS; seed++) {
        graph_run r = agrees_whole(graph_of_seed(&d, seed, "f64"), 1e-9, false);
        launches += r.steps;
        forget_run(&r);
        for (const char *p = d.text; (p = strchr(p, '\n')); p++)
            nodes += p[1] && strncmp(p + 1, "input", 5) != 0 && strncmp(p + 1, "output", 6) != 0;
        r = agrees_whole(graph_of_seed(&d, seed, "f32"), 2e-4, false);
        forget_run(&r);
    }
    print_message("%d nodes in %d launches\n", nodes, launches);
    assert_true(launches < nodes * 9 / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(modes_agree)};
    return cmocka_run_group_tests(tests, open_context, close_context);
}
