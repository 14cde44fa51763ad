/* SPDX-License-Identifier: Apache-2.0
 * Codes row by output channel: PIECE of a row per thread, neighbouring threads along N. Constants of
 * packed_weights.cuh, and WHOLE (rows of w are whole bytes side by side). */
#include "ops/packed_weights/packed_weights.cuh"
#include "ops/packed_weights/repack_weights.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) repack_weights(const __grid_constant__ mica_packed_args a)
{
    constexpr int SIZE = BITS == 8 ? 8 : 4, BYTES = PIECE * SIZE / 8;
    overlap_wait();
    const s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.count) return;
    const s64 n = i % a.n, first = i / a.n * PIECE;
    u64 piece = 0;
#pragma unroll
    for (int e = 0; e < PIECE; e++) {
        if (first + e >= a.k) break;
        const s64 k = index_of(a, first + e, a.k);
        const int v = k < 0 ? 0 : weight_of(a, k, n) - (HAS_ZEROS ? 0 : MIDDLE);
        piece |= (u64)(v & ((1 << SIZE) - 1)) << SIZE * e;
    }
    const s64 at = n * a.to_n + first * a.to_k;
    if constexpr (WHOLE) {
        u8 *to = (u8 *)a.to + at * SIZE / 8;
        if (a.whole) {
            if constexpr (SIZE == 8) *(u64 *)to = piece;
            else *(u32 *)to = (u32)piece;
            return;
        }
#pragma unroll
        for (int b = 0; b < BYTES; b++)
            if (first + b * 8 / SIZE < a.k) put_byte(to + b, piece >> 8 * b, SIZE == 4 && first + 2 * b + 1 == a.k);
    } else {
#pragma unroll
        for (int e = 0; e < PIECE; e++)
            if (first + e < a.k) put_code<SIZE>(a.to, at + e * a.to_k, (u32)(piece >> SIZE * e));
    }
}
