/* SPDX-License-Identifier: Apache-2.0
 * Nodes that write parts of an inout tensor: gradients side by side, columns of one matrix. */
#include "unit/graph_run.h"

static void parts_are_written(void **state)
{
    (void)state;
    /* two nodes, rows and columns, and what reads all of it behind them */
    fuses_to("input x = f32:4x8\ninput y = f32:8x8\ninout t = f32:4x16\noutput z\n"
             "pointwise expr=x0*2 x0=@x y0=f32:4x8:16x1@t\n"
             "gemm a=@x b=@y c=f32:4x8:16x1@t+8\nreduce x=@t y=@z axes=1\n",
             3, -1);
    fuses_to("input x = f32:2x8\ninout t = f32:4x8\npointwise expr=x0*2 x0=@x y0=f32:2x8@t+16\n", 1,
             -1);
    /* one node, two parts: columns of its own each */
    fuses_to("input q = f32:2x3x5x8\ninput k = f32:2x1x5x8\ninout t = f32:10x32\n"
             "rope q=@q k=@k q_out=f32:2x3x5x8:160x8x32x1@t k_out=f32:2x1x5x8:160x8x32x1@t+24\n",
             1, -1);
    /* reads one part, writes another; adds to one */
    fuses_to("input x = f32:4x4\ninout t = f32:4x8\n"
             "pointwise expr=x0*2 x0=f32:4x4:8x1@t y0=f32:4x4:8x1@t+4\n"
             "gemm a=@x b=@x c=f32:4x4:8x1@t beta=1\n",
             2, -1);
    /* an epilogue goes into the product that writes a part, weights change behind it */
    fuses_to("input x = f32:4x4\ninout p = f32:32\ninput r = f32:4x4\noutput y\n"
             "gemm a=@x b=f32:4x4@p+16 c=@u\npointwise expr=x0+x1 x0=@u x1=@r y0=@y\n"
             "pointwise expr=x0*0.5 x0=@p y0=@p\n",
             2, 1);
}

static void parts_are_refused(void **state)
{
    (void)state;
    invalid("input x = f32:4x8\noutput t = f32:4x16\n"
            "pointwise expr=x0*2 x0=@x y0=f32:4x8:16x1@t+8\n",
            "only inputs, and what is written of inout tensors, are views");
    invalid("input x = f32:4x8\ninout t = f32:4x16\n"
            "pointwise expr=x0*2 x0=@x y0=f32:4x8:16x1@t+9\n",
            "is a view of bytes");
    invalid("input x = f32:4x8\ninout t = f32:4x16\n"
            "pointwise expr=x0*2 x0=@x y0=bf16:4x8:16x1@t\n",
            "is a view of type bf16");
    /* the last column of q's is the first of k's */
    invalid("input q = f32:2x3x5x8\ninput k = f32:2x1x5x8\ninout t = f32:10x32\n"
            "rope q=@q k=@k q_out=f32:2x3x5x8:160x8x32x1@t k_out=f32:2x1x5x8:160x8x32x1@t+23\n",
            "are both t, and it writes");
    invalid("inout t = f32:4x8\npointwise expr=x0*2 x0=f32:4x4:8x1@t y0=f32:4x4:8x1@t+3\n",
            "are both t, and it writes");
    /* a product that reads what changes before its epilogue's turn stays by itself */
    stays("input x = f32:4x4\ninout p = f32:32\ninput r = f32:4x4\noutput y\n"
          "gemm a=@x b=f32:4x4@p+16 c=@u\npointwise expr=x0*0.5 x0=@p y0=@p\n"
          "pointwise expr=x0+x1 x0=@u x1=@r y0=@y\n",
          3, "p, which node 0 reads, is changed in place by node 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_written),
        cmocka_unit_test(parts_are_refused),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
