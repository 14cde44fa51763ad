/* SPDX-License-Identifier: Apache-2.0
 * Pooling, softmax and activations of the drop-in against plain loops in double precision. */
#include "front_test.h"

static const cudnnDataType_t types[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16,
                                        CUDNN_DATA_DOUBLE};
enum { TYPES = 4 };

/* alpha * result + beta * old, of which the second is not read where beta is 0. */
static void blend(double *results, const array *old, double alpha, double beta)
{
    for (int64_t i = 0; i < old->count; i++)
        results[i] = alpha * results[i] + (beta == 0 ? 0 : beta * old->v[i]);
}

static void poison(array *a, double beta)
{
    for (int64_t i = 0; beta == 0 && i < a->count; i++) a->v[i] = NAN;
    array_write(a);
}

/* ---- pooling of 2 x 3 x 7 x 6 ---- */

static void pool(const array *x, const array *dy, cudnnPoolingMode_t mode, const int *window,
                 const int *pad, const int *stride, const array *y, double *values, double *slopes)
{
    for (int64_t j = 0; j < y->count; j++) {
        int64_t plane = j / (y->t.dims[2] * y->t.dims[3]);
        int64_t oy = j / y->t.dims[3] % y->t.dims[2], ox = j % y->t.dims[3], best = -1, taps = 0;
        double sum = 0;
        for (int r = 0; r < window[0]; r++)
            for (int s = 0; s < window[1]; s++) {
                int64_t h = oy * stride[0] - pad[0] + r, w = ox * stride[1] - pad[1] + s;
                if (h < 0 || w < 0 || h >= x->t.dims[2] || w >= x->t.dims[3]) continue;
                int64_t i = (plane * x->t.dims[2] + h) * x->t.dims[3] + w;
                if (best < 0 || x->v[i] > x->v[best]) best = i;
                sum += x->v[i];
                taps++;
            }
        if (mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING) taps = window[0] * window[1];
        const bool max = mode == CUDNN_POOLING_MAX || mode == CUDNN_POOLING_MAX_DETERMINISTIC;
        values[j] = max ? x->v[best] : sum / (double)taps;
        if (max) slopes[best] += dy->v[j];
        for (int r = 0; !max && r < window[0]; r++)
            for (int s = 0; s < window[1]; s++) {
                int64_t h = oy * stride[0] - pad[0] + r, w = ox * stride[1] - pad[1] + s;
                if (h < 0 || w < 0 || h >= x->t.dims[2] || w >= x->t.dims[3]) continue;
                slopes[(plane * x->t.dims[2] + h) * x->t.dims[3] + w] += dy->v[j] / (double)taps;
            }
    }
}

static void test_pooling(void **unused)
{
    (void)unused;
    static const int window[] = {3, 2}, pad[] = {1, 0}, stride[] = {2, 1};
    for (int i = 0; i < 4 * TYPES; i++) {
        cudnnPoolingMode_t mode = (cudnnPoolingMode_t)(i / TYPES);
        cudnnDataType_t type = types[i % TYPES];
        double factors[] = {i % 3 ? 0.5 : 1, i % 3 ? 2 : 0};
        scalar alpha = scale_of(type, factors[0]), beta = scale_of(type, factors[1]);
        cudnnPoolingDescriptor_t p;
        SUCCEEDS(cudnnCreatePoolingDescriptor(&p));
        SUCCEEDS(cudnnSetPooling2dDescriptor(p, mode, CUDNN_PROPAGATE_NAN, window[0], window[1],
                                             pad[0], pad[1], stride[0], stride[1]));
        layout order = (layout)(i % 3);
        array x = array_new(type, order, (int[]){2, 3, 7, 6, 0});
        int n, c, h, w;
        SUCCEEDS(cudnnGetPooling2dForwardOutputDim(p, x.desc, &n, &c, &h, &w));
        assert_int_equal(h, 4);
        assert_int_equal(w, 5);
        array y = array_new(type, order, (int[]){n, c, h, w, 0});
        array dy = array_new(type, NCHW, (int[]){n, c, h, w, 0});
        array dx = array_new(type, order, (int[]){2, 3, 7, 6, 0});
        double *values = calloc((size_t)y.count, sizeof *values);
        double *slopes = calloc((size_t)x.count, sizeof *slopes);
        pool(&x, &dy, mode, window, pad, stride, &y, values, slopes);
        blend(values, &y, factors[0], factors[1]);
        blend(slopes, &dx, factors[0], factors[1]);
        poison(&y, factors[1]);
        poison(&dx, factors[1]);
        SUCCEEDS(cudnnPoolingForward(handle, p, &alpha, x.desc, x.data, &beta, y.desc, y.data));
        array_is(&y, values, 2, 1);
        SUCCEEDS(cudnnPoolingBackward(handle, p, &alpha, y.desc, y.data, dy.desc, dy.data, x.desc,
                                      x.data, &beta, dx.desc, dx.data));
        array_is(&dx, slopes, 4, 1);
        free(values), free(slopes);
        array_free(&x), array_free(&y), array_free(&dy), array_free(&dx);
        SUCCEEDS(cudnnDestroyPoolingDescriptor(p));
    }
}

/* ---- softmax over C, or over C, H and W ---- */

static void softmax(const double *x, double *y, int64_t outer, int64_t n, int64_t inner, bool log_)
{
    for (int64_t o = 0; o < outer * inner; o++) {
        const int64_t first = o / inner * n * inner + o % inner;
        double largest = -INFINITY, sum = 0;
        for (int64_t i = 0; i < n; i++) largest = fmax(largest, x[first + i * inner]);
        for (int64_t i = 0; i < n; i++) sum += exp(x[first + i * inner] - largest);
        for (int64_t i = 0; i < n; i++) {
            double z = x[first + i * inner] - largest;
            y[first + i * inner] = log_ ? z - log(sum) : exp(z) / sum;
        }
    }
}

static void softmax_slope(const double *y, const double *dy, double *dx, int64_t outer, int64_t n,
                          int64_t inner, bool log_)
{
    for (int64_t o = 0; o < outer * inner; o++) {
        const int64_t first = o / inner * n * inner + o % inner;
        double sum = 0;
        for (int64_t i = first; i < first + n * inner; i += inner)
            sum += log_ ? dy[i] : dy[i] * y[i];
        for (int64_t i = first; i < first + n * inner; i += inner)
            dx[i] = log_ ? dy[i] - exp(y[i]) * sum : y[i] * (dy[i] - sum);
    }
}

static void test_softmax(void **unused)
{
    (void)unused;
    for (int i = 0; i < 6 * TYPES; i++) {
        cudnnDataType_t type = types[i % TYPES];
        cudnnSoftmaxAlgorithm_t algorithm = (cudnnSoftmaxAlgorithm_t)(i / TYPES % 3);
        const bool log_ = algorithm == CUDNN_SOFTMAX_LOG, channel = i / TYPES / 3;
        double factors[] = {i % 3 ? 2 : 1, i % 3 ? -0.5 : 0};
        scalar alpha = scale_of(type, factors[0]), beta = scale_of(type, factors[1]);
        layout order = channel ? (layout)(i % 3) : (layout)(i % 2);
        array x = array_new(type, order, (int[]){3, 5, 2, 3, 0});
        array y = array_new(type, order, (int[]){3, 5, 2, 3, 0});
        array dx = array_new(type, order, (int[]){3, 5, 2, 3, 0});
        double *values = calloc((size_t)y.count, sizeof *values);
        int64_t n = channel ? 5 : 30, inner = channel ? 6 : 1;
        softmax(x.v, values, 3, n, inner, log_);
        blend(values, &y, factors[0], factors[1]);
        poison(&y, factors[1]);
        cudnnSoftmaxMode_t mode =
            channel ? CUDNN_SOFTMAX_MODE_CHANNEL : CUDNN_SOFTMAX_MODE_INSTANCE;
        SUCCEEDS(cudnnSoftmaxForward(handle, algorithm, mode, &alpha, x.desc, x.data, &beta, y.desc,
                                     y.data));
        array_is(&y, values, 8, 4);
        /* The gradient of what y then is by itself. */
        softmax(x.v, y.v, 3, n, inner, log_);
        array_write(&y);
        softmax_slope(y.v, x.v, values, 3, n, inner, log_);
        blend(values, &dx, factors[0], factors[1]);
        poison(&dx, factors[1]);
        SUCCEEDS(cudnnSoftmaxBackward(handle, algorithm, mode, &alpha, y.desc, y.data, x.desc,
                                      x.data, &beta, dx.desc, dx.data));
        array_is(&dx, values, 16, 4);
        free(values);
        array_free(&x), array_free(&y), array_free(&dx);
    }
}

/* C, H and W that do not lie in one piece are told. */
static void test_softmax_layout(void **unused)
{
    (void)unused;
    array x = array_new(CUDNN_DATA_FLOAT, GAPS, (int[]){2, 3, 4, 5, 0});
    float one = 1, zero = 0;
    char text[512];
    assert_int_equal(cudnnSoftmaxForward(handle, CUDNN_SOFTMAX_ACCURATE,
                                         CUDNN_SOFTMAX_MODE_INSTANCE, &one, x.desc, x.data, &zero,
                                         x.desc, x.data),
                     CUDNN_STATUS_NOT_SUPPORTED_LAYOUT);
    cudnnGetLastErrorString(text, sizeof text);
    assert_non_null(strstr(text, "one piece"));
    array_free(&x);
}

/* ---- activations ---- */

static double activate(cudnnActivationMode_t mode, double coef, double x, double *slope)
{
    const double s = 1 / (1 + exp(-x));
    switch (mode) {
    case CUDNN_ACTIVATION_SIGMOID:
        return *slope = s * (1 - s), s;
    case CUDNN_ACTIVATION_RELU:
        return *slope = x > 0, fmax(x, 0);
    case CUDNN_ACTIVATION_TANH:
        return *slope = 1 - tanh(x) * tanh(x), tanh(x);
    case CUDNN_ACTIVATION_CLIPPED_RELU:
        return *slope = x > 0 && x < coef, fmin(fmax(x, 0), coef);
    case CUDNN_ACTIVATION_ELU:
        return *slope = x > 0 ? 1 : coef * exp(x), x > 0 ? x : coef * (exp(x) - 1);
    case CUDNN_ACTIVATION_IDENTITY:
        return *slope = 1, x;
    default:
        return *slope = s + x * s * (1 - s), x * s;
    }
}

/* Backward from x, and where y took its place, from y alone; dx in place of dy. */
static void test_activations(void **unused)
{
    (void)unused;
    for (int i = 0; i < 7 * TYPES; i++) {
        cudnnActivationMode_t mode = (cudnnActivationMode_t)(i / TYPES);
        cudnnDataType_t type = types[i % TYPES];
        double coef = mode == CUDNN_ACTIVATION_CLIPPED_RELU ? 1.1 : 0.75;
        double factors[] = {i % 3 ? 2 : 1, i % 3 ? -0.5 : 0}, slope;
        scalar alpha = scale_of(type, factors[0]), beta = scale_of(type, factors[1]);
        scalar one = scale_of(type, 1), zero = scale_of(type, 0);
        cudnnActivationDescriptor_t act;
        SUCCEEDS(cudnnCreateActivationDescriptor(&act));
        SUCCEEDS(cudnnSetActivationDescriptor(act, mode, CUDNN_PROPAGATE_NAN, coef));
        array x = array_new(type, (layout)(i % 3), (int[]){2, 3, 5, 0});
        array y = array_new(type, (layout)(i % 3), (int[]){2, 3, 5, 0});
        array dy = array_new(type, (layout)(i % 3), (int[]){2, 3, 5, 0});
        array dx = array_new(type, (layout)(i % 3), (int[]){2, 3, 5, 0});
        double *values = calloc((size_t)y.count, sizeof *values);
        double *slopes = calloc((size_t)y.count, sizeof *slopes);
        for (int64_t j = 0; j < x.count; j++) {
            values[j] = activate(mode, coef, x.v[j], &slope);
            slopes[j] = slope * dy.v[j];
        }
        double *from_y = calloc((size_t)y.count, sizeof *from_y);
        memcpy(from_y, slopes, (size_t)y.count * sizeof *from_y);
        blend(values, &y, factors[0], factors[1]);
        blend(slopes, &dx, factors[0], factors[1]);
        poison(&y, factors[1]);
        poison(&dx, factors[1]);
        SUCCEEDS(
            cudnnActivationForward(handle, act, &alpha, x.desc, x.data, &beta, y.desc, y.data));
        array_is(&y, values, 8, 1);
        SUCCEEDS(cudnnActivationBackward(handle, act, &alpha, y.desc, y.data, dy.desc, dy.data,
                                         x.desc, x.data, &beta, dx.desc, dx.data));
        array_is(&dx, slopes, 16, 1);
        if (mode != CUDNN_ACTIVATION_SWISH) {
            SUCCEEDS(
                cudnnActivationForward(handle, act, &one, x.desc, x.data, &zero, x.desc, x.data));
            SUCCEEDS(cudnnActivationBackward(handle, act, &one, x.desc, x.data, dy.desc, dy.data,
                                             x.desc, x.data, &zero, dy.desc, dy.data));
            array_is(&dy, from_y, 16, 2);
        }
        free(values), free(slopes), free(from_y);
        array_free(&x), array_free(&y), array_free(&dy), array_free(&dx);
        SUCCEEDS(cudnnDestroyActivationDescriptor(act));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pooling),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_softmax_layout),
        cmocka_unit_test(test_activations),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
