/* SPDX-License-Identifier: Apache-2.0
 * From a grouped gemm to the arguments and constants of its kernels. */
#include "ops/grouped_gemm/grouped_gemm_shape.h"

#include <math.h>

double grouped_tiles(const grouped *g, int tile_m, int tile_n, int step)
{
    double across = ceil((double)g->item.c.dims[1] / tile_n), count = (double)g->count;
    if (g->form == GROUPED_TERMS) return ceil((double)g->item.c.dims[0] / tile_m) * across * count;
    /* In steps, half of the last of which is empty; all rows count without groups. */
    double steps = g->expected / step;
    steps = mica_tensor_given(&g->groups) && steps > 0.7 ? steps + 0.5 : ceil(steps);
    double down = steps * step / tile_m;
    if (down < 1) down = 1;
    return down * across * count;
}

static grouped_step step_of(const grouped *g, int tensor)
{
    return (grouped_step){g->group[tensor], g->start[tensor]};
}

void grouped_args_fill(const grouped *g, grouped_args *a)
{
    gemm_shape_make(&g->item, &a->gemm.shape);
    gemm_args_fill(&g->item, &a->gemm);
    a->groups_stride = g->groups.strides[0];
    a->count = g->count;
    a->limit = g->limit;
    a->a = step_of(g, MICA_GEMM_A);
    a->b = step_of(g, MICA_GEMM_B);
    a->c = step_of(g, MICA_GEMM_C);
    a->r = step_of(g, MICA_GEMM_RESIDUAL);
    a->scale_a = step_of(g, MICA_GEMM_SCALE_A);
    a->scale_b = step_of(g, MICA_GEMM_SCALE_B);
    a->bias = step_of(g, MICA_GEMM_BIAS);
    a->scale = step_of(g, MICA_GEMM_SCALE);
    a->shift = step_of(g, MICA_GEMM_SHIFT);
}

void grouped_args_bind(const mica_plan *plan, const mica_run *r, grouped_args *a)
{
    gemm_args_bind(plan, r, &a->gemm);
    a->groups = r->args[MICA_GROUPED_GEMM_GROUPS];
}

void grouped_prologue(const grouped *g, mica_text *p)
{
    bool given = mica_tensor_given(&g->groups);
    mica_prologue_int(p, "FORM", (int)g->form);
    mica_prologue_int(p, "HAS_GROUPS", given);
    mica_prologue_type(p, "groups_t", given ? g->groups.dtype : MICA_S32);
}
