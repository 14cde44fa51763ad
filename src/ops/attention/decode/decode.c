/* SPDX-License-Identifier: Apache-2.0
 * attention forward for few queries and long caches on any tensor core from sm_80 on: f16 and bf16
 * queries, keys and values of the same type or of 8 bits, contiguous or in pages, heads of up to
 * 256. Good for decoding, one token or a few at a time. Cost: the time in which keys and values
 * come from memory; 16 sequences of 8192 keys in 8 heads of 128, bf16: 0.54 GB, 0.13 ms at the 4.3
 * TB/s of an H200. Rows of a tile are queries of all heads of a group, so that the cache is read
 * once for up to 32 of them. */
#include "ops/attention/decode/decode.h"

#include <math.h>

static const char *const knobs[] = {"rows", "splits", "cluster", NULL};

enum {
    WARPS = 4,
    MAX_DIM = 256,
    MAX_QUERIES = 32,
    MOST_STAGES = 6,
    BLOCK_SHARED = 1024, /* that the device takes for each block */
};

/* ---- tiles ---- */

/* What of the kernel's structure follows from the problem, the rows and the device. */
typedef struct tile {
    int rows, keys, stages, resident;
    int k_steps, v_steps; /* of 32 bytes */
    int64_t shared;       /* dynamic */
} tile;

/* Static and dynamic shared memory of a block. */
static int64_t shared_bytes(const mica_attention_desc *d, tile *t)
{
    int size = attention_decode_size(d), columns = t->v_steps * 32 / size;
    int64_t queries = (int64_t)t->rows * (t->k_steps * 64 / size + 16);
    int64_t slot = (int64_t)t->keys * 32 * (t->k_steps + t->v_steps + 1);
    int64_t ring = queries + WARPS * t->stages * slot;
    int64_t sums = 4LL * WARPS * t->rows * (columns + 8);
    t->shared = larger(ring, sums);
    int64_t fixed = 16LL * t->stages * ceiling(t->keys, 32) + 16LL * t->rows * (WARPS + 2) +
                    4LL * t->rows * ATTENTION_DECODE_CLUSTER;
    return t->shared + fixed + BLOCK_SHARED;
}

/* Three blocks share a multiprocessor where registers hold the sums of so many, else two: the chain
 * of instructions of a warp is longer than memory takes for its tile. About 8 KiB of keys and
 * values a warp and stage. */
static bool make_tile(const mica_attention_desc *d, const mica_device_info *device, int rows,
                      tile *t)
{
    int size = attention_decode_size(d);
    int64_t room = device->shared_bytes + BLOCK_SHARED;
    *t = (tile){.rows = rows,
                .k_steps = (int)ceiling(d->q.dims[3] * size, 32),
                .v_steps = (int)ceiling(d->v.dims[3] * size, 32)};
    int bytes = 32 * (t->k_steps + t->v_steps + 1);
    t->keys = bytes <= 144 ? 64 : bytes <= 288 ? 32 : 16;
    if (rows > 16 && size == 1) t->keys = 16; /* more spill registers */
    bool small = rows == 16 && d->q.dims[3] <= 128 && d->v.dims[3] <= 128;
    for (t->resident = small ? 3 : 2; t->resident > 0; t->resident--)
        for (t->stages = MOST_STAGES; t->stages >= 1; t->stages--)
            if (shared_bytes(d, t) * t->resident <= room) return true;
    return false;
}

/* 32 where a tile of 16 does not hold a sequence's rows, and registers hold the sums. */
static int choose_rows(const mica_attention_desc *d, const attention_shape *s)
{
    bool fits = d->q.dims[3] <= 128 && d->v.dims[3] <= 128;
    return fits && attention_decode_queries(d, s) * s->group > 16 ? 32 : 16;
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
    MICA_TRY(attention_decode_check_columns(&d->q, "q", MAX_DIM, why));
    MICA_TRY(attention_decode_check_addressing(&d->k, "k", attention_decode_size(d), MAX_DIM, why));
    MICA_TRY(attention_decode_check_addressing(&d->v, "v", attention_decode_size(d), MAX_DIM, why));
    attention_shape_make(d, &s);
    MICA_TRY(attention_decode_check_lengths(d, &s, MAX_QUERIES, why));
    if (make_tile(d, device, choose_rows(d, &s), &t)) return MICA_OK;
    return mica_refuse(why, "blocks have %lld bytes of shared memory, a tile needs more",
                       (long long)device->shared_bytes);
}

/* ---- configs ---- */

/* One kernel. Splits that make one round of blocks, or a few of smaller ones; each has a round of
 * keys for every warp at least. The first config needs no workspace, and neither do clusters, whose
 * blocks must find room at the same time. */
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    const mica_attention_desc *d = desc;
    attention_shape s;
    tile t;
    attention_shape_make(d, &s);
    int rows = choose_rows(d, &s), count = 0;
    if (!make_tile(d, device, rows, &t)) return 0;
    int64_t most =
        smaller(ceiling(attention_decode_keys(d, &s), WARPS * t.keys), ATTENTION_DECODE_SPLITS);
    int64_t slots = (int64_t)device->units * t.resident,
            tiles = attention_decode_tiles(d, &s, rows);
    int64_t fill = larger(slots / tiles, 1);
    attention_decode_add_config(out, &count, rows, 1, false);
    if (most <= 1 || tiles >= 8 * slots) return count;
    const int64_t wanted[] = {fill, larger(device->units / tiles, 1), larger(fill / 2, 1), 2 * fill,
                              tiles > slots / 4 ? 4 : 1};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        attention_decode_add_config(out, &count, rows, smaller(wanted[i], most), false);
    if (device->arch != 90) return count;
    for (int64_t n = 2; n <= ATTENTION_DECODE_CLUSTER; n *= 2)
        if (n <= most && tiles * n <= slots && 4 * n >= smaller(fill, ATTENTION_DECODE_CLUSTER))
            attention_decode_add_config(out, &count, rows, n, true);
    return count;
}

/* Blocks are dealt to the multiprocessors in rounds; a full one reads at memory's speed, the last
 * one at that of its blocks, or of multiprocessors that have one more than others. Tiles of the
 * same keys find them in L2. From times on an H200. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    const double start_ms = 4.4e-3, column_ms = 2e-5, merge_ms = 4e-3, meet_ms = 2.3e-3;
    const double block_rate = 42e6, reuse = 1.8; /* bytes per ms */
    const double unit_share = 1.25;              /* of memory's speed, more than an even one */
    const double efficiency = 0.21;              /* of tensor cores */
    const mica_attention_desc *d = desc;
    attention_shape s;
    tile t;
    attention_shape_make(d, &s);
    int splits = c->knob[ATTENTION_DECODE_KNOB_SPLITS], rows = c->knob[ATTENTION_DECODE_KNOB_ROWS];
    if (!make_tile(d, device, rows, &t)) return INFINITY;
    double tiles = (double)attention_decode_tiles(d, &s, rows),
           keys = (double)attention_decode_keys(d, &s);
    double blocks = tiles * splits, slots = (double)device->units * t.resident;
    double bytes = keys * (double)(s.d + s.dv) * attention_decode_size(d) / splits; /* of a block */
    double shared = tiles / ((double)s.sequences * (double)s.kv_heads);
    double rate = device->copy_gbps * 1e6 * fmin(shared, reuse);
    double full = floor(blocks / slots), rest = blocks - full * slots;
    double time = full * slots * bytes / fmin(rate, slots * block_rate);
    if (rest > 0)
        time += fmax(rest * bytes / fmin(rate, rest * block_rate),
                     ceil(rest / device->units) * device->units * bytes / (unit_share * rate));
    double flops =
        2 * tiles * rows * keys * 32 * (t.k_steps + t.v_steps) / attention_decode_size(d);
    time = start_ms + column_ms * (double)larger(s.d, s.dv) +
           fmax(time, flops / (efficiency * device->bf16_tflops * 1e9));
    if (splits == 1) return time;
    if (c->knob[ATTENTION_DECODE_KNOB_CLUSTER]) return time + meet_ms;
    double lines = (double)(d->q.dims[0] * d->q.dims[1] * d->q.dims[2]);
    return time + merge_ms + 8 * lines * splits * (double)s.dv / rate;
}

/* ---- plans ---- */

static mica_status add_main(mica_plan *plan, const tile *t)
{
    const mica_attention_desc *d = plan->desc;
    attention_decode_state *st = plan->state;
    char text[512];
    mica_text p = {text, sizeof text, 0};
    mica_prologue_int(&p, "ROWS", t->rows);
    mica_prologue_int(&p, "KEYS", t->keys);
    mica_prologue_int(&p, "STAGES", t->stages);
    mica_prologue_int(&p, "K_STEPS", t->k_steps);
    mica_prologue_int(&p, "V_STEPS", t->v_steps);
    mica_prologue_int(&p, "RESIDENT", t->resident);
    mica_prologue_int(&p, "CLUSTERS", plan->device.arch == 90);
    mica_prologue_int(&p, "CONVERTS_FLOAT8", plan->device.arch >= 89);
    mica_prologue_type(&p, "q_t", d->q.dtype);
    mica_prologue_type(&p, "kv_t", d->k.dtype);
    st->grid.block[0] = 32 * WARPS;
    st->grid.dynamic_shared = (unsigned)t->shared;
    mica_kernel_spec spec = {"ops/attention/decode/decode.cu", "attention_decode", text, t->shared};
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
    if (!make_tile(d, &plan->device, plan->config.knob[ATTENTION_DECODE_KNOB_ROWS], &t))
        return mica_fail(MICA_UNSUPPORTED, "no tile fits shared memory");
    attention_decode_fill(plan, &s, t.keys);
    MICA_TRY(add_main(plan, &t));
    return attention_decode_add_merge(plan, &s);
}

const mica_engine mica_attention_decode = {.name = "decode",
                                           .cuda = true,
                                           .knobs = knobs,
                                           .accepts = accepts,
                                           .configs = configs,
                                           .predict = predict,
                                           .build = build,
                                           .run = attention_decode_run};
