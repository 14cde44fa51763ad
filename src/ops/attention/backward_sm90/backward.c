/* SPDX-License-Identifier: Apache-2.0
 * attention backward on Hopper's tensor cores, fed by TMA: f16 and bf16, heads of up to
 * 256. Heads of up to 128 columns without a soft cap have one kernel for all gradients: it keeps
 * keys, adds up dk and dv over the queries that pass by, and sums of dq in memory, block after
 * block in the order of the keys. Others have two kernels without sums in memory: one keeps keys,
 * one keeps queries and adds up dq; both form the weights again from lse, so that there are seven
 * products instead of five. Where sums of dk and dv do not fit the registers together (more than
 * 192 columns), a kernel each, eight products. The bits are always the same. Cost: D = Dv = 128
 * needs 1280 operations a pair of a query and a key, at the 840 TFLOP/s that an H200's bf16
 * products sustain 1.5 ps: 16k tokens of 16 heads, all pairs, 6.5 ms, causal 3.3 ms. */
#include "ops/attention/backward_sm90/backward.h"

#include <limits.h>
#include <math.h>

/* Warpgroups, others of a tile and stages of the kernels that keep queries and keys. Kernels: one
 * for all gradients, two, or three, dk and dv apart. */
enum {
    KNOB_Q_GROUPS,
    KNOB_Q_LINES,
    KNOB_Q_STAGES,
    KNOB_K_GROUPS,
    KNOB_K_LINES,
    KNOB_K_STAGES,
    KNOB_KERNELS
};
static const char *const knobs[] = {"q_groups", "q_lines",  "q_stages", "k_groups",
                                    "k_lines",  "k_stages", "kernels",  NULL};

/* OTHER_SHARED: barriers and jobs, at most. */
enum { OTHER_SHARED = 288, MOST_STAGES = 4 };

/* ---- the kernels of a pass ---- */

int attention_bwd_parts(const mica_config *c, attention_bwd_part *p)
{
    bool apart = c->knob[KNOB_KERNELS] == 3;
    int count = 0;
    if (c->knob[KNOB_KERNELS] == 1) {
        p[count++] = (attention_bwd_part){.keys = true, .a = true, .b = true, .once = true};
        return count;
    }
    p[count++] = (attention_bwd_part){.keys = false, .a = true};
    p[count++] = (attention_bwd_part){.keys = true, .a = true, .b = !apart};
    if (apart) p[count++] = (attention_bwd_part){.keys = true, .b = true};
    return count;
}

attention_bwd_tile attention_bwd_tile_of(const mica_config *c, const attention_bwd_part *p)
{
    const int32_t *k = c->knob + (p->keys ? KNOB_K_GROUPS : KNOB_Q_GROUPS);
    return (attention_bwd_tile){k[0], k[1], k[2]};
}

int attention_bwd_held(int64_t columns)
{
    return (int)ceiling(columns, 8) * 4;
}

/* Of a tile's lse and sums of dout out, aligned for TMA. */
static int stats_bytes(const attention_bwd_tile *t)
{
    return (int)ceiling(2 * 4 * (t->lines + ATTENTION_SM90_SLACK), 128) * 128;
}

int attention_bwd_shared(const mica_attention_desc *d, const attention_bwd_part *p,
                         const attention_bwd_tile *t)
{
    int a = attention_sm90_chunks(2 * d->q.dims[3]), b = attention_sm90_chunks(2 * d->v.dims[3]);
    int own = (a + (p->a ? b : 0)) * t->groups * ATTENTION_SM90_CHUNK * ATTENTION_SM90_ROW;
    int stage = (a + b) * t->lines * ATTENTION_SM90_ROW + (p->keys ? stats_bytes(t) : 0);
    /* Gradients of scores twice, sums of dq. */
    if (p->once)
        own += t->groups *
               (2 * t->lines * ATTENTION_SM90_ROW + ATTENTION_BWD_SUMS * ATTENTION_BWD_SUMS * 4);
    return own + t->stages * stage + 1024;
}

bool attention_bwd_plain(const mica_attention_desc *d)
{
    return d->soft_cap == 0 && !mica_tensor_given(&d->slopes);
}

/* Products and sums of a thread, and weights as an operand beside gradients of weights; what else
 * it holds was found by compiling, so that nothing is spilled. */
static bool fits_registers(const mica_attention_desc *d, const attention_bwd_part *p,
                           const attention_bwd_tile *t)
{
    static const int room[] = {0, 208, 208, 128};
    int held = (p->a ? 2 : 1) * t->lines / 2;
    if (p->once) {
        int chunks = attention_sm90_chunks(2 * d->q.dims[3]);
        int sums = attention_bwd_held(d->q.dims[3]) + attention_bwd_held(d->v.dims[3]);
        return t->groups == 2 && chunks * t->lines == 2 * ATTENTION_BWD_SUMS &&
               sums + t->lines <= 192 && d->soft_cap == 0;
    }
    if (p->a) held += attention_bwd_held(d->q.dims[3]);
    if (p->b) held += attention_bwd_held(d->v.dims[3]) + t->lines / 4;
    return held <= room[t->groups] - (attention_bwd_plain(d) ? 0 : 16);
}

static bool fits(const mica_attention_desc *d, const mica_device_info *device,
                 const attention_bwd_part *p, const attention_bwd_tile *t)
{
    return fits_registers(d, p, t) &&
           attention_bwd_shared(d, p, t) + OTHER_SHARED <= (int)device->shared_bytes;
}

/* As many stages as there is room for. */
static bool choose_stages(const mica_attention_desc *d, const mica_device_info *device,
                          const attention_bwd_part *p, attention_bwd_tile *t)
{
    t->stages = MOST_STAGES;
    while (t->stages > 2 && !fits(d, device, p, t)) t->stages--;
    return fits(d, device, p, t);
}

/* ---- what is taken ---- */

static mica_status check_features(const mica_attention_desc *d, mica_why *why)
{
    mica_dtype t = d->q.dtype;
    if (d->pass != MICA_ATTENTION_BWD) return mica_refuse(why, "pass is fwd, this engine does bwd");
    if ((t != MICA_F16 && t != MICA_BF16) || d->k.dtype != t || d->v.dtype != t ||
        d->dout.dtype != t)
        return mica_refuse(why, "q is %s, k %s, v %s, dout %s; taken are f16 or bf16 alike",
                           mica_dtype_name(t), mica_dtype_name(d->k.dtype),
                           mica_dtype_name(d->v.dtype), mica_dtype_name(d->dout.dtype));
    if (d->dropout != 0)
        return mica_refuse(why, "dropout is %g, this engine drops nothing", d->dropout);
    if (mica_tensor_given(&d->bias) || mica_tensor_given(&d->mask))
        return mica_refuse(why, "scores have a %s, this engine knows caps and slopes only",
                           mica_tensor_given(&d->bias) ? "bias" : "mask");
    if (mica_tensor_given(&d->dsinks))
        return mica_refuse(why, "dsinks is wanted, this engine gives dq, dk and dv only");
    return MICA_OK;
}

static mica_status check_lengths(const attention_shape *s, mica_why *why)
{
    double lines = (double)s->sequences * (double)s->heads;
    if (s->sequences < 1) return mica_refuse(why, "there are no sequences");
    if (s->rows >= ATTENTION_SM90_LENGTH || s->keys >= ATTENTION_SM90_LENGTH)
        return mica_refuse(why, "%lld queries and %lld keys, the limit is 2^29", (long long)s->rows,
                           (long long)s->keys);
    double longest = fmax((double)s->rows, (double)s->keys);
    double tiles = (longest / ATTENTION_SM90_CHUNK + 3) * lines + 2 * (double)s->heads;
    if (tiles >= INT_MAX) return mica_refuse(why, "%.3g tiles of rows, the limit is 2^31", tiles);
    double blocks = (double)s->rows * lines * 32 / ATTENTION_BWD_THREADS;
    if (blocks >= INT_MAX)
        return mica_refuse(why, "%.3g rows of all heads, the limit is 2^34", blocks * 8);
    return MICA_OK;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out);

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_attention_desc *d = desc;
    attention_shape s;
    mica_config c[MICA_MAX_CONFIGS];
    if (device->arch != 90)
        return mica_refuse(why, "the device is sm_%d, the kernels are sm_90's", device->arch);
    MICA_TRY(attention_check_corner(d, why));
    MICA_TRY(check_features(d, why));
    MICA_TRY(attention_sm90_check(&d->q, "q", why));
    MICA_TRY(attention_sm90_check(&d->k, "k", why));
    MICA_TRY(attention_sm90_check(&d->v, "v", why));
    MICA_TRY(attention_sm90_check(&d->dout, "dout", why));
    attention_shape_make(d, &s);
    MICA_TRY(check_lengths(&s, why));
    if (configs(d, device, c) == 0)
        return mica_refuse(why, "no tile of D = %lld, Dv = %lld fits shared memory of %lld bytes",
                           (long long)s.d, (long long)s.dv, (long long)device->shared_bytes);
    return MICA_OK;
}

/* ---- configs ---- */

/* Pairs of a query and a key as the cost sees them. */
static double pairs_of(const mica_attention_desc *d)
{
    double flops = 0, bytes = 0;
    mica_op_attention.cost(d, &flops, &bytes);
    return flops / (6 * (double)d->q.dims[3] + 4 * (double)d->v.dims[3]);
}

/* Tiles of the other side that a job sees: those of each head are apart, a border wastes half a
 * tile. Where every block has one job, the longest counts. */
static double tiles_of_job(const mica_attention_desc *d, const attention_shape *s,
                           const attention_bwd_part *p, double rows, double lines, bool alone)
{
    double heads = p->keys ? (double)s->group : 1;
    double own = (double)(p->keys ? s->keys : s->rows),
           other = (double)(p->keys ? s->rows : s->keys);
    if (mica_tensor_given(p->keys ? &d->cu_k : &d->cu_q)) own /= (double)s->sequences;
    if (mica_tensor_given(p->keys ? &d->cu_q : &d->cu_k)) other /= (double)s->sequences;
    double all = (double)s->sequences * (double)s->heads * fmax(own, 1);
    double seen = pairs_of(d) / all, most = fmax(ceil(other / lines), 1);
    if (!alone || seen >= other) return heads * fmin(fmax(seen / lines + 0.5, 1), most);
    double window = (double)d->window_left + (double)d->window_right;
    return heads * ceil(window > 0 ? fmin(other, window + rows) / lines : most);
}

/* Of a tile, products or the rest, whichever take longer, and a part of the others. Constants
 * fitted to an H200: 222 configs of 24 random lines, of which it is 11 per cent off in the mean.
 * One kernel for all: its warpgroups meet in each tile, so that more of a tile is seen. */
static double part_ms(const mica_attention_desc *d, const mica_device_info *device,
                      const attention_bwd_part *p, const attention_bwd_tile *t)
{
    const double job_ms = p->once ? 4.6e-3 : 3.6e-3, operations = 4096, score_cycles = 0.0945;
    const double visible = p->once ? 0.5 : 0.35, tile_cycles = p->once ? 1300 : 275;
    attention_shape s;
    attention_shape_make(d, &s);
    double rows = 64.0 * t->groups, units = device->units;
    double lines = (double)s.sequences * (double)(p->keys ? s.kv_heads : s.heads);
    double length = (double)(p->keys ? s.keys : s.rows);
    if (mica_tensor_given(p->keys ? &d->cu_k : &d->cu_q)) length /= (double)s.sequences;
    double jobs = lines * fmax(1, ceil(length / rows));
    double depth = ceil((double)s.d / 16) * 16, wide = ceil((double)s.dv / 16) * 16;
    double columns = depth + (p->a ? wide + depth : 0) + (p->b ? wide : 0);
    double products = rows * t->lines * columns * 2 / operations,
           scores = rows * t->lines * score_cycles;
    if (p->once) products += rows * t->lines * depth * 2 / operations;
    double cycles = tile_cycles + fmax(products, scores) +
                    (t->groups > 1 ? visible : 1) * fmin(products, scores);
    double clock = device->bf16_tflops * 1e9 / (operations * units); /* per ms */
    double tiles = tiles_of_job(d, &s, p, rows, t->lines, jobs <= units);
    double rounds = jobs <= units ? 1 : jobs / units + 0.8;
    return rounds * (tiles * cycles / clock + job_ms);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    const double launch_ms = 1.2e-3, once_ms = 3e-3, dq_ms = 2.4e-3;
    const mica_attention_desc *d = desc;
    attention_bwd_part parts[ATTENTION_BWD_PARTS];
    int count = attention_bwd_parts(c, parts);
    double bandwidth = 0.85 * device->copy_gbps * 1e6; /* bytes per ms */
    double sum = 0;
    for (int i = 0; i < count; i++) {
        attention_bwd_tile t = attention_bwd_tile_of(c, &parts[i]);
        sum += (parts[i].once ? once_ms : launch_ms) + part_ms(d, device, &parts[i], &t);
    }
    if (parts[0].once) /* dq out of its sums */
        sum += dq_ms + 6 * (double)mica_tensor_count(&d->q) / bandwidth;
    return fmax(sum, mica_op_bytes(&mica_op_attention, d) / bandwidth);
}

/* Weights below 2^-126 count as zero: the exponential of f32 would take four instructions instead
 * of one. */
static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)desc;
    (void)config;
    c->flushes = true;
}

/* What does not fit is left out. */
static const int shapes[][2] = {{2, 144}, {2, 112}, {2, 80}, {2, 64}, {2, 48}, {2, 32}, {1, 64}};
enum { SHAPES = sizeof shapes / sizeof *shapes, KEPT = 2 };

/* The model's best tiles of a kernel: others would only be compiled and timed for nothing. */
static int best_tiles(const mica_attention_desc *d, const mica_device_info *device,
                      const attention_bwd_part *p, mica_config *out)
{
    double ms[KEPT];
    int count = 0;
    for (int i = 0; i < SHAPES; i++) {
        attention_bwd_tile t = {.groups = shapes[i][0], .lines = shapes[i][1]};
        if (!choose_stages(d, device, p, &t)) continue;
        double own = part_ms(d, device, p, &t);
        mica_config c = {{t.groups, t.lines, t.stages}};
        count = mica_config_keep(out, ms, count, KEPT, &c, own);
    }
    return count;
}

/* The best tiles of both kernels, and one of them changed at a time. */
static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    const mica_attention_desc *d = desc;
    mica_config q[KEPT], k[KEPT];
    const attention_bwd_part queries = {.a = true};
    attention_bwd_part keys = {.keys = true, .a = true, .b = true};
    int count_q = best_tiles(d, device, &queries, q), count_k = best_tiles(d, device, &keys, k);
    if (count_k == 0) {
        keys.b = false;
        count_k = best_tiles(d, device, &keys, k);
    }
    if (count_q == 0 || count_k == 0) return 0;
    int count = 0;
    for (int i = 0; i < count_q + count_k - 1; i++) {
        const int32_t *a = q[i < count_q ? i : 0].knob;
        const int32_t *b = k[i < count_q ? 0 : i - count_q + 1].knob;
        out[count++] = (mica_config){{a[0], a[1], a[2], b[0], b[1], b[2], keys.b ? 2 : 3}};
    }
    const attention_bwd_part all = {.keys = true, .a = true, .b = true, .once = true};
    for (int lines = 64; lines <= 128; lines += 64) {
        attention_bwd_tile t = {.groups = 2, .lines = lines};
        if (choose_stages(d, device, &all, &t))
            out[count++] = (mica_config){{0, 0, 0, t.groups, t.lines, t.stages, 1}};
    }
    return count;
}

const mica_engine mica_attention_sm90_bwd = {.name = "sm90_bwd",
                                             .compile_ms = 1300,
                                             .cuda = true,
                                             .knobs = knobs,
                                             .accepts = accepts,
                                             .configs = configs,
                                             .predict = predict,
                                             .contract = contract,
                                             .build = attention_bwd_build,
                                             .run = attention_bwd_run};
