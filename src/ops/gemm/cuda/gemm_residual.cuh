/* SPDX-License-Identifier: Apache-2.0
 * gemm on Hopper where TMA brings the residual: BUFFERS of each warpgroup form a ring, apart from the
 * tiles. A thread of the loading warpgroup fills them with boxes of the residual, as far ahead as there is room; the
 * warpgroup replaces these with results; the thread stores them. Constants: those of sm90/sm90.cuh. */
#pragma once

constexpr int RESIDUAL_BARRIERS = RESIDUAL ? 2 * GROUPS * BUFFERS : 0;

/* Boxes of a tile that are a warpgroup's and not outside of c, those of the same columns one after the other. */
struct boxes {
    int line, across, rows, count; /* of the first; of the same columns; all */

    __device__ boxes(const gemm_sm90_args &args, const tile &t, int group)
        : line(first_line(t, group)), across(t.across), rows(max(0, min(((int)args.lines - line + 63) / 64, WAVES)))
    {
        int columns = 0;
#pragma unroll
        for (int i = 0; i < BOXES; i++) columns += across + box_column(i) < args.across;
        count = rows * columns;
    }
};

/* The boxes of all tiles of a warpgroup. */
struct walk {
    int number, step, box;
    tile t;

    __device__ walk(const gemm_sm90_args &args, int group)
        : number((int)blockIdx.x + (TURNS && group == 1 ? (int)gridDim.x : 0)), step((1 + TURNS) * (int)gridDim.x), box(0)
    {
        settle(args, group);
    }
    __device__ bool is_over(const gemm_sm90_args &args) const { return number >= args.tiles; }
    /* To a box that is. */
    __device__ void settle(const gemm_sm90_args &args, int group)
    {
        while (!is_over(args)) {
            t = find_tile(args, number);
            if (box < boxes(args, t, group).count) return;
            box = 0;
            number += step;
        }
    }
    __device__ void next(const gemm_sm90_args &args, int group)
    {
        box++;
        settle(args, group);
    }
    __device__ int line(const boxes &b) const { return b.line + box % b.rows * 64; }
    __device__ int across(const boxes &b) const { return b.across + box_column(box / b.rows); }
};

/* Which buffer, and how often all of them were used. */
struct buffer_turn {
    int at;
    u32 parity;

    __device__ void next()
    {
        if (++at < BUFFERS) return;
        at = 0;
        parity ^= 1;
    }
};

/* Barriers of a warpgroup's buffers: a residual has come; results stand there. */
struct buffer_barriers {
    u32 full, done;

    __device__ buffer_barriers(u32 first, int group) : full(first + 16 * BUFFERS * group), done(full + 8 * BUFFERS) {}
    __device__ void init() const
    {
        for (int i = 0; i < BUFFERS; i++) {
            mbarrier_init(full + 8 * i, 1);
            mbarrier_init(done + 8 * i, 4);
        }
    }
};

__device__ __forceinline__ void load_residual(const gemm_sm90_args &args, const walk &w, u32 buffer, u32 bar, int group)
{
    const boxes b(args, w.t, group);
    mbarrier_arrive_expect(bar, 64 * BOX_BYTES);
    load_box<BATCH_RANK>(buffer, &args.residual, bar, w.across(b), w.line(b), w.t.batch, args.gemm.shape.r_batch);
}

/* One thread for each warpgroup. */
__device__ __forceinline__ void carry(const gemm_sm90_args &args, u32 staging, const buffer_barriers &bars, int group)
{
    walk load(args, group), store(args, group);
    buffer_turn turn = {0, 0};
    int free = 0; /* the buffer that is loaded next */
    for (; free < BUFFERS && !load.is_over(args); free++, load.next(args, group))
        load_residual(args, load, staging + free * BUFFER_BYTES, bars.full + 8 * free, group);
    free = -1;
    for (; !store.is_over(args); store.next(args, group), turn.next()) {
        const boxes b(args, store.t, group);
        mbarrier_wait(bars.done + 8 * turn.at, turn.parity);
        store_box(args, staging + turn.at * BUFFER_BYTES, store.across(b), store.line(b), store.t);
        tma_commit();
        if (free >= 0 && !load.is_over(args)) {
            tma_wait_read<1>();
            load_residual(args, load, staging + free * BUFFER_BYTES, bars.full + 8 * free, group);
            load.next(args, group);
        }
        free = turn.at;
    }
    tma_wait<0>();
}
