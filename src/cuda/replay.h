/* SPDX-License-Identifier: Apache-2.0
 * What launch.c and memory.c see of replays: while one is active in a thread, its launches are
 * noted as nodes, or change the nodes that they were. */
#ifndef MICA_CUDA_REPLAY_H
#define MICA_CUDA_REPLAY_H

#include "cuda/kernel.h"

extern _Thread_local mica_replay *mica_replay_active;
/* Whether launches change nodes instead of being made. */
bool mica_replay_updating(const mica_replay *replay);

/* Recording, behind a launch and behind setting memory. */
mica_status mica_replay_launched(mica_replay *replay, const mica_kernel *kernel,
                                 const mica_grid *grid, void *stream);
mica_status mica_replay_set(mica_replay *replay, void *stream);
/* Updating, in place of the same. */
void mica_replay_relaunch(mica_replay *replay, const mica_kernel *kernel, const mica_grid *grid,
                          const void *args);
void mica_replay_reset(mica_replay *replay, void *memory, int byte, int64_t bytes);

#endif
