/* SPDX-License-Identifier: Apache-2.0
 * quantized_gemm where x has one to eight rows. SHARE warps go through K together, each with LINES rows of
 * w, of which it takes SPAN elements at a time: their bytes go to shared memory 16 at a time (cp.async), STAGES
 * of them in flight, wherever rows and blocks begin, and are decoded from there. A piece of x is read once
 * for LINES rows, and its scales one step ahead. The floor is the bytes of w at the bandwidth of memory.
 *
 * Constants of quantized_gemm.cuh; FEW (rows of x that a block has room for), WARPS, SHARE, LINES, STAGES,
 * SPAN, ROW_BYTES and ROW_ELEMENTS (bytes of so many elements of a row), GROUP (0: the argument),
 * RESIDENT. */
#include "kernels/mma.cuh"
#include "ops/quantized_gemm/quantized_gemm.cuh"
#include "ops/quantized_gemm/gemv_args.h"

constexpr int SPAN_BYTES = SPAN / ROW_ELEMENTS * ROW_BYTES;
constexpr int CHUNKS = (SPAN_BYTES + 15 + 15) / 16, SLOT = CHUNKS * 16; /* bytes begin anywhere in the first */
constexpr int TEAMS = WARPS / SHARE, BLOCK_LINES = TEAMS * LINES, THREADS = 32 * WARPS;
static_assert(SPAN == 32 * PIECE, "a piece for each lane");
static_assert(LINES * FEW <= 32, "a lane for each result");

/* Bytes of a row before element k, which begins one. */
QGEMM s64 bytes_before(s64 k) { return k / ROW_ELEMENTS * ROW_BYTES; }
QGEMM s64 row_bytes(const mica_qgemm_args &a) { return (a.k * ROW_BYTES + ROW_ELEMENTS - 1) / ROW_ELEMENTS; }
QGEMM const u8 *row_at(const mica_qgemm_args &a, s64 n)
{
    return (const u8 *)a.w + (WEIGHTS_BLOCKS ? n * a.w_n : n * a.w_n / ROW_ELEMENTS);
}

/* ---- copies ---- */

/* Bytes of `span` of LINES rows from n on; rows past the last are the last again. */
QGEMM void fetch_span(const mica_qgemm_args &a, s64 n, s64 span, u8 *to, int lane)
{
    const s64 before = bytes_before(span * SPAN), length = row_bytes(a);
#pragma unroll 1
    for (int c = lane; c < LINES * CHUNKS; c += 32) {
        const int line = c / CHUNKS, chunk = c % CHUNKS;
        const u8 *row = row_at(a, min(n + line, a.n - 1)), *first = row + before;
        const u8 *from = first - ((u64)first & 15) + 16 * chunk;
        const s64 left = row + length - from;
        u8 *slot = to + line * SLOT + 16 * chunk;
        if (left <= 0) continue;
        if (from >= row) {
            copy_async<16>(shared_address(slot), from, left < 16 ? (int)left : 16);
            continue;
        }
#pragma unroll 1
        for (int i = 0; i < 16; i++)
            if (from + i >= row && i < left) slot[i] = from[i];
    }
}

/* ---- pieces ---- */

struct group_terms {
    float scale, zero;
};

QGEMM s64 group_at(const mica_qgemm_args &a, s64 k)
{
    const u32 given = (u32)(a.group < a.k ? a.group : a.k);
    return (s64)((u32)k / (GROUP ? (u32)GROUP : given));
}

QGEMM void fetch_terms(const mica_qgemm_args &a, s64 n, s64 k, group_terms (&t)[LINES])
{
    if (k >= a.k) return;
    const s64 group = HAS_SCALES ? group_at(a, k) : 0;
#pragma unroll
    for (int line = 0; line < LINES; line++) {
        const s64 row = min(n + line, a.n - 1);
        t[line].scale = scale_of(a, row, group);
#if !WEIGHTS_BLOCKS
        t[line].zero = zero_of(a, row, group);
#endif
    }
}

#if WEIGHTS_BLOCKS
/* slot: bytes of the row from element `first` on, a multiple of SPAN. */
QGEMM void decode_piece(const mica_qgemm_gemv_args &, const u8 *slot, s64 first, s64 k, const group_terms &t, float (&v)[PIECE])
{
    const u32 number = (u32)k / (u32)ELEMENTS;
    const int from = (int)((s64)number * BYTES - bytes_before(first));
    const block_t b = {slot + from, 1};
    CODER(b, (int)((u32)k - number * (u32)ELEMENTS), t.scale, v);
}
QGEMM float scaled(float sum, const group_terms &) { return sum; }
#else
QGEMM void load_words(const u8 *from, bool words, u32 (&w)[PIECE * ROW_BYTES / ROW_ELEMENTS / 4])
{
#pragma unroll
    for (int i = 0; i < PIECE * ROW_BYTES / ROW_ELEMENTS / 4; i++)
        if (words)
            w[i] = *(const u32 *)(from + 4 * i);
        else
            w[i] = (u32)from[4 * i] | (u32)from[4 * i + 1] << 8 | (u32)from[4 * i + 2] << 16 | (u32)from[4 * i + 3] << 24;
}

/* Codes less their zero point; the sum of a piece is scaled. */
QGEMM void decode_piece(const mica_qgemm_gemv_args &a, const u8 *slot, s64 first, s64 k, const group_terms &t, float (&v)[PIECE])
{
    u32 w[PIECE * ROW_BYTES / ROW_ELEMENTS / 4];
    load_words(slot + (int)bytes_before(k - first), a.words != 0, w);
#pragma unroll
    for (int e = 0; e < PIECE; e++) {
        if constexpr (CODE == CODE_E2M1) {
            v[e] = value_of(CODE, w[0] >> 4 * e & 15);
        } else if constexpr (NIBBLES) {
            /* as the last bits of 2^23 */
            constexpr u32 OFFSET = CODE == CODE_S4 ? 8 : 0;
            v[e] = __uint_as_float(0x4b000000u | ((w[0] >> 4 * e & 15) ^ OFFSET)) - (8388608.0f + OFFSET);
        } else {
            u8 byte = (u8)(w[e / 4] >> 8 * (e % 4));
            code_t code;
            memcpy(&code, &byte, 1);
            v[e] = widen<float>(code);
        }
        if constexpr (HAS_ZEROS) v[e] = sub_of(v[e], t.zero);
    }
}
QGEMM float scaled(float sum, const group_terms &t) { return sum * t.scale; }
#endif

/* Rows that do not exist repeat the last: their results are not stored. */
QGEMM void load_x(const mica_qgemm_gemv_args &a, s64 k, int left, float (&x)[FEW][PIECE])
{
#pragma unroll
    for (int f = 0; f < FEW; f++) {
        const x_t *from = (const x_t *)a.g.x + min((s64)f, a.g.m - 1) * a.g.x_m + k * a.g.x_k;
        if (a.x_whole && left >= PIECE) {
            load_elements<x_t, PIECE>(from, true, x[f]);
            continue;
        }
#pragma unroll
        for (int e = 0; e < PIECE; e++) x[f][e] = e < left ? widen<float>(from[e * a.g.x_k]) : 0.0f;
    }
}

/* The span that lies in `slots`, of this lane the piece at k. */
QGEMM void add_span(const mica_qgemm_gemv_args &a, s64 n, s64 first, const u8 *slots, int lane, const group_terms (&t)[LINES],
                    float (&sum)[LINES][FEW])
{
    const s64 k = first + lane * PIECE;
    if (k >= a.g.k) return;
    const int left = a.g.k - k < PIECE ? (int)(a.g.k - k) : PIECE;
    float x[FEW][PIECE];
    load_x(a, k, left, x);
#pragma unroll
    for (int line = 0; line < LINES; line++) {
        const u8 *row = row_at(a.g, min(n + line, a.g.n - 1)) + bytes_before(first);
        float v[PIECE];
        decode_piece(a, slots + line * SLOT + ((u64)row & 15), first, k, t[line], v);
        if (left < PIECE)
#pragma unroll
            for (int e = 0; e < PIECE; e++) v[e] = e < left ? v[e] : 0.0f;
#pragma unroll
        for (int f = 0; f < FEW; f++) {
            float part = 0;
#pragma unroll
            for (int e = 0; e < PIECE; e++) part += v[e] * x[f][e];
            sum[line][f] += scaled(part, t[line]);
        }
    }
}

/* ---- rows ---- */

/* This warp's part of its rows: spans share, share + SHARE, ... */
QGEMM void add_up(const mica_qgemm_gemv_args &a, s64 n, u8 *slots, int share, int lane, float (&sum)[LINES][FEW])
{
    const s64 spans = (a.g.k + SPAN - 1) / SPAN;
    group_terms now[LINES] = {}, next[LINES] = {};
    fetch_terms(a.g, n, (s64)share * SPAN + lane * PIECE, now);
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) {
        const s64 span = share + (s64)s * SHARE;
        if (span < spans) fetch_span(a.g, n, span, slots + s * LINES * SLOT, lane);
        copies_commit();
    }
    int stage = 0;
    for (s64 span = share; span < spans; span += SHARE) {
        const s64 ahead = span + (STAGES - 1) * SHARE;
        copies_wait<STAGES - 2>();
        __syncwarp();
        fetch_terms(a.g, n, (span + SHARE) * SPAN + lane * PIECE, next);
        if (ahead < spans) fetch_span(a.g, n, ahead, slots + (stage + STAGES - 1) % STAGES * LINES * SLOT, lane);
        copies_commit();
        add_span(a, n, span * SPAN, slots + stage * LINES * SLOT, lane, now, sum);
        __syncwarp();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (int line = 0; line < LINES; line++) now[line] = next[line];
    }
    copies_wait<0>();
    __syncwarp();
}

/* Result i of a warp, in lane i: row i / FEW of w, i % FEW of x. */
QGEMM float gather(const float (&sum)[LINES][FEW], int lane)
{
    float mine = 0;
#pragma unroll
    for (int i = 0; i < LINES * FEW; i++) {
        float v = sum[i / FEW][i % FEW];
#pragma unroll
        for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
        if (lane == i) mine = v;
    }
    return mine;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    quantized_gemv(const __grid_constant__ mica_qgemm_gemv_args a)
{
    overlap_wait();
    __shared__ __align__(16) u8 slots[WARPS * STAGES * LINES * SLOT];
    __shared__ float parts[WARPS][LINES * FEW];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, team = warp / SHARE, share = warp % SHARE;
    const s64 tiles = (a.g.n - 1) / BLOCK_LINES + 1;
    for (s64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const s64 n = tile * BLOCK_LINES + team * LINES;
        float sum[LINES][FEW] = {};
        if (n < a.g.n) add_up(a, n, slots + warp * (STAGES * LINES * SLOT), share, lane, sum);
        float mine = gather(sum, lane);
        if constexpr (SHARE > 1) {
            if (lane < LINES * FEW) parts[warp][lane] = mine;
            __syncthreads();
            if (share == 0 && lane < LINES * FEW)
#pragma unroll
                for (int i = 1; i < SHARE; i++) mine += parts[warp + i][lane];
            __syncthreads(); /* parts stay until all have read them */
        }
        const int line = lane / FEW, few = lane % FEW;
        if (share == 0 && lane < LINES * FEW && n + line < a.g.n && few < a.g.m) put_result(a.g, few, n + line, mine);
    }
}
