/* SPDX-License-Identifier: Apache-2.0
 * Launches: as little as possible between the caller and the driver. */
#include "cuda/replay.h"

static unsigned at_least_one(unsigned n)
{
    return n ? n : 1;
}

/* Attributes of a launch, by CUlaunchAttributeID. */
enum { COOPERATIVE = 2, CLUSTER_DIMENSION = 4, PROGRAMMATIC_SERIALIZATION = 6 };

mica_status mica_cuda_cooperates(const mica_cuda *cuda)
{
    if (cuda->ordinal < 0 || mica_driver.cuLaunchKernelEx) return MICA_OK;
    return mica_fail(MICA_UNSUPPORTED,
                     "cooperative launches need a driver of CUDA 12 or newer, this is %d",
                     mica_driver_version());
}

static mica_status launch_with(const mica_kernel *k, const mica_grid *g, void *stream,
                               void **parameters)
{
    mica_cu_attribute list[3];
    mica_cu_launch launch = {.shared = g->dynamic_shared, .stream = stream, .attributes = list};
    for (int i = 0; i < 3; i++) {
        launch.grid[i] = at_least_one(g->grid[i]);
        launch.block[i] = at_least_one(g->block[i]);
    }
    if (g->cluster > 0)
        list[launch.count++] =
            (mica_cu_attribute){.id = CLUSTER_DIMENSION, .value.dim = {g->cluster, 1, 1}};
    if (k->overlaps)
        list[launch.count++] =
            (mica_cu_attribute){.id = PROGRAMMATIC_SERIALIZATION, .value.dim = {1}};
    if (g->cooperative)
        list[launch.count++] = (mica_cu_attribute){.id = COOPERATIVE, .value.dim = {1}};
    if (!mica_driver.cuLaunchKernelEx)
        return mica_fail(MICA_UNSUPPORTED,
                         "clusters and cooperative launches need a driver of CUDA 12 or newer, "
                         "this is %d",
                         mica_driver_version());
    return MICA_CU(k->cuda, cuLaunchKernelEx, &launch, k->function, parameters, NULL);
}

static mica_status launch(const mica_kernel *k, const mica_grid *g, void *stream, const void *args)
{
    void *parameters[1] = {(void *)args}; /* only read by the driver */
    if (g->cluster > 0 || k->overlaps || g->cooperative)
        return launch_with(k, g, stream, parameters);
    return MICA_CU(k->cuda, cuLaunchKernel, k->function, at_least_one(g->grid[0]),
                   at_least_one(g->grid[1]), at_least_one(g->grid[2]), at_least_one(g->block[0]),
                   at_least_one(g->block[1]), at_least_one(g->block[2]), g->dynamic_shared, stream,
                   parameters, NULL);
}

static mica_status explain(mica_status status, const mica_kernel *k, const mica_grid *g)
{
    return mica_fail(status,
                     "%s (kernel %s, %u x %u x %u blocks of %u x %u x %u threads, cluster "
                     "%u, %u bytes of dynamic shared memory)",
                     mica_error(), k->image->entry, g->grid[0], g->grid[1], g->grid[2], g->block[0],
                     g->block[1], g->block[2], g->cluster, g->dynamic_shared);
}

mica_status mica_kernel_launch(const mica_kernel *kernel, const mica_grid *grid, void *stream,
                               const void *args)
{
    const mica_cuda *cuda = kernel->cuda;
    mica_replay *replay = mica_replay_active;
    bool pushed;
    if (replay && mica_replay_updating(replay)) {
        mica_replay_relaunch(replay, kernel, grid, args);
        return MICA_OK;
    }
    MICA_TRY(mica_cuda_enter(cuda, &pushed));
    mica_status status = launch(kernel, grid, stream, args);
    if (status == MICA_OK) mica_device_launched(cuda->ordinal, kernel->name);
    if (status == MICA_OK && replay) status = mica_replay_launched(replay, kernel, grid, stream);
    if (status == MICA_OK && cuda->sync) status = MICA_CU(cuda, cuStreamSynchronize, stream);
    mica_cuda_leave(cuda, pushed);
    return status == MICA_OK ? MICA_OK : explain(status, kernel, grid);
}
