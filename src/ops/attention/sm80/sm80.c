/* SPDX-License-Identifier: Apache-2.0
 * attention on the tensor cores of sm_80 and later by mma.sync: f16 and bf16, heads of up to 256,
 * every feature of the family, both passes. Good for Ampere and Ada, and on Hopper for what TMA
 * and wgmma do not take: dropout, odd strides, pages of any size. Queries of all heads
 * of a key head share a tile, so that keys are read once for them. Backward forms the weights
 * twice, from lse, in a kernel for dq and one for dk and dv: seven products, no atomics, always the
 * same bits. Cost: D = Dv = 128 needs 512 operations a pair of a query and a key forward, 1792
 * backward; on an H200, where mma.sync does about 500 TFLOP/s of bf16, 1.0 and 3.6 ps: 16k tokens
 * of 16 heads, all pairs, 4.4 and 15 ms; on an A100 (312) 7.0 and 25 ms. That is the floor:
 * exponentials come on top where too few warps are there to hide them. */
#include "ops/attention/cuda/attention_cuda_plan.h"
#include "ops/mma/mma_tile.h"

#include <math.h>

/* rows, keys: lines of a tile forward and for dq; k_keys, k_rows: for dk and dv. */
enum { KNOB_ROWS, KNOB_KEYS, KNOB_SPLITS, KNOB_K_KEYS, KNOB_K_ROWS };
static const char *const knobs[] = {"rows", "keys", "splits", "k_keys", "k_rows", NULL};

enum {
    MAX_DIM = 256,
    MAX_LENGTH = 1 << 29,
    MOST_SPLITS = 256,    /* a merge reads them one after the other */
    OTHER_SHARED = 13312, /* at most, of what a block knows of its lines */
    PAD = 16,             /* bytes behind a row in shared memory */
};

/* ---- what is taken ---- */

static mica_status check_types(const mica_attention_desc *d, mica_why *why)
{
    mica_dtype t = d->q.dtype;
    if ((t != MICA_F16 && t != MICA_BF16) || d->k.dtype != t || d->v.dtype != t)
        return mica_refuse(why, "q is %s, k %s, v %s; taken are f16 or bf16 alike",
                           mica_dtype_name(t), mica_dtype_name(d->k.dtype),
                           mica_dtype_name(d->v.dtype));
    if (d->pass == MICA_ATTENTION_BWD && d->dout.dtype != t)
        return mica_refuse(why, "dout is %s and q %s, tensor cores take one type",
                           mica_dtype_name(d->dout.dtype), mica_dtype_name(t));
    return MICA_OK;
}

/* Copies to shared memory go along lines. */
static mica_status check_line(const mica_tensor *t, const char *name, mica_why *why)
{
    int64_t columns = t->dims[3];
    if (columns < 1 || columns > MAX_DIM)
        return mica_refuse(why, "%s has %lld columns, this engine takes 1 to %d", name,
                           (long long)columns, MAX_DIM);
    if (columns > 1 && t->strides[3] != 1)
        return mica_refuse(why, "columns of %s are %lld elements apart, the rule is 1", name,
                           (long long)t->strides[3]);
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_attention_desc *d = desc;
    attention_shape s;
    if (device->arch < 80)
        return mica_refuse(why, "the device is sm_%d, its tensor cores are used from sm_80 on",
                           device->arch);
    MICA_TRY(attention_check_results(d, why));
    MICA_TRY(check_types(d, why));
    MICA_TRY(check_line(&d->q, "q", why));
    MICA_TRY(check_line(&d->k, "k", why));
    MICA_TRY(check_line(&d->v, "v", why));
    if (d->pass == MICA_ATTENTION_BWD) MICA_TRY(check_line(&d->dout, "dout", why));
    if (d->diagonal <= -MAX_LENGTH || d->diagonal >= MAX_LENGTH)
        return mica_refuse(why, "diagonal is %lld, the limit is 2^29", (long long)d->diagonal);
    attention_shape_make(d, &s);
    if (s.rows >= MAX_LENGTH || s.keys >= MAX_LENGTH)
        return mica_refuse(why, "%lld queries and %lld keys, the limit is 2^29", (long long)s.rows,
                           (long long)s.keys);
    if ((double)s.rows * (double)s.group >= 0x1p31)
        return mica_refuse(why, "%lld queries of %lld heads share keys, the limit is 2^31 rows",
                           (long long)s.rows, (long long)s.group);
    return MICA_OK;
}

/* ---- tiles ---- */

typedef struct tile {
    int own, blocks, other, stages; /* lines; of 16 lines of a warp; lines; tiles in flight */
    int parts;                      /* of the columns that a warp has sums of */
    int d, v;                       /* padded columns */
} tile;

/* Few sizes, so that few kernels are needed. */
static int padded(int64_t columns)
{
    static const int sizes[] = {32, 64, 96, 128, 192};
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++)
        if (columns <= sizes[i]) return sizes[i];
    return MAX_DIM;
}

static int wider(const mica_attention_desc *d)
{
    return padded(larger(d->q.dims[3], d->v.dims[3]));
}

/* Scores that are products alone: rows may be compared before the scale is applied. */
static bool is_plain(const mica_attention_desc *d)
{
    return d->scale > 0 && d->soft_cap == 0 && !mica_tensor_given(&d->slopes) &&
           !mica_tensor_given(&d->bias) && !mica_tensor_given(&d->mask);
}

static int threads_of(const tile *t)
{
    return t->own / (16 * t->blocks) * t->parts * 32;
}

static int pitches(const tile *t)
{
    return 2 * (t->d + t->v + PAD);
}

static tile forward_tile(const mica_attention_desc *d, const mica_config *c)
{
    return (tile){.own = c->knob[KNOB_ROWS],
                  .blocks = c->knob[KNOB_ROWS] / 64,
                  .other = c->knob[KNOB_KEYS],
                  .stages = 1,
                  .parts = 1,
                  .d = padded(d->q.dims[3]),
                  .v = padded(d->v.dims[3])};
}

/* Eight lines of results at a time pass through a warp's part. */
static int result_bytes(const tile *t)
{
    return threads_of(t) / 32 * 8 * ((int)larger(t->d, t->v) / t->parts + 8) * 4;
}

static int forward_bytes(const tile *t)
{
    int tiles = t->own * (2 * t->d + PAD) + t->other * pitches(t);
    return (int)larger(tiles, result_bytes(t));
}

static int backward_bytes(const tile *t)
{
    int tiles = (t->own + t->stages * t->other) * pitches(t);
    return (int)larger(tiles, result_bytes(t));
}

/* Two stages where there is room. */
static void choose_stages(const mica_device_info *device, tile *t)
{
    t->stages = 2;
    if (backward_bytes(t) + OTHER_SHARED > (int)device->shared_bytes) t->stages = 1;
}

static tile dq_tile(const mica_attention_desc *d, const mica_device_info *device,
                    const mica_config *c)
{
    tile t = forward_tile(d, c);
    choose_stages(device, &t);
    return t;
}

static tile dkv_tile(const mica_attention_desc *d, const mica_device_info *device,
                     const mica_config *c)
{
    tile t = {.own = c->knob[KNOB_K_KEYS],
              .blocks = 1,
              .other = c->knob[KNOB_K_ROWS],
              .parts = 1,
              .d = padded(d->q.dims[3]),
              .v = padded(d->v.dims[3])};
    if (t.d + t.v > 320) {
        t.parts = 2;
        t.d = (int)ceiling(t.d, 64) * 64;
        t.v = (int)ceiling(t.v, 64) * 64;
    }
    choose_stages(device, &t);
    return t;
}

/* ---- configs ---- */

static int64_t expected(const mica_tensor *cu, int64_t lines, int64_t most, int64_t sequences)
{
    if (most && most < lines) return most;
    if (!most && mica_tensor_given(cu)) return ceiling(lines, larger(sequences, 1));
    return lines;
}

/* Keys of a tile whose scores fit the registers beside the sums. */
static int32_t forward_keys(const mica_attention_desc *d, int32_t rows)
{
    int wide = wider(d);
    if (rows == 128) return wide <= 96 ? 64 : 32;
    return wide <= 192 ? 64 : 32;
}

static int32_t choose_splits(const mica_attention_desc *d, const attention_shape *s,
                             const mica_config *c, const mica_device_info *device)
{
    int64_t keys = expected(&d->cu_k, s->keys, d->max_k, s->sequences);
    int64_t blocks = larger(attention_query_tiles(d, s, c->knob[KNOB_ROWS]), 1);
    int64_t wanted = 2 * (int64_t)device->units / blocks;
    int64_t most = ceiling(keys, 2 * c->knob[KNOB_KEYS]);
    if (wanted > most) wanted = most;
    if (wanted > MOST_SPLITS) wanted = MOST_SPLITS;
    return (int32_t)larger(wanted, 1);
}

static int forward_configs(const mica_attention_desc *d, const attention_shape *s,
                           const mica_device_info *device, mica_config *out)
{
    int64_t rows = expected(&d->cu_q, s->rows, d->max_q, s->sequences) * s->group;
    int count = 0;
    for (int32_t own = 64; own <= 128; own += 64) {
        if (own == 128 && (rows <= 64 || wider(d) > 128)) continue;
        mica_config c = {{own, forward_keys(d, own), 1}};
        out[count++] = c;
        c.knob[KNOB_SPLITS] = choose_splits(d, s, &c, device);
        if (own == 64 && c.knob[KNOB_SPLITS] > 1) out[count++] = c;
    }
    return count;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    const mica_attention_desc *d = desc;
    attention_shape s;
    attention_shape_make(d, &s);
    if (d->pass == MICA_ATTENTION_FWD) return forward_configs(d, &s, device, out);
    int wide = wider(d);
    int32_t other = wide <= 64 ? 64 : wide <= 128 ? 32 : 16;
    out[0] = (mica_config){{64, other, 1, 64, wide <= 128 ? 32 : 16}};
    return 1;
}

/* ---- time ---- */

/* Cycles of a multiprocessor for a score: instructions of the usual parts, 128 at once. */
static double score_cycles(const mica_attention_desc *d, double plain)
{
    double instructions = plain;
    if (!is_plain(d)) instructions += 4;
    if (d->soft_cap > 0) instructions += 6;
    if (mica_tensor_given(&d->slopes)) instructions += 4;
    if (mica_tensor_given(&d->bias)) instructions += 8;
    if (mica_tensor_given(&d->mask)) instructions += 8;
    if (d->dropout > 0) instructions += 30;
    return instructions / 128;
}

/* Pairs of a query and a key as the cost sees them. */
static double pairs_of(const mica_attention_desc *d)
{
    double flops = 0, bytes = 0, dk = (double)d->q.dims[3], dv = (double)d->v.dims[3];
    mica_op_attention.cost(d, &flops, &bytes);
    return flops / (d->pass == MICA_ATTENTION_FWD ? 2 * (dk + dv) : 6 * dk + 4 * dv);
}

/* Of `jobs` blocks of a kernel that has products of `columns` columns in all for a pair; `lines` of
 * own there are in all. Scores are beside those of other warps for a half, a border of half a tile
 * in each job. Products' rates are those of random lines on an H200. */
static double kernel_ms(const mica_attention_desc *d, const mica_device_info *device, const tile *t,
                        double jobs, double lines, double columns, double instructions)
{
    const double start_ms = 5e-3, job_ms = 3e-3, tile_cycles = 300, shown = 0.7;
    const double clock = 1.5e6; /* per ms */
    double units = device->units, rows = t->own, keys = t->other;
    double rate = mica_mma_rate(device, d->q.dtype) * 1e9 / (units * clock);
    double reached =
        t->blocks == 1 ? 0.5 : 0.42; /* an H200's, which has wgmma for what is faster */
    double products = rows * keys * columns * 2 / (rate * reached);
    double scores = rows * keys * score_cycles(d, instructions);
    double tiles = fmax(pairs_of(d) / (fmax(lines, 1) * keys) + 0.5, 1);
    double job = tiles * (tile_cycles + products + shown * scores) / clock + job_ms;
    return start_ms + job * (jobs > units ? jobs / units + 0.5 : 1);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    const double launch_ms = 3e-3, reached = 0.7;
    const mica_attention_desc *d = desc;
    attention_shape s;
    attention_shape_make(d, &s);
    double splits = c->knob[KNOB_SPLITS], heads = (double)s.sequences * (double)s.kv_heads;
    double rows = (double)(expected(&d->cu_q, s.rows, d->max_q, s.sequences) * s.group);
    double memory = mica_op_bytes(&mica_op_attention, d) / (reached * device->copy_gbps * 1e6);
    tile t = forward_tile(d, c);
    double jobs = heads * ceil(rows / t.own) * splits, depth = t.d, wide = t.v;
    if (d->pass == MICA_ATTENTION_FWD) {
        double busy = fmin(1, fmax(jobs, 1) / device->units);
        double ms = fmax(kernel_ms(d, device, &t, jobs, heads * rows * splits, depth + wide, 9),
                         memory / busy);
        return splits > 1 ? ms + 2 * launch_ms : ms;
    }
    double ms = kernel_ms(d, device, &t, jobs, heads * rows, 2 * depth + wide, 12);
    t = dkv_tile(d, device, c);
    depth = t.d, wide = t.v;
    double keys = (double)expected(&d->cu_k, s.keys, d->max_k, s.sequences);
    double columns = (depth + wide) * (1 + t.parts);
    ms += kernel_ms(d, device, &t, heads * ceil(keys / t.own), heads * keys, columns, 12 * t.parts);
    return launch_ms + fmax(ms, memory);
}

/* Weights below 2^-126 count as zero, as the unit for exponentials has it. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)desc;
    (void)config;
    c->flushes = true;
}

/* ---- plans ---- */

static void write_prologue(const mica_attention_desc *d, const tile *t, mica_text *p)
{
    const struct {
        const char *name;
        int value;
    } constants[] = {
        {"OWN", t->own},
        {"BLOCKS", t->blocks},
        {"OTHER", t->other},
        {"STAGES", t->stages},
        {"PARTS", t->parts},
        {"D_WIDE", t->d},
        {"V_WIDE", t->v},
        {"PLAIN", is_plain(d)},
        {"CAP", d->soft_cap > 0},
        {"ALIBI", mica_tensor_given(&d->slopes)},
        {"BIAS", mica_tensor_given(&d->bias)},
        {"MASK", mica_tensor_given(&d->mask)},
        {"DROPOUT", d->dropout > 0},
    };
    for (int i = 0; i < (int)(sizeof constants / sizeof *constants); i++)
        mica_prologue_int(p, constants[i].name, constants[i].value);
    mica_prologue_type(p, "acc_t", MICA_F32);
    mica_prologue_type(p, "x_t", d->q.dtype);
    mica_prologue_type(p, "bias_t", mica_tensor_given(&d->bias) ? d->bias.dtype : MICA_F32);
}

/* A kernel of tiles of `lines` lines of a sequence; nothing if there are none. */
static mica_status add_tiles(mica_plan *plan, const char *file, const char *entry, const tile *t,
                             int64_t lines, int64_t blocks, int bytes)
{
    char text[1024] = "";
    mica_text p = {text, sizeof text, 0};
    if (blocks == 0) return MICA_OK;
    write_prologue(plan->desc, t, &p);
    return attention_add_kernel(plan, &(attention_kernel){.file = file,
                                                          .entry = entry,
                                                          .prologue = text,
                                                          .lines = lines,
                                                          .own = t->own,
                                                          .blocks = blocks,
                                                          .shared = bytes,
                                                          .threads = threads_of(t)});
}

static mica_status build_forward(mica_plan *plan, const attention_shape *s)
{
    const mica_attention_desc *d = plan->desc;
    int64_t splits = plan->config.knob[KNOB_SPLITS];
    tile t = forward_tile(d, &plan->config);
    int64_t tiles = attention_query_tiles(d, s, t.own);
    MICA_TRY(attention_clear_forward(plan));
    MICA_TRY(add_tiles(plan, "ops/attention/sm80/sm80_fwd.cu", "attention_sm80_fwd", &t,
                       s->rows * s->group, tiles * splits, forward_bytes(&t)));
    return splits == 1 || tiles == 0 ? MICA_OK : attention_add_merge(plan, s, splits);
}

static mica_status build_backward(mica_plan *plan, const attention_shape *s)
{
    const int32_t bias_rows = 16;
    const mica_attention_desc *d = plan->desc;
    tile q = dq_tile(d, &plan->device, &plan->config);
    tile k = dkv_tile(d, &plan->device, &plan->config);
    MICA_TRY(attention_clear_backward(plan));
    MICA_TRY(attention_add_delta(plan));
    MICA_TRY(add_tiles(plan, "ops/attention/sm80/sm80_dq.cu", "attention_sm80_dq", &q,
                       s->rows * s->group, attention_query_tiles(d, s, q.own), backward_bytes(&q)));
    int64_t blocks = attention_tiles(&d->cu_k, s->keys, s->sequences, k.own) * s->kv_heads;
    MICA_TRY(add_tiles(plan, "ops/attention/sm80/sm80_dkv.cu", "attention_sm80_dkv", &k, s->keys,
                       blocks, backward_bytes(&k)));
    MICA_TRY(attention_add_dbias(plan, s, bias_rows));
    return attention_add_dsinks(plan, s);
}

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

const mica_engine mica_attention_sm80 = {.name = "sm80",
                                         .compile_ms = 900,
                                         .cuda = true,
                                         .knobs = knobs,
                                         .accepts = accepts,
                                         .configs = configs,
                                         .predict = predict,
                                         .contract = contract,
                                         .build = build,
                                         .run = attention_run_kernels};
