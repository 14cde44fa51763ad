/* SPDX-License-Identifier: Apache-2.0
 * attention backward on Hopper's tensor cores, fed by the copy engine: f16 and bf16, heads of up to
 * 256. Two kernels without atomics: one keeps keys and adds up dk and dv over the queries that pass
 * by, one keeps queries and adds up dq; both form the weights again from lse, so that there are
 * seven products instead of the five of a single kernel, but no f32 sums in memory and always the
 * same bits. Where sums of dk and dv do not fit the registers together (heads of more than 192
 * columns), a kernel each, eight products. Cost: D = Dv = 128 needs 1792 operations a pair of a
 * query and a key, at the 840 TFLOP/s that an H200's bf16 products sustain 2.1 ps: 16k tokens of 16
 * heads, all pairs, 9.2 ms, causal 4.6 ms. */
#include "ops/attention/attention.h"
#include "ops/attention/attention_sm90_bwd_args.h"
#include "ops/attention/attention_sm90_shape.h"

#include <limits.h>
#include <math.h>

/* Warpgroups, others of a tile and stages of the kernels that keep queries and keys; apart: dk and
 * dv by a kernel each. */
enum {
    KNOB_Q_GROUPS,
    KNOB_Q_LINES,
    KNOB_Q_STAGES,
    KNOB_K_GROUPS,
    KNOB_K_LINES,
    KNOB_K_STAGES,
    KNOB_APART
};
static const char *const knobs[] = {"q_groups", "q_lines",  "q_stages", "k_groups",
                                    "k_lines",  "k_stages", "apart",    NULL};

enum { OTHER_SHARED = 256, STATS_THREADS = 256, MOST_STAGES = 4 };

/* ---- the kernels of a pass ---- */

/* Which sums a kernel has, of the side that stays. */
typedef struct part {
    bool keys, a, b;
} part;

enum { MOST_PARTS = 3 };

static int parts_of(const mica_config *c, part *p)
{
    int count = 0;
    p[count++] = (part){.keys = false, .a = true};
    p[count++] = (part){.keys = true, .a = true, .b = !c->knob[KNOB_APART]};
    if (c->knob[KNOB_APART]) p[count++] = (part){.keys = true, .b = true};
    return count;
}

/* A kernel's tile. */
typedef struct tile {
    int groups, lines, stages;
} tile;

static tile tile_of(const mica_config *c, const part *p)
{
    const int32_t *k = c->knob + (p->keys ? KNOB_K_GROUPS : KNOB_Q_GROUPS);
    return (tile){k[0], k[1], k[2]};
}

/* Registers for the sums of so many columns. */
static int held_of(int64_t columns)
{
    return (int)ceiling(columns, 8) * 4;
}

/* Of a tile's lse and sums of dout out, aligned for the copy engine. */
static int stats_bytes(const tile *t)
{
    return (int)ceiling(2 * 4 * (t->lines + ATTENTION_SM90_SLACK), 128) * 128;
}

static int shared_bytes(const mica_attention_desc *d, const part *p, const tile *t)
{
    int a = attention_sm90_chunks(2 * d->q.dims[3]), b = attention_sm90_chunks(2 * d->v.dims[3]);
    int own = (a + (p->a ? b : 0)) * t->groups * ATTENTION_SM90_CHUNK * ATTENTION_SM90_ROW;
    int stage = (a + b) * t->lines * ATTENTION_SM90_ROW + (p->keys ? stats_bytes(t) : 0);
    return own + t->stages * stage + 1024;
}

static bool is_plain(const mica_attention_desc *d)
{
    return d->soft_cap == 0 && !mica_tensor_given(&d->slopes);
}

/* Products and sums of a thread, and weights as an operand beside gradients of weights; what else
 * it holds was found by compiling, so that nothing is spilled. */
static bool fits_registers(const mica_attention_desc *d, const part *p, const tile *t)
{
    static const int room[] = {0, 208, 208, 128};
    int held = (p->a ? 2 : 1) * t->lines / 2;
    if (p->a) held += held_of(d->q.dims[3]);
    if (p->b) held += held_of(d->v.dims[3]) + t->lines / 4;
    return held <= room[t->groups] - (is_plain(d) ? 0 : 16);
}

static bool fits(const mica_attention_desc *d, const mica_device_info *device, const part *p,
                 const tile *t)
{
    return fits_registers(d, p, t) &&
           shared_bytes(d, p, t) + OTHER_SHARED <= (int)device->shared_bytes;
}

/* As many stages as there is room for. */
static bool choose_stages(const mica_attention_desc *d, const mica_device_info *device,
                          const part *p, tile *t)
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
    double blocks = (double)s->rows * lines * 32 / STATS_THREADS;
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

/* Of a tile, products or the rest, whichever take longer, and a part of the others; a border wastes
 * half a tile of each job. Constants fitted to an H200, where of 10 lines 9 came out within 10 %:
 * 474 TFLOP/s (16k tokens, heads of 128), 298 (512 tokens, where beginning jobs counts). */
static double part_ms(const mica_attention_desc *d, const mica_device_info *device, const part *p,
                      const tile *t)
{
    const double job_ms = 4.5e-3, visible = 0.35, tile_cycles = 250, operations = 4096;
    const double score_cycles = 0.085;
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
    double cycles = tile_cycles + fmax(products, scores) +
                    (t->groups > 1 ? visible : 1) * fmin(products, scores);
    double clock = device->bf16_tflops * 1e9 / (operations * units); /* per ms */
    double tiles = pairs_of(d) / (lines * fmax(length, 1) * t->lines) + 0.5;
    double rounds = jobs <= units ? 1 : jobs / units + 0.5;
    return rounds * (tiles * cycles / clock + job_ms);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    const double launch_ms = 3e-3;
    const mica_attention_desc *d = desc;
    part parts[MOST_PARTS];
    int count = parts_of(c, parts);
    double memory = mica_op_bytes(&mica_op_attention, d) / (0.85 * device->copy_gbps * 1e6),
           sum = 0;
    for (int i = 0; i < count; i++) {
        tile t = tile_of(c, &parts[i]);
        sum += launch_ms + part_ms(d, device, &parts[i], &t);
    }
    return launch_ms + fmax(sum, memory);
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
static int best_tiles(const mica_attention_desc *d, const mica_device_info *device, const part *p,
                      mica_config *out)
{
    double ms[KEPT];
    int count = 0;
    for (int i = 0; i < SHAPES; i++) {
        tile t = {.groups = shapes[i][0], .lines = shapes[i][1]};
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
    const part queries = {.a = true};
    part keys = {.keys = true, .a = true, .b = true};
    int count_q = best_tiles(d, device, &queries, q), count_k = best_tiles(d, device, &keys, k);
    if (count_k == 0) {
        keys.b = false;
        count_k = best_tiles(d, device, &keys, k);
    }
    if (count_q == 0 || count_k == 0) return 0;
    for (int i = 0; i < count_q + count_k - 1; i++) {
        const int32_t *a = q[i < count_q ? i : 0].knob;
        const int32_t *b = k[i < count_q ? 0 : i - count_q + 1].knob;
        out[i] = (mica_config){{a[0], a[1], a[2], b[0], b[1], b[2], !keys.b}};
    }
    return count_q + count_k - 1;
}

/* ---- plans ---- */

typedef struct launch {
    attention_sm90_bwd_args args; /* all but maps and pointers */
    mica_tensor_map_spec own_a, own_b, other_a, other_b, stats;
    int da_bytes, db_bytes; /* of alignment that vectors of results need; 0: they have none */
    part part;
    mica_kernel *kernel;
    mica_grid grid;
} launch;

typedef struct state {
    attention_sm90_stats_args stats;
    int stats_bytes;
    mica_kernel *stats_kernel;
    mica_grid stats_grid;
    size_t stats_at;
    launch launches[MOST_PARTS];
    int count;
} state;

/* Where both sides are in the descriptor. */
typedef struct side {
    const mica_tensor *a, *b, *cu, *seq;
} side;

static side side_of(const mica_attention_desc *d, bool keys)
{
    return keys ? (side){&d->k, &d->v, &d->cu_k, &d->seq_k}
                : (side){&d->q, &d->dout, &d->cu_q, &d->seq_q};
}

static void write_prologue(const mica_attention_desc *d, const part *p, const tile *t,
                           mica_text *text)
{
    side own = side_of(d, p->keys), other = side_of(d, !p->keys);
    int64_t columns = d->q.dims[3], wide = d->v.dims[3];
    const struct {
        const char *name;
        int value;
    } constants[] = {
        {"KEYS", p->keys},
        {"SUM_A", p->a},
        {"SUM_B", p->b},
        {"GROUPS", t->groups},
        {"LINES", t->lines},
        {"STAGES", t->stages},
        {"D_STEPS", (int)ceiling(columns, 16)},
        {"V_STEPS", (int)ceiling(wide, 16)},
        {"D_CHUNKS", attention_sm90_chunks(2 * columns)},
        {"V_CHUNKS", attention_sm90_chunks(2 * wide)},
        {"HELD_A", held_of(columns)},
        {"HELD_B", held_of(wide)},
        {"PACKED_OWN", mica_tensor_given(own.cu)},
        {"PACKED_OTHER", mica_tensor_given(other.cu)},
        {"COUNTED_OWN", mica_tensor_given(own.seq)},
        {"COUNTED_OTHER", mica_tensor_given(other.seq)},
        {"BOTTOM_RIGHT", d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT},
        {"PLAIN", is_plain(d)},
        {"CAP", d->soft_cap > 0},
        {"ALIBI", mica_tensor_given(&d->slopes)},
    };
    for (int i = 0; i < (int)(sizeof constants / sizeof *constants); i++)
        mica_prologue_int(text, constants[i].name, constants[i].value);
    mica_prologue_type(text, "in_t", d->q.dtype);
    mica_prologue_type(text, "a_t", p->keys ? d->dk.dtype : d->dq.dtype);
    mica_prologue_type(text, "b_t", d->dv.dtype);
    mica_dtype in = d->q.dtype;
    mica_wgmma sum = {.a = in, .b = in, .b_mn_major = true, .a_in_registers = true};
    mica_prologue_wgmma(text, "multiply", &(mica_wgmma){.n = t->lines, .a = in, .b = in});
    sum.n = p->a ? 2 * held_of(columns) : 8;
    mica_prologue_wgmma(text, "add_a", &sum);
    sum.n = p->b ? 2 * held_of(wide) : 8;
    mica_prologue_wgmma(text, "add_b", &sum);
}

static void fill_side(const side *s, attention_sm90_side *to)
{
    attention_sm90_fill_source(s->a, &to->a);
    attention_sm90_fill_source(s->b, &to->b);
    to->cu.stride = s->cu->strides[0];
    to->seq.stride = s->seq->strides[0];
    to->rows = (int)s->a->dims[2];
}

/* Rows that may be taken as vectors of 8 elements, if they are aligned. */
static bool is_whole(const mica_tensor *t)
{
    bool whole = t->strides[3] == 1 && t->dims[3] % 8 == 0;
    for (int i = 0; i < 3; i++) whole = whole && (t->dims[i] == 1 || t->strides[i] % 8 == 0);
    return whole;
}

static void fill_result(const mica_tensor *t, attention_sm90_result *r, int *bytes)
{
    for (int i = 0; i < 4; i++) r->stride[i] = t->strides[i];
    r->columns = (int)t->dims[3];
    *bytes = is_whole(t) ? 16 : 0;
}

/* Lines of f32 that the copy engine can address. */
static int64_t pitch_of(const mica_attention_desc *d)
{
    return ceiling(d->q.dims[2], 4) * 4;
}

static void fill_launch(const mica_attention_desc *d, const part *p, const tile *t, launch *l)
{
    attention_sm90_bwd_args *a = &l->args;
    side own = side_of(d, p->keys), other = side_of(d, !p->keys);
    attention_shape s;
    attention_shape_make(d, &s);
    int rows = t->groups * ATTENTION_SM90_CHUNK;
    l->part = *p;
    fill_side(&own, &a->own);
    fill_side(&other, &a->other);
    attention_sm90_map(own.a, rows, &l->own_a);
    attention_sm90_map(own.b, rows, &l->own_b);
    attention_sm90_map(other.a, t->lines, &l->other_a);
    attention_sm90_map(other.b, t->lines, &l->other_b);
    fill_result(p->keys ? &d->dk : &d->dq, &a->da, &l->da_bytes);
    fill_result(&d->dv, &a->db, &l->db_bytes);
    a->pitch = pitch_of(d);
    l->stats = (mica_tensor_map_spec){.dtype = MICA_F32,
                                      .rank = 2,
                                      .dims = {s.rows, 2 * d->q.dims[0] * s.heads},
                                      .stride_bytes = {4, a->pitch * 4},
                                      .box = {(uint32_t)t->lines + ATTENTION_SM90_SLACK, 2}};
    a->slopes_stride = d->slopes.strides[0];
    a->sequences = (int)s.sequences;
    a->heads = (int)(p->keys ? s.kv_heads : s.heads);
    a->group = (int)s.group;
    a->tiles = (int)ceiling(own.a->dims[2], rows);
    int left = attention_sm90_far(d->window_left),
        right = d->causal != MICA_ATTENTION_NOT_CAUSAL ? 1 : attention_sm90_far(d->window_right);
    a->low = p->keys ? right : left;
    a->high = p->keys ? left : right;
    a->scale = (float)d->scale;
    a->cap = (float)d->soft_cap;
    a->cap_inverse = d->soft_cap > 0 ? (float)(2 * LOG2E / d->soft_cap) : 0;
    /* Packed sequences may have a last tile each, and so the rows before and behind them. */
    int64_t jobs = a->tiles * own.a->dims[0] * a->heads;
    if (mica_tensor_given(own.cu)) jobs += (s.sequences + 2) * a->heads;
    l->grid = (mica_grid){.grid = {(unsigned)jobs},
                          .block = {128 * ((unsigned)t->groups + 1)},
                          .dynamic_shared = (unsigned)shared_bytes(d, p, t)};
}

/* ---- lse and sums of dout out ---- */

static int lanes_of(const mica_attention_desc *d)
{
    int lanes = 1;
    while (lanes * 8 < d->v.dims[3]) lanes *= 2;
    return lanes;
}

static mica_status add_stats(mica_plan *plan, state *st)
{
    const mica_attention_desc *d = plan->desc;
    attention_sm90_stats_args *a = &st->stats;
    int64_t lines = d->q.dims[0] * d->q.dims[1];
    int lanes = lanes_of(d);
    a->rows = d->q.dims[2];
    a->count = lines * a->rows;
    a->pitch = pitch_of(d);
    a->heads = (int)d->q.dims[1];
    a->columns = (int)d->v.dims[3];
    for (int i = 0; i < 4; i++) {
        a->out_stride[i] = d->out.strides[i];
        a->dout_stride[i] = d->dout.strides[i];
        if (i < 3) a->lse_stride[i] = d->lse.strides[i];
    }
    st->stats_bytes = is_whole(&d->out) && is_whole(&d->dout) ? 16 : 0;
    st->stats_grid = (mica_grid){.grid = {(unsigned)ceiling(a->count, STATS_THREADS / lanes)},
                                 .block = {STATS_THREADS}};
    char text[256];
    mica_text prologue = {text, sizeof text, 0};
    mica_prologue_int(&prologue, "LANES", lanes);
    mica_prologue_type(&prologue, "out_t", d->out.dtype);
    mica_prologue_type(&prologue, "dout_t", d->dout.dtype);
    MICA_TRY(
        mica_book(plan, "lse and dout out", (size_t)(lines * 2 * a->pitch) * 4, &st->stats_at));
    return mica_plan_add_kernel(plan,
                                &(mica_kernel_spec){.file = "ops/attention/attention_sm90_stats.cu",
                                                    .entry = "attention_sm90_stats",
                                                    .prologue = text},
                                &st->stats_kernel);
}

static mica_status build(mica_plan *plan)
{
    const mica_attention_desc *d = plan->desc;
    state *s;
    part parts[MOST_PARTS];
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    MICA_TRY(add_stats(plan, s));
    s->count = parts_of(&plan->config, parts);
    for (int i = 0; i < s->count; i++) {
        char text[24576];
        mica_text prologue = {text, sizeof text, 0};
        tile t = tile_of(&plan->config, &parts[i]);
        fill_launch(d, &parts[i], &t, &s->launches[i]);
        write_prologue(d, &parts[i], &t, &prologue);
        MICA_TRY(mica_plan_add_kernel(
            plan,
            &(mica_kernel_spec){.file = "ops/attention/attention_sm90_bwd.cu",
                                .entry = "attention_sm90_bwd",
                                .prologue = text,
                                .dynamic_shared = shared_bytes(d, &parts[i], &t)},
            &s->launches[i].kernel));
    }
    return MICA_OK;
}

/* ---- runs ---- */

static mica_status bind_side(const mica_plan *plan, const mica_tensor_map_spec *a,
                             const mica_tensor_map_spec *b, bool keys, bool direct,
                             const mica_run *r, attention_sm90_side *to)
{
    void *const *args = r->args;
    void *a_data = args[keys ? MICA_ATTENTION_K : MICA_ATTENTION_Q];
    void *b_data = args[keys ? MICA_ATTENTION_V : MICA_ATTENTION_DOUT];
    to->a.data = a_data;
    to->b.data = b_data;
    to->cu.data = args[keys ? MICA_ATTENTION_CU_K : MICA_ATTENTION_CU_Q];
    to->seq.data = args[keys ? MICA_ATTENTION_SEQ_K : MICA_ATTENTION_SEQ_Q];
    if (direct) return MICA_OK;
    MICA_TRY(mica_tensor_map_encode(plan->cuda, a, a_data, &to->map_a));
    return mica_tensor_map_encode(plan->cuda, b, b_data, &to->map_b);
}

static bool is_aligned(const void *p, int bytes)
{
    return bytes && (uintptr_t)p % (uintptr_t)bytes == 0;
}

static mica_status run_part(const mica_plan *plan, const launch *l, float *stats, const mica_run *r)
{
    attention_sm90_bwd_args a = l->args;
    bool keys = l->part.keys;
    uintptr_t pointers =
        (uintptr_t)r->args[MICA_ATTENTION_Q] | (uintptr_t)r->args[MICA_ATTENTION_K] |
        (uintptr_t)r->args[MICA_ATTENTION_V] | (uintptr_t)r->args[MICA_ATTENTION_DOUT];
    a.direct = pointers % 16 != 0;
    MICA_TRY(bind_side(plan, &l->own_a, &l->own_b, keys, a.direct, r, &a.own));
    MICA_TRY(bind_side(plan, &l->other_a, &l->other_b, !keys, a.direct, r, &a.other));
    if (keys) MICA_TRY(mica_tensor_map_encode(plan->cuda, &l->stats, stats, &a.stats_map));
    a.stats = stats;
    a.slopes = r->args[MICA_ATTENTION_SLOPES];
    a.da.data = r->args[keys ? MICA_ATTENTION_DK : MICA_ATTENTION_DQ];
    a.db.data = r->args[MICA_ATTENTION_DV];
    a.da.whole = is_aligned(a.da.data, l->da_bytes);
    a.db.whole = is_aligned(a.db.data, l->db_bytes);
    return mica_kernel_launch(l->kernel, &l->grid, r->stream, &a);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    attention_sm90_stats_args a = s->stats;
    a.out = r->args[MICA_ATTENTION_OUT];
    a.dout = r->args[MICA_ATTENTION_DOUT];
    a.lse = r->args[MICA_ATTENTION_LSE];
    a.to = mica_at(r, s->stats_at);
    a.whole = is_aligned(a.out, s->stats_bytes) && is_aligned(a.dout, s->stats_bytes);
    MICA_TRY(mica_kernel_launch(s->stats_kernel, &s->stats_grid, r->stream, &a));
    for (int i = 0; i < s->count; i++) MICA_TRY(run_part(plan, &s->launches[i], a.to, r));
    return MICA_OK;
}

const mica_engine mica_attention_sm90_bwd = {.name = "sm90_bwd",
                                             .cuda = true,
                                             .knobs = knobs,
                                             .accepts = accepts,
                                             .configs = configs,
                                             .predict = predict,
                                             .contract = contract,
                                             .build = build,
                                             .run = run};
