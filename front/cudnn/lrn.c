/* SPDX-License-Identifier: Apache-2.0
 * Local response normalisation across channels, and divisive normalisation within them. */
#include "front.h"

struct cudnnLRNStruct {
    front_kind kind;
    unsigned size;
    double alpha, beta, k;
};

/* The values that cuDNN has before they are set. */
cudnnStatus_t cudnnCreateLRNDescriptor(cudnnLRNDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateLRNDescriptor);
    FRONT_TRY(front_create(FRONT_LRN, sizeof **descriptor, descriptor));
    (*descriptor)->size = 5;
    (*descriptor)->alpha = 1e-4;
    (*descriptor)->beta = 0.75;
    (*descriptor)->k = 2;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyLRNDescriptor(cudnnLRNDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyLRNDescriptor);
    return front_destroy(descriptor, FRONT_LRN);
}

cudnnStatus_t cudnnSetLRNDescriptor(cudnnLRNDescriptor_t descriptor, unsigned size, double alpha,
                                    double beta, double k)
{
    front_enter(CALL_cudnnSetLRNDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_LRN, "normDesc"));
    if (size < 1 || size > 16 || k < 1e-5 || beta < 0.01)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "n is %u, 1 to 16 are possible; k is %g, at least 1e-5; beta is %g, at "
                          "least 0.01",
                          size, k, beta);
    descriptor->size = size;
    descriptor->alpha = alpha;
    descriptor->beta = beta;
    descriptor->k = k;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetLRNDescriptor(cudnnLRNDescriptor_t descriptor, unsigned *size, double *alpha,
                                    double *beta, double *k)
{
    front_enter(CALL_cudnnGetLRNDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_LRN, "normDesc"));
    if (size) *size = descriptor->size;
    if (alpha) *alpha = descriptor->alpha;
    if (beta) *beta = descriptor->beta;
    if (k) *k = descriptor->k;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t problem(cudnnLRNDescriptor_t lrn, int mode, mica_lrn_desc *d)
{
    FRONT_TRY(front_check(lrn, FRONT_LRN, "normDesc"));
    if (mode != 0) return front_fail(CUDNN_STATUS_BAD_PARAM, "mode %d, known is 0", mode);
    d->size = lrn->size;
    d->alpha = lrn->alpha == 0 ? MICA_ZERO : lrn->alpha;
    d->beta = lrn->beta;
    d->k = lrn->k;
    return CUDNN_STATUS_SUCCESS;
}

/* Runs into the result, or where alpha or beta ask for more, into memory in between. */
static cudnnStatus_t run(cudnnHandle_t handle, mica_lrn_desc *d, mica_run *r, int argument,
                         mica_tensor *place, const void *alpha, const void *beta, void *result)
{
    const mica_tensor to = *place;
    double scale = 1, old = 0;
    FRONT_TRY(front_scalar(alpha, d->x.dtype, "alpha", &scale));
    FRONT_TRY(front_scalar(beta, d->x.dtype, "beta", &old));
    void *memory = result;
    const bool plain = scale == 1 && old == 0;
    if (!plain) {
        *place = mica_tensor_packed(to.dtype, to.rank, to.dims); /* types are all alike */
        FRONT_TRY(front_temporary(handle, 1, (size_t)mica_tensor_span(place, NULL), &memory));
    }
    const mica_tensor from = *place;
    r->args[argument] = memory;
    FRONT_TRY(front_run(handle, "lrn", d, sizeof *d, r));
    return plain ? CUDNN_STATUS_SUCCESS
                 : front_blend(handle, scale, &from, memory, old, &to, result);
}

cudnnStatus_t cudnnLRNCrossChannelForward(cudnnHandle_t handle, cudnnLRNDescriptor_t lrn,
                                          cudnnLRNMode_t mode, const void *alpha,
                                          cudnnTensorDescriptor_t x_desc, const void *x,
                                          const void *beta, cudnnTensorDescriptor_t y_desc, void *y)
{
    front_enter(CALL_cudnnLRNCrossChannelForward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_lrn_desc d = {0};
    FRONT_TRY(problem(lrn, (int)mode, &d));
    FRONT_TRY(front_tensor(x_desc, "xDesc", &d.x));
    FRONT_TRY(front_tensor(y_desc, "yDesc", &d.y));
    mica_run r = {0};
    r.args[MICA_LRN_X] = (void *)x;
    return run(handle, &d, &r, MICA_LRN_Y, &d.y, alpha, beta, y);
}

cudnnStatus_t cudnnLRNCrossChannelBackward(cudnnHandle_t handle, cudnnLRNDescriptor_t lrn,
                                           cudnnLRNMode_t mode, const void *alpha,
                                           cudnnTensorDescriptor_t y_desc, const void *y,
                                           cudnnTensorDescriptor_t dy_desc, const void *dy,
                                           cudnnTensorDescriptor_t x_desc, const void *x,
                                           const void *beta, cudnnTensorDescriptor_t dx_desc,
                                           void *dx)
{
    (void)y_desc, (void)y; /* what it was made of is enough */
    front_enter(CALL_cudnnLRNCrossChannelBackward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_lrn_desc d = {.pass = MICA_LRN_BWD};
    FRONT_TRY(problem(lrn, (int)mode, &d));
    FRONT_TRY(front_tensor(x_desc, "xDesc", &d.x));
    FRONT_TRY(front_tensor(dy_desc, "dyDesc", &d.dy));
    FRONT_TRY(front_tensor(dx_desc, "dxDesc", &d.dx));
    mica_run r = {0};
    r.args[MICA_LRN_X] = (void *)x;
    r.args[MICA_LRN_DY] = (void *)dy;
    return run(handle, &d, &r, MICA_LRN_DX, &d.dx, alpha, beta, dx);
}

/* ---- divisive: x over what surrounds it along the axes behind the channels, less the means ----
 */

cudnnStatus_t cudnnDivisiveNormalizationForward(cudnnHandle_t handle, cudnnLRNDescriptor_t lrn,
                                                cudnnDivNormMode_t mode, const void *alpha,
                                                cudnnTensorDescriptor_t x_desc, const void *x,
                                                const void *means, void *temp, void *temp2,
                                                const void *beta, cudnnTensorDescriptor_t y_desc,
                                                void *y)
{
    (void)temp, (void)temp2;
    front_enter(CALL_cudnnDivisiveNormalizationForward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_lrn_desc d = {.kind = MICA_LRN_DIVISIVE};
    FRONT_TRY(problem(lrn, (int)mode, &d));
    FRONT_TRY(front_tensor(x_desc, "xDesc", &d.x));
    FRONT_TRY(front_tensor(y_desc, "yDesc", &d.y));
    if (means) d.means = d.x;
    mica_run r = {0};
    r.args[MICA_LRN_X] = (void *)x;
    r.args[MICA_LRN_MEANS] = (void *)means;
    return run(handle, &d, &r, MICA_LRN_Y, &d.y, alpha, beta, y);
}

/* The gradient of the means has the factors of that of x; it is formed by a run of its own where
 * these ask for more than the gradient. */
cudnnStatus_t cudnnDivisiveNormalizationBackward(
    cudnnHandle_t handle, cudnnLRNDescriptor_t lrn, cudnnDivNormMode_t mode, const void *alpha,
    cudnnTensorDescriptor_t x_desc, const void *x, const void *means, const void *dy, void *temp,
    void *temp2, const void *beta, cudnnTensorDescriptor_t dx_desc, void *dx, void *dmeans)
{
    (void)temp, (void)temp2;
    front_enter(CALL_cudnnDivisiveNormalizationBackward);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    mica_lrn_desc d = {.pass = MICA_LRN_BWD, .kind = MICA_LRN_DIVISIVE};
    FRONT_TRY(problem(lrn, (int)mode, &d));
    FRONT_TRY(front_tensor(x_desc, "xDesc", &d.x));
    FRONT_TRY(front_tensor(dx_desc, "dXdMeansDesc", &d.dx));
    d.dy = d.x;
    if (means) d.means = d.x;
    mica_run r = {0};
    r.args[MICA_LRN_X] = (void *)x;
    r.args[MICA_LRN_DY] = (void *)dy;
    r.args[MICA_LRN_MEANS] = (void *)means;
    const mica_tensor to = d.dx;
    FRONT_TRY(run(handle, &d, &r, MICA_LRN_DX, &d.dx, alpha, beta, dx));
    if (!dmeans) return CUDNN_STATUS_SUCCESS;
    /* dx again, which goes nowhere, and the means'. */
    d.dx = d.dmeans = to;
    FRONT_TRY(
        front_temporary(handle, 2, (size_t)mica_tensor_span(&to, NULL), &r.args[MICA_LRN_DX]));
    return run(handle, &d, &r, MICA_LRN_DMEANS, &d.dmeans, alpha, beta, dmeans);
}
