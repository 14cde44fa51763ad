/* SPDX-License-Identifier: Apache-2.0
 * The grouped product of Hopper, for the engines of grouped_gemm and, as one group, of gemm. */
#ifndef MICA_OPS_GROUPED_GEMM_SM90_SM90_H
#define MICA_OPS_GROUPED_GEMM_SM90_SM90_H

#include "ops/grouped_gemm/grouped_gemm_shape.h"
#include "ops/grouped_gemm/sm90/sm90_args.h"

extern const char *const grouped_sm90_knobs[];

typedef struct grouped_sm90_state {
    grouped_sm90_args args; /* all but maps, pointers and scalars */
    mica_tensor_map_spec a, b, c;
    bool light;
    int c_vector; /* bytes of alignment that vectors of c need; 0: c has no vectors */
    mica_kernel *kernel;
    mica_plan *fallback; /* for pointers that TMA cannot take */
    mica_grid grid;
} grouped_sm90_state;

mica_status grouped_sm90_accepts(const grouped *g, const mica_device_info *device, mica_why *why);
/* The best few of the model. bytes: the problem's traffic. */
int grouped_sm90_configs(const grouped *g, double bytes, const mica_device_info *device,
                         mica_config *configs);
double grouped_sm90_predict(const grouped *g, double bytes, const mica_device_info *device,
                            const mica_config *config);
void grouped_sm90_contract(const grouped *g, mica_contract *contract);
/* Everything of plan->state, which is a grouped_sm90_state, but the fallback. */
mica_status grouped_sm90_build(mica_plan *plan, const grouped *g);
/* args: bound. */
mica_status grouped_sm90_run(const mica_plan *plan, const mica_run *run, const void *groups);

#endif
