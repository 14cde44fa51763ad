/* SPDX-License-Identifier: Apache-2.0
 * gemm on Hopper: the sums of sm90.cuh through shared memory to c, while the ring fills for the next tile.
 *
 * Where tiles are few, the blocks of a cluster split K of one tile, and each finishes its part of the sums.
 * Operands are not multicast: blocks side by side that read the same lines are served as fast without it. */
constexpr bool HALVES = false;
#include "kernels/epilogue_terms.cuh"
#include "kernels/shared.cuh"
#include "ops/gemm/sm90/sm90.cuh"
#include "ops/gemm/cuda/gemm_pairs.cuh"

static_assert(!LIGHT || (BOX_BYTES & (BOX_BYTES - 1)) == 0, "a swizzle of this width");
static_assert(!RESIDUAL || (sizeof(residual_t) == sizeof(c_t) && same_type<out_t, float>), "one takes the other's place");
static_assert(SPLIT == 1 || !LIGHT, "sums of a split tile are finished in parts");
static_assert(SPLIT == 1 || TILE_M * TILE_N * 4 <= STAGES * STAGE_BYTES, "the ring holds a tile's sums");

__device__ __forceinline__ c_t finish_one(const gemm_sm90_args &args, const place &p, s64 line, s64 across, sum_t sum,
                                          const c_t *c)
{
    return finish(args.gemm, p, SWAPPED ? across : line, SWAPPED ? line : across, sum, c);
}

/* Four neighbours across. */
__device__ __forceinline__ void finish_vector(const gemm_sm90_args &args, const place &p, s64 line, s64 across,
                                              const sum_t *sum)
{
    c_t *c = (c_t *)args.gemm.c + p.c + line * args.c_m + across * args.c_n;
    if (args.whole && across + VECTOR <= args.across) {
        c_t v[VECTOR];
        if (args.gemm.beta != 0) load_vector<VECTOR>(c, v);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] = finish_one(args, p, line, across + i, sum[i], &v[i]);
        store_vector<VECTOR>(c, v);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (across + i < args.across)
                c[i * args.c_n] = finish_one(args, p, line, across + i, sum[i], c + i * args.c_n);
    }
}

/* Adds up the sums that the blocks of a cluster have of one tile. Each block finishes some of the pieces and
 * reads these from the others, in order of their ranks. The rings are idle meanwhile: with K split, a
 * block has one tile. */
__device__ __forceinline__ void exchange(sum_t (&sum)[WAVES][SUMS], const ring &r, sum_t *shared)
{
    constexpr int THREADS_HERE = 128 * GROUPS;
    const int thread = (int)threadIdx.x;
    sum_t *mine = shared + thread;
    named_barrier_sync(3, THREADS_HERE); /* the other warpgroup may still multiply */
#pragma unroll
    for (int i = 0; i < WAVES * SUMS; i++) mine[i * THREADS_HERE] = sum[i / SUMS][i % SUMS];
    cluster_sync();
#pragma unroll
    for (int piece = 0; piece < WAVES * PIECES; piece++) {
        if (piece % SPLIT != r.rank) continue;
#pragma unroll
        for (int j = 0; j < PIECE_SUMS; j++) {
            const int i = piece * PIECE_SUMS + j;
            const u32 from = shared_address(mine + i * THREADS_HERE);
            sum_t total = shared_load_remote_word<sum_t>(from, 0);
#pragma unroll
            for (int rank = 1; rank < SPLIT; rank++) total += shared_load_remote_word<sum_t>(from, (u32)rank);
            sum[i / SUMS][i % SUMS] = total;
        }
    }
}

/* All lines of a piece that are in c, so that neighbours are stored together. */
__device__ __forceinline__ void finish_along(const gemm_sm90_args &args, const place &p, const sum_t *staging, int line,
                                             s64 last, int across, int thread)
{
    const int own = line + thread % 64;
    if (own >= last) return;
#pragma unroll 1
    for (int i = thread / 64; i < PIECE && across + i < args.across; i += 2) {
        c_t *c = (c_t *)args.gemm.c + p.c + own * args.c_m + (across + i) * args.c_n;
        *c = finish_one(args, p, own, across + i, staging[thread % 64 * PITCH + i], c);
    }
}

/* A piece whose rows in c begin at any element: neighbours of a row by neighbouring threads, some rows at a time. Rows
 * that are not there are computed too, as the last is, and not stored. */
__device__ __forceinline__ void finish_scattered(const gemm_sm90_args &args, const place &p, const sum_t *staging, int line,
                                                 s64 last, int across, int thread)
{
    constexpr int ROWS = 128 / PIECE, AT_ONCE = 4; /* rows of a warpgroup's access; accesses */
    const int column = thread % PIECE, first = thread / PIECE, last_row = (int)min(last - line, (s64)64) - 1;
    const sum_t *from = staging + first * PITCH + column;
    c_t *c = (c_t *)args.gemm.c + p.c + (line + first) * args.c_m + across + column;
    const s64 step = ROWS * args.c_m;
    if (across + column >= args.across) return;
#pragma unroll 1
    for (int y = first; y <= last_row; y += ROWS * AT_ONCE) {
        sum_t v[AT_ONCE];
        c_t result[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) v[i] = from[i * ROWS * PITCH];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int here = min(y + i * ROWS, last_row);
            result[i] = finish_one(args, p, line + here, across + column, v[i], c + (here - y) * args.c_m);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (y + i * ROWS <= last_row) c[i * step] = result[i];
        from += AT_ONCE * ROWS * PITCH;
        c += AT_ONCE * step;
    }
}

__device__ __forceinline__ void finish_tile(const gemm_sm90_args &args, const tile &t,
                                            const sum_t (&sum)[WAVES][SUMS], sum_t *staging, int group, int rank)
{
    constexpr int ACROSS = PIECE / VECTOR, EACH = 64 / (128 / ACROSS); /* vectors of a row, of a thread */
    const gemm_shape &s = args.gemm.shape;
    const int thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int column = thread % ACROSS * VECTOR, row = thread / ACROSS;
    const bool scattered = !ALONG_LINES && !args.whole && args.c_n == 1 && args.across >= PIECE;
    const s64 last = LINES < TILE_M ? min(args.lines, (s64)t.line + LINES) : args.lines;
    place p = {};
#pragma unroll
    for (int i = 0; i < BATCH_RANK; i++) {
        p.c += t.batch[i] * s.c_batch[i];
        p.r += t.batch[i] * s.r_batch[i];
    }
#pragma unroll 1
    for (int piece = 0; piece < WAVES * PIECES; piece++) {
        const int line = first_line(t, group) + piece / PIECES * 64, across = t.across + piece % PIECES * PIECE;
        if (line >= last || across >= args.across || (SPLIT > 1 && piece % SPLIT != rank)) continue;
        stage_piece(sum, staging, piece, warp, lane);
        named_barrier_sync(1 + group, 128);
        if constexpr (ALONG_LINES)
            finish_along(args, p, staging, line, last, across, thread);
        else if (scattered)
            finish_scattered(args, p, staging, line, last, across, thread);
#pragma unroll 1
        for (int i = 0; i < (ALONG_LINES || scattered ? 0 : EACH); i++) {
            const int y = i * (128 / ACROSS) + row;
            sum_t v[VECTOR];
            load_vector<VECTOR>(staging + y * PITCH + column, v);
            if (line + y < last && across + column < args.across)
                finish_vector(args, p, line + y, across + column, v);
        }
        named_barrier_sync(1 + group, 128);
    }
}

/* ---- the same by TMA ---- */

/* The epilogue of a thread's pairs in a box, eight columns apart, in two rows: what the epilogue's vectors have
 * for these. Where registers permit it stands until the box of the next 64 lines is done, else some columns at a time. */
struct box_end {
    static constexpr bool READS = same_type<out_t, float>; /* doubles are read for each result */
    static constexpr bool KEPT = SWAPPED || WAVES * SUMS <= 128;
    static constexpr int PAIRS = KEPT || BOX < 64 ? BOX / 8 : 4; /* at a time */
    static constexpr int CHANNELS = !READS ? 1 : SWAPPED ? 2 : 2 * PAIRS;
    channel_terms terms[CHANNELS];

    /* Of the first row and column. What lies outside c is computed too, by the terms of the last, and not stored. */
    __device__ __forceinline__ void load(const gemm_sm90_args &args, int line, int across)
    {
        const int last = (int)(SWAPPED ? args.lines : args.across) - 1;
        if constexpr (READS)
#pragma unroll
            for (int i = 0; i < CHANNELS; i++) {
                const int channel = SWAPPED ? line + 8 * i : across + i / 2 * 8 + i % 2;
                load_terms<PACKED_VECTORS>(args.gemm.epilogue, (s64)min(channel, last), terms[i]);
            }
    }
    /* Of a whole box, before it is filled; wave: of 64 lines. */
    __device__ __forceinline__ void load_kept(const gemm_sm90_args &args, int wave, int line, int across, int warp, int lane)
    {
        if (KEPT && (SWAPPED || wave == 0)) load(args, line + warp * 16 + lane / 4, across + lane % 4 * 2);
    }
    __device__ __forceinline__ c_t result(const gemm_sm90_args &args, int half, int column, s64 line, s64 across, sum_t sum,
                                          float residual) const
    {
        if constexpr (!READS) {
            return finish_one(args, place{}, line, across, sum, nullptr);
        } else {
            float v = (float)args.gemm.alpha * (float)sum; /* a bias may follow in one instruction */
            if constexpr (HAS_SCALE_A || HAS_SCALE_B)
                v = scaled(args.gemm, args.gemm.scale_a, args.gemm.scale_b, SWAPPED ? across : line,
                           SWAPPED ? line : across, sum);
            return narrow<c_t>(apply_terms(args.gemm.epilogue, terms[SWAPPED ? half : column], v, residual));
        }
    }
};

/* Sums of BOX columns, where the residual stood if there is one: all of it is read first, so that no load waits for
 * a store. */
template <bool AS_THEY_ARE>
__device__ __forceinline__ void fill_box(const gemm_sm90_args &args, box_end &end, unsigned char *to,
                                         const sum_t *sum, int line, int across, int warp, int lane)
{
    const int last_line = (int)args.lines - 1, last_across = (int)args.across - 1;
    pair<residual_t> residual[2][BOX / 8] = {};
    if constexpr (RESIDUAL) load_pairs(to, 0, residual, warp, lane);
#pragma unroll
    for (int first = 0; first < BOX / 8; first += box_end::PAIRS) {
        if (!AS_THEY_ARE && !box_end::KEPT) {
            asm volatile("" ::: "memory"); /* not all loads at once */
            end.load(args, line + warp * 16 + lane / 4, across + 8 * first + lane % 4 * 2);
        }
        pair<c_t> results[2][box_end::PAIRS];
#pragma unroll
        for (int k = 0; k < 4 * box_end::PAIRS; k++) {
            const int half = k / (2 * box_end::PAIRS), own = k / 2 % box_end::PAIRS, j = first + own, i = k % 2;
            const int row = warp * 16 + lane / 4 + 8 * half, column = 8 * j + lane % 4 * 2;
            const sum_t s = sum[4 * j + 2 * half + i];
            const int y = min(line + row, last_line), x = min(across + column + i, last_across);
            results[half][own].of[i] =
                AS_THEY_ARE ? narrow<c_t>(s) : end.result(args, half, 2 * own + i, y, x, s, widen<float>(residual[half][j].of[i]));
        }
        store_pairs(to, first, results, warp, lane);
    }
}

__device__ __forceinline__ void store_tile(const gemm_sm90_args &args, const tile &t, const sum_t (&sum)[WAVES][SUMS],
                                           unsigned char *staging, int group)
{
    const int thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    __builtin_assume(args.gemm.beta == 0);
    int stored = 0; /* boxes outside of c take no buffer */
    box_end end;
    if (thread == 0) tma_wait_read<0>();
    named_barrier_sync(1 + group, 128);
#pragma unroll
    for (int i = 0; i < WAVES * BOXES; i++) {
        const int line = first_line(t, group) + i % WAVES * 64, across = t.across + box_column(i / WAVES);
        if (line >= args.lines || across >= args.across) continue;
        unsigned char *to = staging + stored % BUFFERS * BUFFER_BYTES;
        if (stored++ >= BUFFERS) {
            if (thread == 0) tma_wait_read<BUFFERS - 1>();
            named_barrier_sync(1 + group, 128);
        }
        const sum_t *from = sum[i % WAVES] + box_column(i / WAVES) / 2;
        if (SUMS_MAY_BE_C && args.plain) {
            fill_box<true>(args, end, to, from, line, across, warp, lane);
        } else {
            end.load_kept(args, i % WAVES, line, across, warp, lane);
            fill_box<false>(args, end, to, from, line, across, warp, lane);
        }
        async_fence();
        named_barrier_sync(1 + group, 128);
        if (thread == 0) {
            store_box(args, shared_address(to), across, line, t);
            tma_commit();
        }
    }
}

#include "ops/gemm/cuda/gemm_along.cuh"

/* The same where carry() brings residuals and stores results. */
__device__ __forceinline__ void replace_tile(const gemm_sm90_args &args, const tile &t, const sum_t (&sum)[WAVES][SUMS],
                                             unsigned char *staging, int group, const buffer_barriers &bars,
                                             buffer_turn &turn)
{
    const int thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    __builtin_assume(args.gemm.beta == 0);
    box_end end;
#pragma unroll
    for (int i = 0; i < WAVES * BOXES; i++) {
        const int line = first_line(t, group) + i % WAVES * 64, across = t.across + box_column(i / WAVES);
        if (line >= args.lines || across >= args.across) continue;
        end.load_kept(args, i % WAVES, line, across, warp, lane);
        mbarrier_wait(bars.full + 8 * turn.at, turn.parity);
        fill_box<false>(args, end, staging + turn.at * BUFFER_BYTES, sum[i % WAVES] + box_column(i / WAVES) / 2, line,
                        across, warp, lane);
        async_fence();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(bars.done + 8 * turn.at);
        turn.next();
    }
}

__device__ __forceinline__ void consume(const gemm_sm90_args &args, const ring &r, unsigned char *stages,
                                        unsigned char *staging, int group, const buffer_barriers &bars)
{
    buffer_turn turn = {0, 0};
    each_tile(args, r, group, [&](sum_t(&sum)[WAVES][SUMS], const tile &t) {
        if constexpr (SPLIT > 1) exchange(sum, r, (sum_t *)stages);
        if (RESIDUAL && args.light)
            replace_tile(args, t, sum, staging, group, bars, turn);
        else if (LIGHT && ALONG_LINES && args.light)
            store_along(args, t, sum[0], staging, group);
        else if (LIGHT && !RESIDUAL && args.light)
            store_tile(args, t, sum, staging, group);
        else
            finish_tile(args, t, sum, (sum_t *)staging, group, r.rank);
    });
    if (LIGHT && !RESIDUAL && threadIdx.x % 128 == 0) tma_wait<0>();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) gemm_sm90(const __grid_constant__ gemm_sm90_args args)
{
    load_and_consume(args, [&](const ring &r, unsigned char *stages, unsigned char *staging, int group, const buffer_barriers &bars) {
        consume(args, r, stages, staging, group, bars);
    });
}
