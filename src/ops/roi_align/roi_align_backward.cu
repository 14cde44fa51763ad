/* SPDX-License-Identifier: Apache-2.0
 * Gradient of x, gathered, without atomics: a block has TILE_H x TILE_W elements of a plane, and GROUP channels to a
 * thread. It goes through all regions in order, BLOCK at a time, and through the bins of those that reach its tile;
 * what its rows and columns weigh in each bin is found once for all of them. dx is written once; dy of a region is
 * read by each tile that it reaches, from the cache. With LANES > 1 neighbouring threads have neighbouring
 * channels. Constants beside those of roi_align.cuh: TILE_H, TILE_W, LANES, GROUP; types x_t. */
#include "ops/roi_align/roi_align.cuh"

constexpr int BINS = 16, WARPS = BLOCK / 32, EDGE = TILE_H > TILE_W ? TILE_H : TILE_W;
static_assert(TILE_H * TILE_W * LANES == BLOCK, "a thread has an element");

struct tables_t {
    real weight[2][BINS][EDGE];
    u32 bins[2][EDGE]; /* those that read a row or column */
    u32 hits[WARPS];   /* regions that reach the tile */
};

/* Whether a region may read elements from first to end; true without need by some elements and by what is rounded
 * on the way. */
INLINE bool reaches(const mica_roi_align_args &a, real low, real high, s64 first, s64 end)
{
    const real unit = sizeof(real) == 4 ? (real)0x1p-23 : (real)0x1p-52;
    const real from = low * (real)a.scale, to = high * (real)a.scale;
    const real more = 4 + 16 * unit * (abs_of(from) + abs_of(to));
    const real least = (from < to ? from : to) - more, most = (from < to ? to : from) + more;
    return !(least > (real)end || most < (real)first);
}

INLINE bool may_reach(const mica_roi_align_args &a, s64 k, s64 n, s64 h0, s64 w0)
{
    real corner[4];
    if (picture_of(a, k, corner) != n) return false;
    return reaches(a, corner[1], corner[3], h0, h0 + TILE_H) && reaches(a, corner[0], corner[2], w0, w0 + TILE_W);
}

/* Of bins from `bin` on, what the rows (axis 0) and columns of the tile weigh; all threads of the block. */
INLINE void fill_tables(const region_t &r, s64 h0, s64 w0, s64 bin_h, s64 bin_w, real share, tables_t &t)
{
    __syncthreads(); /* what was there has been used */
    for (int i = (int)threadIdx.x; i < TILE_H + TILE_W; i += BLOCK) t.bins[i >= TILE_H][i >= TILE_H ? i - TILE_H : i] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < BINS * (TILE_H + TILE_W); i += BLOCK) {
        const int b = i / (TILE_H + TILE_W), e = i % (TILE_H + TILE_W), axis = e >= TILE_H;
        const int place = axis ? e - TILE_H : e;
        const roi_axis &a = r.axis[axis];
        const s64 bin = (axis ? bin_w : bin_h) + b, cell = (axis ? w0 : h0) + place;
        if (bin >= a.bins || cell >= a.size) continue;
        s64 first, end;
        roi_weights w;
        roi_span(MODE, &a, bin, &first, &end);
        if (cell < first || cell >= end || (!POOL && !roi_weigh(&a, bin, cell, &w))) continue;
        t.weight[axis][b][place] = POOL ? (real)1 : axis ? w.sum : w.sum * share;
        atomicOr(&t.bins[axis][place], 1u << b);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(BLOCK) roi_align_backward(const mica_roi_align_args a)
{
    __shared__ tables_t t;
    __shared__ region_t r;
    __shared__ real share;
    overlap_wait();
    const int lane = (int)threadIdx.x % LANES, place = (int)threadIdx.x / LANES;
    const int row = place / TILE_W, column = place % TILE_W;
    const u32 tiles_w = (u32)((a.w + TILE_W - 1) / TILE_W), tiles = (u32)((a.h + TILE_H - 1) / TILE_H) * tiles_w;
    const u32 groups = (u32)((a.c + GROUP * LANES - 1) / (GROUP * LANES)), i = blockIdx.x / groups;
    const s64 group = blockIdx.x % groups, n = i / tiles;
    const s64 h0 = (s64)(i % tiles / tiles_w) * TILE_H, w0 = (s64)(i % tiles % tiles_w) * TILE_W;
    const s64 c = (group * LANES + lane) * GROUP, h = h0 + row, w = w0 + column;
    const bool mine = h < a.h && w < a.w && c < a.c;
    const int some = !mine ? 0 : a.c - c < GROUP ? (int)(a.c - c) : GROUP;
    const bool whole = a.whole && some == GROUP;
    const x_t *dy = (const x_t *)a.dy + c * a.y_step.c;
    const argmax_t *argmax = (const argmax_t *)a.argmax + c * a.argmax_step.c;
    real sum[GROUP];
#pragma unroll
    for (int e = 0; e < GROUP; e++) sum[e] = 0;
    for (s64 first = 0; first < a.k; first += BLOCK) {
        const s64 own = first + (s64)threadIdx.x;
        const bool hit = own < a.k && may_reach(a, own, n, h0, w0);
        const u32 hits = __ballot_sync(0xffffffffu, hit);
        if (threadIdx.x % 32 == 0) t.hits[threadIdx.x / 32] = hits;
        __syncthreads();
        for (int warp = 0; warp < WARPS; warp++) {
            for (u32 left = t.hits[warp]; left; left &= left - 1) {
                const s64 k = first + warp * 32 + __ffs((int)left) - 1;
                __syncthreads(); /* the one before has been used */
                if (threadIdx.x == 0) r = region_of(a, k), share = 1 / r.count;
                __syncthreads();
                for (s64 bin_h = 0; bin_h < a.bins_h; bin_h += BINS)
                    for (s64 bin_w = 0; bin_w < a.bins_w; bin_w += BINS) {
                        fill_tables(r, h0, w0, bin_h, bin_w, share, t);
                        if (!mine) continue;
                        for (u32 rows = t.bins[0][row]; rows; rows &= rows - 1) {
                            const int ph = __ffs((int)rows) - 1;
                            for (u32 columns = t.bins[1][column]; columns; columns &= columns - 1) {
                                const int pw = __ffs((int)columns) - 1;
                                const real weight = t.weight[0][ph][row] * t.weight[1][pw][column];
                                const s64 bh = bin_h + ph, bw = bin_w + pw;
                                const x_t *from = dy + k * a.y_step.n + bh * a.y_step.h + bw * a.y_step.w;
                                const argmax_t *at =
                                    argmax + k * a.argmax_step.n + bh * a.argmax_step.h + bw * a.argmax_step.w;
                                x_t v[GROUP];
                                if constexpr (LANES > 1) {
                                    load_some<GROUP>(from, v, some, whole);
                                } else {
#pragma unroll
                                    for (int e = 0; e < GROUP; e++)
                                        if (e < some) v[e] = from[e * a.y_step.c];
                                }
#pragma unroll
                                for (int e = 0; e < GROUP; e++) {
                                    if (e >= some) continue;
                                    if (POOL && (s64)at[e * a.argmax_step.c] != h * a.w + w) continue;
                                    sum[e] += weight * widen<real>(v[e]);
                                }
                            }
                        }
                    }
            }
        }
        __syncthreads(); /* hits have been read */
    }
    if (!mine) return;
    x_t out[GROUP];
#pragma unroll
    for (int e = 0; e < GROUP; e++) out[e] = narrow<x_t>(sum[e]);
    x_t *dx = (x_t *)a.dx + n * a.x_step.n + c * a.x_step.c + h * a.x_step.h + w * a.x_step.w;
    if constexpr (LANES > 1) {
        store_some<GROUP>(dx, out, some, whole);
    } else {
#pragma unroll
        for (int e = 0; e < GROUP; e++)
            if (e < some) dx[e * a.x_step.c] = out[e];
    }
}
