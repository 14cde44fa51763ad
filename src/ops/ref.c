/* SPDX-License-Identifier: Apache-2.0
 * The engine "ref": every operation's plain loops, as a plan. It takes everything, needs no
 * workspace and is slow: what defines the truth, and the last resort of the CPU. */
#include "ops/index/index.h"
#include "ops/pointwise/pointwise.h"
#include "ops/random/random.h"

void mica_op_reference(const mica_op *op, const void *desc, const mica_view *args,
                       const double *scalars)
{
    if (op->reference)
        op->reference(desc, args, scalars);
    else if (op->index)
        mica_index_reference(op, desc, args, scalars);
    else if (op->random)
        mica_random_reference(op, desc, args);
    else
        mica_pointwise_reference(op, desc, args, scalars);
}

static mica_status build(mica_plan *plan)
{
    (void)plan; /* nothing to prepare: the descriptor says it all */
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const mica_op *op = plan->op;
    mica_view views[MICA_MAX_ARGS] = {0};
    for (int i = 0; i < op->arg_count; i++) {
        if (mica_op_dir(op, plan->desc, i) == MICA_UNUSED) continue;
        const mica_tensor *t = mica_op_tensor(op, plan->desc, i);
        views[i] = (mica_view){*t, r->args[i], NULL, mica_dtype_load(t->dtype),
                               mica_dtype_store(t->dtype)};
    }
    double scalars[MICA_MAX_SCALARS];
    for (int i = 0; i < op->scalar_count; i++) scalars[i] = mica_run_scalar(plan, r, i);
    mica_op_reference(op, plan->desc, views, scalars);
    return MICA_OK;
}

const mica_engine mica_engine_ref = {.name = "ref", .reference = true, .build = build, .run = run};
