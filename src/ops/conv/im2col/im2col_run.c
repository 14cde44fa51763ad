/* SPDX-License-Identifier: Apache-2.0
 * What the runs of the Hopper engines share. */
#include "ops/conv/im2col/im2col_run.h"

bool conv_sm90_aligned(const conv_sm90_plan *p, const mica_run *r)
{
    const mica_conv_roles *roles = &p->shape.roles;
    return mica_access_starts(r->args[roles->image], 16) &&
           mica_access_starts(r->args[roles->other], 16) &&
           mica_access_starts(r->args[roles->out], 16);
}

mica_status conv_sm90_encode(const mica_plan *plan, const conv_sm90_plan *p, const mica_run *r,
                             mica_tensor_map *image, mica_tensor_map *other,
                             mica_tensor_map *result)
{
    const mica_conv_roles *roles = &p->shape.roles;
    for (int i = 0; i < MICA_CONV_CLASSES; i++)
        if (p->image[i].rank)
            MICA_TRY(
                mica_tensor_map_encode(plan->cuda, &p->image[i], r->args[roles->image], &image[i]));
    if (p->other.rank)
        MICA_TRY(mica_tensor_map_encode(plan->cuda, &p->other, r->args[roles->other], other));
    if (p->result.rank)
        MICA_TRY(mica_tensor_map_encode(plan->cuda, &p->result, r->args[roles->out], result));
    return MICA_OK;
}

mica_status conv_sm90_encode_residual(const mica_plan *plan, const conv_sm90_plan *p,
                                      const mica_run *r, mica_tensor_map *map, int *wide)
{
    void *at = r->args[MICA_CONV_RESIDUAL];
    *wide = p->residual.rank > 0 && mica_access_starts(at, 16) &&
            mica_run_scalar(plan, r, MICA_CONV_BETA) == 0;
    return *wide ? mica_tensor_map_encode(plan->cuda, &p->residual, at, map) : MICA_OK;
}

mica_status conv_sm90_launch(const mica_plan *plan, const conv_sm90_plan *p, const mica_run *r,
                             const void *args)
{
    MICA_TRY(mica_kernel_launch(p->kernel, &p->grid, r->stream, args));
    MICA_TRY(conv_stats_run(&p->stats, r));
    return p->reduce.kernel ? mica_conv_sm90_reduce_run(plan, &p->reduce, p->shape.roles.out, r)
                            : MICA_OK;
}
