/* SPDX-License-Identifier: Apache-2.0
 * Convolutions of the drop-in against plain loops in double precision: all types, groups, dilation,
 * mirrored filters, layouts, scaling factors, workspace of any size. */
#include "front_test.h"

typedef struct problem {
    cudnnDataType_t type;
    layout order;
    int axes, n, c, k, groups, x[3], w[3], pad[3], stride[3], dilation[3];
    cudnnConvolutionMode_t mode;
    double alpha, beta;
} problem;

typedef struct setting {
    array x, y, w;
    cudnnFilterDescriptor_t filter;
    cudnnConvolutionDescriptor_t conv;
} setting;

static setting set_up(const problem *p)
{
    setting s = {0};
    int x[6] = {p->n, p->c}, y[6] = {0}, w[6] = {p->k, p->c / p->groups};
    for (int i = 0; i < p->axes; i++) x[2 + i] = p->x[i], w[2 + i] = p->w[i];
    s.x = array_new(p->type, p->order, x);
    s.w = array_new(p->type, p->order == NHWC ? NHWC : NCHW, w);
    SUCCEEDS(cudnnCreateFilterDescriptor(&s.filter));
    SUCCEEDS(cudnnSetFilterNdDescriptor(s.filter, p->type,
                                        p->order == NHWC ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                                        p->axes + 2, w));
    SUCCEEDS(cudnnCreateConvolutionDescriptor(&s.conv));
    SUCCEEDS(cudnnSetConvolutionNdDescriptor(
        s.conv, p->axes, p->pad, p->stride, p->dilation, p->mode,
        p->type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT));
    SUCCEEDS(cudnnSetConvolutionGroupCount(s.conv, p->groups));
    SUCCEEDS(cudnnGetConvolutionNdForwardOutputDim(s.conv, s.x.desc, s.filter, p->axes + 2, y));
    s.y = array_new(p->type, p->order, y);
    return s;
}

static void tear_down(setting *s)
{
    array_free(&s->x);
    array_free(&s->y);
    array_free(&s->w);
    SUCCEEDS(cudnnDestroyFilterDescriptor(s->filter));
    SUCCEEDS(cudnnDestroyConvolutionDescriptor(s->conv));
}

/* Adds the products of the two that are read to the third: which of x, w, y is `out`. */
static double *convolve(const problem *p, const setting *s, char out)
{
    const array *result = out == 'x' ? &s->x : out == 'w' ? &s->w : &s->y;
    double *sums = calloc((size_t)result->count + 1, sizeof *sums);
    const int64_t *yd = s->y.t.dims, *wd = s->w.t.dims;
    int64_t taps = 1, pixels = 1;
    for (int i = 0; i < p->axes; i++) taps *= wd[2 + i], pixels *= yd[2 + i];
    for (int64_t n = 0; n < p->n; n++)
        for (int64_t k = 0; k < p->k; k++)
            for (int64_t q = 0; q < pixels; q++)
                for (int64_t c = 0; c < wd[1]; c++)
                    for (int64_t t = 0; t < taps; t++) {
                        int64_t group = k / (p->k / p->groups);
                        int64_t yi[5] = {n, k}, xi[5] = {n, group * wd[1] + c}, wi[5] = {k, c};
                        bool inside = true;
                        for (int64_t i = p->axes - 1, rq = q, rt = t; i >= 0; i--) {
                            yi[2 + i] = rq % yd[2 + i], rq /= yd[2 + i];
                            int64_t tap = rt % wd[2 + i];
                            rt /= wd[2 + i];
                            wi[2 + i] = p->mode == CUDNN_CONVOLUTION ? wd[2 + i] - 1 - tap : tap;
                            xi[2 + i] = yi[2 + i] * p->stride[i] - p->pad[i] + tap * p->dilation[i];
                            inside = inside && xi[2 + i] >= 0 && xi[2 + i] < p->x[i];
                        }
                        if (!inside) continue;
                        int64_t xa = at(&s->x.t, xi), wa = at(&s->w.t, wi), ya = at(&s->y.t, yi);
                        if (out == 'y') sums[ya] += s->x.v[xa] * s->w.v[wa];
                        if (out == 'x') sums[xa] += s->y.v[ya] * s->w.v[wa];
                        if (out == 'w') sums[wa] += s->y.v[ya] * s->x.v[xa];
                    }
    for (int64_t i = 0; i < result->count; i++)
        sums[i] = p->alpha * sums[i] + (p->beta == 0 ? 0 : p->beta * result->v[i]);
    return sums;
}

static const problem problems[] = {
    {CUDNN_DATA_FLOAT,
     NCHW,
     2,
     2,
     3,
     5,
     1,
     {7, 6},
     {3, 2},
     {1, 0},
     {2, 1},
     {1, 1},
     CUDNN_CROSS_CORRELATION,
     1,
     0},
    {CUDNN_DATA_FLOAT,
     GAPS,
     2,
     2,
     4,
     6,
     2,
     {7, 6},
     {3, 3},
     {2, 1},
     {1, 2},
     {2, 1},
     CUDNN_CROSS_CORRELATION,
     0.5,
     2},
    {CUDNN_DATA_FLOAT,
     NHWC,
     2,
     1,
     8,
     8,
     8,
     {9, 5},
     {3, 3},
     {1, 1},
     {1, 1},
     {1, 1},
     CUDNN_CROSS_CORRELATION,
     -1,
     1},
    {CUDNN_DATA_FLOAT,
     NCHW,
     2,
     2,
     3,
     4,
     1,
     {5, 5},
     {2, 3},
     {0, 1},
     {1, 1},
     {1, 1},
     CUDNN_CONVOLUTION,
     1,
     0.25},
    {CUDNN_DATA_DOUBLE,
     NCHW,
     2,
     2,
     3,
     5,
     1,
     {7, 6},
     {3, 2},
     {1, 0},
     {2, 1},
     {1, 1},
     CUDNN_CROSS_CORRELATION,
     2,
     -1},
    {CUDNN_DATA_HALF,
     NHWC,
     2,
     2,
     8,
     16,
     1,
     {6, 7},
     {3, 3},
     {1, 1},
     {1, 1},
     {1, 1},
     CUDNN_CROSS_CORRELATION,
     1,
     0},
    {CUDNN_DATA_BFLOAT16,
     NHWC,
     2,
     2,
     8,
     16,
     1,
     {6, 7},
     {3, 3},
     {1, 1},
     {2, 2},
     {1, 1},
     CUDNN_CROSS_CORRELATION,
     1,
     0},
    {CUDNN_DATA_BFLOAT16,
     NCHW,
     2,
     2,
     6,
     3,
     3,
     {6, 7},
     {1, 5},
     {0, 2},
     {1, 1},
     {1, 1},
     CUDNN_CROSS_CORRELATION,
     1,
     0.5},
    {CUDNN_DATA_HALF,
     NCHW,
     3,
     2,
     3,
     4,
     1,
     {4, 5, 3},
     {2, 3, 2},
     {1, 1, 0},
     {1, 2, 1},
     {1, 1, 2},
     CUDNN_CROSS_CORRELATION,
     1,
     0},
    {CUDNN_DATA_FLOAT,
     NHWC,
     3,
     1,
     4,
     3,
     1,
     {4, 5, 3},
     {3, 3, 3},
     {1, 1, 1},
     {1, 1, 1},
     {1, 1, 1},
     CUDNN_CROSS_CORRELATION,
     1,
     1},
};

static void test_passes(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        const problem *p = &problems[i];
        scalar alpha = scale_of(p->type, p->alpha), beta = scale_of(p->type, p->beta);
        setting s = set_up(p);
        for (const char *out = "yxw"; *out; out++) {
            array *result = *out == 'x' ? &s.x : *out == 'w' ? &s.w : &s.y;
            double *expected = convolve(p, &s, *out);
            /* Old content that is not read may be anything. */
            if (p->beta == 0)
                for (int64_t j = 0; j < result->count; j++) result->v[j] = NAN;
            array_write(result);
            size_t bytes = 0;
            if (*out == 'y')
                SUCCEEDS(cudnnGetConvolutionForwardWorkspaceSize(
                    handle, s.x.desc, s.filter, s.conv, s.y.desc,
                    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, &bytes));
            else if (*out == 'x')
                SUCCEEDS(cudnnGetConvolutionBackwardDataWorkspaceSize(
                    handle, s.filter, s.y.desc, s.conv, s.x.desc, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
                    &bytes));
            else
                SUCCEEDS(cudnnGetConvolutionBackwardFilterWorkspaceSize(
                    handle, s.x.desc, s.y.desc, s.conv, s.filter,
                    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, &bytes));
            if (i % 3 == 2) bytes /= 2; /* too small is no error */
            void *workspace = NULL;
            assert_int_equal(mica_malloc(memory, (int64_t)bytes, &workspace), MICA_OK);
            if (*out == 'y')
                SUCCEEDS(cudnnConvolutionForward(handle, &alpha, s.x.desc, s.x.data, s.filter,
                                                 s.w.data, s.conv,
                                                 CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                                 workspace, bytes, &beta, s.y.desc, s.y.data));
            else if (*out == 'x')
                SUCCEEDS(cudnnConvolutionBackwardData(handle, &alpha, s.filter, s.w.data, s.y.desc,
                                                      s.y.data, s.conv,
                                                      CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, workspace,
                                                      bytes, &beta, s.x.desc, s.x.data));
            else
                SUCCEEDS(cudnnConvolutionBackwardFilter(
                    handle, &alpha, s.x.desc, s.x.data, s.y.desc, s.y.data, s.conv,
                    CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, workspace, bytes, &beta, s.filter,
                    s.w.data));
            array_is(result, expected, 1, 0);
            mica_free(memory, workspace);
            double *now = array_read(result);
            memcpy(result->v, now, (size_t)result->count * sizeof *now);
            free(now);
            free(expected);
            /* Small numbers again, so that the next sums are exact. */
            for (int64_t j = 0; j < result->count; j++) result->v[j] = (draw(17) - 8) / 4.0;
            array_write(result);
        }
        tear_down(&s);
    }
}

/* y = relu(alpha1 conv + alpha2 z + bias): z in y, beside it, with another factor, and not read. */
static void test_fused(void **unused)
{
    (void)unused;
    static const double factors[] = {0, 1, 0.5, 1};
    for (int i = 0; i < 4; i++) {
        problem p = problems[i % 2 ? 5 : 0];
        p.alpha = 0.5, p.beta = 0;
        setting s = set_up(&p);
        const bool in_place = i == 3;
        array bias = array_new(p.type, NCHW, (int[]){1, p.k, 1, 1, 0});
        array z = array_of(s.y.t, p.type);
        for (int64_t j = 0; j < z.count; j++) z.v[j] = i ? (draw(17) - 8) / 4.0 : NAN;
        array_write(&z);
        double *expected = convolve(&p, &s, 'y');
        for (int64_t j = 0; j < s.y.count; j++) {
            int64_t k = j / (s.y.t.dims[2] * s.y.t.dims[3]) % p.k;
            expected[j] =
                fmax(0, expected[j] + (factors[i] == 0 ? 0 : factors[i] * z.v[j]) + bias.v[k]);
            s.y.v[j] = in_place ? z.v[j] : NAN;
        }
        array_write(&s.y);
        cudnnActivationDescriptor_t relu;
        SUCCEEDS(cudnnCreateActivationDescriptor(&relu));
        SUCCEEDS(cudnnSetActivationDescriptor(relu, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0));
        scalar alpha1 = scale_of(p.type, p.alpha), alpha2 = scale_of(p.type, factors[i]);
        SUCCEEDS(cudnnConvolutionBiasActivationForward(
            handle, &alpha1, s.x.desc, s.x.data, s.filter, s.w.data, s.conv,
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, NULL, 0, &alpha2, z.desc,
            in_place ? s.y.data : z.data, bias.desc, bias.data, relu, s.y.desc, s.y.data));
        array_is(&s.y, expected, factors[i] == 0.5 ? 2 : 1, 0);
        free(expected);
        SUCCEEDS(cudnnDestroyActivationDescriptor(relu));
        array_free(&bias);
        array_free(&z);
        tear_down(&s);
    }
}

static void test_bias_gradient(void **unused)
{
    (void)unused;
    static const cudnnDataType_t types[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_DOUBLE, CUDNN_DATA_HALF,
                                            CUDNN_DATA_BFLOAT16};
    for (int i = 0; i < 8; i++) {
        cudnnDataType_t type = types[i % 4];
        array dy = array_new(type, i % 3 ? NHWC : GAPS, (int[]){3, 5, 4, 3, 0});
        array db = array_new(type, NCHW, (int[]){1, 5, 1, 1, 0});
        double sums[5] = {0};
        for (int64_t j = 0; j < dy.count; j++) sums[j / 12 % 5] += dy.v[j];
        for (int k = 0; k < 5; k++) sums[k] = i < 4 ? sums[k] : 0.5 * sums[k] + 2 * db.v[k];
        scalar alpha = scale_of(type, i < 4 ? 1 : 0.5), beta = scale_of(type, i < 4 ? 0 : 2);
        SUCCEEDS(cudnnConvolutionBackwardBias(handle, &alpha, dy.desc, dy.data, &beta, db.desc,
                                              db.data));
        array_is(&db, sums, 1, 0);
        array_free(&dy);
        array_free(&db);
    }
}

/* Lists name what can be run, with the memory that the sizes say. */
static void test_algorithms(void **unused)
{
    (void)unused;
    setting s = set_up(&problems[5]);
    cudnnConvolutionFwdAlgoPerf_t results[8];
    int most = 0, found = 0;
    SUCCEEDS(cudnnGetConvolutionForwardAlgorithmMaxCount(handle, &most));
    assert_int_equal(most, 8);
    SUCCEEDS(cudnnGetConvolutionForwardAlgorithm_v7(handle, s.x.desc, s.filter, s.conv, s.y.desc,
                                                    most, &found, results));
    assert_true(found >= 1 && found <= 2);
    for (int i = 0; i < found; i++) {
        size_t bytes = 1;
        assert_int_equal(results[i].status, CUDNN_STATUS_SUCCESS);
        SUCCEEDS(cudnnGetConvolutionForwardWorkspaceSize(handle, s.x.desc, s.filter, s.conv,
                                                         s.y.desc, results[i].algo, &bytes));
        assert_int_equal(bytes, results[i].memory);
    }
    cudnnConvolutionBwdDataAlgoPerf_t data[1];
    SUCCEEDS(cudnnFindConvolutionBackwardDataAlgorithm(handle, s.filter, s.y.desc, s.conv, s.x.desc,
                                                       1, &found, data));
    assert_int_equal(found, 1);
    assert_true(data[0].time >= 0);
    size_t bytes;
    assert_int_equal(cudnnGetConvolutionForwardWorkspaceSize(handle, s.x.desc, s.filter, s.conv,
                                                             s.y.desc, (cudnnConvolutionFwdAlgo_t)8,
                                                             &bytes),
                     CUDNN_STATUS_BAD_PARAM);
    tear_down(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_bias_gradient),
        cmocka_unit_test(test_algorithms),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
