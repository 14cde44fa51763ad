/* SPDX-License-Identifier: Apache-2.0
 * CTC loss and its gradient. Costs are the losses of each sequence; the gradient is that by what is
 * in front of the softmax. Samples that no alignment is left of have cost and gradient 0 in mode
 * ZERO_OOB_GRADIENTS; in mode SKIP_OOB_GRADIENTS, where cuDNN leaves the old gradient, their cost
 * is infinite and their gradient NaN, as in PyTorch. */
#include "front.h"

struct cudnnCTCLossStruct {
    front_kind kind;
    bool set;
    cudnnDataType_t compute;
    cudnnLossNormalizationMode_t normalization;
    int gradient_mode; /* of CTC, or of NaN in older functions: 0 or 1 */
    int longest;       /* labels of a sequence; 0: not said */
};

cudnnStatus_t cudnnCreateCTCLossDescriptor(cudnnCTCLossDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateCTCLossDescriptor);
    return front_create(FRONT_CTC, sizeof **descriptor, descriptor);
}

cudnnStatus_t cudnnDestroyCTCLossDescriptor(cudnnCTCLossDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroyCTCLossDescriptor);
    return front_destroy(descriptor, FRONT_CTC);
}

static cudnnStatus_t set(cudnnCTCLossDescriptor_t descriptor, cudnnDataType_t compute,
                         cudnnLossNormalizationMode_t normalization, int mode, int longest)
{
    FRONT_TRY(front_check(descriptor, FRONT_CTC, "ctcLossDesc"));
    if (compute != CUDNN_DATA_FLOAT)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "compType %d, known is FLOAT (0)", (int)compute);
    if ((unsigned)normalization > CUDNN_LOSS_NORMALIZATION_SOFTMAX || (unsigned)mode > 1 ||
        longest < 0)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "normMode %d and gradient mode %d, known are 0 and 1; maxLabelLength %d",
                          (int)normalization, mode, longest);
    descriptor->compute = compute;
    descriptor->normalization = normalization;
    descriptor->gradient_mode = mode;
    descriptor->longest = longest;
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetCTCLossDescriptor(cudnnCTCLossDescriptor_t descriptor,
                                        cudnnDataType_t compute)
{
    front_enter(CALL_cudnnSetCTCLossDescriptor);
    return set(descriptor, compute, CUDNN_LOSS_NORMALIZATION_NONE, 0, 0);
}

cudnnStatus_t cudnnSetCTCLossDescriptorEx(cudnnCTCLossDescriptor_t descriptor,
                                          cudnnDataType_t compute,
                                          cudnnLossNormalizationMode_t normalization,
                                          cudnnNanPropagation_t mode)
{
    front_enter(CALL_cudnnSetCTCLossDescriptorEx);
    return set(descriptor, compute, normalization, (int)mode, 0);
}

cudnnStatus_t cudnnSetCTCLossDescriptor_v8(cudnnCTCLossDescriptor_t descriptor,
                                           cudnnDataType_t compute,
                                           cudnnLossNormalizationMode_t normalization,
                                           cudnnNanPropagation_t mode, int longest)
{
    front_enter(CALL_cudnnSetCTCLossDescriptor_v8);
    return set(descriptor, compute, normalization, (int)mode, longest);
}

cudnnStatus_t cudnnSetCTCLossDescriptor_v9(cudnnCTCLossDescriptor_t descriptor,
                                           cudnnDataType_t compute,
                                           cudnnLossNormalizationMode_t normalization,
                                           cudnnCTCGradMode_t mode, int longest)
{
    front_enter(CALL_cudnnSetCTCLossDescriptor_v9);
    return set(descriptor, compute, normalization, (int)mode, longest);
}

static cudnnStatus_t get(cudnnCTCLossDescriptor_t descriptor, cudnnDataType_t *compute,
                         cudnnLossNormalizationMode_t *normalization, int *mode, int *longest)
{
    FRONT_TRY(front_check(descriptor, FRONT_CTC, "ctcLossDesc"));
    if (!descriptor->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "ctcLossDesc was never set");
    if (compute) *compute = descriptor->compute;
    if (normalization) *normalization = descriptor->normalization;
    if (longest) *longest = descriptor->longest;
    *mode = descriptor->gradient_mode;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetCTCLossDescriptor(cudnnCTCLossDescriptor_t descriptor,
                                        cudnnDataType_t *compute)
{
    front_enter(CALL_cudnnGetCTCLossDescriptor);
    return get(descriptor, compute, NULL, &(int){0}, NULL);
}

static cudnnStatus_t get_v8(cudnnCTCLossDescriptor_t descriptor, cudnnDataType_t *compute,
                            cudnnLossNormalizationMode_t *normalization,
                            cudnnNanPropagation_t *mode, int *longest)
{
    int number = 0;
    FRONT_TRY(get(descriptor, compute, normalization, &number, longest));
    if (mode) *mode = (cudnnNanPropagation_t)number;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetCTCLossDescriptorEx(cudnnCTCLossDescriptor_t descriptor,
                                          cudnnDataType_t *compute,
                                          cudnnLossNormalizationMode_t *normalization,
                                          cudnnNanPropagation_t *mode)
{
    front_enter(CALL_cudnnGetCTCLossDescriptorEx);
    return get_v8(descriptor, compute, normalization, mode, NULL);
}

cudnnStatus_t cudnnGetCTCLossDescriptor_v8(cudnnCTCLossDescriptor_t descriptor,
                                           cudnnDataType_t *compute,
                                           cudnnLossNormalizationMode_t *normalization,
                                           cudnnNanPropagation_t *mode, int *longest)
{
    front_enter(CALL_cudnnGetCTCLossDescriptor_v8);
    return get_v8(descriptor, compute, normalization, mode, longest);
}

cudnnStatus_t cudnnGetCTCLossDescriptor_v9(cudnnCTCLossDescriptor_t descriptor,
                                           cudnnDataType_t *compute,
                                           cudnnLossNormalizationMode_t *normalization,
                                           cudnnCTCGradMode_t *mode, int *longest)
{
    front_enter(CALL_cudnnGetCTCLossDescriptor_v9);
    int number = 0;
    FRONT_TRY(get(descriptor, compute, normalization, &number, longest));
    if (mode) *mode = (cudnnCTCGradMode_t)number;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- runs ---- */

/* Slots of temporaries. */
enum { LOGARITHMS = 1, ONE, LABELS };

/* The problem of one direction; labels lie one sequence after the other, at most so many. */
static cudnnStatus_t problem(cudnnCTCLossDescriptor_t ctc, cudnnTensorDescriptor_t probs,
                             cudnnTensorDescriptor_t gradients, int64_t labels, bool backward,
                             mica_ctc_loss_desc *d)
{
    FRONT_TRY(front_check(ctc, FRONT_CTC, "ctcLossDesc"));
    if (!ctc->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "ctcLossDesc was never set");
    FRONT_TRY(front_tensor(probs, "probsDesc", &d->x));
    if (d->x.rank != 3)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "probs have %d dimensions, not T x N x classes",
                          d->x.rank);
    const int64_t batch = d->x.dims[1];
    if (ctc->normalization == CUDNN_LOSS_NORMALIZATION_NONE) {
        d->x = mica_tensor_packed(MICA_F32, 3, d->x.dims); /* of their logarithms */
        d->input = MICA_CTC_LOSS_LOG_PROBS;
    }
    d->labels = mica_tensor_packed(MICA_S32, 1, (int64_t[]){labels});
    d->label_lengths = d->input_lengths = mica_tensor_packed(MICA_S32, 1, &batch);
    d->reduction = MICA_REDUCE_NONE;
    d->zero_infinity = ctc->gradient_mode == CUDNN_CTC_ZERO_OOB_GRADIENTS;
    if (!backward) {
        d->loss = mica_tensor_packed(MICA_F32, 1, &batch);
        return CUDNN_STATUS_SUCCESS;
    }
    d->pass = MICA_CTC_LOSS_BWD;
    /* One 1 for all sequences. */
    d->dloss = (mica_tensor){.dtype = MICA_F32, .rank = 1, .dims = {batch}, .strided = 1};
    return front_tensor(gradients, "gradientsDesc", &d->dx);
}

static cudnnStatus_t workspace_size(cudnnHandle_t handle, cudnnCTCLossDescriptor_t ctc,
                                    cudnnTensorDescriptor_t probs,
                                    cudnnTensorDescriptor_t gradients, int64_t labels, size_t *size)
{
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_given(size, "sizeInBytes"));
    size_t most = 0;
    for (int backward = 0; backward < (gradients ? 2 : 1); backward++) {
        mica_ctc_loss_desc d = {0};
        mica_plan *plan = NULL;
        FRONT_TRY(problem(ctc, probs, gradients, labels, backward, &d));
        FRONT_TRY(front_plan(handle, "ctc_loss", &d, sizeof d, NULL, &plan));
        if (mica_plan_workspace(plan) > most) most = mica_plan_workspace(plan);
        mica_plan_destroy(plan);
    }
    *size = most;
    return CUDNN_STATUS_SUCCESS;
}

typedef struct lengths {
    const int *labels, *label_lengths, *input_lengths; /* device memory */
    int64_t count;                                     /* of labels, at most */
} lengths;

static cudnnStatus_t take_logarithms(cudnnHandle_t handle, cudnnTensorDescriptor_t probs,
                                     const void **x)
{
    mica_pointwise_desc d = {.expr = "log(x0)"};
    void *logarithms = NULL;
    FRONT_TRY(front_tensor(probs, "probsDesc", &d.x0));
    d.y0 = mica_tensor_packed(MICA_F32, d.x0.rank, d.x0.dims);
    FRONT_TRY(
        front_temporary(handle, LOGARITHMS, (size_t)mica_tensor_span(&d.y0, NULL), &logarithms));
    mica_run run = {0};
    run.args[MICA_POINTWISE_X0] = (void *)*x;
    run.args[MICA_POINTWISE_Y0] = logarithms;
    *x = logarithms;
    return front_run(handle, "pointwise", &d, sizeof d, &run);
}

static cudnnStatus_t loss(cudnnHandle_t handle, cudnnCTCLossDescriptor_t ctc,
                          cudnnTensorDescriptor_t probs, const void *x, const lengths *l,
                          void *costs, cudnnTensorDescriptor_t gradients_desc, void *gradients,
                          void *workspace, size_t bytes)
{
    mica_ctc_loss_desc d = {0};
    FRONT_TRY(problem(ctc, probs, NULL, l->count, false, &d));
    if (ctc->normalization == CUDNN_LOSS_NORMALIZATION_NONE)
        FRONT_TRY(take_logarithms(handle, probs, &x));
    mica_run run = {0};
    run.args[MICA_CTC_LOSS_X] = (void *)x;
    run.args[MICA_CTC_LOSS_LABELS] = (void *)l->labels;
    run.args[MICA_CTC_LOSS_LABEL_LENGTHS] = (void *)l->label_lengths;
    run.args[MICA_CTC_LOSS_INPUT_LENGTHS] = (void *)l->input_lengths;
    run.args[MICA_CTC_LOSS_LOSS] = costs;
    FRONT_TRY(front_run_in(handle, "ctc_loss", &d, sizeof d, &run, workspace, bytes));
    if (!gradients) return CUDNN_STATUS_SUCCESS;
    d = (mica_ctc_loss_desc){0};
    FRONT_TRY(problem(ctc, probs, gradients_desc, l->count, true, &d));
    const mica_tensor one = mica_tensor_packed(MICA_F32, 1, (int64_t[]){1});
    mica_pointwise_desc fill = {.expr = "where(1==1,s0,x0)", .x0 = one, .y0 = one};
    mica_run filling = {.scalars = (double[]){1, 0, 0, 0}};
    void *dloss = NULL;
    FRONT_TRY(front_temporary(handle, ONE, sizeof(float), &dloss));
    filling.args[MICA_POINTWISE_X0] = filling.args[MICA_POINTWISE_Y0] = dloss;
    FRONT_TRY(front_run(handle, "pointwise", &fill, sizeof fill, &filling));
    run.args[MICA_CTC_LOSS_LOSS] = NULL;
    run.args[MICA_CTC_LOSS_DLOSS] = dloss;
    run.args[MICA_CTC_LOSS_DX] = gradients;
    return front_run_in(handle, "ctc_loss", &d, sizeof d, &run, workspace, bytes);
}

/* Labels of this function and of the next lie in device memory, with their lengths. */
static cudnnStatus_t device_labels(cudnnCTCLossDescriptor_t ctc, cudnnTensorDescriptor_t probs,
                                   int64_t *count)
{
    mica_tensor x = {0};
    FRONT_TRY(front_check(ctc, FRONT_CTC, "ctcLossDesc"));
    FRONT_TRY(front_tensor(probs, "probsDesc", &x));
    if (!ctc->longest)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "maxLabelLength is 0: set it by cudnnSetCTCLossDescriptor_v8 or _v9");
    *count = x.rank < 2 ? 0 : x.dims[1] * ctc->longest;
    return CUDNN_STATUS_SUCCESS;
}

/* Only the device knows how many labels there are; what lies behind them and has another meaning
 * ends them. */
static void end_before(const void *other, lengths *l)
{
    const uintptr_t from = (uintptr_t)l->labels, at = (uintptr_t)other;
    const uintptr_t room = at > from ? (at - from) / sizeof *l->labels : (uintptr_t)l->count;
    if (room < (uintptr_t)l->count) l->count = (int64_t)room;
}

cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t algorithm,
                                              cudnnCTCLossDescriptor_t ctc,
                                              cudnnTensorDescriptor_t probs,
                                              cudnnTensorDescriptor_t gradients, size_t *size)
{
    (void)algorithm;
    front_enter(CALL_cudnnGetCTCLossWorkspaceSize_v8);
    int64_t count = 0;
    FRONT_TRY(device_labels(ctc, probs, &count));
    return workspace_size(handle, ctc, probs, gradients, count, size);
}

cudnnStatus_t cudnnCTCLoss_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t algorithm,
                              cudnnCTCLossDescriptor_t ctc, cudnnTensorDescriptor_t probs_desc,
                              const void *probs, const int *labels, const int *label_lengths,
                              const int *input_lengths, void *costs,
                              cudnnTensorDescriptor_t gradients_desc, void *gradients, size_t bytes,
                              void *workspace)
{
    (void)algorithm; /* each is deterministic here */
    front_enter(CALL_cudnnCTCLoss_v8);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    lengths l = {labels, label_lengths, input_lengths, 0};
    FRONT_TRY(device_labels(ctc, probs_desc, &l.count));
    const void *const others[] = {costs, gradients, workspace, probs, label_lengths, input_lengths};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) end_before(others[i], &l);
    return loss(handle, ctc, probs_desc, probs, &l, costs, gradients_desc, gradients, workspace,
                bytes);
}

/* ---- labels in host memory ---- */

static cudnnStatus_t host_labels(cudnnTensorDescriptor_t probs, const int *label_lengths,
                                 int64_t *count)
{
    mica_tensor x = {0};
    FRONT_TRY(front_tensor(probs, "probsDesc", &x));
    FRONT_TRY(front_given(label_lengths, "labelLengths"));
    if (x.rank != 3)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "probs have %d dimensions, not T x N x classes",
                          x.rank);
    *count = 0;
    for (int64_t i = 0; i < x.dims[1]; i++) {
        if (label_lengths[i] < 0)
            return front_fail(CUDNN_STATUS_BAD_PARAM, "sequence %lld has %d labels", (long long)i,
                              label_lengths[i]);
        *count += label_lengths[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetCTCLossWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t probs,
                                           cudnnTensorDescriptor_t gradients, const int *labels,
                                           const int *label_lengths, const int *input_lengths,
                                           cudnnCTCLossAlgo_t algorithm,
                                           cudnnCTCLossDescriptor_t ctc, size_t *size)
{
    (void)labels, (void)input_lengths, (void)algorithm;
    front_enter(CALL_cudnnGetCTCLossWorkspaceSize);
    int64_t count = 0;
    FRONT_TRY(host_labels(probs, label_lengths, &count));
    return workspace_size(handle, ctc, probs, gradients, count, size);
}

/* Brings labels and lengths to the device, so it is not for captured graphs. */
cudnnStatus_t cudnnCTCLoss(cudnnHandle_t handle, cudnnTensorDescriptor_t probs_desc,
                           const void *probs, const int *labels, const int *label_lengths,
                           const int *input_lengths, void *costs,
                           cudnnTensorDescriptor_t gradients_desc, void *gradients,
                           cudnnCTCLossAlgo_t algorithm, cudnnCTCLossDescriptor_t ctc,
                           void *workspace, size_t bytes)
{
    (void)algorithm;
    front_enter(CALL_cudnnCTCLoss);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_given(labels, "labels"));
    FRONT_TRY(front_given(input_lengths, "inputLengths"));
    lengths l = {0};
    FRONT_TRY(host_labels(probs_desc, label_lengths, &l.count));
    const int64_t batch = probs_desc->tensor.dims[1];
    const int64_t ints[] = {batch, batch, l.count};
    const int *const sources[] = {label_lengths, input_lengths, labels};
    void *memory = NULL;
    FRONT_TRY(
        front_temporary(handle, LABELS, (size_t)(2 * batch + l.count + 1) * sizeof(int), &memory));
    int *places[3], *next = memory;
    for (int i = 0; i < 3; i++) {
        places[i] = next;
        FRONT_TRY(front_status(mica_upload(handle->context, next, sources[i],
                                           ints[i] * (int64_t)sizeof(int), handle->stream)));
        next += ints[i];
    }
    l.label_lengths = places[0];
    l.input_lengths = places[1];
    l.labels = places[2];
    return loss(handle, ctc, probs_desc, probs, &l, costs, gradients_desc, gradients, workspace,
                bytes);
}
