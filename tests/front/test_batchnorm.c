/* SPDX-License-Identifier: Apache-2.0
 * Batch normalisation of the drop-in against plain loops in double precision: training with and
 * without activation and addend, running and saved statistics, inference, gradients. */
#include "front_test.h"

static const cudnnDataType_t types[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16,
                                        CUDNN_DATA_DOUBLE};
enum { TYPES = 4, N = 3, C = 5, H = 4, W = 3 };
static const int shape[] = {N, C, H, W, 0};

/* The set of statistics that element i belongs to, and their number. */
static int64_t set_of(cudnnBatchNormMode_t mode, int64_t i)
{
    return mode == CUDNN_BATCHNORM_PER_ACTIVATION ? i % (C * H * W) : i / (H * W) % C;
}

static int sets(cudnnBatchNormMode_t mode)
{
    return mode == CUDNN_BATCHNORM_PER_ACTIVATION ? C * H * W : C;
}

static void statistics(cudnnBatchNormMode_t mode, const array *x, double eps, double *mean,
                       double *variance, double *inverse)
{
    const int n = N * C * H * W / sets(mode);
    for (int s = 0; s < sets(mode); s++) mean[s] = variance[s] = 0;
    for (int64_t i = 0; i < x->count; i++) mean[set_of(mode, i)] += x->v[i] / n;
    for (int64_t i = 0; i < x->count; i++) {
        double d = x->v[i] - mean[set_of(mode, i)];
        variance[set_of(mode, i)] += d * d / n;
    }
    for (int s = 0; s < sets(mode); s++) inverse[s] = 1 / sqrt(variance[s] + eps);
}

typedef struct setting {
    cudnnBatchNormMode_t mode;
    cudnnBatchNormOps_t ops;
    cudnnDataType_t type;
    array x, y, z, dy, dx, dz;
    array scale, bias, running_mean, running_var, mean, inverse, dscale, dbias;
    cudnnTensorDescriptor_t parameters;
    cudnnActivationDescriptor_t relu;
    double alpha, beta;
    int by; /* which functions */
} setting;

/* cudnnBatchNormalization*Ex; without Ex, where there is no activation; cudnnNormalization* */
enum { BY_EX, BY_PLAIN, BY_NORM, WAYS };

static setting set_up(int i)
{
    setting s = {.mode = (cudnnBatchNormMode_t)(i % 3),
                 .ops = (cudnnBatchNormOps_t)(i / 3 % 3),
                 .type = types[i / 9 % TYPES]};
    layout order = s.mode == CUDNN_BATCHNORM_PER_ACTIVATION ? NCHW : (layout)(i % 2 ? GAPS : NHWC);
    array *large[] = {&s.x, &s.y, &s.z, &s.dy, &s.dx, &s.dz};
    for (int k = 0; k < 6; k++) *large[k] = array_new(s.type, order, shape);
    SUCCEEDS(cudnnCreateTensorDescriptor(&s.parameters));
    SUCCEEDS(cudnnDeriveBNTensorDescriptor(s.parameters, s.x.desc, s.mode));
    cudnnDataType_t type;
    int rank, dims[5] = {0}, strides[4];
    SUCCEEDS(cudnnGetTensorNdDescriptor(s.parameters, 4, &type, &rank, dims, strides));
    assert_int_equal(rank, 4);
    assert_int_equal(type, s.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT);
    assert_int_equal(dims[0] * dims[1] * dims[2] * dims[3], sets(s.mode));
    array *small[] = {&s.scale, &s.bias,    &s.running_mean, &s.running_var,
                      &s.mean,  &s.inverse, &s.dscale,       &s.dbias};
    for (int k = 0; k < 8; k++) *small[k] = array_new(type, NCHW, dims);
    for (int64_t j = 0; j < s.running_var.count; j++) s.running_var.v[j] = 1 + draw(8) / 4.0;
    array_write(&s.running_var);
    SUCCEEDS(cudnnCreateActivationDescriptor(&s.relu));
    SUCCEEDS(cudnnSetActivationDescriptor(s.relu, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0));
    s.alpha = i % 4 == 3 ? 0.5 : 1;
    s.beta = i % 4 == 3 ? 2 : 0;
    return s;
}

static void tear_down(setting *s)
{
    array *all[] = {&s->x,    &s->y,       &s->z,      &s->dy,           &s->dx,
                    &s->dz,   &s->scale,   &s->bias,   &s->running_mean, &s->running_var,
                    &s->mean, &s->inverse, &s->dscale, &s->dbias};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) array_free(all[k]);
    SUCCEEDS(cudnnDestroyTensorDescriptor(s->parameters));
    SUCCEEDS(cudnnDestroyActivationDescriptor(s->relu));
}

static double eps = 1e-3; /* cuDNN takes 0 as well */

static cudnnNormMode_t norm_mode(const setting *s)
{
    return s->mode == CUDNN_BATCHNORM_PER_ACTIVATION ? CUDNN_NORM_PER_ACTIVATION
                                                     : CUDNN_NORM_PER_CHANNEL;
}

static cudnnNormAlgo_t norm_algo(const setting *s)
{
    return s->mode == CUDNN_BATCHNORM_SPATIAL_PERSISTENT ? CUDNN_NORM_ALGO_PERSIST
                                                         : CUDNN_NORM_ALGO_STANDARD;
}

static void train_by_norm(setting *s, scalar alpha, scalar beta)
{
    const bool add = s->ops == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION;
    size_t bytes = 0, reserve = 1;
    void *workspace = NULL;
    SUCCEEDS(cudnnGetNormalizationForwardTrainingWorkspaceSize(
        handle, norm_mode(s), (cudnnNormOps_t)s->ops, norm_algo(s), s->x.desc,
        add ? s->z.desc : NULL, s->y.desc, s->parameters, s->relu, s->parameters, &bytes, 1));
    SUCCEEDS(cudnnGetNormalizationTrainingReserveSpaceSize(handle, norm_mode(s),
                                                           (cudnnNormOps_t)s->ops, norm_algo(s),
                                                           s->relu, s->x.desc, &reserve, 1));
    assert_int_equal(reserve, 0);
    assert_int_equal(mica_malloc(memory, (int64_t)bytes, &workspace), MICA_OK);
    SUCCEEDS(cudnnNormalizationForwardTraining(
        handle, norm_mode(s), (cudnnNormOps_t)s->ops, norm_algo(s), &alpha, &beta, s->x.desc,
        s->x.data, s->parameters, s->scale.data, s->bias.data, 0.25, s->parameters,
        s->running_mean.data, s->running_var.data, eps, s->mean.data, s->inverse.data,
        s->ops == CUDNN_BATCHNORM_OPS_BN ? NULL : s->relu, add ? s->z.desc : NULL,
        add ? s->z.data : NULL, s->y.desc, s->y.data, workspace, bytes, NULL, 0, 1));
    mica_free(memory, workspace);
}

static void backward_by_norm(setting *s, const scalar *factors, bool saved)
{
    const bool add = s->ops == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION;
    size_t bytes = 0;
    void *workspace = NULL;
    SUCCEEDS(cudnnGetNormalizationBackwardWorkspaceSize(
        handle, norm_mode(s), (cudnnNormOps_t)s->ops, norm_algo(s), s->x.desc, s->y.desc,
        s->dy.desc, add ? s->dz.desc : NULL, s->dx.desc, s->parameters, s->relu, s->parameters,
        &bytes, 1));
    assert_int_equal(mica_malloc(memory, (int64_t)bytes, &workspace), MICA_OK);
    SUCCEEDS(cudnnNormalizationBackward(
        handle, norm_mode(s), (cudnnNormOps_t)s->ops, norm_algo(s), &factors[0], &factors[1],
        &factors[2], &factors[3], s->x.desc, s->x.data, s->y.desc, s->y.data, s->dy.desc,
        s->dy.data, add ? s->dz.desc : NULL, add ? s->dz.data : NULL, s->dx.desc, s->dx.data,
        s->parameters, s->scale.data, s->bias.data, s->dscale.data, s->dbias.data, eps,
        s->parameters, saved ? s->mean.data : NULL, saved ? s->inverse.data : NULL,
        s->ops == CUDNN_BATCHNORM_OPS_BN ? NULL : s->relu, workspace, bytes, NULL, 0, 1));
    mica_free(memory, workspace);
}

/* y as the interface says, and the running statistics brought along. */
static void check_forward(setting *s)
{
    double mean[C * H * W], variance[C * H * W], inverse[C * H * W];
    double *y = calloc((size_t)s->y.count, sizeof *y);
    const int n = N * C * H * W / sets(s->mode);
    statistics(s->mode, &s->x, eps, mean, variance, inverse);
    for (int64_t i = 0; i < s->x.count; i++) {
        int64_t k = set_of(s->mode, i);
        y[i] = (s->x.v[i] - mean[k]) * inverse[k] * s->scale.v[k] + s->bias.v[k];
        if (s->ops == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION) y[i] += s->z.v[i];
        if (s->ops != CUDNN_BATCHNORM_OPS_BN) y[i] = fmax(y[i], 0);
        y[i] = s->alpha * y[i] + (s->beta == 0 ? 0 : s->beta * s->y.v[i]);
    }
    if (s->beta == 0)
        for (int64_t i = 0; i < s->y.count; i++) s->y.v[i] = NAN;
    array_write(&s->y);
    for (int k = 0; k < sets(s->mode); k++) {
        s->running_mean.v[k] = 0.75 * s->running_mean.v[k] + 0.25 * mean[k];
        s->running_var.v[k] = 0.75 * s->running_var.v[k] + 0.25 * variance[k] * n / (n - 1);
    }
    scalar alpha = scale_of(s->type, s->alpha), beta = scale_of(s->type, s->beta);
    const bool add = s->ops == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION;
    size_t bytes = 0, reserve = 1;
    void *workspace = NULL;
    SUCCEEDS(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        handle, s->mode, s->ops, s->x.desc, add ? s->z.desc : NULL, s->y.desc, s->parameters,
        s->relu, &bytes));
    SUCCEEDS(cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle, s->mode, s->ops, s->relu,
                                                                  s->x.desc, &reserve));
    assert_int_equal(reserve, 0);
    if (s->alpha != 1) bytes = 0; /* none given is no error */
    assert_int_equal(mica_malloc(memory, (int64_t)bytes, &workspace), MICA_OK);
    if (s->by == BY_NORM)
        train_by_norm(s, alpha, beta);
    else if (s->by == BY_PLAIN && s->ops == CUDNN_BATCHNORM_OPS_BN)
        SUCCEEDS(cudnnBatchNormalizationForwardTraining(
            handle, s->mode, &alpha, &beta, s->x.desc, s->x.data, s->y.desc, s->y.data,
            s->parameters, s->scale.data, s->bias.data, 0.25, s->running_mean.data,
            s->running_var.data, eps, s->mean.data, s->inverse.data));
    else
        SUCCEEDS(cudnnBatchNormalizationForwardTrainingEx(
            handle, s->mode, s->ops, &alpha, &beta, s->x.desc, s->x.data, add ? s->z.desc : NULL,
            add ? s->z.data : NULL, s->y.desc, s->y.data, s->parameters, s->scale.data,
            s->bias.data, 0.25, s->running_mean.data, s->running_var.data, eps, s->mean.data,
            s->inverse.data, s->ops == CUDNN_BATCHNORM_OPS_BN ? NULL : s->relu,
            bytes ? workspace : NULL, bytes, NULL, 0));
    mica_free(memory, workspace);
    array_is(&s->y, y, 32, 4);
    array_is(&s->running_mean, s->running_mean.v, 8, 1);
    array_is(&s->running_var, s->running_var.v, 8, 1);
    array_is(&s->mean, mean, 8, 1);
    array_is(&s->inverse, inverse, 8, 1);
    free(y);
}

/* Gradients, with the saved statistics or without, added to what is there or not. */
static void check_backward(setting *s, bool saved)
{
    double mean[C * H * W], variance[C * H * W], inverse[C * H * W];
    double sum[C * H * W] = {0}, product[C * H * W] = {0};
    const int n = N * C * H * W / sets(s->mode);
    double *g = calloc((size_t)s->x.count, sizeof *g), *dx = calloc((size_t)s->x.count, sizeof *dx);
    statistics(s->mode, &s->x, eps, mean, variance, inverse);
    for (int64_t i = 0; i < s->x.count; i++) {
        int64_t k = set_of(s->mode, i);
        double y = (s->x.v[i] - mean[k]) * inverse[k] * s->scale.v[k] + s->bias.v[k];
        if (s->ops == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION) y += s->z.v[i];
        s->y.v[i] = s->ops == CUDNN_BATCHNORM_OPS_BN ? y : fmax(y, 0);
    }
    array_write(&s->y);
    for (int64_t i = 0; i < s->x.count; i++) {
        int64_t k = set_of(s->mode, i);
        g[i] = s->ops != CUDNN_BATCHNORM_OPS_BN && !(s->y.v[i] > 0) ? 0 : s->dy.v[i];
        sum[k] += g[i];
        product[k] += g[i] * (s->x.v[i] - mean[k]) * inverse[k];
    }
    for (int64_t i = 0; i < s->x.count; i++) {
        int64_t k = set_of(s->mode, i);
        double normal = (s->x.v[i] - mean[k]) * inverse[k];
        dx[i] = s->scale.v[k] * inverse[k] * (g[i] - sum[k] / n - normal * product[k] / n);
        dx[i] = s->alpha * dx[i] + (s->beta == 0 ? 0 : s->beta * s->dx.v[i]);
    }
    const double old =
        s->beta == 0 ? 0 : 1; /* as Caffe, which sums up the gradients of parameters */
    for (int k = 0; k < sets(s->mode); k++) {
        product[k] += old * s->dscale.v[k];
        sum[k] += old * s->dbias.v[k];
    }
    scalar alpha = scale_of(s->type, s->alpha), beta = scale_of(s->type, s->beta);
    scalar one = scale_of(s->type, 1), sums = scale_of(s->type, old);
    const bool add = s->ops == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION;
    size_t bytes = 0;
    void *workspace = NULL;
    SUCCEEDS(cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        handle, s->mode, s->ops, s->x.desc, s->y.desc, s->dy.desc, add ? s->dz.desc : NULL,
        s->dx.desc, s->parameters, s->relu, &bytes));
    assert_int_equal(mica_malloc(memory, (int64_t)bytes, &workspace), MICA_OK);
    const scalar factors[] = {alpha, beta, one, sums};
    if (s->by == BY_NORM)
        backward_by_norm(s, factors, saved);
    else if (s->by == BY_PLAIN && s->ops == CUDNN_BATCHNORM_OPS_BN)
        SUCCEEDS(cudnnBatchNormalizationBackward(
            handle, s->mode, &alpha, &beta, &one, &sums, s->x.desc, s->x.data, s->dy.desc,
            s->dy.data, s->dx.desc, s->dx.data, s->parameters, s->scale.data, s->dscale.data,
            s->dbias.data, eps, saved ? s->mean.data : NULL, saved ? s->inverse.data : NULL));
    else
        SUCCEEDS(cudnnBatchNormalizationBackwardEx(
            handle, s->mode, s->ops, &alpha, &beta, &one, &sums, s->x.desc, s->x.data, s->y.desc,
            s->y.data, s->dy.desc, s->dy.data, add ? s->dz.desc : NULL, add ? s->dz.data : NULL,
            s->dx.desc, s->dx.data, s->parameters, s->scale.data, s->bias.data, s->dscale.data,
            s->dbias.data, eps, saved ? s->mean.data : NULL, saved ? s->inverse.data : NULL,
            s->ops == CUDNN_BATCHNORM_OPS_BN ? NULL : s->relu, workspace, bytes, NULL, 0));
    mica_free(memory, workspace);
    array_is(&s->dx, dx, 64, 8);
    array_is(&s->dscale, product, 64, 16);
    array_is(&s->dbias, sum, 64, 16);
    if (add) array_is(&s->dz, g, 0, 0);
    free(g), free(dx);
}

static void test_training(void **unused)
{
    (void)unused;
    for (int i = 0; i < 9 * TYPES * WAYS; i++) {
        if (i >= 9 * TYPES && i % 4) continue; /* the other ways share their bodies */
        setting s = set_up(i % (9 * TYPES));
        s.by = i / (9 * TYPES);
        eps = i % 4 == 3 && s.mode != CUDNN_BATCHNORM_PER_ACTIVATION ? 0 : 1e-3;
        check_forward(&s);
        check_backward(&s, i % 5 != 0);
        tear_down(&s);
    }
}

static void test_inference(void **unused)
{
    (void)unused;
    for (int i = 0; i < 9 * TYPES; i += 2) {
        setting s = set_up(i);
        eps = i % 4 == 2 ? 0 : 1e-3;
        double *y = calloc((size_t)s.y.count, sizeof *y);
        for (int64_t j = 0; j < s.x.count; j++) {
            int64_t k = set_of(s.mode, j);
            y[j] =
                (s.x.v[j] - s.running_mean.v[k]) / sqrt(s.running_var.v[k] + eps) * s.scale.v[k] +
                s.bias.v[k];
            y[j] = s.alpha * y[j] + (s.beta == 0 ? 0 : s.beta * s.y.v[j]);
        }
        scalar alpha = scale_of(s.type, s.alpha), beta = scale_of(s.type, s.beta);
        SUCCEEDS(cudnnBatchNormalizationForwardInference(
            handle, s.mode, &alpha, &beta, s.x.desc, s.x.data, s.y.desc, s.y.data, s.parameters,
            s.scale.data, s.bias.data, s.running_mean.data, s.running_var.data, eps));
        array_is(&s.y, y, 16, 4);
        free(y);
        tear_down(&s);
    }
}

/* With an activation and an addend, too. */
static void test_norm_inference(void **unused)
{
    (void)unused;
    for (int i = 0; i < 9 * TYPES; i++) {
        setting s = set_up(i);
        const bool add = s.ops == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION;
        double *y = calloc((size_t)s.y.count, sizeof *y);
        for (int64_t j = 0; j < s.x.count; j++) {
            int64_t k = set_of(s.mode, j);
            y[j] =
                (s.x.v[j] - s.running_mean.v[k]) / sqrt(s.running_var.v[k] + eps) * s.scale.v[k] +
                s.bias.v[k] + (add ? s.z.v[j] : 0);
            if (s.ops != CUDNN_BATCHNORM_OPS_BN) y[j] = fmax(y[j], 0);
            y[j] = s.alpha * y[j] + (s.beta == 0 ? 0 : s.beta * s.y.v[j]);
        }
        scalar alpha = scale_of(s.type, s.alpha), beta = scale_of(s.type, s.beta);
        SUCCEEDS(cudnnNormalizationForwardInference(
            handle, norm_mode(&s), (cudnnNormOps_t)s.ops, norm_algo(&s), &alpha, &beta, s.x.desc,
            s.x.data, s.parameters, s.scale.data, s.bias.data, s.parameters, s.running_mean.data,
            s.running_var.data, add ? s.z.desc : NULL, add ? s.z.data : NULL, s.relu, s.y.desc,
            s.y.data, eps, 1));
        array_is(&s.y, y, 16, 4);
        free(y);
        tear_down(&s);
    }
}

static void test_norm_arguments(void **unused)
{
    (void)unused;
    setting s = set_up(1);
    cudnnTensorDescriptor_t a, b;
    size_t bytes;
    SUCCEEDS(cudnnCreateTensorDescriptor(&a));
    SUCCEEDS(cudnnCreateTensorDescriptor(&b));
    SUCCEEDS(cudnnDeriveNormTensorDescriptor(a, b, s.x.desc, CUDNN_NORM_PER_CHANNEL, 1));
    for (int i = 0; i < 2; i++) {
        cudnnDataType_t type;
        int rank, dims[4], strides[4];
        SUCCEEDS(cudnnGetTensorNdDescriptor(i ? b : a, 4, &type, &rank, dims, strides));
        assert_true(rank == 4 && dims[0] == 1 && dims[1] == C && dims[2] == 1 && dims[3] == 1);
    }
    assert_int_equal(cudnnDeriveNormTensorDescriptor(a, b, s.x.desc, CUDNN_NORM_PER_CHANNEL, 2),
                     CUDNN_STATUS_NOT_SUPPORTED);
    SUCCEEDS(cudnnDeriveNormTensorDescriptor(b, b, s.x.desc, CUDNN_NORM_PER_ACTIVATION, 1));
    assert_int_equal(cudnnGetNormalizationForwardTrainingWorkspaceSize(
                         handle, CUDNN_NORM_PER_CHANNEL, CUDNN_NORM_OPS_NORM,
                         CUDNN_NORM_ALGO_STANDARD, s.x.desc, NULL, s.y.desc, a, NULL, b, &bytes, 1),
                     CUDNN_STATUS_NOT_SUPPORTED);
    assert_int_equal(cudnnGetNormalizationForwardTrainingWorkspaceSize(
                         handle, (cudnnNormMode_t)2, CUDNN_NORM_OPS_NORM, CUDNN_NORM_ALGO_STANDARD,
                         s.x.desc, NULL, s.y.desc, a, NULL, a, &bytes, 1),
                     CUDNN_STATUS_BAD_PARAM);
    SUCCEEDS(cudnnDestroyTensorDescriptor(a));
    SUCCEEDS(cudnnDestroyTensorDescriptor(b));
    tear_down(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_inference),
        cmocka_unit_test(test_norm_inference),
        cmocka_unit_test(test_norm_arguments),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
