/* SPDX-License-Identifier: Apache-2.0
 * Spatial transformers: grids of affine maps, and sampling by a grid. Corners are aligned: -1 and 1
 * are the centres of the outermost elements; beside x are zeros. */
#include "front.h"

struct cudnnSpatialTransformerStruct {
    front_kind kind;
    bool set;
    mica_dtype dtype;
    int rank;
    int64_t dims[MICA_MAX_RANK]; /* of y: N C spatial */
};

cudnnStatus_t
cudnnCreateSpatialTransformerDescriptor(cudnnSpatialTransformerDescriptor_t *descriptor)
{
    front_enter(CALL_cudnnCreateSpatialTransformerDescriptor);
    return front_create(FRONT_SPATIAL, sizeof **descriptor, descriptor);
}

cudnnStatus_t
cudnnDestroySpatialTransformerDescriptor(cudnnSpatialTransformerDescriptor_t descriptor)
{
    front_enter(CALL_cudnnDestroySpatialTransformerDescriptor);
    return front_destroy(descriptor, FRONT_SPATIAL);
}

cudnnStatus_t cudnnSetSpatialTransformerNdDescriptor(cudnnSpatialTransformerDescriptor_t descriptor,
                                                     cudnnSamplerType_t sampler,
                                                     cudnnDataType_t type, int rank,
                                                     const int *dims)
{
    front_enter(CALL_cudnnSetSpatialTransformerNdDescriptor);
    FRONT_TRY(front_check(descriptor, FRONT_SPATIAL, "stDesc"));
    FRONT_TRY(front_given(dims, "dimA"));
    if (sampler != CUDNN_SAMPLER_BILINEAR)
        return front_fail(CUDNN_STATUS_BAD_PARAM, "sampler %d, known is 0", (int)sampler);
    if (rank < 4 || rank > 5)
        return front_fail(CUDNN_STATUS_NOT_SUPPORTED, "%d dimensions, served are 4 and 5", rank);
    descriptor->dtype = front_dtype(type);
    descriptor->rank = rank;
    for (int i = 0; i < rank; i++) descriptor->dims[i] = dims[i];
    descriptor->set = true;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check(cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t st)
{
    FRONT_TRY(front_check(handle, FRONT_HANDLE, "handle"));
    FRONT_TRY(front_check(st, FRONT_SPATIAL, "stDesc"));
    if (!st->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "stDesc was never set");
    return CUDNN_STATUS_SUCCESS;
}

/* N x output axes x their number, packed. */
static mica_tensor grid_of(cudnnSpatialTransformerDescriptor_t st)
{
    int64_t dims[MICA_MAX_RANK] = {st->dims[0]};
    for (int i = 2; i < st->rank; i++) dims[i - 1] = st->dims[i];
    dims[st->rank - 1] = st->rank - 2;
    return mica_tensor_packed(st->dtype, st->rank, dims);
}

static mica_tensor theta_of(cudnnSpatialTransformerDescriptor_t st)
{
    return mica_tensor_packed(st->dtype, 3, (int64_t[]){st->dims[0], st->rank - 2, st->rank - 1});
}

cudnnStatus_t cudnnSpatialTfGridGeneratorForward(cudnnHandle_t handle,
                                                 cudnnSpatialTransformerDescriptor_t st,
                                                 const void *theta, void *grid)
{
    front_enter(CALL_cudnnSpatialTfGridGeneratorForward);
    FRONT_TRY(check(handle, st));
    mica_affine_grid_desc d = {.theta = theta_of(st), .grid = grid_of(st), .align_corners = true};
    mica_run run = {0};
    run.args[MICA_AFFINE_GRID_THETA] = (void *)theta;
    run.args[MICA_AFFINE_GRID_GRID] = grid;
    return front_run(handle, "affine_grid", &d, sizeof d, &run);
}

cudnnStatus_t cudnnSpatialTfGridGeneratorBackward(cudnnHandle_t handle,
                                                  cudnnSpatialTransformerDescriptor_t st,
                                                  const void *dgrid, void *dtheta)
{
    front_enter(CALL_cudnnSpatialTfGridGeneratorBackward);
    FRONT_TRY(check(handle, st));
    mica_affine_grid_desc d = {.pass = MICA_AFFINE_GRID_BWD,
                               .dgrid = grid_of(st),
                               .dtheta = theta_of(st),
                               .align_corners = true};
    mica_run run = {0};
    run.args[MICA_AFFINE_GRID_DGRID] = (void *)dgrid;
    run.args[MICA_AFFINE_GRID_DTHETA] = dtheta;
    return front_run(handle, "affine_grid", &d, sizeof d, &run);
}

/* Memory of a result in between, where alpha or beta ask for more than the result. */
static cudnnStatus_t place(cudnnHandle_t handle, int slot, const double *scalars, void *result,
                           mica_tensor *tensor, void **memory)
{
    *memory = result;
    if (scalars[0] == 1 && scalars[1] == 0) return CUDNN_STATUS_SUCCESS;
    *tensor = mica_tensor_packed(tensor->dtype, tensor->rank, tensor->dims);
    return front_temporary(handle, slot, (size_t)mica_tensor_span(tensor, NULL), memory);
}

cudnnStatus_t cudnnSpatialTfSamplerForward(cudnnHandle_t handle,
                                           cudnnSpatialTransformerDescriptor_t st,
                                           const void *alpha, cudnnTensorDescriptor_t x_desc,
                                           const void *x, const void *grid, const void *beta,
                                           cudnnTensorDescriptor_t y_desc, void *y)
{
    front_enter(CALL_cudnnSpatialTfSamplerForward);
    FRONT_TRY(check(handle, st));
    mica_grid_sample_desc d = {.grid = grid_of(st), .align_corners = true};
    mica_tensor to = {0};
    FRONT_TRY(front_tensor(x_desc, "xDesc", &d.x));
    FRONT_TRY(front_tensor(y_desc, "yDesc", &to));
    d.y = to;
    double scalars[2] = {1, 0};
    FRONT_TRY(front_scalar(alpha, d.x.dtype, "alpha", &scalars[0]));
    FRONT_TRY(front_scalar(beta, d.x.dtype, "beta", &scalars[1]));
    mica_run run = {0};
    run.args[MICA_GRID_SAMPLE_X] = (void *)x;
    run.args[MICA_GRID_SAMPLE_GRID] = (void *)grid;
    FRONT_TRY(place(handle, 1, scalars, y, &d.y, &run.args[MICA_GRID_SAMPLE_Y]));
    void *found = run.args[MICA_GRID_SAMPLE_Y];
    FRONT_TRY(front_run(handle, "grid_sample", &d, sizeof d, &run));
    return found == y ? CUDNN_STATUS_SUCCESS
                      : front_blend(handle, scalars[0], &d.y, found, scalars[1], &to, y);
}

cudnnStatus_t
cudnnSpatialTfSamplerBackward(cudnnHandle_t handle, cudnnSpatialTransformerDescriptor_t st,
                              const void *alpha, cudnnTensorDescriptor_t x_desc, const void *x,
                              const void *beta, cudnnTensorDescriptor_t dx_desc, void *dx,
                              const void *alpha_grid, cudnnTensorDescriptor_t dy_desc,
                              const void *dy, const void *grid, const void *beta_grid, void *dgrid)
{
    front_enter(CALL_cudnnSpatialTfSamplerBackward);
    FRONT_TRY(check(handle, st));
    mica_tensor dx_to = {0};
    const mica_tensor grid_to = grid_of(st);
    mica_grid_sample_desc d = {
        .pass = MICA_GRID_SAMPLE_BWD, .grid = grid_to, .dgrid = grid_to, .align_corners = true};
    FRONT_TRY(front_tensor(x_desc, "xDesc", &d.x));
    FRONT_TRY(front_tensor(dx_desc, "dxDesc", &dx_to));
    FRONT_TRY(front_tensor(dy_desc, "dyDesc", &d.dy));
    d.dx = dx_to;
    double scalars[2] = {1, 0}, factors[2] = {1, 0};
    FRONT_TRY(front_scalar(alpha, d.x.dtype, "alpha", &scalars[0]));
    FRONT_TRY(front_scalar(beta, d.x.dtype, "beta", &scalars[1]));
    FRONT_TRY(front_scalar(alpha_grid, d.x.dtype, "alphaDgrid", &factors[0]));
    FRONT_TRY(front_scalar(beta_grid, d.x.dtype, "betaDgrid", &factors[1]));
    mica_run run = {0};
    run.args[MICA_GRID_SAMPLE_X] = (void *)x;
    run.args[MICA_GRID_SAMPLE_GRID] = (void *)grid;
    run.args[MICA_GRID_SAMPLE_DY] = (void *)dy;
    FRONT_TRY(place(handle, 1, scalars, dx, &d.dx, &run.args[MICA_GRID_SAMPLE_DX]));
    FRONT_TRY(place(handle, 2, factors, dgrid, &d.dgrid, &run.args[MICA_GRID_SAMPLE_DGRID]));
    void *dx_found = run.args[MICA_GRID_SAMPLE_DX], *grid_found = run.args[MICA_GRID_SAMPLE_DGRID];
    FRONT_TRY(front_run(handle, "grid_sample", &d, sizeof d, &run));
    if (dx_found != dx)
        FRONT_TRY(front_blend(handle, scalars[0], &d.dx, dx_found, scalars[1], &dx_to, dx));
    if (grid_found != dgrid)
        FRONT_TRY(
            front_blend(handle, factors[0], &d.dgrid, grid_found, factors[1], &grid_to, dgrid));
    return CUDNN_STATUS_SUCCESS;
}
