/* SPDX-License-Identifier: Apache-2.0
 * Attention on any NVIDIA GPU from sm_80 on: every type, every feature, any strides, both passes;
 * sums by plain multiply-adds in f32 (f64 for f64). Good for f32 and f64 in full precision, and for
 * whatever the engines on tensor cores refuse. Few rows see their keys in splits, for more blocks
 * than rows. Cost: the products at 0.1 to 0.4 of the multiply-add rate; backward forms scores
 * twice, and once more for dbias. */
#include "ops/attention/cuda/attention_cuda_plan.h"

#include <math.h>

/* delta: bwd keeps the sums of dout out in the workspace, else every tile forms them. */
enum { KNOB_ROWS, KNOB_SPLITS, KNOB_DELTA };
static const char *const knobs[] = {"rows", "splits", "delta", NULL};

enum {
    FEW = ATTENTION_FEW,
    MOST_SPLITS = 256, /* a merge reads them one after the other */
};

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, kernels start at sm_80", device->arch);
    return attention_check_results(desc, why);
}

/* ---- tiles ---- */

/* Rows of the largest tile whose lines fit the shared memory of every device (99 KiB) and whose
 * sums fit registers. */
static int32_t most_rows(const mica_attention_desc *d)
{
    int64_t columns = larger(d->q.dims[3], d->v.dims[3]);
    bool wide = attention_is_f64(d);
    if (d->pass == MICA_ATTENTION_FWD) {
        if (columns <= 128) return wide ? 32 : 64;
        if (columns <= 256) return wide ? 16 : 32;
        return wide ? FEW : 16;
    }
    if (columns <= (wide ? 64 : 128)) return 32;
    return columns <= (wide ? 256 : 512) ? 16 : FEW;
}

static int other_lines(const mica_attention_desc *d)
{
    return attention_is_f64(d) ? 32 : 64;
}

static int64_t expected_rows(const mica_attention_desc *d, const attention_shape *s)
{
    int64_t rows = d->max_q && d->max_q < s->rows ? d->max_q : s->rows;
    if (!d->max_q && mica_tensor_given(&d->cu_q)) rows = ceiling(rows, larger(s->sequences, 1));
    return rows * s->group;
}

/* Enough for every multiprocessor to be busy; 1 if there are. */
static int32_t choose_splits(const mica_attention_desc *d, const attention_shape *s, int64_t rows,
                             const mica_device_info *device)
{
    int64_t keys = d->max_k && d->max_k < s->keys ? d->max_k : s->keys;
    int64_t blocks = larger(attention_query_tiles(d, s, rows), 1);
    int64_t wanted = (rows == FEW ? 8 : 2) * (int64_t)device->units / blocks;
    int64_t most = ceiling(keys, 2 * other_lines(d));
    if (wanted > most) wanted = most;
    if (wanted > MOST_SPLITS) wanted = MOST_SPLITS;
    return (int32_t)larger(wanted, 1);
}

/* The fewest rows that hold a sequence's, and smaller tiles while there is a multiprocessor without
 * one. */
static int32_t choose_rows(const mica_attention_desc *d, const attention_shape *s,
                           const mica_device_info *device)
{
    int32_t rows = most_rows(d);
    int64_t expected = expected_rows(d, s);
    if (d->pass == MICA_ATTENTION_BWD) return rows;
    if (expected <= FEW) return FEW;
    while (rows > 16 && (expected <= rows / 2 || attention_query_tiles(d, s, rows) < device->units))
        rows /= 2;
    return rows;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    const mica_attention_desc *d = desc;
    attention_shape s;
    attention_shape_make(d, &s);
    int32_t rows = choose_rows(d, &s, device);
    if (d->pass == MICA_ATTENTION_BWD) {
        out[0] = (mica_config){{rows, 1, 1}};
        out[1] = (mica_config){{rows, 1, 0}};
        return 2;
    }
    int32_t splits = choose_splits(d, &s, rows, device);
    out[0] = (mica_config){{rows, 1}};
    out[1] = (mica_config){{rows, splits}};
    return splits > 1 ? 2 : 1;
}

/* Microseconds of a tile of an H200's multiprocessor, whole or not: of 64 others, forward once, and
 * backward in each of two kernels. */
static double tile_us(const mica_attention_desc *d, int64_t rows)
{
    double columns = (double)larger(d->q.dims[3], d->v.dims[3]);
    if (d->pass == MICA_ATTENTION_BWD) return 11 + 0.2 * columns;
    return 8 + columns * (rows >= 64 ? 0.17 : rows == 32 ? 0.15 : rows == 16 ? 0.08 : 0.05);
}

/* Tiles of `other` lines of each of `own` that a block sees in the mean; where attention is causal,
 * the share that the cost has. */
static double tiles_of_block(const mica_attention_desc *d, double own, double other)
{
    double flops, bytes = 0, dk = (double)d->q.dims[3], dv = (double)d->v.dims[3];
    mica_op_attention.cost(d, &flops, &bytes);
    double pairs = flops / (d->pass == MICA_ATTENTION_FWD ? 2 * (dk + dv) : 6 * dk + 4 * dv);
    double seen = pairs / fmax((double)d->q.dims[0] * own, 1), most = ceil(other / other_lines(d));
    return fmax(fmin(seen / other_lines(d) + 0.5, most), 1);
}

/* Blocks are dealt to the multiprocessors in rounds. Times are those of an H200, of random lines.
 */
static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    const mica_attention_desc *d = desc;
    const double launch_ms = 3e-3, measured_tflops = 59, measured_units = 132;
    attention_shape s;
    attention_shape_make(d, &s);
    int64_t rows = c->knob[KNOB_ROWS], splits = c->knob[KNOB_SPLITS];
    double units = device->units,
           slower = measured_tflops / measured_units * units / device->f32_tflops;
    double tile_ms = 1e-3 * tile_us(d, rows) * slower * (attention_is_f64(d) ? 2 : 1);
    double blocks = (double)larger(attention_query_tiles(d, &s, rows) * splits, 1);
    double heads = (double)s.heads, kv_heads = (double)s.kv_heads;
    double tiles = tiles_of_block(d, heads * (double)s.rows, (double)s.keys);
    double compute = ceil(blocks / units) * ceil(tiles / (double)splits) * tile_ms;
    double launches = splits > 1 ? 2 : 1;
    if (d->pass == MICA_ATTENTION_BWD) {
        blocks =
            (double)larger(attention_tiles(&d->cu_k, s.keys, s.sequences, rows) * s.kv_heads, 1);
        tiles = tiles_of_block(d, kv_heads * (double)s.keys, (double)(s.rows * s.group));
        compute += ceil(blocks / units) * tiles * tile_ms;
        launches = 3;
    }
    double memory = mica_op_bytes(&mica_op_attention, desc) / (device->copy_gbps * 1e6);
    double time = launches * launch_ms + fmax(compute, memory);
    return d->pass == MICA_ATTENTION_BWD && !c->knob[KNOB_DELTA] ? 1.2 * time : time;
}

/* ---- forward ---- */

static mica_status build_forward(mica_plan *plan, const attention_shape *shape)
{
    const mica_attention_desc *d = plan->desc;
    MICA_TRY(attention_clear_forward(plan));
    int32_t rows = plan->config.knob[KNOB_ROWS];
    int64_t splits = plan->config.knob[KNOB_SPLITS], tiles = attention_query_tiles(d, shape, rows);
    bool lse = mica_tensor_given(&d->lse) && mica_tensor_count(&d->lse) > 0;
    if (tiles == 0 || (mica_tensor_count(&d->out) == 0 && !lse)) return MICA_OK;
    attention_plain k = {.file = "ops/attention/cuda/attention_cuda_fwd.cu",
                         .entry = "attention_fwd",
                         .lines = shape->rows * shape->group,
                         .layout = attention_layout_of(d, rows, shape->dv),
                         .k_type = d->k.dtype,
                         .v_type = d->v.dtype,
                         .k_name = "k_t",
                         .v_name = "v_t",
                         .blocks = tiles * splits};
    k.shared = attention_shared_bytes(d, &k.layout, shape->d, -1);
    MICA_TRY(attention_add_plain(plan, &k));
    return splits == 1 ? MICA_OK : attention_add_merge(plan, shape, splits);
}

/* ---- backward ---- */

static mica_status add_dq(mica_plan *plan, const attention_shape *shape, int32_t rows)
{
    const mica_attention_desc *d = plan->desc;
    attention_plain k = {.file = "ops/attention/cuda/attention_cuda_dq.cu",
                         .entry = "attention_dq",
                         .lines = shape->rows * shape->group,
                         .layout = attention_layout_of(d, rows, shape->d),
                         .k_type = d->k.dtype,
                         .k_name = "x_t",
                         .blocks = attention_query_tiles(d, shape, rows)};
    k.shared = attention_shared_bytes(d, &k.layout, shape->d, shape->dv);
    return k.blocks == 0 || mica_tensor_count(&d->dq) == 0 ? MICA_OK
                                                           : attention_add_plain(plan, &k);
}

static mica_status add_dkv(mica_plan *plan, const attention_shape *shape, int32_t rows)
{
    const mica_attention_desc *d = plan->desc;
    attention_plain k = {.file = "ops/attention/cuda/attention_cuda_dkv.cu",
                         .entry = "attention_dkv",
                         .lines = shape->keys,
                         .layout = attention_layout_of(d, rows, larger(shape->d, shape->dv)),
                         .k_type = d->q.dtype,
                         .v_type = d->dout.dtype,
                         .k_name = "x_t",
                         .v_name = "dout_t",
                         .blocks = attention_tiles(&d->cu_k, shape->keys, shape->sequences, rows) *
                                   shape->kv_heads};
    k.shared = attention_shared_bytes(d, &k.layout, shape->d, shape->dv);
    bool none = mica_tensor_count(&d->dk) == 0 && mica_tensor_count(&d->dv) == 0;
    if (k.blocks == 0 || none) return MICA_OK;
    return attention_add_plain(plan, &k);
}

static mica_status build_backward(mica_plan *plan, const attention_shape *shape)
{
    int32_t rows = plan->config.knob[KNOB_ROWS];
    MICA_TRY(attention_clear_backward(plan));
    if (plan->config.knob[KNOB_DELTA]) MICA_TRY(attention_add_delta(plan));
    MICA_TRY(add_dq(plan, shape, rows));
    MICA_TRY(add_dkv(plan, shape, rows));
    MICA_TRY(attention_add_dbias(plan, shape, rows));
    return attention_add_dsinks(plan, shape);
}

/* ---- plans ---- */

static mica_status build(mica_plan *plan)
{
    const mica_attention_desc *d = plan->desc;
    attention_shape shape;
    attention_launches *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    attention_shape_make(d, &shape);
    attention_fill_args(d, &shape, plan->config.knob[KNOB_SPLITS], &s->args);
    return d->pass == MICA_ATTENTION_FWD ? build_forward(plan, &shape)
                                         : build_backward(plan, &shape);
}

const mica_engine mica_attention_cuda = {.name = "cuda",
                                         .compile_ms = 800,
                                         .cuda = true,
                                         .knobs = knobs,
                                         .accepts = accepts,
                                         .configs = configs,
                                         .predict = predict,
                                         .build = build,
                                         .run = attention_run_kernels};
