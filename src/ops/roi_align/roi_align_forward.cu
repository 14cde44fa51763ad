/* SPDX-License-Identifier: Apache-2.0
 * Bins of regions. A block has a region and CHUNK channels of it: it weighs the elements of each bin once, by axis,
 * into tables, then its threads go through bins and GROUP channels, each weight read from there for all of them.
 * Neighbouring threads have neighbouring bins, or, with CHANNELS_LAST, neighbouring channels, so that y is written
 * whole. A bin of b x b elements reads (b + 1)^2, once; samples would read up to 4 (2 b)^2. The floor is y, written
 * once, and what of x regions cover, from the second-level cache where they overlap. Constants beside those of
 * roi_align.cuh: CHANNELS_LAST, GROUP, CHUNK, ARGMAX, TABLE (weights of an axis); types
 * x_t, item_t (bins times channels of a block). */
#include "ops/roi_align/roi_align.cuh"

constexpr int SPANS = 64;

struct tables_t {
    s64 first[2][SPANS], end[2][SPANS];
    real weight[2][TABLE]; /* below 0: not read */
    int width[2];          /* the most elements of a bin */
};

INLINE s64 from_of(const roi_axis &a, s64 bin, s64 *end)
{
    s64 first;
    roi_span(MODE, &a, bin, &first, end);
    return first;
}

/* Whether the bins of both axes fit tables; all threads of the block. */
INLINE bool fill_tables(const region_t &r, tables_t &t)
{
    if (r.axis[0].bins > SPANS || r.axis[1].bins > SPANS) return false;
    if (threadIdx.x < 2) t.width[threadIdx.x] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 2 * SPANS; i += BLOCK) {
        const int axis = i / SPANS, bin = i % SPANS;
        const roi_axis &a = r.axis[axis];
        if (bin >= a.bins) continue;
        s64 end;
        const s64 first = from_of(a, bin, &end);
        t.first[axis][bin] = first, t.end[axis][bin] = end;
        atomicMax(&t.width[axis], end - first < TABLE ? (int)(end - first) : TABLE);
    }
    __syncthreads();
    const int high = t.width[0], wide = t.width[1];
    if (POOL) return true;
    if (high * r.axis[0].bins > TABLE || wide * r.axis[1].bins > TABLE) return false;
    const int rows = high * (int)r.axis[0].bins, all = rows + wide * (int)r.axis[1].bins;
    for (int i = (int)threadIdx.x; i < all; i += BLOCK) {
        const int axis = i >= rows, at = axis ? i - rows : i, width = axis ? wide : high, bin = at / width;
        const s64 cell = t.first[axis][bin] + at % width;
        roi_weights w;
        const bool read = cell < t.end[axis][bin] && roi_weigh(&r.axis[axis], bin, cell, &w);
        t.weight[axis][at] = read ? w.sum : (real)-1;
    }
    __syncthreads();
    return true;
}

/* What a thread has of a bin and GROUP channels. */
struct found_t {
    real value[GROUP];
    s64 at[GROUP]; /* -1: nothing yet */
};

INLINE void visit(found_t &f, const x_t *x, const mica_roi_align_args &a, int some, bool whole, const roi_weights &h,
                  const roi_weights &w, s64 at)
{
    x_t v[GROUP];
    if constexpr (CHANNELS_LAST) {
        load_some<GROUP>(x, v, some, whole);
    } else {
#pragma unroll
        for (int e = 0; e < GROUP; e++)
            if (e < some) v[e] = x[e * a.x_step.c];
    }
    const real weight = h.sum * w.sum;
#pragma unroll
    for (int e = 0; e < GROUP; e++) {
        if (e >= some) continue;
        const real element = widen<real>(v[e]);
        if (MODE == ROI_AVG) {
            f.value[e] += weight * element;
            continue;
        }
        const real found = POOL ? element : roi_product(&h, &w, element);
        if (f.at[e] < 0 || roi_greater(found, f.value[e])) f.value[e] = found, f.at[e] = at;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) roi_align_forward(const mica_roi_align_args a)
{
    __shared__ tables_t t;
    __shared__ region_t r;
    overlap_wait();
    const u32 chunks = (u32)((a.c + CHUNK - 1) / CHUNK);
    const s64 k = blockIdx.x / chunks, begin = (s64)(blockIdx.x % chunks) * CHUNK;
    const s64 channels = a.c - begin < CHUNK ? a.c - begin : CHUNK;
    const item_t groups = (item_t)(channels + GROUP - 1) / GROUP;
    if (threadIdx.x == 0) r = region_of(a, k);
    __syncthreads();
    const bool tabled = r.n >= 0 && fill_tables(r, t);
    const bool weighed = tabled && MODE == ROI_AVG;
    const item_t bins = (item_t)(a.bins_h * a.bins_w);
    for (item_t i = threadIdx.x; i < bins * groups; i += BLOCK) {
        const item_t bin = CHANNELS_LAST ? i / groups : i % bins, group = CHANNELS_LAST ? i % groups : i / bins;
        const s64 ph = bin / (item_t)a.bins_w, pw = bin % (item_t)a.bins_w, c = begin + (s64)group * GROUP;
        const int some = a.c - c < GROUP ? (int)(a.c - c) : GROUP;
        const bool whole = a.whole && some == GROUP;
        const x_t *x = (const x_t *)a.x + r.n * a.x_step.n + c * a.x_step.c;
        found_t f;
        const bool zero = MODE == ROI_MAX && (r.n < 0 || roi_beside(&r.axis[0], ph) || roi_beside(&r.axis[1], pw));
#pragma unroll
        for (int e = 0; e < GROUP; e++) f.value[e] = 0, f.at[e] = zero ? 0 : -1;
        s64 h = 0, w0 = 0, h_end = 0, w_end = 0;
        if (tabled) {
            h = t.first[0][ph], h_end = t.end[0][ph];
            w0 = t.first[1][pw], w_end = t.end[1][pw];
        } else if (r.n >= 0) {
            h = from_of(r.axis[0], ph, &h_end);
            w0 = from_of(r.axis[1], pw, &w_end);
        }
        const real *rows = t.weight[0] + (weighed ? ph * t.width[0] : 0);
        const real *columns = t.weight[1] + (weighed ? pw * t.width[1] : 0);
        for (; h < h_end; h++) {
            roi_weights wh, ww;
            if (weighed) {
                wh.sum = *rows++;
                if (wh.sum < 0) continue;
            } else if (!POOL && !roi_weigh(&r.axis[0], ph, h, &wh))
                continue;
            for (s64 w = w0; w < w_end; w++) {
                if (weighed) {
                    ww.sum = columns[w - w0];
                    if (ww.sum < 0) continue;
                } else if (!POOL && !roi_weigh(&r.axis[1], pw, w, &ww))
                    continue;
                visit(f, x + h * a.x_step.h + w * a.x_step.w, a, some, whole, wh, ww, h * a.w + w);
            }
        }
        x_t out[GROUP];
#pragma unroll
        for (int e = 0; e < GROUP; e++) out[e] = narrow<x_t>(MODE == ROI_AVG ? f.value[e] / r.count : f.value[e]);
        x_t *y = (x_t *)a.y + k * a.y_step.n + c * a.y_step.c + ph * a.y_step.h + pw * a.y_step.w;
        if constexpr (CHANNELS_LAST) {
            store_some<GROUP>(y, out, some, whole);
        } else {
#pragma unroll
            for (int e = 0; e < GROUP; e++)
                if (e < some) y[e * a.y_step.c] = out[e];
        }
        if (!ARGMAX) continue;
        argmax_t *at = (argmax_t *)a.argmax + k * a.argmax_step.n + c * a.argmax_step.c + ph * a.argmax_step.h +
                       pw * a.argmax_step.w;
#pragma unroll
        for (int e = 0; e < GROUP; e++)
            if (e < some) at[e * a.argmax_step.c] = (argmax_t)f.at[e];
    }
}
