/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose" of quantize_rows: norm or activation to f32, then quantize, each on whatever
 * engine is best for it. Takes everything. On GPUs 4 bytes an element more are written, and read
 * once or twice, than by engine "fused". */
#include "ops/quantize/rows/quantize_rows.h"
#include "mica/activation.h"
#include "mica/norm.h"
#include "mica/quantize.h"
#include "ops/compose/held.h"

static mica_held argument(const mica_quantize_rows_desc *d, int arg)
{
    return mica_held_arg(mica_op_tensor(&mica_op_quantize_rows, d, arg), arg);
}

static void bind(mica_compose *c, int arg, mica_held h)
{
    if (mica_held_given(&h)) mica_compose_bind(c, arg, h.at);
}

static void normalise(mica_compose *c, const mica_quantize_rows_desc *d, mica_held v)
{
    const mica_norm_desc n = {.kind = d->norm == MICA_QUANTIZE_ROWS_RMS ? MICA_NORM_RMS
                                                                        : MICA_NORM_LAYER,
                              .x = d->x,
                              .residual = d->residual,
                              .scale = d->weight,
                              .bias = d->bias,
                              .y = v.t,
                              .sum = d->sum,
                              .eps = d->eps};
    mica_compose_step(c, "norm", &n, sizeof n, NULL);
    bind(c, MICA_NORM_X, argument(d, MICA_QUANTIZE_ROWS_X));
    bind(c, MICA_NORM_RESIDUAL, argument(d, MICA_QUANTIZE_ROWS_RESIDUAL));
    bind(c, MICA_NORM_SCALE, argument(d, MICA_QUANTIZE_ROWS_WEIGHT));
    bind(c, MICA_NORM_BIAS, argument(d, MICA_QUANTIZE_ROWS_BIAS));
    bind(c, MICA_NORM_SUM, argument(d, MICA_QUANTIZE_ROWS_SUM));
    bind(c, MICA_NORM_Y, v);
}

static void activate(mica_compose *c, const mica_quantize_rows_desc *d, mica_held v)
{
    const mica_activation_desc a = {.act = d->act,
                                    .x = d->x,
                                    .y = v.t,
                                    .gated = d->gated,
                                    .axis = d->gated ? d->x.rank - 1 : 0,
                                    .act_a = d->act_a,
                                    .act_b = d->act_b};
    mica_compose_step(c, "activation", &a, sizeof a, NULL);
    bind(c, MICA_ACTIVATION_X, argument(d, MICA_QUANTIZE_ROWS_X));
    bind(c, MICA_ACTIVATION_Y, v);
}

static void list_steps(const void *desc, mica_compose *c)
{
    const mica_quantize_rows_desc *d = desc;
    const quantize_rows_sizes s = mica_quantize_rows_sizes(d);
    mica_tensor t = mica_quantize_rows_value(d, MICA_F32);
    if (s.rows == 0 || s.columns == 0) return;
    const mica_held v = mica_held_temporary(c, MICA_F32, t.rank, t.dims);
    if (d->norm)
        normalise(c, d, v);
    else
        activate(c, d, v);
    mica_quantize_desc q = {.pass = d->pass == MICA_QUANTIZE_ROWS_AMAX ? MICA_QUANTIZE_AMAX
                                                                       : MICA_QUANTIZE_GIVEN,
                            .x = v.t,
                            .y = d->y,
                            .scale = d->scale};
    for (int i = 0; i < t.rank - 1; i++) q.block[i] = 1;
    q.block[t.rank - 1] = s.group;
    /* One scale of another rank stands for all, where there are no blocks. */
    if (s.one_scale)
        for (int i = 0; i < t.rank; i++) q.block[i] = 0;
    mica_compose_step(c, "quantize", &q, sizeof q, NULL);
    bind(c, MICA_QUANTIZE_X, v);
    bind(c, MICA_QUANTIZE_Y, argument(d, MICA_QUANTIZE_ROWS_Y));
    bind(c, MICA_QUANTIZE_SCALE, argument(d, MICA_QUANTIZE_ROWS_SCALE));
}

const mica_engine mica_quantize_rows_compose = {.name = "compose", MICA_COMPOSED(list_steps)};
const mica_engine mica_quantize_rows_compose_cuda = {
    .name = "compose", .cuda = true, MICA_COMPOSED(list_steps)};
