/* SPDX-License-Identifier: Apache-2.0
 * gemm on Hopper where neighbours in c are of different lines: TMA stores columns of c that a warpgroup has
 * rows of, or the reverse. A buffer has a warpgroup's 64 lines, by as many across as fill it: a row of 128 bytes,
 * swizzled, for each of these, of 32 lines and then of the other 32 where a result has 4 bytes. Constants: those of
 * sm90/sm90.cuh. */
#pragma once

constexpr int LINES_OF_ROW = LINE_BYTES / (int)sizeof(c_t), ROWS_OF_LINES = 64 / LINES_OF_ROW;
constexpr int ACROSS_OF_BUFFER = BUFFER_BYTES / (64 * (int)sizeof(c_t));

static_assert(!ALONG_LINES || !LIGHT || (BY_REGISTERS && SWAPPED && sizeof(c_t) > 1 && TILE_N % ACROSS_OF_BUFFER == 0),
              "whole buffers");

/* Where a result stands: of a line of the 64, and so many across. */
__device__ __forceinline__ unsigned char *along_at(unsigned char *buffer, int line, int across)
{
    const int part = line / LINES_OF_ROW, byte = line % LINES_OF_ROW * (int)sizeof(c_t);
    return buffer + (part * ACROSS_OF_BUFFER + across) * LINE_BYTES + (byte / 16 ^ across % 8) * 16 + byte % 16;
}

/* What lies outside of c is computed too, by what belongs to the last line, and not stored. */
template <bool AS_THEY_ARE>
__device__ __forceinline__ void fill_along(const gemm_sm90_args &args, const box_end &end, unsigned char *to,
                                           const sum_t *sum, int line, int across, int warp, int lane)
{
#pragma unroll
    for (int k = 0; k < ACROSS_OF_BUFFER / 2; k++) {
        const int own = warp * 16 + lane / 4 + k / 2 % 2 * 8, beside = k / 4 * 8 + lane % 4 * 2 + k % 2;
        const int y = min(line + own, (int)args.lines - 1), x = min(across + beside, (int)args.across - 1);
        *(c_t *)along_at(to, own, beside) =
            AS_THEY_ARE ? narrow<c_t>(sum[k]) : end.result(args, k / 2 % 2, 0, y, x, sum[k], 0);
    }
}

__device__ __forceinline__ void store_along(const gemm_sm90_args &args, const tile &t, const sum_t (&sum)[SUMS],
                                            unsigned char *staging, int group)
{
    const int thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32, line = first_line(t, group);
    if (line >= args.lines) return;
    __builtin_assume(args.gemm.beta == 0);
    const bool plain = SUMS_MAY_BE_C && args.plain;
    box_end end;
    if (!plain) end.load_kept(args, 0, line, t.across, warp, lane);
    if (thread == 0) tma_wait_read<0>();
    named_barrier_sync(1 + group, 128);
#pragma unroll
    for (int i = 0; i < TILE_N / ACROSS_OF_BUFFER; i++) {
        const int across = t.across + i * ACROSS_OF_BUFFER;
        if (across >= args.across) break;
        unsigned char *to = staging + i % BUFFERS * BUFFER_BYTES;
        if (i >= BUFFERS) {
            if (thread == 0) tma_wait_read<BUFFERS - 1>();
            named_barrier_sync(1 + group, 128);
        }
        if (plain)
            fill_along<true>(args, end, to, sum + i * ACROSS_OF_BUFFER / 2, line, across, warp, lane);
        else
            fill_along<false>(args, end, to, sum + i * ACROSS_OF_BUFFER / 2, line, across, warp, lane);
        async_fence();
        named_barrier_sync(1 + group, 128);
        if (thread != 0) continue;
#pragma unroll
        for (int part = 0; part < ROWS_OF_LINES; part++)
            if (line + part * LINES_OF_ROW < args.lines)
                store_box(args, shared_address(to) + part * ACROSS_OF_BUFFER * LINE_BYTES, line + part * LINES_OF_ROW, across, t);
        tma_commit();
    }
}
