/* SPDX-License-Identifier: Apache-2.0
 * Pointwise operations of the graph interface: every mode and its gradient against libm, and
 * chains. */
#include "backend_test.h"

#define LOWER 0.25
#define UPPER 1.5
#define SLOPE 0.125
#define ALPHA 0.75
#define BETA  1.25

static double relu(double x)
{
    return x < LOWER ? LOWER + SLOPE * (x - LOWER) : fmin(x, UPPER);
}

static double activation(int mode, double x)
{
    switch (mode % 100) {
    case 0:
        return relu(x);
    case 1:
        return tanh(x);
    case 2:
        return 1 / (1 + exp(-x));
    case 3:
        return x > 0 ? x : ALPHA * expm1(x);
    case 4:
        return x * (1 + erf(x / sqrt(2))) / 2;
    case 5:
        return log1p(exp(BETA * x)) / BETA;
    case 6:
        return x / (1 + exp(-BETA * x));
    default:
        return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    }
}

static double value_of(int mode, double x, double b, double t)
{
    if (mode >= 100 && mode < 200) return activation(mode, x);
    switch (mode) {
    case 0:
        return x + b;
    case 1:
        return x * b;
    case 2:
        return fmin(x, b);
    case 3:
        return fmax(x, b);
    case 4:
        return sqrt(x);
    case 5:
        return x + b * b;
    case 6:
        return x / b;
    case 7:
        return fmod(x, b);
    case 8:
        return pow(x, b);
    case 9:
        return x - b;
    case 10:
        return fabs(x);
    case 11:
        return ceil(x);
    case 12:
        return cos(x);
    case 13:
        return exp(x);
    case 14:
        return floor(x);
    case 15:
        return log(x);
    case 16:
        return -x;
    case 17:
        return 1 / sqrt(x);
    case 18:
        return sin(x);
    case 19:
        return tan(x);
    case 20:
        return erf(x);
    case 21:
        return x;
    case 22:
        return 1 / x;
    case 23:
        return atan2(x, b);
    case 24:
        return x - floor(x / b) * b;
    case 300:
        return x == b;
    case 301:
        return x != b;
    case 302:
        return x > b;
    case 303:
        return x >= b;
    case 304:
        return x < b;
    case 305:
        return x <= b;
    case 400:
        return x != 0 && b != 0;
    case 401:
        return x != 0 || b != 0;
    case 402:
        return x == 0;
    default:
        return t != 0 ? x : b;
    }
}

static int operands_of(int mode)
{
    const bool two = mode <= 3 || (mode >= 5 && mode <= 9) || mode == 23 || mode == 24 ||
                     (mode >= 300 && mode <= 401);
    return mode == 601 ? 3 : two ? 2 : 1;
}

static desc activation_desc(int mode)
{
    desc p = make(BT_POINTWISE);
    const double lower = LOWER;
    put_int(p, AT_POINTWISE_MODE, BW_POINTWISE_MODE, mode);
    put_int(p, AT_POINTWISE_MATH_PREC, BW_DATA_TYPE, CUDNN_DATA_FLOAT);
    put(p, AT_POINTWISE_RELU_LOWER_CLIP, BW_DOUBLE, 1, &lower);
    put_float(p, AT_POINTWISE_RELU_UPPER_CLIP, UPPER);
    put_float(p, AT_POINTWISE_RELU_LOWER_CLIP_SLOPE, SLOPE);
    put_float(p, AT_POINTWISE_ELU_ALPHA, ALPHA);
    put_float(p, AT_POINTWISE_SOFTPLUS_BETA, BETA);
    put_float(p, AT_POINTWISE_SWISH_BETA, BETA);
    finish(p);
    return p;
}

static const int forward_modes[] = {0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,
                                    11,  12,  13,  14,  15,  16,  17,  18,  19,  20,  21,
                                    22,  23,  24,  100, 101, 102, 103, 104, 105, 106, 107,
                                    300, 301, 302, 303, 304, 305, 400, 401, 402, 601};

/* B is repeated along a dimension, or a number in host memory. */
static void pointwise_modes(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < sizeof forward_modes / sizeof *forward_modes; m++)
        for (int by_value = 0; by_value < 2; by_value++) {
            const int mode = forward_modes[m], operands = operands_of(mode);
            const bool signs = mode != 4 && mode != 8 && mode != 15 && mode != 17;
            array x = array_like(packed(MICA_F32, 2, 3, 2, 5), signs ? -2 : 0.25, 2);
            array b = array_like(packed(MICA_F32, 1, by_value ? 1 : 3, 1, 1), 0.5, 2);
            array t = array_like(packed(MICA_F32, 2, 3, 2, 5), 0, 1), y = x;
            if (mode >= 300 && mode < 402) /* equal ones and zeros too */
                for (int i = 0; i < 60; i++) x.v[i] = i % 7 ? b.v[i / 10 % b.count] : i % 2;
            for (int i = 0; i < 60; i++) t.v[i] = i % 3 == 0;
            array_write(&x);
            array_write(&t);
            y = array_like(x.t, 7, 7);
            desc p = activation_desc(mode), op = make(BT_OP_POINTWISE);
            desc parts[] = {tensor_desc(1, &x.t, 'r'), tensor_desc(4, &y.t, 'r'),
                            tensor_desc(2, &b.t, by_value ? 'n' : 'r'), tensor_desc(3, &t.t, 'r')};
            float number = (float)b.v[0];
            put_desc(op, AT_OP_POINTWISE_DESC, p);
            put_desc(op, AT_OP_POINTWISE_X, parts[0]);
            put_desc(op, AT_OP_POINTWISE_Y, parts[1]);
            if (operands > 1) put_desc(op, AT_OP_POINTWISE_B, parts[2]);
            if (operands > 2) put_desc(op, AT_OP_POINTWISE_T, parts[3]);
            finish(op);
            drop(p);
            run_one(op, parts, 4, (const int64_t[]){1, 4, 2, 3},
                    (void *[]){x.data, y.data, by_value ? &number : b.data, t.data});
            double expected[60];
            for (int i = 0; i < 60; i++)
                expected[i] = value_of(mode, x.v[i], b.v[by_value ? 0 : i / 10 % 3], t.v[i]);
            array_is(&y, expected, 64, 1);
            array_free(&x);
            array_free(&b);
            array_free(&t);
            array_free(&y);
        }
}

/* Against differences of the function. */
static void pointwise_gradients(void **unused)
{
    (void)unused;
    for (int mode = 200; mode < 208; mode++) {
        array x = array_like(packed(MICA_F32, 2, 3, 2, 2), -2, 2);
        array dy = array_like(x.t, -2, 2), dx = array_like(x.t, 7, 7);
        for (int i = 0; i < 24; i++) x.v[i] += x.v[i] < 0.3 && x.v[i] > 0.2 ? 0.2 : 1e-3;
        array_write(&x);
        desc p = activation_desc(mode), op = make(BT_OP_POINTWISE);
        desc parts[] = {tensor_desc(1, &x.t, 'r'), tensor_desc(2, &dy.t, 'r'),
                        tensor_desc(3, &dx.t, 'r')};
        put_desc(op, AT_OP_POINTWISE_DESC, p);
        put_desc(op, AT_OP_POINTWISE_X, parts[0]);
        put_desc(op, AT_OP_POINTWISE_DY, parts[1]);
        put_desc(op, AT_OP_POINTWISE_DX, parts[2]);
        finish(op);
        drop(p);
        run_one(op, parts, 3, (const int64_t[]){1, 2, 3}, (void *[]){x.data, dy.data, dx.data});
        double expected[24];
        for (int i = 0; i < 24; i++)
            expected[i] = dy.v[i] *
                          (activation(mode, x.v[i] + 1e-5) - activation(mode, x.v[i] - 1e-5)) /
                          2e-5;
        array_is(&dx, expected, 256, 2);
        array_free(&x);
        array_free(&dy);
        array_free(&dx);
    }
}

/* relu(2 x) + 3 (index) into s32 and bool, through virtual tensors of other types. */
static void chains(void **unused)
{
    (void)unused;
    array x = array_like(packed(MICA_F32, 1, 2, 3, 4), -2, 2);
    array y = array_like(packed(MICA_S32, 1, 2, 3, 4), 7, 7);
    const mica_tensor integers = packed(MICA_S32, 1, 2, 3, 4), real = x.t;
    desc parts[] = {tensor_desc(1, &x.t, 'r'), tensor_desc(2, &y.t, 'r'),
                    tensor_desc(-3, &integers, 'v'), tensor_desc(4, &real, 'v'),
                    tensor_desc(5, &real, 'v')};
    /* not in the order in which they run */
    desc ops[] = {pointwise(PW_ADD, parts[4], parts[2], NULL, parts[1], -1, 3),
                  pointwise(PW_RELU_FWD, parts[3], NULL, NULL, parts[4], -1, 1),
                  pointwise(PW_GEN_INDEX, parts[0], NULL, NULL, parts[2], 3, 1),
                  pointwise(PW_ADD, parts[0], parts[0], NULL, parts[3], -1, 1)};
    for (int i = 0; i < 5; i++) drop(parts[i]);
    run_ops(4, ops, 0, 2, (const int64_t[]){1, 2}, (void *[]){x.data, y.data});
    double expected[24];
    for (int i = 0; i < 24; i++) expected[i] = trunc(fmax(2 * x.v[i], 0) + 3 * (i % 4));
    array_is(&y, expected, 0, 0);
    array_free(&x);
    array_free(&y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pointwise_modes),
                                       cmocka_unit_test(pointwise_gradients),
                                       cmocka_unit_test(chains)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
