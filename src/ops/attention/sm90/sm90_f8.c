/* SPDX-License-Identifier: Apache-2.0
 * attention forward of 8-bit floats on Hopper's tensor cores: e4m3 and e5m2, heads of up to 256.
 * Weights are rounded to e4m3 for their products with values, as FlashAttention-3 and cuDNN do;
 * sums over keys leave the tensor core, which has 13 bits behind the point there, after each tile.
 * Good for prompts. Cost: D = Dv = 128 needs 512 operations a pair of a query and a key, at the
 * 1660 TFLOP/s that an H200's e4m3 products sustain 0.31 ps, and an exponential, of which a
 * multiprocessor makes 16 a cycle: 0.30 ps. 16k tokens of 16 heads, all pairs: 1.32 ms, if either
 * hid the other. Neither does wholly: FlashAttention-3 reaches 55 per cent of it. Heads of 64 have
 * half the products and as many exponentials. */
#include "ops/attention/attention.h"
#include "ops/attention/sm90/sm90_forward.h"

#include <math.h>

/* turns: ping-pong of the warpgroups; claim: jobs by a work counter; ahead: the products of the
 * next tile's keys come before those of this one's values. */
enum { KNOB_GROUPS, KNOB_KEYS, KNOB_STAGES, KNOB_PINGPONG, KNOB_CLAIM, KNOB_AHEAD };
static const char *const knobs[] = {"groups", "keys", "stages", "turns", "claim", "ahead", NULL};

enum { OTHER_SHARED = 1024 + 512 };

/* ---- what is taken ---- */

static bool is_float8(mica_dtype t)
{
    return t == MICA_E4M3 || t == MICA_E5M2;
}

static mica_status check_features(const mica_attention_desc *d, mica_why *why)
{
    if (d->pass != MICA_ATTENTION_FWD) return mica_refuse(why, "pass is bwd, this engine does fwd");
    if (!is_float8(d->q.dtype) || !is_float8(d->k.dtype) || !is_float8(d->v.dtype))
        return mica_refuse(why, "q is %s, k %s, v %s; taken are e4m3 and e5m2",
                           mica_dtype_name(d->q.dtype), mica_dtype_name(d->k.dtype),
                           mica_dtype_name(d->v.dtype));
    if (d->dropout != 0)
        return mica_refuse(why, "dropout is %g, this engine drops nothing", d->dropout);
    if (d->soft_cap != 0)
        return mica_refuse(why, "soft_cap is %g, this engine takes scores as they are",
                           d->soft_cap);
    const mica_tensor *not_taken[] = {&d->pages, &d->slopes, &d->bias, &d->mask};
    const char *const names[] = {"pages", "slopes", "bias", "mask"};
    for (int i = 0; i < 4; i++)
        if (mica_tensor_given(not_taken[i]))
            return mica_refuse(why, "%s is given, this engine takes lengths, windows and sinks",
                               names[i]);
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    MICA_TRY(attention_check_corner(desc, why));
    MICA_TRY(check_features(desc, why));
    return attention_sm90_check_all(desc, device, why);
}

/* ---- configs ---- */

/* Parts of values: sums of two at a time use the registers of scores. */
static int parts_of(const mica_attention_desc *d, const mica_config *c)
{
    int parts = 1, columns = (int)d->v.dims[3], keys = c->knob[KNOB_KEYS];
    int most = columns > 128 && keys > 64 ? 64 : keys;
    while (!c->knob[KNOB_AHEAD] && columns > parts * most) parts *= 2;
    return parts;
}

/* Columns of out that a warpgroup has sums of. */
static int columns_of(const mica_attention_desc *d, const mica_config *c)
{
    int step = 16 * parts_of(d, c);
    return (int)ceiling(d->v.dims[3], step) * step;
}

static int shared_bytes(const mica_attention_desc *d, const mica_config *c)
{
    int q = attention_sm90_chunks(d->q.dims[3]), v = attention_sm90_chunks(d->v.dims[3]);
    int rows = c->knob[KNOB_GROUPS] * ATTENTION_SM90_CHUNK;
    int stage = c->knob[KNOB_KEYS] * ((q + v) * ATTENTION_SM90_ROW + columns_of(d, c));
    return q * rows * ATTENTION_SM90_ROW + c->knob[KNOB_STAGES] * stage + 1024;
}

/* Scores, weights and sums of a thread beside what else it holds: found by compiling, so that
 * nothing is spilled. */
static bool fits_registers(const mica_attention_desc *d, const mica_config *c)
{
    static const int room[2][2] = {{208, 132}, {190, 124}};
    int keys = c->knob[KNOB_KEYS], columns = columns_of(d, c), part = columns / parts_of(d, c);
    int groups = c->knob[KNOB_GROUPS], ahead = c->knob[KNOB_AHEAD];
    int held = keys / 8 + columns / 2 + (groups == 3 && columns > 64 ? 8 : 0);
    held += ahead ? (keys + part) / 2 : (keys > part ? keys : part) / 2;
    bool searches = mica_tensor_given(&d->cu_q) || mica_tensor_given(&d->cu_k) ||
                    mica_tensor_given(&d->seq_q) || mica_tensor_given(&d->seq_k);
    return held <= room[ahead][groups - 2] - (searches && groups == 3 ? 8 : 0);
}

static bool fits(const mica_attention_desc *d, const mica_device_info *device, const mica_config *c)
{
    return fits_registers(d, c) && shared_bytes(d, c) + OTHER_SHARED <= (int)device->shared_bytes;
}

/* Cycles of a tile in which shared memory is busy, at 128 bytes each: products read both operands
 * but for weights, keys and values come in, values are read and written once more. */
static double shared_cycles(double groups, double keys, double depth, double columns)
{
    double products = groups * (64 * depth + keys * (depth + columns));
    return (products + keys * (depth + 3 * columns)) / 128;
}

/* The model of sm90.c at twice the rate of products; a tile's sums are added to the
 * others besides, a warpgroup 32 a cycle and quarter. Not measured. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    const double start_ms = 4e-3, job_ms = 1.85e-3, dealt_ms = 2e-3, uneven = 1.15;
    const double score_cycles = 0.0693, sum_cycles = 1.0 / 128, tile_cycles = 570;
    const double operations = 8192, shown[] = {0.30, 0.19}, behind = 0.1;
    const mica_attention_desc *d = desc;
    double units = device->units, groups = c->knob[KNOB_GROUPS], keys = c->knob[KNOB_KEYS];
    double rows = 64 * groups, jobs = attention_sm90_full_jobs(d, rows);
    double depth = ceil((double)d->q.dims[3] / 32) * 32, columns = columns_of(d, c);
    double products = fmax(rows * keys * (depth + columns) * 2 / operations,
                           shared_cycles(groups, keys, depth, columns));
    double scores = rows * (keys * score_cycles + columns * sum_cycles);
    double seen = shown[c->knob[KNOB_GROUPS] - 2] + (c->knob[KNOB_AHEAD] ? 0 : behind);
    double cycles = tile_cycles + fmax(products, scores) + seen * fmin(products, scores);
    double clock = device->bf16_tflops * 1e9 / (operations / 2 * units); /* per ms */
    double job = attention_sm90_tiles_of_job(d, rows, keys) * cycles / clock + job_ms;
    double ms = job * fmax(jobs / units, 1);
    if (!c->knob[KNOB_CLAIM] && jobs > units)
        ms = dealt_ms + ms * (attention_sm90_jobs_differ(d) ? uneven : 1);
    return start_ms + attention_sm90_beside_memory(d, device, ms);
}

/* Warpgroups, keys, ahead. One warpgroup alone would have nobody to hide its exponentials. What
 * does not fit the registers or shared memory is left out. Rings of as many stages as there is room
 * for, up to three. */
static const int tiles[][3] = {{2, 192, 1}, {2, 96, 1},  {3, 96, 1},  {3, 64, 1},
                               {2, 192, 0}, {2, 128, 0}, {3, 160, 0}, {3, 128, 0}};
enum { TILES = sizeof tiles / sizeof *tiles };

static bool make_config(const mica_attention_desc *d, const mica_device_info *device,
                        const int *tile, mica_config *c)
{
    *c = (mica_config){{tile[0], tile[1], 3, 1, 0, tile[2]}};
    c->knob[KNOB_CLAIM] = attention_sm90_jobs(d, tile[0]) > device->units;
    if (d->v.dims[3] > 128 && tile[2]) return false; /* one instruction across, and too many sums */
    while (c->knob[KNOB_STAGES] > 2 && !fits(d, device, c)) c->knob[KNOB_STAGES]--;
    return fits(d, device, c);
}

/* The model's best tile of each kind: which order is the faster one is nothing that a model knows.
 */
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    const mica_attention_desc *d = desc;
    mica_config best[2];
    double ms[2];
    int count[2] = {0, 0};
    for (int i = 0; i < TILES; i++) {
        mica_config c;
        int kind = tiles[i][2];
        if (!make_config(d, device, tiles[i], &c)) continue;
        count[kind] =
            mica_config_keep(&best[kind], &ms[kind], count[kind], 1, &c, predict(d, device, &c));
    }
    int all = 0;
    for (int kind = 1; kind >= 0; kind--)
        if (count[kind]) out[all++] = best[kind];
    return all;
}

/* ---- contract ---- */

/* Sums as attention_float8_unit says. What rounding weights to e4m3 may change stands in the
 * magnitude sums, counted in this unit: attention_ref.c. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    c->ulps *= c->unit / attention_float8_unit(desc); /* exponentials are as exact as elsewhere */
    c->unit = attention_float8_unit(desc);
}

/* ---- plans ---- */

static void write_prologue(const mica_attention_desc *d, const mica_config *c, mica_text *p)
{
    int columns = columns_of(d, c), keys = c->knob[KNOB_KEYS], parts = parts_of(d, c);
    const struct {
        const char *name;
        int value;
    } constants[] = {
        {"GROUPS", c->knob[KNOB_GROUPS]},
        {"KEYS", keys},
        {"STAGES", c->knob[KNOB_STAGES]},
        {"TURNS", c->knob[KNOB_PINGPONG]},
        {"CLAIMED", c->knob[KNOB_CLAIM]},
        {"AHEAD", c->knob[KNOB_AHEAD]},
        {"D_STEPS", (int)ceiling(d->q.dims[3], 32)},
        {"D_CHUNKS", attention_sm90_chunks(d->q.dims[3])},
        {"V_CHUNKS", attention_sm90_chunks(d->v.dims[3])},
        {"COLUMNS", columns},
        {"PARTS", parts},
        {"PACKED_Q", mica_tensor_given(&d->cu_q)},
        {"PACKED_K", mica_tensor_given(&d->cu_k)},
        {"COUNTED_Q", mica_tensor_given(&d->seq_q)},
        {"COUNTED_K", mica_tensor_given(&d->seq_k)},
        {"BOTTOM_RIGHT", d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT},
        {"SINKS", mica_tensor_given(&d->sinks)},
        {"LSE", mica_tensor_given(&d->lse)},
    };
    for (int i = 0; i < (int)(sizeof constants / sizeof *constants); i++)
        mica_prologue_int(p, constants[i].name, constants[i].value);
    mica_prologue_type(p, "q_t", d->q.dtype);
    mica_prologue_type(p, "k_t", d->k.dtype);
    mica_prologue_type(p, "v_t", d->v.dtype);
    mica_prologue_type(p, "out_t", d->out.dtype);
    mica_prologue_type(p, "sink_t", mica_tensor_given(&d->sinks) ? d->sinks.dtype : MICA_F32);
    mica_prologue_wgmma(p, "multiply_keys",
                        &(mica_wgmma){.n = keys, .a = d->q.dtype, .b = d->k.dtype});
    mica_prologue_wgmma(
        p, "multiply_values",
        &(mica_wgmma){
            .n = columns / parts, .a = MICA_E4M3, .b = d->v.dtype, .a_in_registers = true});
}

static mica_status build(mica_plan *plan)
{
    const mica_attention_desc *d = plan->desc;
    const mica_config *c = &plan->config;
    const attention_sm90_tile tile = {
        .groups = c->knob[KNOB_GROUPS], .keys = c->knob[KNOB_KEYS], .claimed = c->knob[KNOB_CLAIM]};
    char text[16384];
    mica_text prologue = {text, sizeof text, 0};
    write_prologue(d, c, &prologue);
    return attention_sm90_build(plan, &tile,
                                &(mica_kernel_spec){.file = "ops/attention/sm90/sm90_f8.cu",
                                                    .entry = "attention_sm90_f8",
                                                    .prologue = text,
                                                    .dynamic_shared = shared_bytes(d, c)});
}

const mica_engine mica_attention_sm90_f8 = {.name = "sm90_f8",
                                            .cuda = true,
                                            .knobs = knobs,
                                            .accepts = accepts,
                                            .configs = configs,
                                            .predict = predict,
                                            .contract = contract,
                                            .build = build,
                                            .run = attention_sm90_run};
