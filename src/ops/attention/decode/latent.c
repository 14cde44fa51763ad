/* SPDX-License-Identifier: Apache-2.0
 * attention forward for rows of more than 256 columns, up to 576 of keys and 512 of values: latent
 * attention (MLA), where all query heads share one key head and values are the first columns of
 * keys. f16 and bf16 on any tensor core from sm_80 on, contiguous or in pages, any number of
 * queries. Rows of a tile are queries of all heads of a group. Cost: the products at 0.35 of the
 * rate of the tensor cores, whose steps wait for each other's shared memory (not measured yet), or
 * the time in which keys come from memory: 16 sequences of 8192 keys, 0.15 GB, 0.035 ms on an H200.
 */
#include "ops/attention/decode/decode.h"

#include <math.h>

static const char *const knobs[] = {"rows", "splits", NULL};

enum {
    WARPS = 8,
    ROUND = 32, /* keys */
    NARROW = 256,
    MOST_D = 576,
    MOST_DV = 512,
    MOST_ROWS = 64,
    K_UNIT = 4, /* steps of 16 columns */
    FIXED_SHARED = 4096
};

typedef struct tile {
    int rows, stages, k_steps, v_steps;
    int64_t shared; /* dynamic */
} tile;

static bool fits(const mica_device_info *device, tile *t)
{
    int64_t k_pitch = 32 * t->k_steps + 16, v_pitch = 32 * t->v_steps + 16;
    t->shared =
        t->rows * k_pitch + t->stages * ROUND * (k_pitch + v_pitch) + t->rows * (2 * ROUND + 16);
    return t->shared + FIXED_SHARED <= device->shared_bytes;
}

/* Enough rows for all heads of a group, two rounds of keys if there is room, else one, else fewer
 * rows. */
static bool make_tile(const mica_attention_desc *d, const attention_shape *s,
                      const mica_device_info *device, tile *t)
{
    *t = (tile){.rows = 16,
                .k_steps = (int)ceiling(s->d, 16 * K_UNIT) * K_UNIT,
                .v_steps = (int)ceiling(s->dv, 16 * WARPS) * WARPS};
    while (t->rows < MOST_ROWS && t->rows < attention_decode_queries(d, s) * s->group) t->rows *= 2;
    for (; t->rows >= 16; t->rows /= 2)
        for (t->stages = 2; t->stages > 0; t->stages--)
            if (fits(device, t)) return true;
    return false;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_attention_desc *d = desc;
    attention_shape s;
    tile t;
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, kernels start at sm_80", device->arch);
    MICA_TRY(attention_check_corner(d, why));
    MICA_TRY(attention_decode_check_features(d, why));
    if (d->k.dtype != d->q.dtype)
        return mica_refuse(why, "k is %s, q %s; taken are equal types", mica_dtype_name(d->k.dtype),
                           mica_dtype_name(d->q.dtype));
    MICA_TRY(attention_decode_check_columns(&d->q, "q", MOST_D, why));
    MICA_TRY(attention_decode_check_addressing(&d->k, "k", 2, MOST_D, why));
    MICA_TRY(attention_decode_check_addressing(&d->v, "v", 2, MOST_DV, why));
    attention_shape_make(d, &s);
    if (s.d <= NARROW && s.dv <= NARROW)
        return mica_refuse(why, "q has %lld columns and v %lld, this engine is for more than %d",
                           (long long)s.d, (long long)s.dv, NARROW);
    MICA_TRY(attention_decode_check_lengths(d, &s, INT32_MAX, why));
    if (make_tile(d, &s, device, &t)) return MICA_OK;
    return mica_refuse(why, "blocks have %lld bytes of shared memory, a tile needs %lld",
                       (long long)device->shared_bytes, (long long)(t.shared + FIXED_SHARED));
}

/* The first config needs no workspace; others fill the device once, or twice with blocks of half
 * the length. */
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    const mica_attention_desc *d = desc;
    attention_shape s;
    tile t;
    int count = 0;
    attention_shape_make(d, &s);
    if (!make_tile(d, &s, device, &t)) return 0;
    int64_t tiles = attention_decode_tiles(d, &s, t.rows), fill = larger(device->units / tiles, 1);
    int64_t most = smaller(ceiling(attention_decode_keys(d, &s), ROUND), ATTENTION_DECODE_SPLITS);
    attention_decode_add_config(out, &count, t.rows, 1, false);
    attention_decode_add_config(out, &count, t.rows, smaller(fill, most), false);
    attention_decode_add_config(out, &count, t.rows, smaller(2 * fill, most), false);
    return count;
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    const double start_ms = 4e-3, merge_ms = 4e-3, efficiency = 0.35, one_stage = 0.6;
    const mica_attention_desc *d = desc;
    attention_shape s;
    tile t;
    attention_shape_make(d, &s);
    if (!make_tile(d, &s, device, &t)) return INFINITY;
    int splits = c->knob[ATTENTION_DECODE_KNOB_SPLITS];
    double tiles = (double)attention_decode_tiles(d, &s, t.rows), units = device->units;
    double keys = (double)attention_decode_keys(d, &s), blocks = tiles * splits;
    double columns = 16.0 * (t.k_steps + t.v_steps);
    double rate = efficiency * (t.stages == 1 ? one_stage : 1) * device->bf16_tflops * 1e9 / units;
    double block = 2.0 * t.rows * ceil(keys / splits / ROUND) * ROUND * columns / rate;
    double memory = keys * (double)s.d * 2 * (double)s.sequences * (double)s.kv_heads /
                    (device->copy_gbps * 1e6);
    double time = start_ms + fmax(ceil(blocks / units) * block, memory);
    if (splits == 1) return time;
    double lines = (double)(d->q.dims[0] * d->q.dims[1] * d->q.dims[2]);
    return time + merge_ms + 8 * lines * splits * (double)s.dv / (device->copy_gbps * 1e6);
}

static mica_status add_main(mica_plan *plan, const tile *t)
{
    const mica_attention_desc *d = plan->desc;
    attention_decode_state *st = plan->state;
    char text[256];
    mica_text p = {text, sizeof text, 0};
    mica_prologue_int(&p, "ROWS", t->rows);
    mica_prologue_int(&p, "STAGES", t->stages);
    mica_prologue_int(&p, "K_STEPS", t->k_steps);
    mica_prologue_int(&p, "V_STEPS", t->v_steps);
    mica_prologue_type(&p, "q_t", d->q.dtype);
    mica_prologue_type(&p, "kv_t", d->k.dtype);
    st->grid.block[0] = 32 * WARPS;
    st->grid.dynamic_shared = (unsigned)t->shared;
    mica_kernel_spec spec = {"ops/attention/decode/latent.cu", "attention_latent", text, t->shared};
    return mica_plan_add_kernel(plan, &spec, &st->kernel);
}

static mica_status build(mica_plan *plan)
{
    const mica_attention_desc *d = plan->desc;
    attention_shape s;
    tile t;
    attention_decode_state *st;
    MICA_TRY(mica_plan_state(plan, sizeof *st, &st));
    attention_shape_make(d, &s);
    if (!make_tile(d, &s, &plan->device, &t) ||
        t.rows != plan->config.knob[ATTENTION_DECODE_KNOB_ROWS])
        return mica_fail(MICA_UNSUPPORTED, "no tile of %d rows fits shared memory",
                         plan->config.knob[ATTENTION_DECODE_KNOB_ROWS]);
    attention_decode_fill(plan, &s, ROUND);
    MICA_TRY(add_main(plan, &t));
    return attention_decode_add_merge(plan, &s);
}

const mica_engine mica_attention_latent = {.name = "latent",
                                           .cuda = true,
                                           .knobs = knobs,
                                           .accepts = accepts,
                                           .configs = configs,
                                           .predict = predict,
                                           .build = build,
                                           .run = attention_decode_run};
