/* SPDX-License-Identifier: Apache-2.0
 * Plans and runs of attention's engine sm90_bwd: lse and sums of dout out, then the kernels of the
 * config, then dq out of its sums where scores are formed once. */
#include "ops/attention/backward_sm90/backward.h"
#include "ops/access/access.h"

#include <math.h>

typedef struct launch {
    attention_sm90_bwd_args args; /* all but maps and pointers */
    mica_tensor_map_spec own_a, own_b, other_a, other_b, stats;
    int da_bytes, db_bytes; /* of alignment that vectors of results need; 0: they have none */
    attention_bwd_part part;
    mica_kernel *kernel;
    mica_grid grid;
} launch;

typedef struct state {
    attention_sm90_stats_args stats;
    int stats_bytes;
    mica_kernel *stats_kernel;
    mica_grid stats_grid;
    size_t stats_at;
    launch launches[ATTENTION_BWD_PARTS];
    int count;
    /* Where scores are formed once: dq out of its sums. */
    launch dq;
    size_t sums_at, turns_at;
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

static void write_constants(const mica_attention_desc *d, const attention_bwd_part *p,
                            const attention_bwd_tile *t, mica_text *text)
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
        {"ONCE", p->once},
        {"GROUPS", t->groups},
        {"LINES", t->lines},
        {"STAGES", t->stages},
        {"D_STEPS", (int)ceiling(columns, 16)},
        {"V_STEPS", (int)ceiling(wide, 16)},
        {"D_CHUNKS", attention_sm90_chunks(2 * columns)},
        {"V_CHUNKS", attention_sm90_chunks(2 * wide)},
        {"HELD_A", attention_bwd_held(columns)},
        {"HELD_B", attention_bwd_held(wide)},
        {"PACKED_OWN", mica_tensor_given(own.cu)},
        {"PACKED_OTHER", mica_tensor_given(other.cu)},
        {"COUNTED_OWN", mica_tensor_given(own.seq)},
        {"COUNTED_OTHER", mica_tensor_given(other.seq)},
        {"BOTTOM_RIGHT", d->align == MICA_ATTENTION_ALIGN_BOTTOM_RIGHT},
        {"PLAIN", attention_bwd_plain(d)},
        {"CAP", d->soft_cap > 0},
        {"ALIBI", mica_tensor_given(&d->slopes)},
    };
    for (int i = 0; i < (int)(sizeof constants / sizeof *constants); i++)
        mica_prologue_int(text, constants[i].name, constants[i].value);
    mica_prologue_type(text, "in_t", d->q.dtype);
    mica_prologue_type(text, "a_t", p->keys ? d->dk.dtype : d->dq.dtype);
    mica_prologue_type(text, "b_t", d->dv.dtype);
}

static void write_products(const mica_attention_desc *d, const attention_bwd_part *p,
                           const attention_bwd_tile *t, mica_text *text)
{
    int64_t columns = d->q.dims[3], wide = d->v.dims[3];
    mica_dtype in = d->q.dtype;
    mica_wgmma sum = {.a = in, .b = in, .b_mn_major = true, .a_in_registers = true};
    mica_prologue_wgmma(text, "multiply", &(mica_wgmma){.n = t->lines, .a = in, .b = in});
    sum.n = p->a ? 2 * attention_bwd_held(columns) : 8;
    mica_prologue_wgmma(text, "add_a", &sum);
    sum.n = p->b ? 2 * attention_bwd_held(wide) : 8;
    mica_prologue_wgmma(text, "add_b", &sum);
    if (!p->once) return;
    sum = (mica_wgmma){
        .n = ATTENTION_BWD_SUMS, .a = in, .b = in, .a_mn_major = true, .b_mn_major = true};
    mica_prologue_wgmma(text, "multiply_queries", &sum);
}

static void fill_side(const side *s, attention_sm90_side *to)
{
    attention_sm90_fill_source(s->a, &to->a);
    attention_sm90_fill_source(s->b, &to->b);
    to->cu.stride = s->cu->strides[0];
    to->seq.stride = s->seq->strides[0];
    to->rows = (int)s->a->dims[2];
}

static void fill_result(const mica_tensor *t, attention_sm90_result *r, int *bytes)
{
    for (int i = 0; i < 4; i++) r->stride[i] = t->strides[i];
    r->columns = (int)t->dims[3];
    *bytes = attention_sm90_vector_bytes(t);
}

/* Lines of f32 that TMA can address. */
static int64_t pitch_of(const mica_attention_desc *d)
{
    return ceiling(d->q.dims[2], 4) * 4;
}

/* Key heads side by side: as many as L2 holds queries, gradients of out and sums of dq of, but
 * several in any case: blocks of one head alone would begin faster than the serialised reduction
 * lets them add. Of 16k queries one head instead of eight takes 12 % longer where attention is
 * causal. Few jobs of unequal length: all heads, so that the longest jobs come first. */
static int section_of(const mica_attention_desc *d, int jobs, int units)
{
    const double held = 32e6;
    const int least = 8, most = 64, rounds = 8;
    double bytes = (double)(2 * (d->q.dims[3] + d->v.dims[3]) + 4 * d->q.dims[3]);
    double rows = (double)d->q.dims[2] * (double)d->q.dims[1] / (double)larger(d->k.dims[1], 1);
    if (d->causal != MICA_ATTENTION_NOT_CAUSAL && jobs < rounds * units) return jobs;
    return (int)fmin(fmax(held / (bytes * rows + 1), least), most);
}

static void fill_launch(const mica_attention_desc *d, const attention_bwd_part *p,
                        const attention_bwd_tile *t, launch *l)
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
                          .dynamic_shared = (unsigned)attention_bwd_shared(d, p, t)};
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
    int out_bytes = attention_sm90_vector_bytes(&d->out);
    st->stats_bytes = out_bytes == attention_sm90_vector_bytes(&d->dout) ? out_bytes : 0;
    st->stats_grid =
        (mica_grid){.grid = {(unsigned)ceiling(a->count, ATTENTION_BWD_THREADS / lanes)},
                    .block = {ATTENTION_BWD_THREADS}};
    char text[256];
    mica_text prologue = {text, sizeof text, 0};
    mica_prologue_int(&prologue, "LANES", lanes);
    mica_prologue_type(&prologue, "out_t", d->out.dtype);
    mica_prologue_type(&prologue, "dout_t", d->dout.dtype);
    MICA_TRY(
        mica_book(plan, "lse and dout out", (size_t)(lines * 2 * a->pitch) * 4, &st->stats_at));
    return mica_plan_add_kernel(plan,
                                &(mica_kernel_spec){.file = "ops/attention/sm90/sm90_stats.cu",
                                                    .entry = "attention_sm90_stats",
                                                    .prologue = text},
                                &st->stats_kernel);
}

/* ---- sums of dq ---- */

/* Tiles of sums of a head: packed sequences may have a last tile each. */
static int64_t sum_tiles(const mica_attention_desc *d, const attention_bwd_tile *t)
{
    attention_shape s;
    attention_shape_make(d, &s);
    int64_t rows = d->q.dims[2];
    return mica_tensor_given(&d->cu_q) ? rows / t->lines + s.sequences + 1
                                       : ceiling(rows, t->lines);
}

/* Blocks that stay, and how they take jobs. */
static void fill_once(const mica_plan *plan, const attention_bwd_tile *t, launch *l)
{
    int units = plan->device.units;
    l->args.jobs = (int)l->grid.grid[0];
    l->args.section = section_of(plan->desc, l->args.jobs, units);
    l->args.sum_tiles = sum_tiles(plan->desc, t);
    l->grid.grid[0] = (unsigned)smaller(l->args.jobs, units);
}

static mica_status add_dq(mica_plan *plan, state *s, const attention_bwd_tile *t)
{
    const mica_attention_desc *d = plan->desc;
    const attention_bwd_part queries = {.a = true};
    const attention_bwd_tile own = {t->lines / ATTENTION_SM90_CHUNK, t->lines, 1};
    int64_t parts = t->groups, count = sum_tiles(d, t) * parts * d->q.dims[0] * d->q.dims[1];
    char text[1024];
    mica_text prologue = {text, sizeof text, 0};
    fill_launch(d, &queries, &own, &s->dq);
    s->dq.args.sum_tiles = sum_tiles(d, t);
    s->dq.grid.block[0] = 128 * (unsigned)parts;
    s->dq.grid.dynamic_shared = 0;
    s->stats.clears = count + 1;
    write_constants(d, &queries, &own, &prologue);
    mica_prologue_int(&prologue, "PARTS", (int)parts);
    size_t bytes = (size_t)count * ATTENTION_BWD_SUMS * ATTENTION_BWD_SUMS * 4;
    MICA_TRY(mica_book(plan, "sums of dq", bytes, &s->sums_at));
    MICA_TRY(mica_book(plan, "turns", (size_t)s->stats.clears * 4, &s->turns_at));
    return mica_plan_add_kernel(
        plan,
        &(mica_kernel_spec){.file = "ops/attention/backward_sm90/backward_dq.cu",
                            .entry = "attention_sm90_bwd_dq",
                            .prologue = text},
        &s->dq.kernel);
}

mica_status attention_bwd_build(mica_plan *plan)
{
    const mica_attention_desc *d = plan->desc;
    state *s;
    attention_bwd_part parts[ATTENTION_BWD_PARTS];
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    MICA_TRY(add_stats(plan, s));
    s->count = attention_bwd_parts(&plan->config, parts);
    for (int i = 0; i < s->count; i++) {
        char text[24576];
        mica_text prologue = {text, sizeof text, 0};
        attention_bwd_tile t = attention_bwd_tile_of(&plan->config, &parts[i]);
        fill_launch(d, &parts[i], &t, &s->launches[i]);
        write_constants(d, &parts[i], &t, &prologue);
        write_products(d, &parts[i], &t, &prologue);
        mica_kernel_spec spec = {.file = "ops/attention/backward_sm90/backward.cu",
                                 .entry = "attention_sm90_bwd",
                                 .prologue = text,
                                 .dynamic_shared = attention_bwd_shared(d, &parts[i], &t)};
        if (parts[i].once) {
            fill_once(plan, &t, &s->launches[i]);
            spec.file = "ops/attention/backward_sm90/backward_once.cu";
            spec.entry = "attention_sm90_bwd_once";
        }
        MICA_TRY(mica_plan_add_kernel(plan, &spec, &s->launches[i].kernel));
        if (parts[i].once) MICA_TRY(add_dq(plan, s, &t));
    }
    return MICA_OK;
}

/* ---- runs ---- */

static mica_status bind_side(const mica_plan *plan, const mica_tensor_map_spec *a,
                             const mica_tensor_map_spec *b, bool keys, bool mapped,
                             const mica_run *r, attention_sm90_side *to)
{
    void *const *args = r->args;
    void *a_data = args[keys ? MICA_ATTENTION_K : MICA_ATTENTION_Q];
    void *b_data = args[keys ? MICA_ATTENTION_V : MICA_ATTENTION_DOUT];
    to->a.data = a_data;
    to->b.data = b_data;
    to->cu.data = args[keys ? MICA_ATTENTION_CU_K : MICA_ATTENTION_CU_Q];
    to->seq.data = args[keys ? MICA_ATTENTION_SEQ_K : MICA_ATTENTION_SEQ_Q];
    if (!mapped) return MICA_OK;
    MICA_TRY(mica_tensor_map_encode(plan->cuda, a, a_data, &to->map_a));
    return mica_tensor_map_encode(plan->cuda, b, b_data, &to->map_b);
}

/* Sums of dq and what counts them; NULL where there are none. */
static int *turns_of(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    return s->dq.kernel ? mica_at(r, s->turns_at) : NULL;
}

static mica_status run_part(const mica_plan *plan, const launch *l, float *stats, const mica_run *r)
{
    const state *s = plan->state;
    attention_sm90_bwd_args a = l->args;
    if (s->dq.kernel) {
        a.sums = mica_at(r, s->sums_at);
        a.turns = turns_of(plan, r);
        a.claims = a.turns + s->stats.clears - 1;
    }
    bool keys = l->part.keys;
    uintptr_t pointers =
        (uintptr_t)r->args[MICA_ATTENTION_Q] | (uintptr_t)r->args[MICA_ATTENTION_K] |
        (uintptr_t)r->args[MICA_ATTENTION_V] | (uintptr_t)r->args[MICA_ATTENTION_DOUT];
    a.direct = pointers % 16 != 0;
    bool mapped = !a.direct && l != &s->dq; /* that one reads no tiles */
    MICA_TRY(bind_side(plan, &l->own_a, &l->own_b, keys, mapped, r, &a.own));
    MICA_TRY(bind_side(plan, &l->other_a, &l->other_b, !keys, mapped, r, &a.other));
    if (keys) MICA_TRY(mica_tensor_map_encode(plan->cuda, &l->stats, stats, &a.stats_map));
    a.stats = stats;
    a.slopes = r->args[MICA_ATTENTION_SLOPES];
    a.da.data = r->args[keys ? MICA_ATTENTION_DK : MICA_ATTENTION_DQ];
    a.db.data = r->args[MICA_ATTENTION_DV];
    a.da.whole = mica_access_starts(a.da.data, l->da_bytes);
    a.db.whole = mica_access_starts(a.db.data, l->db_bytes);
    return mica_kernel_launch(l->kernel, &l->grid, r->stream, &a);
}

mica_status attention_bwd_run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    attention_sm90_stats_args a = s->stats;
    a.out = r->args[MICA_ATTENTION_OUT];
    a.dout = r->args[MICA_ATTENTION_DOUT];
    a.lse = r->args[MICA_ATTENTION_LSE];
    a.to = mica_at(r, s->stats_at);
    a.cleared = turns_of(plan, r);
    a.whole =
        mica_access_starts(a.out, s->stats_bytes) && mica_access_starts(a.dout, s->stats_bytes);
    MICA_TRY(mica_kernel_launch(s->stats_kernel, &s->stats_grid, r->stream, &a));
    for (int i = 0; i < s->count; i++) MICA_TRY(run_part(plan, &s->launches[i], a.to, r));
    return s->dq.kernel ? run_part(plan, &s->dq, a.to, r) : MICA_OK;
}
