/* SPDX-License-Identifier: Apache-2.0
 * Convolution on the tensor cores of sm_80 and later, as a product of matrices that are never stored.
 * Operand a is the image: its lines are pixels and its k runs over (tap, channel) pairs; in WGRAD lines
 * are pairs and k runs over pixels. Operand b is the filter, in WGRAD the other image.
 * Prologue: that of kernels/mma_tile.cuh and the epilogue's; WGRAD; AXES (the innermost ones that
 * exist); TAP_FAST (taps follow each other in the order of pairs, else channels); HAS_RESIDUAL; SPLIT
 * (out is `part` elements for each part of the terms, which conv_parts.cu adds up); fin_t (alpha, beta, epilogue). */
#include "kernels/mma_tile.cuh"
#include "kernels/epilogue.cuh"
#include "kernels/overlap.cuh"
#include "ops/conv/sm80/sm80_args.h"

constexpr int ABSENT = -(1 << 29); /* no tap leads from there into an image */

/* A line, or one k: what it adds to offsets and positions. */
struct alignas(16) entry {
    s64 image, other; /* other: in the filter for pairs, in the image of the pixel for pixels */
    int at[3];
};

struct tables {
    entry lines[TILE_M], terms[2][TILE_K];
    s64 residual[HAS_RESIDUAL ? TILE_M : 1];
};

__device__ __forceinline__ entry absent()
{
    entry e = {};
    e.at[2] = ABSENT;
    return e;
}

__device__ __forceinline__ entry pixel_entry(const conv_sm80_args &a, const conv_sm80_class &c, unsigned i, s64 *residual)
{
    if (i >= (unsigned)c.pixel_count) return absent();
    entry e = {};
    e.other = c.place;
    if constexpr (HAS_RESIDUAL) *residual = c.residual;
#pragma unroll
    for (int d = 2; d >= 3 - AXES; d--) {
        const unsigned rest = mica_fastdiv_of(c.pixels[d], i), q = i - rest * c.pixels[d].divisor;
        e.at[d] = (int)q * a.pixel_step[d] + c.base[d];
        e.image += e.at[d] * a.image_s[d];
        e.other += q * a.place_s[d];
        if constexpr (HAS_RESIDUAL) *residual += q * a.residual_s[d];
        i = rest;
    }
    e.image += i * a.image_n;
    e.other += i * a.place_n;
    if constexpr (HAS_RESIDUAL) *residual += i * a.residual_n;
    return e;
}

__device__ __forceinline__ entry pair_entry(const conv_sm80_args &a, const conv_sm80_class &c, unsigned i)
{
    if (i >= a.channels.divisor * (unsigned)c.tap_count) return absent();
    entry e = {};
    unsigned channel, tap = i;
    if constexpr (!TAP_FAST) {
        tap = mica_fastdiv_of(a.channels, i);
        channel = i - tap * a.channels.divisor;
    }
    e.other = c.filter;
#pragma unroll
    for (int d = 2; d >= 3 - AXES; d--) {
        const unsigned rest = mica_fastdiv_of(c.taps[d], tap), t = tap - rest * c.taps[d].divisor;
        e.at[d] = (int)t * a.tap_step[d];
        e.image += e.at[d] * a.image_s[d];
        e.other += t * a.filter_s[d];
        tap = rest;
    }
    if constexpr (TAP_FAST) channel = tap;
    e.image += channel * a.image_c;
    e.other += channel * a.filter_c;
    return e;
}

__device__ __forceinline__ bool is_inside(const entry &line, const entry &term, const int *size)
{
    bool inside = true;
#pragma unroll
    for (int d = 3 - AXES; d < 3; d++) inside &= (unsigned)(line.at[d] + term.at[d]) < (unsigned)size[d];
    return inside;
}

struct image_slice {
    const entry *lines, *terms;
    const a_t *first;
    const int *size;
    bool aligned;

    __device__ __forceinline__ int locate(int, int line, int k, const a_t *&p) const
    {
        const entry &l = lines[line], &t = terms[k];
        p = first + (l.image + t.image);
        return is_inside(l, t, size) ? operand_a::VECTOR : 0;
    }
};

struct other_slice {
    const entry *terms;
    const b_t *first;
    s64 step;
    int cols, depth; /* that exist */
    bool aligned;

    __device__ __forceinline__ int locate(int, int line, int k, const b_t *&p) const
    {
        p = first + (terms[k].other + line * step);
        const int there = operand_b::K_FAST ? depth - k : cols - line;
        if (operand_b::K_FAST ? line >= cols : k >= depth) return 0;
        return there < 0 ? 0 : there < operand_b::VECTOR ? there : operand_b::VECTOR;
    }
};

struct conv_tile {
    static constexpr bool TABLES = true;
    const conv_sm80_args &args;
    const conv_sm80_class &kind;
    tables &t;
    const a_t *image;
    const b_t *other;
    int cols, first_term, terms;

    __device__ __forceinline__ void make_lines(int row0) const
    {
        for (int i = (int)threadIdx.x; i < TILE_M; i += THREADS) {
            const unsigned row = (unsigned)(row0 + i);
            if constexpr (WGRAD)
                t.lines[i] = pair_entry(args, kind, row);
            else
                t.lines[i] = pixel_entry(args, kind, row, &t.residual[HAS_RESIDUAL ? i : 0]);
        }
    }
    /* Warps take turns. */
    __device__ __forceinline__ void prepare(s64 slice) const
    {
        if ((int)threadIdx.x / 32 != (int)(slice % WARPS)) return;
        for (int i = (int)threadIdx.x % 32; i < TILE_K; i += 32) {
            const unsigned term = (unsigned)first_term + (unsigned)slice * TILE_K + i;
            s64 unused;
            if constexpr (WGRAD)
                t.terms[slice % 2][i] = pixel_entry(args, kind, term, &unused);
            else
                t.terms[slice % 2][i] = pair_entry(args, kind, term);
        }
    }
    __device__ __forceinline__ image_slice a(s64 slice) const
    {
        return {t.lines, t.terms[slice % 2], image, args.size, args.image_aligned != 0};
    }
    __device__ __forceinline__ other_slice b(s64 slice) const
    {
        const s64 left = terms - slice * TILE_K;
        return {t.terms[slice % 2], other, args.other_col, cols, left < TILE_K ? (int)left : TILE_K,
                args.other_aligned != 0};
    }
};

template <typename R>
__device__ __forceinline__ c_t finish(const conv_sm80_args &a, sum_t sum, c_t old, s64 channel, const R &residual)
{
    /* Integers stay as they are: the same as below, without arithmetic in double. */
    if constexpr (same_type<sum_t, s32> && same_type<c_t, s32> && EPILOGUE_STEPS == 0)
        if (a.alpha == 1 && a.beta == 0) return narrow<c_t>(sum);
    fin_t v = (fin_t)sum * (fin_t)a.alpha;
    if (a.beta != 0) v += (fin_t)a.beta * widen<fin_t>(old);
    return narrow<c_t>(epilogue_with(a.epilogue, v, channel, residual));
}

/* A sum that the tensor cores lost, as multiply-adds give it. */
__device__ __noinline__ float plain_sum(const conv_tile &of, const entry &line, s64 col)
{
    float sum = 0;
    for (int i = 0; i < of.terms; i++) {
        s64 unused;
        const unsigned term = (unsigned)(of.first_term + i);
        const entry t = WGRAD ? pixel_entry(of.args, of.kind, term, &unused) : pair_entry(of.args, of.kind, term);
        if (!is_inside(line, t, of.args.size)) continue;
        sum = fmaf(widen<float>(of.image[line.image + t.image]), widen<float>(of.other[t.other + col * of.args.other_col]),
                   sum);
    }
    return sum;
}

struct tile_at {
    int group, kind, split, row, col;
};

/* Neighbouring blocks share an image, then the region of other classes. */
__device__ __forceinline__ tile_at place_of(const conv_sm80_args &a, s64 index)
{
    tile_at p;
    p.col = (int)(index % a.col_tiles) * TILE_N, index /= a.col_tiles;
    p.kind = (int)(index % a.class_count), index /= a.class_count;
    p.row = (int)(index % a.row_tiles) * TILE_M, index /= a.row_tiles;
    p.group = (int)(index % a.groups);
    p.split = (int)(index / a.groups);
    return p;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    conv_sm80(const __grid_constant__ conv_sm80_args args)
{
    overlap_wait();
    extern __shared__ __align__(128) char shared[];
    __shared__ tables t;
    for (s64 index = blockIdx.x; index < args.tiles; index += gridDim.x) {
        const tile_at p = place_of(args, index);
        const conv_sm80_class &kind = args.classes[p.kind];
        const int pairs = (int)args.channels.divisor * kind.tap_count;
        const int rows = WGRAD ? pairs : kind.pixel_count, all_terms = WGRAD ? kind.pixel_count : pairs;
        if (p.row >= rows) continue; /* a smaller class */
        const int first = p.split * args.slices_each * TILE_K;
        const int rest = all_terms > first ? all_terms - first : 0, most = args.slices_each * TILE_K;
        const int terms = !SPLIT || rest < most ? rest : most;
        const int cols = args.cols - p.col < TILE_N ? args.cols - p.col : TILE_N;
        conv_tile source = {args, kind, t, (const a_t *)args.image + p.group * args.image_g,
                            (const b_t *)args.other + p.group * args.other_g + p.col * args.other_col,
                            cols, first, terms};
        source.make_lines(p.row);
        sums sum = {};
        multiply_tile(sum, shared, source, (terms + TILE_K - 1) / TILE_K);
        const int rows_here = rows - p.row < TILE_M ? rows - p.row : TILE_M;
        c_t *out = (c_t *)args.out + p.group * args.out_g + (SPLIT ? p.split * args.part : 0);
        const auto fetch = [&](int row, int col, int count) {
            if constexpr (HAS_RESIDUAL && C_N_FAST) {
                const s64 at = t.residual[row] + p.group * args.residual_g + (p.col + col) * args.residual_col;
                return residual_piece<residual_t>::read((const residual_t *)args.epilogue.residual + at,
                                                        args.residual_col, count, args.residual_aligned != 0);
            } else {
                return no_more{};
            }
        };
        store_tile(sum, shared, rows_here, cols, fetch, [&](int row, int col, int count, const sum_t(&piece)[C_VECTOR], const auto &more) {
            c_t *to = out + t.lines[row].other + (p.col + col) * args.out_col, v[C_VECTOR];
            if (!SPLIT && args.beta != 0) load_some<C_VECTOR>(to, v, count, args.out_aligned != 0);
#pragma unroll
            for (int i = 0; i < C_VECTOR; i++) {
                const int at = min(i, count - 1); /* past the end the last again: a branch would make each wait for its loads */
                const int r = C_N_FAST ? row : row + at, c = p.col + (C_N_FAST ? col + at : col);
                const auto residual = [&] {
                    if constexpr (!HAS_RESIDUAL)
                        return residual_t{};
                    else if constexpr (C_N_FAST)
                        return more.v[i];
                    else
                        return ((const residual_t *)args.epilogue.residual)[t.residual[r] + p.group * args.residual_g +
                                                                            c * args.residual_col];
                };
                sum_t sum = piece[i];
                if constexpr (PRECISE)
                    if (is_lost(sum)) sum = plain_sum(source, t.lines[r], c - p.col);
                if constexpr (SPLIT)
                    v[i] = narrow<c_t>(sum);
                else
                    v[i] = finish(args, sum, v[i], (s64)p.group * args.cols + c, residual);
            }
            if constexpr (C_VECTOR == 1)
                *to = v[0];
            else
                store_some<C_VECTOR>(to, v, count, args.out_aligned != 0);
        });
        __syncthreads();
    }
}
