/* SPDX-License-Identifier: Apache-2.0
 * Routing inside the library: what its engines share. */
#ifndef MICA_OPS_MOE_ROUTE_MOE_ROUTE_H
#define MICA_OPS_MOE_ROUTE_MOE_ROUTE_H

#include "mica/moe_route.h"
#include "ops/op.h"

enum { MOE_ROUTE_EXPERTS = 1024, MOE_ROUTE_SLOTS = 32, MOE_ROUTE_GROUPS = 32 };

/* Whether fewer groups than there are may be chosen from; and whether scores decide, not logits. */
bool moe_route_limits_groups(const mica_moe_route_desc *d);
bool moe_route_by_score(const mica_moe_route_desc *d);
/* f64 logits mean f64 arithmetic. */
bool moe_route_is_wide(const mica_moe_route_desc *d);
/* Whether something is summed over tokens; and whether the softmax of all experts is needed. */
bool moe_route_sums(const mica_moe_route_desc *d);
bool moe_route_needs_softmax(const mica_moe_route_desc *d);

void mica_moe_route_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_op mica_op_moe_route;
extern const mica_engine mica_moe_route_cpu, mica_moe_route_cuda;

#endif
