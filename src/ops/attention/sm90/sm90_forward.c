/* SPDX-License-Identifier: Apache-2.0
 * Forward on Hopper for operands of 16 and of 8 bits: what is asked of a problem, how it falls into
 * jobs, what kernels receive. */
#include "ops/attention/sm90/sm90_forward.h"

#include <math.h>

/* ---- limits ---- */

static mica_status check_lengths(const attention_shape *s, mica_why *why)
{
    double heads = (double)s->sequences * (double)s->heads;
    if (s->sequences < 1) return mica_refuse(why, "there are no sequences");
    if (s->rows >= ATTENTION_SM90_LENGTH || s->keys >= ATTENTION_SM90_LENGTH)
        return mica_refuse(why, "%lld queries and %lld keys, the limit is 2^29", (long long)s->rows,
                           (long long)s->keys);
    double tiles = ((double)s->rows / ATTENTION_SM90_CHUNK + 1) * heads + heads;
    if (tiles >= 1 << 30) return mica_refuse(why, "%.3g tiles of rows, the limit is 2^30", tiles);
    return MICA_OK;
}

mica_status attention_sm90_check_all(const mica_attention_desc *d, const mica_device_info *device,
                                     mica_why *why)
{
    attention_shape s;
    if (device->arch != 90)
        return mica_refuse(why, "the device is sm_%d, the kernels are sm_90's", device->arch);
    MICA_TRY(attention_sm90_check(&d->q, "q", why));
    MICA_TRY(attention_sm90_check(&d->k, "k", why));
    MICA_TRY(attention_sm90_check(&d->v, "v", why));
    attention_shape_make(d, &s);
    if (d->k.dims[0] >= ATTENTION_SM90_LENGTH)
        return mica_refuse(why, "k has %lld pages or batch items, the limit is 2^29",
                           (long long)d->k.dims[0]);
    return check_lengths(&s, why);
}

/* ---- jobs ---- */

double attention_sm90_pairs(const mica_attention_desc *d)
{
    double flops = 0, bytes = 0;
    mica_op_attention.cost(d, &flops, &bytes);
    return flops / (2 * (double)(d->q.dims[3] + d->v.dims[3]));
}

bool attention_sm90_jobs_differ(const mica_attention_desc *d)
{
    return d->causal != MICA_ATTENTION_NOT_CAUSAL || d->window_left || d->window_right ||
           mica_tensor_given(&d->cu_q) || mica_tensor_given(&d->cu_k) ||
           mica_tensor_given(&d->seq_q) || mica_tensor_given(&d->seq_k);
}

/* Rows of a sequence as they are expected. */
static double length_of(const mica_attention_desc *d, const attention_shape *s)
{
    return (double)s->rows / (mica_tensor_given(&d->cu_q) ? (double)s->sequences : 1);
}

/* A compared border costs more than others. */
double attention_sm90_tiles_of_job(const mica_attention_desc *d, double rows, double keys)
{
    const double border = 0.2;
    attention_shape s;
    attention_shape_make(d, &s);
    double lines = (double)s.sequences * (double)s.heads;
    double seen = attention_sm90_pairs(d) / (lines * length_of(d, &s));
    /* Rows end at multiples of what both sizes have in common: half of what that leaves of a tile.
     */
    double left = (keys - (double)gcd((int64_t)rows, (int64_t)keys)) / (2 * keys);
    if (attention_sm90_jobs_differ(d))
        return (seen + rows / 2) / keys + left + border * ceil(rows / keys);
    return ceil(seen / keys) + (fmod(seen, keys) > 0 ? border : 0);
}

double attention_sm90_full_jobs(const mica_attention_desc *d, double rows)
{
    attention_shape s;
    attention_shape_make(d, &s);
    return (double)s.sequences * (double)s.heads * ceil(length_of(d, &s) / rows);
}

/* The shorter of the two shows a little: configs are not alike where memory takes longer. */
double attention_sm90_beside_memory(const mica_attention_desc *d, const mica_device_info *device,
                                    double ms)
{
    const double shown = 0.05;
    double memory = mica_op_bytes(&mica_op_attention, d) / (0.85 * device->copy_gbps * 1e6);
    return fmax(ms, memory) + shown * fmin(ms, memory);
}

/* Packed sequences may have a last tile each, and so the rows before and behind them. */
int64_t attention_sm90_jobs(const mica_attention_desc *d, int groups)
{
    attention_shape s;
    attention_shape_make(d, &s);
    int64_t tiles = ceiling(s.rows, groups * ATTENTION_SM90_CHUNK);
    if (mica_tensor_given(&d->cu_q)) return (tiles + s.sequences + 2) * s.heads;
    return tiles * d->q.dims[0] * d->q.dims[1];
}

/* ---- arguments ---- */

static void fill_scores(const mica_tensor *t, attention_sm90_scores *s)
{
    if (!mica_tensor_given(t)) return;
    for (int i = 0; i < 4; i++) s->stride[i] = t->dims[i] == 1 ? 0 : t->strides[i];
}

static long long factor_stride(const mica_tensor *t)
{
    return mica_tensor_given(t) && t->dims[0] > 1 ? t->strides[0] : 0;
}

/* Heads whose rows are jobs side by side, whole groups. Jobs that are alike: one group, whose keys
 * all blocks read at about the same time. Jobs that differ: as many as give each block one, so that
 * those left at the end are short, or up to twice as many where that divides all heads; no more
 * than L2 holds. With many heads all their keys come from memory at once and then for a while none:
 * 16k tokens in sequences of 512 took an eighth longer with as many as L2 holds. */
static int section_of(const mica_attention_desc *d, const attention_shape *s, int row_tiles,
                      const mica_device_info *device)
{
    if (!attention_sm90_jobs_differ(d)) return (int)s->group;
    const double nearly_all = 0.95, part_of_cache = 0.5;
    double size = mica_dtype_bits(d->k.dtype) / 8.0;
    double bytes = size * (double)s->keys * (double)(s->d + s->dv);
    double fit = fmax(floor(part_of_cache * (double)device->cache_bytes / bytes), 1);
    double jobs = fmax((double)row_tiles * (double)s->group, 1); /* of a group */
    int64_t all = d->q.dims[0] * d->q.dims[1] / s->group;
    int64_t least = (int64_t)ceil(nearly_all * device->units / jobs), groups = least;
    while (groups < 2 * least && all % groups) groups++;
    if (groups == 2 * least) groups = least;
    return (int)(fmin((double)groups, fit) * (double)s->group);
}

static void fill_strides(const mica_attention_desc *d, attention_sm90_args *a)
{
    for (int i = 0; i < 4; i++) a->out_stride[i] = d->out.strides[i];
    for (int i = 0; i < 3; i++) a->lse_stride[i] = d->lse.strides[i];
    a->cu_q.stride = d->cu_q.strides[0];
    a->cu_k.stride = d->cu_k.strides[0];
    a->seq_q.stride = d->seq_q.strides[0];
    a->seq_k.stride = d->seq_k.strides[0];
    a->slopes_stride = d->slopes.strides[0];
    a->sinks_stride = d->sinks.strides[0];
    fill_scores(&d->bias, &a->bias);
    fill_scores(&d->mask, &a->mask);
    a->scale_q.stride = factor_stride(&d->scale_q);
    a->scale_k.stride = factor_stride(&d->scale_k);
    a->scale_v.stride = factor_stride(&d->scale_v);
    a->pages.stride[0] = d->pages.strides[0];
    a->pages.stride[1] = d->pages.strides[1];
    a->pages.count = (int)d->pages.dims[1];
    a->pages.size = (int)d->k.dims[2];
    a->pages.pool = (int)d->k.dims[0];
}

static void fill_args(const mica_attention_desc *d, const attention_sm90_tile *tile,
                      const mica_device_info *device, attention_sm90_forward *f)
{
    attention_sm90_args *a = &f->args;
    attention_shape s;
    attention_shape_make(d, &s);
    int rows = tile->groups * ATTENTION_SM90_CHUNK;
    fill_strides(d, a);
    a->sequences = (int)s.sequences;
    a->heads = (int)s.heads;
    a->group = (int)s.group;
    a->rows = (int)s.rows;
    a->keys = (int)s.keys;
    a->row_tiles = (int)ceiling(s.rows, rows);
    a->tiles = (int)(a->row_tiles * d->q.dims[0] * d->q.dims[1]);
    a->section = section_of(d, &s, a->row_tiles, device);
    a->left = attention_sm90_far(d->window_left);
    a->right = d->causal != MICA_ATTENTION_NOT_CAUSAL ? 1 : attention_sm90_far(d->window_right);
    a->dv = (int)s.dv;
    /* Biases may be numbers that LOG2E times them leaves f32 with: their scores stay as they are.
     */
    const double unit = mica_tensor_given(&d->bias) ? 1 : LOG2E;
    a->scale = (float)(d->scale * unit);
    a->cap = (float)(d->soft_cap * unit);
    a->cap_inverse = d->soft_cap > 0 ? (float)(2 * LOG2E / unit / d->soft_cap) : 0;
    attention_sm90_fill_source(&d->q, &a->q_source);
    attention_sm90_fill_source(&d->k, &a->k_source);
    attention_sm90_fill_source(&d->v, &a->v_source);
    int at_once = tile->piece ? tile->piece : tile->keys;
    attention_sm90_map(&d->q, ATTENTION_SM90_CHUNK, &f->q);
    attention_sm90_map(&d->k, at_once, &f->k);
    attention_sm90_map(&d->v, at_once, &f->v);
    f->out_bytes = attention_sm90_vector_bytes(&d->out);
    int64_t jobs = attention_sm90_jobs(d, tile->groups);
    f->grid = (mica_grid){.grid = {(unsigned)(jobs < device->units ? jobs : device->units)},
                          .block = {128 * ((unsigned)tile->groups + 1)}};
}

/* ---- plans ---- */

mica_status attention_sm90_build(mica_plan *plan, const attention_sm90_tile *tile,
                                 const mica_kernel_spec *kernel)
{
    attention_sm90_forward *f;
    MICA_TRY(mica_plan_state(plan, sizeof *f, &f));
    fill_args(plan->desc, tile, &plan->device, f);
    f->grid.dynamic_shared = (unsigned)kernel->dynamic_shared;
    MICA_TRY(mica_plan_add_kernel(plan, kernel, &f->kernel));
    if (!tile->claimed) return MICA_OK;
    mica_kernel_spec none = {"ops/attention/sm90/sm90_claims.cu", "attention_sm90_claims", "", 0};
    MICA_TRY(mica_book(plan, "jobs taken", sizeof(int), &f->claims));
    return mica_plan_add_kernel(plan, &none, &f->no_claims);
}

static void bind_pointers(const mica_run *r, attention_sm90_args *a)
{
    a->out = r->args[MICA_ATTENTION_OUT];
    a->lse = r->args[MICA_ATTENTION_LSE];
    a->cu_q.data = r->args[MICA_ATTENTION_CU_Q];
    a->cu_k.data = r->args[MICA_ATTENTION_CU_K];
    a->seq_q.data = r->args[MICA_ATTENTION_SEQ_Q];
    a->seq_k.data = r->args[MICA_ATTENTION_SEQ_K];
    a->pages.data = r->args[MICA_ATTENTION_PAGES];
    a->slopes = r->args[MICA_ATTENTION_SLOPES];
    a->sinks = r->args[MICA_ATTENTION_SINKS];
    a->bias.data = r->args[MICA_ATTENTION_BIAS];
    a->mask.data = r->args[MICA_ATTENTION_MASK];
    a->scale_q.data = r->args[MICA_ATTENTION_SCALE_Q];
    a->scale_k.data = r->args[MICA_ATTENTION_SCALE_K];
    a->scale_v.data = r->args[MICA_ATTENTION_SCALE_V];
}

mica_status attention_sm90_run(const mica_plan *plan, const mica_run *r)
{
    const attention_sm90_forward *f = plan->state;
    attention_sm90_args a = f->args;
    void *q = r->args[MICA_ATTENTION_Q], *k = r->args[MICA_ATTENTION_K],
         *v = r->args[MICA_ATTENTION_V];
    a.direct = ((uintptr_t)q | (uintptr_t)k | (uintptr_t)v) % 16 != 0;
    if (!a.direct) {
        MICA_TRY(mica_tensor_map_encode(plan->cuda, &f->q, q, &a.q));
        MICA_TRY(mica_tensor_map_encode(plan->cuda, &f->k, k, &a.k));
        MICA_TRY(mica_tensor_map_encode(plan->cuda, &f->v, v, &a.v));
    }
    a.q_source.data = q;
    a.k_source.data = k;
    a.v_source.data = v;
    bind_pointers(r, &a);
    a.whole = f->out_bytes && (uintptr_t)a.out % (uintptr_t)f->out_bytes == 0;
    if (f->no_claims) {
        a.claims = mica_at(r, f->claims);
        const attention_sm90_claims_args none = {a.claims};
        const mica_grid one = {.block = {32}};
        MICA_TRY(mica_kernel_launch(f->no_claims, &one, r->stream, &none));
    }
    return mica_kernel_launch(f->kernel, &f->grid, r->stream, &a);
}
