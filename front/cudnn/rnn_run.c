/* SPDX-License-Identifier: Apache-2.0
 * Recurrent nets: sizes, forward, gradients. The reserve space holds what the passes of mica hand
 * to each other, and the {seed, offset} that dropout drew from. */
#include "rnn.h"

/* Slots of temporaries. */
enum { X_PADDED = 1, Y_PADDED, LENGTHS };

/* What the reserve space holds, each at a multiple of 256 bytes. */
static const int kept[] = {MICA_RNN_GATES, MICA_RNN_CELLS, MICA_RNN_STATES,
                           MICA_RNN_INNER, MICA_RNN_DZ,    MICA_RNN_RNG};
enum { KEPT = sizeof kept / sizeof *kept };

typedef struct net {
    cudnnRNNDescriptor_t rnn;
    cudnnRNNDataDescriptor_t x;
    mica_tensor y;
    bool training, unequal, hx, cx, hy, cy;
} net;

static bool drops(cudnnRNNDescriptor_t rnn)
{
    return rnn->layers > 1 && rnn->dropout && rnn->dropout->set && rnn->dropout->dropout > 0;
}

/* mica's problem for a pass. y, hx and so on: tensors are there or not. */
static void problem(const net *n, mica_rnn_pass pass, mica_rnn_desc *d)
{
    front_rnn_problem(n->rnn, d);
    d->pass = pass;
    d->x = front_rnn_tensor(n->x);
    d->y = n->y;
    const mica_dtype dtype = d->x.dtype;
    if (n->unequal) d->lengths = mica_tensor_packed(MICA_S32, 1, (int64_t[]){n->x->batch});
    const int64_t sides = d->bidirectional ? 2 : 1;
    const int64_t out = d->projection ? d->projection : d->hidden;
    const mica_tensor h =
        mica_tensor_packed(dtype, 3, (int64_t[]){sides * n->rnn->layers, n->x->batch, out});
    const mica_tensor c =
        mica_tensor_packed(dtype, 3, (int64_t[]){sides * n->rnn->layers, n->x->batch, d->hidden});
    if (n->hx) d->hx = h;
    if (n->cx) d->cx = c;
    if (n->hy) d->hy = h;
    if (n->cy) d->cy = c;
    if (n->training && drops(n->rnn)) d->dropout = (double)n->rnn->dropout->dropout;
    if (n->training)
        d->states = mica_tensor_packed(
            dtype, 4, (int64_t[]){sides * n->rnn->layers, n->x->steps + 1, n->x->batch, out});
}

/* Bytes of each tensor in the reserve space, from the two passes that write them. */
static cudnnStatus_t sizes(cudnnHandle_t handle, const net *n, size_t *bytes, size_t *workspace)
{
    *workspace = 0;
    for (int i = 0; i < KEPT; i++) bytes[i] = 0;
    static const mica_rnn_pass passes[] = {MICA_RNN_FWD, MICA_RNN_BWD_DATA, MICA_RNN_BWD_WEIGHTS};
    for (int p = 0; p < (n->training ? 3 : 1); p++) {
        mica_rnn_desc d;
        mica_plan *plan = NULL;
        problem(n, passes[p], &d);
        FRONT_TRY(front_plan(handle, "rnn", &d, sizeof d, NULL, &plan));
        if (mica_plan_workspace(plan) > *workspace) *workspace = mica_plan_workspace(plan);
        for (int i = 0; n->training && i < KEPT; i++) {
            mica_arg_info a;
            if (mica_plan_arg(plan, kept[i], &a) == MICA_OK && a.dir != MICA_UNUSED)
                bytes[i] = (size_t)mica_tensor_span(&a.tensor, NULL);
        }
        mica_plan_destroy(plan);
    }
    return CUDNN_STATUS_SUCCESS;
}

static size_t total(const size_t *bytes)
{
    size_t sum = 0;
    for (int i = 0; i < KEPT; i++) sum += (bytes[i] + 255) / 256 * 256;
    return sum;
}

/* The net that the sizes are asked for: with all that any run could have. */
static net largest(cudnnRNNDescriptor_t rnn, cudnnRNNDataDescriptor_t x, bool training)
{
    const bool lstm = rnn->cell == CUDNN_LSTM;
    return (net){.rnn = rnn,
                 .x = x,
                 .training = training,
                 .unequal = !x->full,
                 .hx = true,
                 .cx = lstm,
                 .hy = true,
                 .cy = lstm};
}

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                                        cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t x,
                                        size_t *workspace, size_t *reserve)
{
    front_enter(CALL_cudnnGetRNNTempSpaceSizes);
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_rnn_check(rnn));
    FRONT_TRY(front_rnn_data_check(x, "xDesc"));
    if (x->type != rnn->type || x->size != rnn->input_size)
        return front_fail(CUDNN_STATUS_BAD_PARAM,
                          "x has %d elements of type %d a step, rnnDesc %d of type %d", x->size,
                          (int)x->type, rnn->input_size, (int)rnn->type);
    net n = largest(rnn, x, mode == CUDNN_FWD_MODE_TRAINING);
    size_t bytes[KEPT], most = 0;
    FRONT_TRY(sizes(handle, &n, bytes, &most));
    if (workspace) *workspace = most + 256;
    if (reserve) *reserve = n.training ? total(bytes) + 256 : 0;
    return CUDNN_STATUS_SUCCESS;
}

/* Points the run's arguments into the reserve space. */
static cudnnStatus_t reserve_args(cudnnHandle_t handle, const net *n, void *reserve, size_t given,
                                  mica_run *run)
{
    net whole = largest(n->rnn, n->x, true);
    size_t bytes[KEPT], unused;
    FRONT_TRY(sizes(handle, &whole, bytes, &unused));
    FRONT_TRY(front_given(reserve, "reserveSpace"));
    const size_t offset = (256 - (uintptr_t)reserve % 256) % 256;
    if (given < offset + total(bytes))
        return front_fail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
                          "reserve space of %zu bytes < %zu", given, total(bytes) + 256);
    char *at = (char *)reserve + offset;
    for (int i = 0; i < KEPT; i++) {
        run->args[kept[i]] = bytes[i] ? at : NULL;
        at += (bytes[i] + 255) / 256 * 256;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Leaves out the arguments that the problem does not use, then runs. */
static cudnnStatus_t run_pass(cudnnHandle_t handle, const mica_rnn_desc *d, mica_run *run,
                              void *workspace, size_t bytes)
{
    mica_plan *plan = NULL;
    FRONT_TRY(front_plan(handle, "rnn", d, sizeof *d, NULL, &plan));
    mica_arg_info a;
    for (int i = 0; mica_plan_arg(plan, i, &a) == MICA_OK; i++)
        if (a.dir == MICA_UNUSED) run->args[i] = NULL;
    mica_plan_destroy(plan);
    return front_run_in(handle, "rnn", d, sizeof *d, run, workspace, bytes);
}

/* Checks the descriptors of a run and gives the net's y. */
static cudnnStatus_t begin(cudnnHandle_t handle, net *n, cudnnRNNDataDescriptor_t y)
{
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_rnn_check(n->rnn));
    FRONT_TRY(front_rnn_data_check(n->x, "xDesc"));
    FRONT_TRY(front_rnn_data_check(y, "yDesc"));
    if (y->layout != n->x->layout)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "x has layout %d, y %d", (int)n->x->layout,
                          (int)y->layout);
    if (y->fill != 0 && !y->full)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "padding is filled with 0, not with %g",
                          y->fill);
    n->y = front_rnn_tensor(y);
    n->unequal = !n->x->full;
    return CUDNN_STATUS_SUCCESS;
}

/* Lengths on the device: those given, or the descriptor's. */
static cudnnStatus_t take_lengths(cudnnHandle_t handle, const net *n, const int32_t *given,
                                  mica_run *run)
{
    if (!n->unequal) return CUDNN_STATUS_SUCCESS;
    run->args[MICA_RNN_LENGTHS] = (void *)given;
    if (given) return CUDNN_STATUS_SUCCESS;
    const int64_t bytes = n->x->batch * (int64_t)sizeof(int32_t);
    FRONT_TRY(front_temporary(handle, LENGTHS, (size_t)bytes, &run->args[MICA_RNN_LENGTHS]));
    return front_status(mica_upload(handle->context, run->args[MICA_RNN_LENGTHS], n->x->lengths,
                                    bytes, handle->stream));
}

static bool is_packed(cudnnRNNDataDescriptor_t data)
{
    return data->layout == CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED && !data->full;
}

/* Where mica reads or writes data: there, or of packed data in memory in between. */
static cudnnStatus_t place(cudnnHandle_t handle, cudnnRNNDataDescriptor_t data, int slot,
                           const void *memory, bool read, void **at)
{
    *at = (void *)memory;
    if (!is_packed(data) || !memory) return CUDNN_STATUS_SUCCESS;
    const mica_tensor t = front_rnn_tensor(data);
    FRONT_TRY(front_temporary(handle, slot, (size_t)mica_tensor_span(&t, NULL), at));
    return read ? front_rnn_unpack(handle, data, memory, *at) : CUDNN_STATUS_SUCCESS;
}

/* Keeps what dropout draws from now for the gradients, and counts up. */
static cudnnStatus_t keep_draw(cudnnHandle_t handle, const net *n, void *rng)
{
    void *states = n->rnn->dropout->states;
    FRONT_TRY(front_given(states, "states of dropoutDesc"));
    const mica_tensor two = mica_tensor_packed(MICA_S64, 1, (int64_t[]){2});
    mica_transform_desc d = {.x = two, .y = two};
    mica_run run = {0};
    run.args[MICA_TRANSFORM_X] = states;
    run.args[MICA_TRANSFORM_Y] = rng;
    FRONT_TRY(front_run(handle, "transform", &d, sizeof d, &run));
    return front_next_draw(handle, states);
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
                              cudnnForwardMode_t mode, const int32_t *lengths,
                              cudnnRNNDataDescriptor_t x_desc, const void *x,
                              cudnnRNNDataDescriptor_t y_desc, void *y,
                              cudnnTensorDescriptor_t h_desc, const void *hx, void *hy,
                              cudnnTensorDescriptor_t c_desc, const void *cx, void *cy,
                              size_t weight_bytes, const void *weights, size_t workspace_bytes,
                              void *workspace, size_t reserve_bytes, void *reserve)
{
    (void)h_desc, (void)c_desc, (void)weight_bytes; /* packed: layers, sequences, hidden */
    front_enter(CALL_cudnnRNNForward);
    net n = {.rnn = rnn, .x = x_desc, .training = mode == CUDNN_FWD_MODE_TRAINING};
    FRONT_TRY(begin(handle, &n, y_desc));
    const bool lstm = rnn->cell == CUDNN_LSTM;
    n.hx = hx, n.hy = hy, n.cx = lstm && cx, n.cy = lstm && cy;
    mica_rnn_desc d;
    problem(&n, MICA_RNN_FWD, &d);
    mica_run run = {0};
    if (n.training) FRONT_TRY(reserve_args(handle, &n, reserve, reserve_bytes, &run));
    if (n.training && drops(rnn)) FRONT_TRY(keep_draw(handle, &n, run.args[MICA_RNN_RNG]));
    FRONT_TRY(take_lengths(handle, &n, lengths, &run));
    FRONT_TRY(place(handle, x_desc, X_PADDED, x, true, &run.args[MICA_RNN_X]));
    FRONT_TRY(place(handle, y_desc, Y_PADDED, y, false, &run.args[MICA_RNN_Y]));
    run.args[MICA_RNN_W] = (void *)weights;
    run.args[MICA_RNN_HX] = (void *)hx;
    run.args[MICA_RNN_CX] = (void *)cx;
    run.args[MICA_RNN_HY] = hy;
    run.args[MICA_RNN_CY] = cy;
    void *found = run.args[MICA_RNN_Y];
    FRONT_TRY(run_pass(handle, &d, &run, workspace, workspace_bytes));
    return found == y ? CUDNN_STATUS_SUCCESS : front_rnn_pack(handle, y_desc, found, y);
}

cudnnStatus_t
cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const int32_t *lengths,
                        cudnnRNNDataDescriptor_t y_desc, const void *y, const void *dy,
                        cudnnRNNDataDescriptor_t x_desc, void *dx, cudnnTensorDescriptor_t h_desc,
                        const void *hx, const void *dhy, void *dhx, cudnnTensorDescriptor_t c_desc,
                        const void *cx, const void *dcy, void *dcx, size_t weight_bytes,
                        const void *weights, size_t workspace_bytes, void *workspace,
                        size_t reserve_bytes, void *reserve)
{
    (void)y, (void)hx, (void)cx; /* the reserve space has them */
    (void)h_desc, (void)c_desc, (void)weight_bytes;
    front_enter(CALL_cudnnRNNBackwardData_v8);
    net n = {.rnn = rnn, .x = x_desc, .training = true};
    FRONT_TRY(begin(handle, &n, y_desc));
    const bool lstm = rnn->cell == CUDNN_LSTM;
    n.hx = dhx, n.hy = dhy, n.cx = lstm && dcx, n.cy = lstm && dcy;
    mica_rnn_desc d;
    problem(&n, MICA_RNN_BWD_DATA, &d);
    mica_run run = {0};
    FRONT_TRY(reserve_args(handle, &n, reserve, reserve_bytes, &run));
    FRONT_TRY(take_lengths(handle, &n, lengths, &run));
    FRONT_TRY(place(handle, y_desc, Y_PADDED, dy, true, &run.args[MICA_RNN_Y]));
    FRONT_TRY(place(handle, x_desc, X_PADDED, dx, false, &run.args[MICA_RNN_X]));
    run.args[MICA_RNN_W] = (void *)weights;
    run.args[MICA_RNN_HX] = dhx;
    run.args[MICA_RNN_CX] = dcx;
    run.args[MICA_RNN_HY] = (void *)dhy;
    run.args[MICA_RNN_CY] = (void *)dcy;
    void *found = run.args[MICA_RNN_X];
    FRONT_TRY(run_pass(handle, &d, &run, workspace, workspace_bytes));
    return found == dx ? CUDNN_STATUS_SUCCESS : front_rnn_pack(handle, x_desc, found, dx);
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(
    cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnWgradMode_t mode, const int32_t *lengths,
    cudnnRNNDataDescriptor_t x_desc, const void *x, cudnnTensorDescriptor_t h_desc, const void *hx,
    cudnnRNNDataDescriptor_t y_desc, const void *y, size_t weight_bytes, void *dweights,
    size_t workspace_bytes, void *workspace, size_t reserve_bytes, void *reserve)
{
    (void)hx, (void)y, (void)h_desc, (void)weight_bytes;
    front_enter(CALL_cudnnRNNBackwardWeights_v8);
    net n = {.rnn = rnn, .x = x_desc, .training = true};
    FRONT_TRY(begin(handle, &n, y_desc));
    if ((unsigned)mode > CUDNN_WGRAD_MODE_SET)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "addGrad %d, known are 0 and 1", (int)mode);
    mica_rnn_desc d;
    problem(&n, MICA_RNN_BWD_WEIGHTS, &d);
    mica_run run = {.scalars = (double[]){mode == CUDNN_WGRAD_MODE_ADD ? 1 : 0}};
    FRONT_TRY(reserve_args(handle, &n, reserve, reserve_bytes, &run));
    FRONT_TRY(take_lengths(handle, &n, lengths, &run));
    FRONT_TRY(place(handle, x_desc, X_PADDED, x, true, &run.args[MICA_RNN_X]));
    run.args[MICA_RNN_W] = dweights;
    return run_pass(handle, &d, &run, workspace, workspace_bytes);
}
