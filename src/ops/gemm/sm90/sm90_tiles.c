/* SPDX-License-Identifier: Apache-2.0
 * gemm by `sm90`: what TMA can address, what a tile is made of, and what of c it can
 * store. */
#include "ops/gemm/sm90/sm90_tiles.h"

#include <limits.h>

enum {
    MAX_BATCH_RANK = 3,
    DEEP_BYTES = 512 /* of K, if they are more: with less, c is what takes time */
};

/* ---- what TMA can address ---- */

static mica_status check_operand(gemm_sm90_operand *o, const gemm_shape *s, const long long *batch,
                                 mica_why *why)
{
    MICA_TRY(gemm_sm90_check_operand(o, why));
    for (int i = 0; i < s->batch_rank; i++)
        if (batch[i])
            MICA_TRY(gemm_sm90_check_stride(o, "batch items", s->batch[i], batch[i], 0, why));
    return MICA_OK;
}

static void make_geometry(const mica_gemm_desc *d, gemm_sm90_geometry *g)
{
    *g = (gemm_sm90_geometry){.halves = d->gate == MICA_GEMM_GATE_HALVES};
    gemm_shape_make_full_epilogue(d, &g->shape, &g->extra);
    gemm_shape *s = &g->shape;
    if (d->gate) s->n *= 2;
    if (d->gate == MICA_GEMM_GATE_PAIRS) s->b_n /= 2;
    gemm_sm90_operand a = {"a", d->a.dtype, s->m, s->a_m, s->k, s->a_k, false, false};
    gemm_sm90_operand b = {"b", d->b.dtype, s->n, s->b_n, s->k, s->b_k, false, false};
    bool deep = s->k * gemm_sm90_bytes(d->a.dtype) > DEEP_BYTES;
    g->few = deep && !gemm_has_full_epilogue(d) && (s->m <= FEW ? s->m < s->n : s->n <= FEW);
    g->swapped = g->few ? s->m < s->n : s->c_n != 1 && s->n != 1 && (s->c_m == 1 || s->m == 1);
    bool across_k = !gemm_sm90_along_k(&a) || !gemm_sm90_along_k(&b);
    if (gemm_sm90_bytes(d->a.dtype) == 4 && across_k && !gemm_has_full_epilogue(d)) {
        g->few = false;
        g->swapped = gemm_sm90_along_k(&a);
        *(g->swapped ? &b.words : &a.words) = true;
    }
    g->a = g->swapped ? b : a;
    g->b = g->swapped ? a : b;
    g->a_batch = g->swapped ? s->b_batch : s->a_batch;
    g->b_batch = g->swapped ? s->a_batch : s->b_batch;
    g->c_m = g->swapped ? s->c_n : s->c_m;
    g->c_n = g->swapped ? s->c_m : s->c_n;
    g->r_m = g->swapped ? s->r_n : s->r_m;
    g->r_n = g->swapped ? s->r_m : s->r_n;
}

static mica_status check_types(const mica_gemm_desc *d, mica_why *why)
{
    if (gemm_has_blocks(d)) return mica_refuse(why, "scales of blocks: sm90_blocks takes them");
    return gemm_sm90_check_types(d, why);
}

static mica_status check_sizes(const mica_gemm_desc *d, const gemm_shape *s, mica_why *why)
{
    const long long limit = 1LL << 30;
    if (s->k == 0 || s->batches == 0) return mica_refuse(why, "the product is empty");
    if (s->m > limit || s->n > limit || s->k > limit)
        return mica_refuse(why, "M, N, K are %lld, %lld, %lld, the limit is 2^30", s->m, s->n,
                           s->k);
    if (mica_dtype_is_integer(d->a.dtype) && s->k > 65536)
        return mica_refuse(why, "K is %lld, sums of 65536 products fit 32 bits", s->k);
    if (s->batch_rank > MAX_BATCH_RANK)
        return mica_refuse(why, "%d batch dimensions, tensor maps hold %d", s->batch_rank,
                           MAX_BATCH_RANK);
    double tiles = ((double)s->m / 64 + 1) * ((double)s->n / 32 + 1) * (double)s->batches;
    if (tiles > INT_MAX) return mica_refuse(why, "%.3g tiles, the limit is 2^31", tiles);
    return MICA_OK;
}

mica_status gemm_sm90_plan_geometry(const mica_gemm_desc *d, gemm_sm90_geometry *g, mica_why *why)
{
    MICA_TRY(check_types(d, why));
    make_geometry(d, g);
    MICA_TRY(check_sizes(d, &g->shape, why));
    if (d->gate && g->swapped)
        return mica_refuse(why,
                           "c lies along its rows, gated pairs are finished along its columns");
    MICA_TRY(check_operand(&g->a, &g->shape, g->a_batch, why));
    MICA_TRY(check_operand(&g->b, &g->shape, g->b_batch, why));
    if (g->halves && g->b.mn_major && g->shape.n / 2 % 8)
        return mica_refuse(why,
                           "halves of %lld columns: the second begins at no multiple of 16 bytes",
                           g->shape.n / 2);
    return MICA_OK;
}

/* ---- tiles ---- */

int gemm_sm90_tile_rows(const mica_config *c)
{
    return c->knob[KNOB_LINES] ? c->knob[KNOB_LINES] : c->knob[KNOB_TILE_M];
}

int gemm_sm90_box(const mica_gemm_desc *d, const mica_config *c)
{
    int widest = LINE_BYTES / gemm_sm90_bytes(d->c.dtype), n = c->knob[KNOB_TILE_N];
    return n < widest ? n : widest;
}

bool gemm_sm90_by_registers(const gemm_sm90_geometry *g)
{
    return g->a.mn_major && gemm_sm90_bytes(g->a.dtype) == 4;
}

bool gemm_sm90_c_along_m(const gemm_sm90_geometry *g)
{
    return gemm_sm90_by_registers(g) && g->c_m == 1 && g->c_n != 1;
}

/* Whether TMA can load the residual as it stores c. */
static bool is_boxed(const mica_gemm_desc *d, const gemm_sm90_geometry *g)
{
    const gemm_shape *s = &g->shape;
    int bytes = gemm_sm90_bytes(d->c.dtype);
    if (!mica_tensor_given(&d->residual) || gemm_sm90_bytes(d->residual.dtype) != bytes ||
        gemm_epilogue_type(d) != MICA_F32 || gemm_sm90_c_along_m(g))
        return false;
    bool boxed =
        g->r_n == 1 && (g->a.lines == 1 || (g->r_m >= g->b.lines && g->r_m * bytes % 16 == 0));
    for (int i = 0; i < s->batch_rank; i++)
        boxed = boxed && s->r_batch[i] >= 0 && s->r_batch[i] * bytes % 16 == 0;
    return boxed;
}

static bool has_short_end(const mica_gemm_desc *d, const gemm_sm90_geometry *g)
{
    mica_gemm_desc rest = *d;
    int count = 0;
    for (int i = 0; i < MICA_MAX_STEPS; i++) {
        rest.epilogue[i] = 0;
        if (d->epilogue[i] != MICA_STEP_RESIDUAL || !is_boxed(d, g))
            rest.epilogue[count++] = d->epilogue[i];
    }
    return gemm_is_short(&rest);
}

int gemm_sm90_n_of_buffer(const mica_gemm_desc *d)
{
    return BUFFER_BYTES / ROWS_OF_GROUP / gemm_sm90_bytes(d->c.dtype);
}

/* Whether TMA can store c. */
static bool is_tiled(const mica_gemm_desc *d, const gemm_sm90_geometry *g, const mica_config *c)
{
    int bytes = gemm_sm90_bytes(d->c.dtype);
    const gemm_shape *s = &g->shape;
    bool along = gemm_sm90_c_along_m(g);
    long long rows = along ? g->b.lines : g->a.lines, columns = along ? g->a.lines : g->b.lines;
    long long row = along ? g->c_n : g->c_m;
    bool tiled = (along ? g->swapped : g->c_n == 1) && !gemm_has_full_epilogue(d) &&
                 (rows == 1 || (row >= columns && row * bytes % 16 == 0));
    /* TMA writes whole 16 bytes: a row of 10 would spoil what lies behind it. */
    tiled = tiled && columns * bytes % 16 == 0 && c->knob[KNOB_SPLIT] == 1 && !g->few;
    int box = gemm_sm90_box(d, c) * bytes;
    tiled = tiled &&
            (along ? c->knob[KNOB_TILE_N] % gemm_sm90_n_of_buffer(d) == 0 : (box & (box - 1)) == 0);
    for (int i = 0; i < s->batch_rank; i++)
        tiled = tiled && s->c_batch[i] > 0 && s->c_batch[i] * bytes % 16 == 0;
    return tiled;
}

/* The epilogue is short enough to be unrolled for all of them. */
static bool ends_in_boxes(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                          const mica_config *c)
{
    return is_tiled(d, g, c) && has_short_end(d, g);
}

static bool boxes_overlap(const mica_gemm_desc *d, const mica_config *c)
{
    return c->knob[KNOB_TILE_N] % gemm_sm90_box(d, c);
}

bool gemm_sm90_spoils_residual(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                               const mica_config *c)
{
    return ends_in_boxes(d, g, c) && mica_tensor_given(&d->residual) && boxes_overlap(d, c);
}

bool gemm_sm90_is_light(const mica_gemm_desc *d, const gemm_sm90_geometry *g, const mica_config *c)
{
    return ends_in_boxes(d, g, c) && !gemm_sm90_spoils_residual(d, g, c);
}

bool gemm_sm90_brings_residual(const mica_gemm_desc *d, const gemm_sm90_geometry *g,
                               const mica_config *c)
{
    return is_boxed(d, g) && gemm_sm90_is_light(d, g, c);
}

int gemm_sm90_groups(const mica_config *c)
{
    return c->knob[KNOB_PINGPONG] || c->knob[KNOB_TILE_M] > ROWS_OF_GROUP ? 2 : 1;
}

int gemm_sm90_ring_bytes(const mica_config *c)
{
    const int32_t *knob = c->knob;
    int slices = knob[KNOB_STAGES] * knob[KNOB_DEPTH];
    return (gemm_sm90_tile_rows(c) + knob[KNOB_TILE_N]) * LINE_BYTES * slices + 1024;
}

int gemm_sm90_buffers(const mica_config *c, const mica_device_info *device)
{
    int room = (int)device->shared_bytes - gemm_sm90_ring_bytes(c) - BARRIERS;
    int count = room / (gemm_sm90_groups(c) * BUFFER_BYTES);
    return count < MOST_BUFFERS ? count : MOST_BUFFERS;
}

long long gemm_sm90_fills(const gemm_sm90_geometry *g, const mica_config *c)
{
    int bytes = gemm_sm90_bytes(g->a.dtype);
    return ceiling(g->shape.k, c->knob[KNOB_DEPTH] * LINE_BYTES / bytes);
}
