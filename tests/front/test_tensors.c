/* SPDX-License-Identifier: Apache-2.0
 * Sums, products, reductions, LRN and dropout of the drop-in against plain loops. */
#include "front_test.h"

static const cudnnDataType_t types[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16,
                                        CUDNN_DATA_DOUBLE};
enum { TYPES = 4 };
static const int shape[] = {2, 3, 4, 5, 0};

/* The element of a tensor that broadcasts to 2 x 3 x 4 x 5. */
static double broadcast(const array *a, int64_t i)
{
    int64_t index[4] = {i / 60, i / 20 % 3, i / 5 % 4, i % 5};
    for (int k = 0; k < 4; k++)
        if (a->t.dims[k] == 1) index[k] = 0;
    return a->v[at(&a->t, index)];
}

static void test_add(void **unused)
{
    (void)unused;
    static const int small[][5] = {
        {1, 3, 1, 1, 0}, {2, 3, 4, 5, 0}, {1, 1, 4, 5, 0}, {1, 1, 1, 1, 0}};
    for (int i = 0; i < 4 * TYPES; i++) {
        cudnnDataType_t type = types[i % TYPES];
        double factors[] = {i % 2 ? 0.5 : 1, i % 3 == 0 ? 0 : i % 3 == 1 ? 1 : -2};
        scalar alpha = scale_of(type, factors[0]), beta = scale_of(type, factors[1]);
        array a = array_new(type, (layout)(i % 3), small[i / TYPES]);
        array c = array_new(type, (layout)(i % 3), shape);
        double *expected = calloc((size_t)c.count, sizeof *expected);
        for (int64_t j = 0; j < c.count; j++) {
            expected[j] = factors[0] * broadcast(&a, j) + factors[1] * c.v[j];
            if (factors[1] == 0) c.v[j] = NAN;
        }
        array_write(&c);
        SUCCEEDS(cudnnAddTensor(handle, &alpha, a.desc, a.data, &beta, c.desc, c.data));
        array_is(&c, expected, 1, 0);
        free(expected);
        array_free(&a), array_free(&c);
    }
}

static void test_scale_set_transform(void **unused)
{
    (void)unused;
    for (int i = 0; i < TYPES; i++) {
        scalar two = scale_of(types[i], -2), half = scale_of(types[i], 0.5);
        array x = array_new(types[i], GAPS, shape),
              y = array_new(types[(i + 1) % TYPES], NHWC, shape);
        double expected[120];
        for (int j = 0; j < 120; j++) expected[j] = -2 * x.v[j];
        SUCCEEDS(cudnnScaleTensor(handle, x.desc, x.data, &two));
        array_is(&x, expected, 1, 0);
        for (int j = 0; j < 120; j++) expected[j] = 0.5 * expected[j] - 2 * y.v[j];
        half = scale_of(types[(i + 1) % TYPES], 0.5), two = scale_of(types[(i + 1) % TYPES], -2);
        SUCCEEDS(cudnnTransformTensor(handle, &half, x.desc, x.data, &two, y.desc, y.data));
        array_is(&y, expected, 1, 0);
        array_free(&x), array_free(&y);
    }
    /* The value has the type of the tensor. */
    const float f = 2.5f;
    const double d = 1.0 / 3;
    const uint16_t h = 0x3e00, b = 0xc020;
    const int32_t s = -7;
    const struct {
        cudnnDataType_t type;
        const void *value;
        double is;
    } rows[] = {{CUDNN_DATA_FLOAT, &f, 2.5},
                {CUDNN_DATA_DOUBLE, &d, 1.0 / 3},
                {CUDNN_DATA_HALF, &h, 1.5},
                {CUDNN_DATA_BFLOAT16, &b, -2.5},
                {CUDNN_DATA_INT32, &s, -7}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        array y = array_new(rows[i].type, (layout)(i % 3), shape);
        double expected[120];
        for (int j = 0; j < 120; j++) expected[j] = rows[i].is;
        SUCCEEDS(cudnnSetTensor(handle, y.desc, y.data, rows[i].value));
        array_is(&y, expected, 0, 0);
        array_free(&y);
    }
}

/* To another format, with zeros around. */
static void test_transform_ex(void **unused)
{
    (void)unused;
    for (int i = 0; i < TYPES; i++) {
        scalar alpha = scale_of(types[i], i ? 2 : 1), beta = scale_of(types[i], i ? 0.5 : 0);
        static const int32_t before[] = {0, 1, 2, 0}, after[] = {0, 0, 1, 3};
        array x = array_new(types[i], i % 2 ? GAPS : NCHW, shape);
        array y = array_new(types[i], NHWC, (int[]){2, 4, 7, 8, 0});
        double expected[2 * 4 * 7 * 8];
        for (int64_t j = 0; j < y.count; j++) {
            int64_t c = j / 56 % 4 - 1, h = j / 8 % 7 - 2, w = j % 8;
            bool inside = c >= 0 && h >= 0 && h < 4 && w < 5;
            expected[j] = inside ? x.v[((j / 224 * 3 + c) * 4 + h) * 5 + w] : 0;
            expected[j] = i ? 2 * expected[j] + 0.5 * y.v[j] : expected[j];
            if (!i) y.v[j] = NAN;
        }
        array_write(&y);
        cudnnTensorTransformDescriptor_t t;
        SUCCEEDS(cudnnCreateTensorTransformDescriptor(&t));
        SUCCEEDS(cudnnSetTensorTransformDescriptor(t, 4, CUDNN_TENSOR_NHWC, before, after, NULL,
                                                   CUDNN_TRANSFORM_FOLD));
        size_t bytes;
        SUCCEEDS(cudnnInitTransformDest(t, x.desc, y.desc, &bytes));
        assert_int_equal(bytes, y.bytes);
        SUCCEEDS(cudnnTransformTensorEx(handle, t, &alpha, x.desc, x.data, &beta, y.desc, y.data));
        array_is(&y, expected, 2, 0);
        assert_int_equal(cudnnSetTensorTransformDescriptor(t, 4, CUDNN_TENSOR_NHWC, NULL, NULL,
                                                           (uint32_t[]){2, 1},
                                                           CUDNN_TRANSFORM_FOLD),
                         CUDNN_STATUS_NOT_SUPPORTED);
        SUCCEEDS(cudnnDestroyTensorTransformDescriptor(t));
        array_free(&x), array_free(&y);
    }
}

static double apply(cudnnOpTensorOp_t op, double a, double b)
{
    switch (op) {
    case CUDNN_OP_TENSOR_ADD:
        return a + b;
    case CUDNN_OP_TENSOR_MUL:
        return a * b;
    case CUDNN_OP_TENSOR_MIN:
        return fmin(a, b);
    case CUDNN_OP_TENSOR_MAX:
        return fmax(a, b);
    case CUDNN_OP_TENSOR_SQRT:
        return sqrt(a);
    default:
        return 1 - a;
    }
}

static void test_op_tensor(void **unused)
{
    (void)unused;
    for (int i = 0; i < 6 * TYPES; i++) {
        cudnnOpTensorOp_t op = (cudnnOpTensorOp_t)(i / TYPES);
        cudnnDataType_t type = types[i % TYPES];
        const bool unary = op >= CUDNN_OP_TENSOR_SQRT;
        double factors[] = {2, -0.5, i % 2 ? 0.5 : 0};
        scalar alpha1 = scale_of(type, 2), alpha2 = scale_of(type, -0.5);
        scalar beta = scale_of(type, factors[2]);
        array a = array_new(type, NCHW, shape), c = array_new(type, (layout)(i % 3), shape);
        array b = array_new(type, NCHW, (int[]){1, 3, 1, 5, 0});
        for (int64_t j = 0; j < a.count; j++) a.v[j] = fabs(a.v[j]);
        array_write(&a);
        double expected[120];
        for (int64_t j = 0; j < c.count; j++) {
            expected[j] = apply(op, 2 * a.v[j], -0.5 * broadcast(&b, j)) +
                          (factors[2] == 0 ? 0 : factors[2] * c.v[j]);
            if (factors[2] == 0) c.v[j] = NAN;
        }
        array_write(&c);
        cudnnOpTensorDescriptor_t desc;
        SUCCEEDS(cudnnCreateOpTensorDescriptor(&desc));
        SUCCEEDS(cudnnSetOpTensorDescriptor(
            desc, op, type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT,
            CUDNN_PROPAGATE_NAN));
        SUCCEEDS(cudnnOpTensor(handle, desc, &alpha1, a.desc, a.data, unary ? NULL : &alpha2,
                               unary ? NULL : b.desc, unary ? NULL : b.data, &beta, c.desc,
                               c.data));
        array_is(&c, expected, 4, 0);
        SUCCEEDS(cudnnDestroyOpTensorDescriptor(desc));
        array_free(&a), array_free(&b), array_free(&c);
    }
}

static double reduce(cudnnReduceTensorOp_t op, const double *v, int n)
{
    double sum = 0, product = 1, least = v[0], most = v[0], amax = 0, norm1 = 0, squares = 0,
           some = 1;
    for (int i = 0; i < n; i++) {
        sum += v[i];
        product *= v[i];
        some *= v[i] == 0 ? 1 : v[i];
        least = fmin(least, v[i]), most = fmax(most, v[i]), amax = fmax(amax, fabs(v[i]));
        norm1 += fabs(v[i]);
        squares += v[i] * v[i];
    }
    const double results[] = {sum, product, least, most, amax, sum / n, norm1, sqrt(squares), some};
    return results[op];
}

static void test_reduce(void **unused)
{
    (void)unused;
    for (int i = 0; i < 9 * TYPES; i++) {
        cudnnReduceTensorOp_t op = (cudnnReduceTensorOp_t)(i / TYPES);
        cudnnDataType_t type = types[i % TYPES];
        double factors[] = {i % 2 ? 2 : 1, i % 2 ? 0.5 : 0};
        scalar alpha = scale_of(type, factors[0]), beta = scale_of(type, factors[1]);
        array a = array_new(type, (layout)(i % 3), shape);
        array c = array_new(type, NCHW, (int[]){2, 1, 4, 1, 0});
        double expected[8], slice[15];
        for (int r = 0; r < 8; r++) {
            for (int k = 0; k < 15; k++)
                slice[k] = a.v[r / 4 * 60 + k / 5 * 20 + r % 4 * 5 + k % 5];
            expected[r] = factors[0] * reduce(op, slice, 15);
            expected[r] += factors[1] == 0 ? 0 : factors[1] * c.v[r];
            if (factors[1] == 0) c.v[r] = NAN;
        }
        array_write(&c);
        cudnnReduceTensorDescriptor_t desc;
        SUCCEEDS(cudnnCreateReduceTensorDescriptor(&desc));
        SUCCEEDS(cudnnSetReduceTensorDescriptor(desc, op, CUDNN_DATA_FLOAT, CUDNN_PROPAGATE_NAN,
                                                CUDNN_REDUCE_TENSOR_NO_INDICES,
                                                CUDNN_32BIT_INDICES));
        SUCCEEDS(cudnnReduceTensor(handle, desc, NULL, 0, NULL, 0, &alpha, a.desc, a.data, &beta,
                                   c.desc, c.data));
        array_is(&c, expected, 16, 1);
        SUCCEEDS(cudnnDestroyReduceTensorDescriptor(desc));
        array_free(&a), array_free(&c);
    }
}

static void test_lrn(void **unused)
{
    (void)unused;
    enum { CHANNELS = 7, PIXELS = 6, SIZE = 3 };
    const double a = 0.3, beta = 0.75, k = 2;
    for (int i = 0; i < 2 * TYPES; i++) {
        cudnnDataType_t type = types[i % TYPES];
        double factors[] = {i < TYPES ? 1 : 2, i < TYPES ? 0 : 0.5};
        scalar alpha = scale_of(type, factors[0]), old = scale_of(type, factors[1]);
        static const int dims[] = {2, CHANNELS, 2, 3, 0};
        array x = array_new(type, (layout)(i % 2), dims),
              y = array_new(type, (layout)(i % 2), dims);
        array dy = array_new(type, NCHW, dims), dx = array_new(type, (layout)(i % 2), dims);
        double s[2 * CHANNELS * PIXELS], out[2 * CHANNELS * PIXELS], slope[2 * CHANNELS * PIXELS];
        for (int j = 0; j < x.count; j++) {
            int c = j / PIXELS % CHANNELS;
            double sum = 0;
            for (int d = -1; d <= 1; d++)
                if (c + d >= 0 && c + d < CHANNELS)
                    sum += x.v[j + d * PIXELS] * x.v[j + d * PIXELS];
            s[j] = k + a / SIZE * sum;
            out[j] = factors[0] * x.v[j] * pow(s[j], -beta) +
                     (factors[1] == 0 ? 0 : factors[1] * y.v[j]);
        }
        for (int j = 0; j < x.count; j++) {
            int c = j / PIXELS % CHANNELS;
            double sum = 0;
            for (int d = -1; d <= 1; d++)
                if (c + d >= 0 && c + d < CHANNELS)
                    sum += dy.v[j + d * PIXELS] * x.v[j + d * PIXELS] *
                           pow(s[j + d * PIXELS], -beta - 1);
            slope[j] =
                factors[0] * (dy.v[j] * pow(s[j], -beta) - 2 * a / SIZE * beta * x.v[j] * sum) +
                (factors[1] == 0 ? 0 : factors[1] * dx.v[j]);
        }
        cudnnLRNDescriptor_t lrn;
        SUCCEEDS(cudnnCreateLRNDescriptor(&lrn));
        SUCCEEDS(cudnnSetLRNDescriptor(lrn, SIZE, a, beta, k));
        SUCCEEDS(cudnnLRNCrossChannelForward(handle, lrn, CUDNN_LRN_CROSS_CHANNEL_DIM1, &alpha,
                                             x.desc, x.data, &old, y.desc, y.data));
        array_is(&y, out, 16, 1);
        SUCCEEDS(cudnnLRNCrossChannelBackward(handle, lrn, CUDNN_LRN_CROSS_CHANNEL_DIM1, &alpha,
                                              y.desc, y.data, dy.desc, dy.data, x.desc, x.data,
                                              &old, dx.desc, dx.data));
        array_is(&dx, slope, 16, 1);
        SUCCEEDS(cudnnDestroyLRNDescriptor(lrn));
        array_free(&x), array_free(&y), array_free(&dy), array_free(&dx);
    }
}

/* Windows of 3 x 3 of x less the means; gradients against differences. */
static double divisive(const double *x, const double *means, int i)
{
    const int h = i / 4 % 3, w = i % 4;
    double sum = 0;
    for (int r = -1; r <= 1; r++)
        for (int s = -1; s <= 1; s++) {
            if (h + r < 0 || h + r > 2 || w + s < 0 || w + s > 3) continue;
            const double u = x[i + 4 * r + s] - (means ? means[i + 4 * r + s] : 0);
            sum += u * u;
        }
    return x[i] * pow(2 + 0.3 / 9 * sum, -0.75);
}

static void test_divisive(void **unused)
{
    (void)unused;
    static const int dims[] = {2, 2, 3, 4, 0};
    enum { ALL = 48 };
    for (int i = 0; i < 3; i++) {
        const bool plain = i < 2;
        scalar alpha = scale_of(CUDNN_DATA_DOUBLE, plain ? 1 : 2);
        scalar beta = scale_of(CUDNN_DATA_DOUBLE, plain ? 0 : 0.5);
        array x = array_new(CUDNN_DATA_DOUBLE, NCHW, dims),
              y = array_new(CUDNN_DATA_DOUBLE, NHWC, dims);
        array means = array_new(CUDNN_DATA_DOUBLE, NCHW, dims);
        array dy = array_new(CUDNN_DATA_DOUBLE, NCHW, dims);
        array dx = array_new(CUDNN_DATA_DOUBLE, NCHW, dims),
              dm = array_new(CUDNN_DATA_DOUBLE, NCHW, dims);
        double *m = i ? means.v : NULL, values[ALL], slopes[ALL], slopes_m[ALL];
        for (int j = 0; j < ALL; j++) {
            values[j] = alpha.d * divisive(x.v, m, j) + beta.d * y.v[j];
            slopes[j] = slopes_m[j] = 0;
            for (int k = 0; k < ALL; k++) {
                double *const places[] = {&x.v[j], m ? &m[j] : NULL};
                double *const sums[] = {&slopes[j], &slopes_m[j]};
                for (int p = 0; p < (m ? 2 : 1); p++) {
                    const double kept = *places[p], h = 1e-6;
                    if (k / 12 != j / 12) continue;
                    *places[p] = kept + h;
                    double above = divisive(x.v, m, k);
                    *places[p] = kept - h;
                    *sums[p] += dy.v[k] * (above - divisive(x.v, m, k)) / (2 * h);
                    *places[p] = kept;
                }
            }
            slopes[j] = alpha.d * slopes[j] + beta.d * dx.v[j];
            slopes_m[j] = alpha.d * slopes_m[j] + beta.d * dm.v[j];
        }
        cudnnLRNDescriptor_t lrn;
        SUCCEEDS(cudnnCreateLRNDescriptor(&lrn));
        SUCCEEDS(cudnnSetLRNDescriptor(lrn, 3, 0.3, 0.75, 2));
        SUCCEEDS(cudnnDivisiveNormalizationForward(handle, lrn, CUDNN_DIVNORM_PRECOMPUTED_MEANS,
                                                   &alpha, x.desc, x.data, i ? means.data : NULL,
                                                   NULL, NULL, &beta, y.desc, y.data));
        array_is(&y, values, 64, 1);
        SUCCEEDS(cudnnDivisiveNormalizationBackward(handle, lrn, CUDNN_DIVNORM_PRECOMPUTED_MEANS,
                                                    &alpha, x.desc, x.data, i ? means.data : NULL,
                                                    dy.data, NULL, NULL, &beta, dx.desc, dx.data,
                                                    i ? dm.data : NULL));
        array_is(&dx, slopes, 1e8, 1); /* differences */
        if (i) array_is(&dm, slopes_m, 1e8, 1);
        SUCCEEDS(cudnnDestroyLRNDescriptor(lrn));
        array_free(&x), array_free(&y), array_free(&means);
        array_free(&dy), array_free(&dx), array_free(&dm);
    }
}

/* About the share is dropped, the rest scaled; the gradient drops the same; the next is another. */
static void test_dropout(void **unused)
{
    (void)unused;
    static const int dims[] = {4, 5, 10, 11, 0};
    for (int i = 0; i < TYPES; i++) {
        array x = array_filled(types[i], (layout)(i % 3), dims, 1);
        array y = array_new(types[i], (layout)(i % 3), dims), dx = array_new(types[i], NCHW, dims);
        size_t bytes, reserve_bytes;
        void *states, *reserve;
        SUCCEEDS(cudnnDropoutGetStatesSize(handle, &bytes));
        SUCCEEDS(cudnnDropoutGetReserveSpaceSize(x.desc, &reserve_bytes));
        assert_int_equal(mica_malloc(memory, (int64_t)bytes, &states), MICA_OK);
        assert_int_equal(mica_malloc(memory, (int64_t)reserve_bytes, &reserve), MICA_OK);
        cudnnDropoutDescriptor_t dropout;
        SUCCEEDS(cudnnCreateDropoutDescriptor(&dropout));
        SUCCEEDS(cudnnSetDropoutDescriptor(dropout, handle, 0.25f, states, bytes, 5));
        double *before = NULL;
        for (int draw_ = 0; draw_ < 2; draw_++) {
            SUCCEEDS(cudnnDropoutForward(handle, dropout, x.desc, x.data, y.desc, y.data, reserve,
                                         reserve_bytes));
            SUCCEEDS(cudnnDropoutBackward(handle, dropout, x.desc, x.data, dx.desc, dx.data,
                                          reserve, reserve_bytes));
            double *now = array_read(&y), *slopes = array_read(&dx);
            int64_t dropped = 0;
            for (int64_t j = 0; j < y.count; j++) {
                assert_true(now[j] == 0 || fabs(now[j] - 4.0 / 3) < 1e-2);
                assert_true(now[j] == slopes[j]);
                dropped += now[j] == 0;
            }
            assert_in_range(dropped, 550 - 90, 550 + 90); /* of 2200, 4 standard deviations */
            if (before) assert_memory_not_equal(before, now, (size_t)y.count * sizeof *now);
            free(before), free(slopes);
            before = now;
        }
        free(before);
        assert_int_equal(cudnnDropoutForward(handle, dropout, x.desc, x.data, y.desc, y.data,
                                             reserve, reserve_bytes - 1),
                         CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
        SUCCEEDS(cudnnDestroyDropoutDescriptor(dropout));
        mica_free(memory, states), mica_free(memory, reserve);
        array_free(&x), array_free(&y), array_free(&dx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add),          cmocka_unit_test(test_scale_set_transform),
        cmocka_unit_test(test_transform_ex), cmocka_unit_test(test_op_tensor),
        cmocka_unit_test(test_reduce),       cmocka_unit_test(test_lrn),
        cmocka_unit_test(test_dropout),      cmocka_unit_test(test_divisive),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
