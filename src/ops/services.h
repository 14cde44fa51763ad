/* SPDX-License-Identifier: Apache-2.0
 * What an engine asks of the planner while it builds. The planner knows the operations and they do
 * not know it, but for these functions, which it defines: tools/layering lets no other tie upward
 * be linked. */
#ifndef MICA_OPS_SERVICES_H
#define MICA_OPS_SERVICES_H

#include "mica/plan.h"
#include "cuda/cuda.h"

/* Zeroed memory that lives as long as the plan; sets plan->state. Call once, first. */
mica_status mica_plan_state(mica_plan *plan, size_t bytes, void *state_out);
/* Books workspace; *offset goes to mica_at. name: for explain. */
mica_status mica_book(mica_plan *plan, const char *name, size_t bytes, size_t *offset);
/* Asks for a kernel, owned by the plan: *kernel, which must lie in the plan's state, stands for it
 * at once and is it after build(), when all of the plan's are found or compiled in parallel. */
mica_status mica_plan_add_kernel(mica_plan *plan, const mica_kernel_spec *spec,
                                 mica_kernel **kernel);
/* Memory beside the state that the plan holds until its engine's destroy: the bound of the plan
 * cache counts it. */
void mica_plan_holds(mica_plan *plan, size_t bytes);
/* A plan of another operation on the same device, its workspace booked inside this one's; without
 * workspace_offset the caller books it. */
mica_status mica_plan_child_create(mica_plan *plan, const char *op, const void *desc,
                                   size_t desc_size, const char *engine, mica_plan **child,
                                   size_t *workspace_offset);

#endif
