/* SPDX-License-Identifier: Apache-2.0
 * Convolutions through the graph interface, by the calls that PyTorch makes: all three passes,
 * groups, depthwise, layouts, one to three dimensions, f64 with DOUBLE factors, and with sum, bias
 * and ReLU. */
#include "backend_conv_test.h"

static void run_pass(const problem *p, int type, char out, int which)
{
    setting s = set_up(p);
    const array *result = out == 'x' ? &s.x : out == 'w' ? &s.w : &s.y;
    double *expected = convolve(p, &s, out);
    desc x = tensor_desc(120, &s.x.t, 'r'), y = tensor_desc(121, &s.y.t, 'r');
    desc w = tensor_desc(119, &s.w.t, 'r'), op = conv_op(p, type, x, w, y);
    drop(x);
    drop(y);
    drop(w);
    run_ops(1, &op, which, 3, (const int64_t[]){120, 121, 119},
            (void *[]){s.x.data, s.y.data, s.w.data});
    array_is(result, expected, 2, 1);
    free(expected);
    tear_down(&s);
}

static void all_passes(void **unused)
{
    (void)unused;
    const problem problems[] = {
        {CUDNN_DATA_BFLOAT16,
         NHWC,
         2,
         2,
         8,
         8,
         1,
         {6, 6},
         {3, 3},
         {1, 1},
         {1, 1},
         ONES,
         ONES,
         PLAIN},
        {CUDNN_DATA_FLOAT,
         NCHW,
         2,
         2,
         3,
         4,
         1,
         {7, 6},
         {3, 3},
         {1, 1},
         {1, 1},
         {2, 2},
         ONES,
         PLAIN},
        {CUDNN_DATA_HALF, NCHW, 2, 2, 8, 8, 4, {5, 5}, {3, 3}, {1, 1}, {1, 1}, ONES, ONES, PLAIN},
        {CUDNN_DATA_HALF, NHWC, 2, 2, 8, 8, 8, {5, 5}, {3, 3}, {1, 1}, {1, 1}, ONES, ONES, PLAIN},
        {CUDNN_DATA_DOUBLE, NCHW, 2, 1, 3, 2, 1, {5, 5}, {3, 3}, {0}, {0}, ONES, ONES, PLAIN},
        {CUDNN_DATA_BFLOAT16,
         NCHW,
         2,
         2,
         4,
         4,
         1,
         {1, 12},
         {1, 5},
         {0, 2},
         {0, 2},
         ONES,
         ONES,
         PLAIN},
        {CUDNN_DATA_HALF,
         NCHW,
         3,
         1,
         3,
         4,
         1,
         {4, 4, 3},
         {2, 3, 2},
         {1, 1, 0},
         {1, 1, 0},
         ONES,
         ONES,
         PLAIN},
        {CUDNN_DATA_FLOAT,
         NCHW,
         2,
         2,
         3,
         4,
         1,
         {6, 7},
         {3, 2},
         {1, 0},
         {2, 1},
         ONES,
         {1, 2},
         PLAIN},
        {CUDNN_DATA_FLOAT,
         NHWC,
         2,
         1,
         3,
         4,
         1,
         {6, 6},
         {1, 1},
         {0},
         {0},
         ONES,
         ONES,
         .mode = CUDNN_CONVOLUTION,
         .alpha = 0.5,
         .beta = 2},
        {CUDNN_DATA_FLOAT,
         NCHW,
         1,
         2,
         3,
         4,
         1,
         {9},
         {3},
         {1},
         {1},
         ONES,
         ONES,
         .mode = CUDNN_CONVOLUTION,
         .alpha = 2,
         .beta = 0.25},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int which = 0; which < 1 + (problems[i].type == CUDNN_DATA_FLOAT); which++) {
            run_pass(&problems[i], BT_CONV_FWD, 'y', which);
            run_pass(&problems[i], BT_CONV_DGRAD, 'x', which);
            run_pass(&problems[i], BT_CONV_WGRAD, 'w', which);
        }
}

/* conv -> + alpha2 z -> + bias -> relu, z unread where alpha2 is 0. */
static void fused(void **unused)
{
    (void)unused;
    const problem p = {CUDNN_DATA_HALF, NHWC,   2,      2,      8,    8,    1,
                       {5, 5},          {3, 3}, {1, 1}, {1, 1}, ONES, ONES, PLAIN};
    for (int step = 0; step < 3; step++) {
        const float alpha2 = (float)step / 2;
        setting s = set_up(&p);
        const int same[] = {2, 8, 5, 5, 0}, channels[] = {1, 8, 1, 1, 0};
        array z = step ? array_new(p.type, NHWC, same) : array_filled(p.type, NHWC, same, NAN);
        array bias = array_new(p.type, NHWC, channels);
        double *expected = convolve(&p, &s, 'y');
        mica_tensor wide = s.y.t;
        wide.dtype = MICA_F32;
        for (int64_t i = 0; i < s.y.count; i++) {
            expected[i] += bias.v[i / 25 % 8] + (step ? (double)alpha2 * z.v[i] : 0);
            expected[i] = fmax(expected[i], 0);
        }
        desc x = tensor_desc(120, &s.x.t, 'r'), y = tensor_desc(121, &s.y.t, 'r');
        desc w = tensor_desc(119, &s.w.t, 'r'), tz = tensor_desc(122, &z.t, 'r');
        desc b = tensor_desc(98, &bias.t, 'r'), v1 = tensor_desc(67, &wide, 'v');
        desc v2 = tensor_desc(65, &wide, 'v'), v3 = tensor_desc(66, &wide, 'v');
        desc ops[] = {conv_op(&p, BT_CONV_FWD, x, w, v1),
                      pointwise(PW_ADD, v1, tz, NULL, v2, -1, alpha2),
                      pointwise(PW_ADD, v2, b, NULL, v3, -1, 1),
                      pointwise(PW_RELU_FWD, v3, NULL, NULL, y, -1, 1)};
        desc parts[] = {x, y, w, tz, b, v1, v2, v3};
        for (int i = 0; i < 8; i++) drop(parts[i]);
        run_ops(4, ops, 0, 5, (const int64_t[]){120, 121, 119, 122, 98},
                (void *[]){s.x.data, s.y.data, s.w.data, z.data, bias.data});
        array_is(&s.y, expected, 2, 1);
        free(expected);
        array_free(&z);
        array_free(&bias);
        tear_down(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_passes), cmocka_unit_test(fused)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
