/* SPDX-License-Identifier: Apache-2.0
 * Scales of what blocks hold, and their codes, in one pass: THREADS keep a block's elements, neighbours of one
 * row or of several, in registers between the two. Constants: those of kernels/slices.cuh with ALONG, VECTOR
 * neighbours at once; ITEMS (vectors of a thread), ROWS (a block has several), ENDS (of the least and the
 * greatest, else of the largest magnitude), WHOLE_BYTES, CHANCE (codes are rounded by chance), HAS_ZERO and those of
 * quantize_random.cuh; types code_t (u8 for
 * four bits), value_t, scale_t, real (f32). */
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "kernels/slices.cuh"
#include "ops/quantize/quantize_random.cuh"

/* A vector of the thread: where it lies, and how many elements of it are the block's. */
struct piece {
    s64 row, column;
    int n;
};

QUANTIZE piece piece_of(const mica_quantize_once_args &a, int item)
{
    const int i = item * THREADS + thread_in_slice();
    const int row = ROWS ? i / a.vectors : 0;
    const s64 column = (s64)(i - row * a.vectors) * VECTOR, left = a.columns - column;
    return piece{row, column, row >= a.rows || left < 0 ? 0 : left < VECTOR ? (int)left : VECTOR};
}

QUANTIZE lanes<value_t, VECTOR> read(const mica_quantize_once_args &a, s64 base, const piece &p)
{
    const value_t *from = (const value_t *)a.memory.at[MICA_QUANTIZE_PLACE_VALUE] + base + p.row * a.row_step[1] + p.column;
    if (p.n == VECTOR) return fetch<VECTOR>(from, a.memory.whole);
    value_t e[VECTOR];
    lanes<value_t, VECTOR> r;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) e[k] = k < p.n ? from[k] : value_t();
    memcpy(r.words, e, sizeof e);
    return r;
}

extern "C" __global__ void __launch_bounds__(THREADS * SLICES) quantize_once(const __grid_constant__ mica_quantize_once_args a)
{
    __shared__ float scratch[SLICE_SCRATCH];
    overlap_wait();
    for (s64 first = (s64)blockIdx.x * SLICES; first < a.blocks.count; first += (s64)gridDim.x * SLICES) {
        const s64 block = first + slice_in_block();
        const bool inside = block < a.blocks.count;
        s64 at[MICA_QUANTIZE_PLACES];
        layout_offsets<MICA_QUANTIZE_PLACES>(a.blocks, inside ? block : first, at);
#pragma unroll
        for (int p = 0; p < MICA_QUANTIZE_PLACES; p++) at[p] += a.memory.first[p];
        piece where[ITEMS];
        lanes<value_t, VECTOR> raw[ITEMS];
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            where[j] = piece_of(a, j);
            if (!inside) where[j].n = 0;
            if (where[j].n) raw[j] = read(a, at[MICA_QUANTIZE_PLACE_VALUE], where[j]);
        }
        float high = 0, low = 0; /* of ends 0 is one: what is not there counts as it */
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            if (!where[j].n) continue;
            float v[VECTOR];
            unpack_pairs(raw[j], v);
#pragma unroll
            for (int e = 0; e < VECTOR; e++) {
                high = max_of(high, ENDS ? v[e] : fabsf(v[e]));
                if (ENDS) low = max_of(low, -v[e]);
            }
        }
        high = slice_reduce(high, scratch, max_op());
        if (ENDS) low = -slice_reduce(low, scratch, max_op());
        const float global_scale = HAS_GLOBAL ? *a.memory.global_scale : 1;
        scale_t stored;
        if (ENDS) put_scale(&stored, scale_of_ends(CODE, low, high), 0, true);
        else put_scale(&stored, scale_of_amax(CODE, POWER, high, global_scale), CODE_EXPONENT(CODE), false);
        const float made = widen<float>(stored), scale = HAS_GLOBAL ? mul_of(made, global_scale) : made;
        const float zero = ENDS ? zero_of_ends(CODE, low, made) : 0;
        if (inside && thread_in_slice() == 0) {
            ((scale_t *)a.memory.at[MICA_QUANTIZE_PLACE_SCALE])[at[MICA_QUANTIZE_PLACE_SCALE]] = stored;
            if constexpr (ENDS) {
                void *const zeros = a.memory.at[MICA_QUANTIZE_PLACE_ZERO];
                const s64 to = at[MICA_QUANTIZE_PLACE_ZERO];
                if constexpr (NIBBLES) put_nibble(zeros, to, nibble_of(CODE, zero)); /* neighbours share a byte */
                else ((code_t *)zeros)[to] = narrow<code_t>(zero);
            }
        }
        const divisor by = divisor_of(scale);
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            if (!where[j].n) continue;
            float v[VECTOR];
            codes<VECTOR> c;
            unpack_pairs(raw[j], v);
            if constexpr (CHANCE) {
                u32 w[VECTOR];
                const s64 index = at[MICA_QUANTIZE_PLACE_INDEX] + where[j].row * a.row_step[2] + where[j].column * a.column_step;
                words_of<VECTOR>(a.memory, index, a.column_step, w);
                encode_by_chance<VECTOR>(v, by, zero, w, c);
            } else {
                encode<VECTOR>(v, by, zero, c);
            }
            put_codes<VECTOR>(a.memory.at[MICA_QUANTIZE_PLACE_CODE], at[MICA_QUANTIZE_PLACE_CODE] + where[j].row * a.row_step[0] + where[j].column, 1, where[j].n,
                              a.memory.whole, WHOLE_BYTES, c);
        }
    }
}
