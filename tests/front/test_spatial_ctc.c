/* SPDX-License-Identifier: Apache-2.0
 * Spatial transformers and the CTC loss of the drop-in: against plain loops, and sums over all
 * alignments written out one by one. */
#include "front_test.h"

enum { N = 2, C = 3, HI = 4, WI = 5, HO = 3, WO = 2 };

/* y of one output, by the four neighbours of where the grid points; zeros beside x. */
static double sample(const array *x, int n, int c, double gx, double gy)
{
    const double u = (gx + 1) * (WI - 1) / 2, v = (gy + 1) * (HI - 1) / 2;
    const int w = (int)floor(u), h = (int)floor(v);
    double sum = 0;
    for (int k = 0; k < 4; k++) {
        const int hh = h + k / 2, ww = w + k % 2;
        if (hh < 0 || ww < 0 || hh >= HI || ww >= WI) continue;
        sum += (1 - fabs(v - hh)) * (1 - fabs(u - ww)) * x->v[((n * C + c) * HI + hh) * WI + ww];
    }
    return sum;
}

static cudnnSpatialTransformerDescriptor_t transformer(cudnnDataType_t type)
{
    cudnnSpatialTransformerDescriptor_t st;
    SUCCEEDS(cudnnCreateSpatialTransformerDescriptor(&st));
    SUCCEEDS(cudnnSetSpatialTransformerNdDescriptor(st, CUDNN_SAMPLER_BILINEAR, type, 4,
                                                    (int[]){N, C, HO, WO}));
    return st;
}

static void test_sampler(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        double factors[] = {i ? 0.5 : 1, i ? 2 : 0};
        const cudnnDataType_t type = CUDNN_DATA_DOUBLE;
        scalar alpha = scale_of(type, factors[0]), beta = scale_of(type, factors[1]);
        cudnnSpatialTransformerDescriptor_t st = transformer(type);
        array x = array_new(type, i ? NHWC : NCHW, (int[]){N, C, HI, WI, 0});
        array y = array_new(type, NCHW, (int[]){N, C, HO, WO, 0});
        array grid = array_new(type, NCHW, (int[]){N, HO, WO, 2, 0});
        for (int64_t j = 0; j < grid.count; j++) grid.v[j] = draw(2400) / 1000.0 - 1.2003;
        array_write(&grid);
        array dy = array_new(type, NCHW, (int[]){N, C, HO, WO, 0});
        array dx = array_new(type, NCHW, (int[]){N, C, HI, WI, 0});
        array dgrid = array_new(type, NCHW, (int[]){N, HO, WO, 2, 0});
        double values[N * C * HO * WO], slopes[N * C * HI * WI] = {0},
                                                            places[N * HO * WO * 2] = {0};
        for (int o = 0; o < N * C * HO * WO; o++) {
            const int n = o / (C * HO * WO), c = o / (HO * WO) % C;
            const int g = (n * HO * WO + o % (HO * WO)) * 2;
            const double *at_g = &grid.v[g], h = 1e-6;
            values[o] = factors[0] * sample(&x, n, c, at_g[0], at_g[1]) + factors[1] * y.v[o];
            places[g] +=
                dy.v[o] *
                (sample(&x, n, c, at_g[0] + h, at_g[1]) - sample(&x, n, c, at_g[0] - h, at_g[1])) /
                (2 * h);
            places[g + 1] +=
                dy.v[o] *
                (sample(&x, n, c, at_g[0], at_g[1] + h) - sample(&x, n, c, at_g[0], at_g[1] - h)) /
                (2 * h);
            /* y is linear in x. */
            for (int p = 0; p < HI * WI; p++) {
                const int e = (n * C + c) * HI * WI + p;
                const double kept = x.v[e], old = sample(&x, n, c, at_g[0], at_g[1]);
                x.v[e] = kept + 1;
                slopes[e] += dy.v[o] * (sample(&x, n, c, at_g[0], at_g[1]) - old);
                x.v[e] = kept;
            }
        }
        for (int64_t j = 0; j < dx.count; j++)
            slopes[j] = factors[0] * slopes[j] + factors[1] * dx.v[j];
        SUCCEEDS(cudnnSpatialTfSamplerForward(handle, st, &alpha, x.desc, x.data, grid.data, &beta,
                                              y.desc, y.data));
        array_is(&y, values, 1e3, 1);
        scalar one = scale_of(type, 1), zero = scale_of(type, 0);
        SUCCEEDS(cudnnSpatialTfSamplerBackward(handle, st, &alpha, x.desc, x.data, &beta, dx.desc,
                                               dx.data, &one, dy.desc, dy.data, grid.data, &zero,
                                               dgrid.data));
        array_is(&dx, slopes, 1e3, 1);
        array_is(&dgrid, places, 1e8, 1); /* differences */
        array_free(&x), array_free(&y), array_free(&grid);
        array_free(&dy), array_free(&dx), array_free(&dgrid);
        SUCCEEDS(cudnnDestroySpatialTransformerDescriptor(st));
    }
}

static void test_grid(void **unused)
{
    (void)unused;
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnSpatialTransformerDescriptor_t st = transformer(type);
    array theta = array_new(type, NCHW, (int[]){N, 2, 3, 0});
    array dtheta = array_new(type, NCHW, (int[]){N, 2, 3, 0});
    array grid = array_new(type, NCHW, (int[]){N, HO, WO, 2, 0});
    array dgrid = array_new(type, NCHW, (int[]){N, HO, WO, 2, 0});
    double values[N * HO * WO * 2], slopes[N * 6] = {0};
    for (int g = 0; g < N * HO * WO * 2; g++) {
        const int n = g / (HO * WO * 2), o = g / 2 % (HO * WO), row = g % 2;
        const double base[] = {-1 + 2.0 * (o % WO) / (WO - 1), -1 + 2.0 * (o / WO) / (HO - 1), 1};
        values[g] = 0;
        for (int k = 0; k < 3; k++) {
            values[g] += theta.v[n * 6 + row * 3 + k] * base[k];
            slopes[n * 6 + row * 3 + k] += dgrid.v[g] * base[k];
        }
    }
    SUCCEEDS(cudnnSpatialTfGridGeneratorForward(handle, st, theta.data, grid.data));
    array_is(&grid, values, 8, 1);
    SUCCEEDS(cudnnSpatialTfGridGeneratorBackward(handle, st, dgrid.data, dtheta.data));
    array_is(&dtheta, slopes, 8, 4);
    array_free(&theta), array_free(&dtheta), array_free(&grid), array_free(&dgrid);
    SUCCEEDS(cudnnDestroySpatialTransformerDescriptor(st));
}

/* ---- CTC: T steps of B sequences, K classes of which 0 is the blank ---- */

enum { T = 5, B = 3, K = 4 };
static const int labels[] = {1, 2, 2, 2, 3}, label_lengths[B] = {2, 2, 1},
                 input_lengths[B] = {5, 4, 3};

/* Minus the logarithm of the probability, by all K^T ways to say something. */
static double sequence_loss(const double *x, int b)
{
    int first = 0;
    for (int i = 0; i < b; i++) first += label_lengths[i];
    double total = 0;
    int ways = 1;
    for (int t = 0; t < input_lengths[b]; t++) ways *= K;
    for (int way = 0; way < ways; way++) {
        int said = 0, last = 0;
        bool right = true;
        double p = 1;
        for (int t = 0, rest = way; t < input_lengths[b]; t++, rest /= K) {
            const int k = rest % K;
            const double *row = &x[(t * B + b) * K];
            double sum = 0;
            for (int j = 0; j < K; j++) sum += exp(row[j]);
            p *= exp(row[k]) / sum;
            if (k && k != last) {
                right = right && said < label_lengths[b] && labels[first + said] == k;
                said++;
            }
            last = k;
        }
        if (right && said == label_lengths[b]) total += p;
    }
    return -log(total);
}

/* With room for as many more behind them. */
static void *to_device(const int *values, int count)
{
    void *at_device;
    assert_int_equal(mica_malloc(memory, 2 * count * (int64_t)sizeof *values, &at_device), MICA_OK);
    assert_int_equal(mica_upload(memory, at_device, values, count * (int64_t)sizeof *values, NULL),
                     MICA_OK);
    return at_device;
}

/* Labels on the host and on the device; logits, and probabilities, whose gradient is by logits. */
static void test_ctc(void **unused)
{
    (void)unused;
    void *device[] = {to_device(labels, 5), to_device(label_lengths, B),
                      to_device(input_lengths, B)};
    for (int i = 0; i < 4; i++) {
        const bool host = i % 2, softmax = i / 2;
        cudnnCTCLossDescriptor_t ctc;
        SUCCEEDS(cudnnCreateCTCLossDescriptor(&ctc));
        SUCCEEDS(cudnnSetCTCLossDescriptor_v9(ctc, CUDNN_DATA_FLOAT,
                                              softmax ? CUDNN_LOSS_NORMALIZATION_SOFTMAX
                                                      : CUDNN_LOSS_NORMALIZATION_NONE,
                                              CUDNN_CTC_SKIP_OOB_GRADIENTS, host ? 0 : 6));
        array x = array_new(CUDNN_DATA_FLOAT, NCHW, (int[]){T, B, K, 0});
        array dx = array_filled(CUDNN_DATA_FLOAT, NCHW, (int[]){T, B, K, 0}, NAN);
        array costs = array_new(CUDNN_DATA_FLOAT, NCHW, (int[]){B, 0});
        /* Nothing but their lengths says where labels on the device end: costs lie behind them. */
        void *own = costs.data;
        if (!host) costs.data = (int *)device[0] + 5;
        double logits[T * B * K], losses[B], slopes[T * B * K];
        memcpy(logits, x.v, sizeof logits);
        for (int j = 0; !softmax && j < T * B; j++) {
            double sum = 0;
            for (int k = 0; k < K; k++) sum += exp(logits[j * K + k]);
            for (int k = 0; k < K; k++) x.v[j * K + k] = exp(logits[j * K + k]) / sum;
        }
        array_write(&x);
        for (int b = 0; b < B; b++) losses[b] = sequence_loss(logits, b);
        for (int j = 0; j < T * B * K; j++) {
            const double kept = logits[j], h = 1e-5;
            const int b = j / K % B;
            logits[j] = kept + h;
            slopes[j] = sequence_loss(logits, b);
            logits[j] = kept - h;
            slopes[j] = (slopes[j] - sequence_loss(logits, b)) / (2 * h);
            logits[j] = kept;
        }
        size_t bytes = 0;
        void *workspace = NULL;
        if (host)
            SUCCEEDS(cudnnGetCTCLossWorkspaceSize(handle, x.desc, dx.desc, labels, label_lengths,
                                                  input_lengths, CUDNN_CTC_LOSS_ALGO_DETERMINISTIC,
                                                  ctc, &bytes));
        else
            SUCCEEDS(cudnnGetCTCLossWorkspaceSize_v8(handle, CUDNN_CTC_LOSS_ALGO_DETERMINISTIC, ctc,
                                                     x.desc, dx.desc, &bytes));
        assert_int_equal(mica_malloc(memory, (int64_t)bytes, &workspace), MICA_OK);
        if (host)
            SUCCEEDS(cudnnCTCLoss(handle, x.desc, x.data, labels, label_lengths, input_lengths,
                                  costs.data, dx.desc, dx.data, CUDNN_CTC_LOSS_ALGO_DETERMINISTIC,
                                  ctc, workspace, bytes));
        else
            SUCCEEDS(cudnnCTCLoss_v8(handle, CUDNN_CTC_LOSS_ALGO_DETERMINISTIC, ctc, x.desc, x.data,
                                     device[0], device[1], device[2], costs.data, dx.desc, dx.data,
                                     bytes, workspace));
        array_is(&costs, losses, 64, 1);
        array_is(&dx, slopes, 256, 1);
        mica_free(memory, workspace);
        costs.data = own;
        array_free(&x), array_free(&dx), array_free(&costs);
        SUCCEEDS(cudnnDestroyCTCLossDescriptor(ctc));
    }
    for (int i = 0; i < 3; i++) mica_free(memory, device[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampler),
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_ctc),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
