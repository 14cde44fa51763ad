/* SPDX-License-Identifier: Apache-2.0
 * attention forward on Hopper's tensor cores, fed by TMA: f16 and bf16, heads of up to
 * 256. Good for prompts and training; one query for a head at a time wastes 63 of 64 rows. Cost: D
 * = Dv = 128 needs 512 operations a pair of a query and a key, at the 840 TFLOP/s that an H200's
 * bf16 products sustain 0.61 ps: 16k tokens of 16 heads, all pairs, 2.62 ms, causal 1.31 ms. That
 * is the floor; maxima, exponentials and sums, which take a warpgroup about as long as its
 * products, are to run beside the products of another one. */
#include "ops/attention/attention.h"
#include "ops/attention/sm90/sm90_forward.h"

#include <math.h>

/* turns: ping-pong of the warpgroups. claim: each block takes the next job when it is done, by a
 * work counter in the workspace; else the schedule is fixed, block b has jobs b, b + blocks and so
 * on, and blocks do not end together where jobs differ. queries: jobs whose q
 * is in shared memory. */
enum { KNOB_GROUPS, KNOB_KEYS, KNOB_STAGES, KNOB_PINGPONG, KNOB_CLAIM, KNOB_QUERIES };
static const char *const knobs[] = {"groups", "keys", "stages", "turns", "claim", "queries", NULL};

enum { OTHER_SHARED = 1024 }; /* static */

/* ---- what TMA can address ---- */

static mica_status check_features(const mica_attention_desc *d, mica_why *why)
{
    mica_dtype t = d->q.dtype;
    if (d->pass != MICA_ATTENTION_FWD) return mica_refuse(why, "pass is bwd, this engine does fwd");
    if ((t != MICA_F16 && t != MICA_BF16) || d->k.dtype != t || d->v.dtype != t)
        return mica_refuse(why, "q is %s, k %s, v %s; taken are f16 or bf16 alike",
                           mica_dtype_name(t), mica_dtype_name(d->k.dtype),
                           mica_dtype_name(d->v.dtype));
    if (d->dropout != 0)
        return mica_refuse(why, "dropout is %g, this engine drops nothing", d->dropout);
    if (mica_tensor_given(&d->pages) && d->k.dims[2] % 8)
        return mica_refuse(why, "pages have %lld keys, the rule is a multiple of 8",
                           (long long)d->k.dims[2]);
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    MICA_TRY(attention_check_corner(desc, why));
    MICA_TRY(check_features(desc, why));
    return attention_sm90_check_all(desc, device, why);
}

/* ---- configs ---- */

/* Columns of out that a warpgroup has sums of. */
static int columns_of(const mica_attention_desc *d)
{
    return (int)ceiling(d->v.dims[3], 8) * 8;
}

static int stage_bytes(const mica_attention_desc *d, const mica_config *c)
{
    return (attention_sm90_chunks(2 * d->q.dims[3]) + attention_sm90_chunks(2 * d->v.dims[3])) *
           c->knob[KNOB_KEYS] * ATTENTION_SM90_ROW;
}

static int shared_bytes(const mica_attention_desc *d, const mica_config *c)
{
    int queries = attention_sm90_chunks(2 * d->q.dims[3]) * c->knob[KNOB_GROUPS] *
                  ATTENTION_SM90_CHUNK * ATTENTION_SM90_ROW;
    return c->knob[KNOB_QUERIES] * queries + c->knob[KNOB_STAGES] * stage_bytes(d, c) + 1024;
}

/* Keys of a tile that lie in one page, a multiple of 8; 0: there are no pages. */
static int piece_of(const mica_attention_desc *d, const mica_config *c)
{
    return mica_tensor_given(&d->pages) ? (int)gcd(d->k.dims[2], c->knob[KNOB_KEYS]) : 0;
}

/* Scores, weights and sums of a thread beside what else it holds: found by compiling, so that
 * nothing is spilled. */
static bool fits_registers(const mica_attention_desc *d, const mica_config *c)
{
    static const int room[] = {0, 204, 204, 132}, searching[] = {0, 204, 198, 126};
    int groups = c->knob[KNOB_GROUPS], columns = columns_of(d);
    int held = c->knob[KNOB_KEYS] * 3 / 4 + columns / 2 + (columns > 128 ? 12 : 0);
    /* Addresses of both beside the scores of more keys do not fit either. */
    if (mica_tensor_given(&d->bias) && mica_tensor_given(&d->mask) && c->knob[KNOB_KEYS] > 64)
        return false;
    bool searches = mica_tensor_given(&d->cu_q) || mica_tensor_given(&d->cu_k) ||
                    mica_tensor_given(&d->seq_q) || mica_tensor_given(&d->seq_k);
    return held <= (searches ? searching : room)[groups];
}

static bool fits(const mica_attention_desc *d, const mica_device_info *device, const mica_config *c)
{
    return fits_registers(d, c) && shared_bytes(d, c) + OTHER_SHARED <= (int)device->shared_bytes;
}

/* Of a tile, products or exponentials, whichever take longer, and a part of the others: the more
 * warpgroups, the less. Constants fitted to an H200: 153 configs of 36 lines, of which it was 6 per
 * cent off in the mean; its choice was at most 1.7 per cent slower than the best. Short sequences
 * take up to a fifth less since then. */
static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    const double start_ms = 1.9e-3, dealt_ms = 2e-3, uneven = 1.15;
    const double score_cycles = 0.0656, operations = 4096;
    static const double shown[] = {0, 1, 0.36, 0.28};
    const mica_attention_desc *d = desc;
    /* Queries that are there already; but rings of two stages only run dry. */
    bool ahead = c->knob[KNOB_QUERIES] > 1;
    double job_ms = ahead ? 1.9e-3 : 2.2e-3;
    double tile_cycles = ahead && c->knob[KNOB_STAGES] == 2 ? 950 : 390;
    double units = device->units, groups = c->knob[KNOB_GROUPS], keys = c->knob[KNOB_KEYS];
    double rows = 64 * groups, jobs = attention_sm90_full_jobs(d, rows);
    double depth = ceil((double)d->q.dims[3] / 16) * 16;
    double products = rows * keys * (depth + columns_of(d)) * 2 / operations;
    double scores = rows * keys * score_cycles;
    double cycles =
        tile_cycles + fmax(products, scores) + shown[c->knob[KNOB_GROUPS]] * fmin(products, scores);
    /* ping-pong costs more than it gives where scores outlast products and the next job's queries
     * wait
     */
    if (groups > 1 && !c->knob[KNOB_PINGPONG])
        cycles *= ahead && groups == 2 && scores > products ? 0.97 : 1.01;
    double clock = device->bf16_tflops * 1e9 / (operations * units); /* per ms */
    double job = attention_sm90_tiles_of_job(d, rows, keys) * cycles / clock + job_ms;
    double ms = job * fmax(jobs / units, 1);
    if (!c->knob[KNOB_CLAIM] && jobs > units)
        ms = dealt_ms + ms * (attention_sm90_jobs_differ(d) ? uneven : 1);
    return start_ms + attention_sm90_beside_memory(d, device, ms);
}

/* What does not fit the registers or shared memory is left out. Rings of as many stages as there is
 * room for, up to four. */
static const int tiles[][2] = {{2, 176}, {2, 128}, {3, 128}, {2, 192}, {2, 112}, {2, 96},
                               {3, 96},  {2, 80},  {3, 80},  {2, 64},  {1, 128}, {1, 64}};
enum { TILES = sizeof tiles / sizeof *tiles, KEPT = 2 };

static bool make_config(const mica_attention_desc *d, const mica_device_info *device, int tile,
                        mica_config *c)
{
    *c = (mica_config){{tiles[tile][0], tiles[tile][1], 4, tiles[tile][0] > 1, 0, 1}};
    c->knob[KNOB_CLAIM] = attention_sm90_jobs(d, tiles[tile][0]) > device->units;
    while (c->knob[KNOB_STAGES] > 2 && !fits(d, device, c)) c->knob[KNOB_STAGES]--;
    return fits(d, device, c);
}

/* The queries of the next job beside those of this one, where blocks have several jobs of few
 * tiles and could wait for them most. Half a per cent faster to 2 slower on an H200 since each
 * warpgroup's own queries come as soon as it is done with those before; slower where that leaves
 * rings of two stages. */
static bool has_next_queries(const mica_attention_desc *d, const mica_device_info *device,
                             mica_config *c)
{
    const double few_tiles = 20;
    int rows = 64 * c->knob[KNOB_GROUPS];
    c->knob[KNOB_QUERIES] = 2;
    while (c->knob[KNOB_STAGES] > 2 && !fits(d, device, c)) c->knob[KNOB_STAGES]--;
    return fits(d, device, c) && attention_sm90_full_jobs(d, rows) > device->units &&
           attention_sm90_tiles_of_job(d, rows, c->knob[KNOB_KEYS]) < few_tiles;
}

/* The model's best tiles: others would only be compiled and timed for nothing. The best one also
 * without ping-pong, and with jobs dealt the other way; all of them with queries ahead, two
 * warpgroups then without ping-pong, too. */
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    const mica_attention_desc *d = desc;
    double ms[KEPT];
    int count = 0;
    for (int i = 0; i < TILES; i++) {
        mica_config c;
        if (!make_config(d, device, i, &c)) continue;
        double t = predict(d, device, &c);
        count = mica_config_keep(out, ms, count, KEPT, &c, t);
    }
    int best = count;
    for (int knob = KNOB_PINGPONG; count && knob <= KNOB_CLAIM; knob++) {
        if (!out[0].knob[knob]) continue;
        out[count] = out[0];
        out[count++].knob[knob] = 0;
    }
    for (int i = 0; i < best; i++) {
        out[count] = out[i];
        if (!has_next_queries(d, device, &out[count])) continue;
        count++;
        if (out[i].knob[KNOB_GROUPS] != 2 || !out[i].knob[KNOB_PINGPONG]) continue;
        out[count] = out[count - 1];
        out[count++].knob[KNOB_PINGPONG] = 0;
    }
    return count;
}

/* ---- plans ---- */

static bool is_plain(const mica_attention_desc *d)
{
    return d->scale > 0 && d->soft_cap == 0 && !mica_tensor_given(&d->slopes) &&
           !mica_tensor_given(&d->bias) && !mica_tensor_given(&d->mask);
}

static void write_prologue(const mica_attention_desc *d, const mica_config *c, mica_text *p)
{
    int columns = columns_of(d), keys = c->knob[KNOB_KEYS];
    const struct {
        const char *name;
        int value;
    } constants[] = {
        {"GROUPS", c->knob[KNOB_GROUPS]},
        {"KEYS", keys},
        {"STAGES", c->knob[KNOB_STAGES]},
        {"QUERIES", c->knob[KNOB_QUERIES]},
        {"TURNS", c->knob[KNOB_PINGPONG]},
        {"CLAIMED", c->knob[KNOB_CLAIM]},
        {"D_STEPS", (int)ceiling(d->q.dims[3], 16)},
        {"D_CHUNKS", attention_sm90_chunks(2 * d->q.dims[3])},
        {"V_CHUNKS", attention_sm90_chunks(2 * d->v.dims[3])},
        {"SUMS", columns / 2},
        {"PACKED_Q", mica_tensor_given(&d->cu_q)},
        {"PACKED_K", mica_tensor_given(&d->cu_k)},
        {"COUNTED_Q", mica_tensor_given(&d->seq_q)},
        {"COUNTED_K", mica_tensor_given(&d->seq_k)},
        {"BOTTOM_RIGHT", d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT},
        {"PIECE", piece_of(d, c)},
        {"PLAIN", is_plain(d)},
        {"CAP", d->soft_cap > 0},
        {"ALIBI", mica_tensor_given(&d->slopes)},
        {"BIAS", mica_tensor_given(&d->bias)},
        {"MASK", mica_tensor_given(&d->mask)},
        {"SINKS", mica_tensor_given(&d->sinks)},
        {"LSE", mica_tensor_given(&d->lse)},
    };
    for (int i = 0; i < (int)(sizeof constants / sizeof *constants); i++)
        mica_prologue_int(p, constants[i].name, constants[i].value);
    mica_prologue_type(p, "in_t", d->q.dtype);
    mica_prologue_type(p, "out_t", d->out.dtype);
    mica_prologue_type(p, "sink_t", mica_tensor_given(&d->sinks) ? d->sinks.dtype : MICA_F32);
    mica_prologue_type(p, "bias_t", mica_tensor_given(&d->bias) ? d->bias.dtype : MICA_F32);
    mica_prologue_wgmma(p, "multiply_keys",
                        &(mica_wgmma){.n = keys, .a = d->q.dtype, .b = d->q.dtype});
    mica_prologue_wgmma(p, "multiply_values",
                        &(mica_wgmma){.n = columns,
                                      .a = d->q.dtype,
                                      .b = d->q.dtype,
                                      .b_mn_major = true,
                                      .a_in_registers = true});
}

static mica_status build(mica_plan *plan)
{
    const mica_attention_desc *d = plan->desc;
    const mica_config *c = &plan->config;
    const attention_sm90_tile tile = {c->knob[KNOB_GROUPS], c->knob[KNOB_KEYS], piece_of(d, c),
                                      c->knob[KNOB_CLAIM]};
    char text[16384];
    mica_text prologue = {text, sizeof text, 0};
    write_prologue(d, c, &prologue);
    return attention_sm90_build(plan, &tile,
                                &(mica_kernel_spec){.file = "ops/attention/sm90/sm90.cu",
                                                    .entry = "attention_sm90",
                                                    .prologue = text,
                                                    .dynamic_shared = shared_bytes(d, c)});
}

/* Weights below 2^-126 count as zero, as those of the gradients do. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)desc;
    (void)config;
    c->flushes = true;
}

const mica_engine mica_attention_sm90 = {.name = "sm90",
                                         .compile_ms = 1300,
                                         .cuda = true,
                                         .knobs = knobs,
                                         .accepts = accepts,
                                         .configs = configs,
                                         .predict = predict,
                                         .contract = contract,
                                         .build = build,
                                         .run = attention_sm90_run};
