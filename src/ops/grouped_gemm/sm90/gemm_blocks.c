/* SPDX-License-Identifier: Apache-2.0
 * gemm with scales of blocks of 128, on Hopper: the grouped kernel with one group of all rows.
 * Cost: 2MNK at 0.86 of what 8-bit floats sustain, and 0.11 us a tile every 128 of K, where sums
 * leave the tensor core.
 */
#include "ops/grouped_gemm/sm90/sm90.h"

static void make_one(const mica_gemm_desc *d, grouped *g)
{
    *g = (grouped){.form = GROUPED_ROOMS,
                   .item = *d,
                   .count = 1,
                   .limit = d->c.dims[d->c.rank - 2],
                   .expected = (double)d->c.dims[d->c.rank - 2]};
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    grouped g;
    if (!gemm_has_blocks(desc)) return mica_refuse(why, "no scales of blocks: sm90 takes the rest");
    make_one(desc, &g);
    return grouped_sm90_accepts(&g, device, why);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    grouped g;
    make_one(desc, &g);
    return grouped_sm90_configs(&g, mica_op_bytes(&mica_op_gemm, desc), device, out);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    grouped g;
    make_one(desc, &g);
    return grouped_sm90_predict(&g, mica_op_bytes(&mica_op_gemm, desc), device, c);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    grouped g;
    make_one(desc, &g);
    grouped_sm90_contract(&g, c);
}

static mica_status build(mica_plan *plan)
{
    grouped_sm90_state *s;
    grouped g;
    size_t workspace;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    make_one(plan->desc, &g);
    MICA_TRY(grouped_sm90_build(plan, &g));
    return mica_plan_child_create(plan, "gemm", plan->desc, sizeof(mica_gemm_desc), gemm_cuda.name,
                                  &s->fallback, &workspace);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    return grouped_sm90_run(plan, r, NULL);
}

const mica_engine gemm_sm90_blocks = {.name = "sm90_blocks",
                                      .cuda = true,
                                      .knobs = grouped_sm90_knobs,
                                      .accepts = accepts,
                                      .configs = configs,
                                      .predict = predict,
                                      .contract = contract,
                                      .build = build,
                                      .run = run};
