/* SPDX-License-Identifier: Apache-2.0
 * Updates by an index tensor, in logical order. A block owns some cells (what indices can name) of some
 * columns (what lies beside them), keeps them in shared memory and goes through all updates of its columns, taking
 * those that hit its cells: no atomics, and sums whose bits never vary. Of few columns a warp goes through
 * each, 32 updates at once. Constants beside those of index.cuh: COLUMNS, LANES (threads of a column), ROOM
 * (cells that the memory holds), THREADS, REDUCE; types element_t (here and there), real. */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "ops/index/index.cuh"

#define INLINE __device__ __forceinline__

static_assert(COLUMNS * LANES <= THREADS && (LANES == 1 || LANES == 32), "a thread or a warp for each column");

constexpr bool LAST = REDUCE == MICA_INDEX_LAST;

/* Number of the cell that an update hits, -1: none. */
INLINE long long cell_of(const mica_index_combine_args &a, long long at)
{
    if constexpr (FLAT) return index_legal(((const index_t *)a.index)[at], a.cells);
    long long cell = 0;
    bool inside = true;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        const long long v = index_legal(((const index_t *)a.index)[at + p * a.part_step], a.part[p].extent);
        inside &= v >= 0 && !(SKIPS && v == a.skip);
        cell = cell * a.part[p].extent + v;
    }
    return inside ? cell : -1;
}

INLINE long long place_of(const mica_index_combine_args &a, long long cell)
{
    return index_cell_offset(a.part, cell);
}

INLINE real merge(real old, real v)
{
    if (REDUCE == MICA_INDEX_ADD) return old + v;
    if (REDUCE == MICA_INDEX_MUL) return old * v;
    return (REDUCE == MICA_INDEX_MAX ? v > old : v < old) || v != v ? v : old;
}

INLINE index_place update_of(const mica_index_form &f, long long k)
{
    if (f.rank == 1) return index_place{k * f.at[0].here, 0, k * f.at[0].index};
    return index_place_of(f, k);
}

extern "C" __global__ void __launch_bounds__(THREADS) index_combine(const __grid_constant__ mica_index_combine_args a)
{
    __shared__ real sums[LAST ? 1 : ROOM * COLUMNS];
    __shared__ u8 touched[LAST ? 1 : ROOM * COLUMNS];
    __shared__ long long last[LAST ? ROOM * COLUMNS : 1]; /* the update that stays */
    const element_t *here = (const element_t *)a.here;
    element_t *there = (element_t *)a.there;
    const long long first_cell = (long long)blockIdx.x % a.cell_tiles * ROOM;
    const long long first_column = (long long)blockIdx.x / a.cell_tiles * COLUMNS;
    const long long cells = a.cells - first_cell < ROOM ? a.cells - first_cell : ROOM;
    const long long columns = a.columns.count - first_column < COLUMNS ? a.columns.count - first_column : COLUMNS;
    overlap_wait();
    for (int i = threadIdx.x; i < cells * COLUMNS; i += THREADS) {
        const int column = i % COLUMNS;
        if (LAST) {
            last[i] = -1;
        } else if (column < columns) {
            const index_place c = index_place_of(a.columns, first_column + column);
            touched[i] = 0;
            sums[i] = widen<real>(there[c.there + place_of(a, first_cell + i / COLUMNS)]);
        }
    }
    __syncthreads();
    const int column = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    if (column < columns) {
        const index_place c = index_place_of(a.columns, first_column + column);
        const long long count = a.updates.count;
        for (long long k = lane; k - lane < count; k += LANES) {
            const index_place u = k < count ? update_of(a.updates, k) : index_place{0, 0, 0};
            const long long cell = k < count ? cell_of(a, c.index + u.index) - first_cell : -1;
            const bool own = cell >= 0 && cell < cells && k < count;
            const int i = own ? (int)cell * COLUMNS + column : 0;
            real v = 0;
            if (!LAST && own) v = widen<real>(here[c.here + u.here]);
            /* one after the other: several may hit one cell */
            unsigned waiting = LANES > 1 ? __ballot_sync(0xffffffffu, own) : own;
            for (; waiting; waiting &= waiting - 1) {
                if (own && (LANES == 1 || lane == __ffs((int)waiting) - 1)) {
                    if (LAST) {
                        last[i] = k;
                    } else {
                        sums[i] = merge(sums[i], v);
                        touched[i] = 1;
                    }
                }
                if (LANES > 1) __syncwarp();
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < cells * COLUMNS; i += THREADS) {
        const int column = i % COLUMNS;
        if (column >= columns || (LAST ? last[i] < 0 : !touched[i])) continue;
        const index_place c = index_place_of(a.columns, first_column + column);
        element_t *to = there + c.there + place_of(a, first_cell + i / COLUMNS);
        if constexpr (LAST) *to = here[c.here + update_of(a.updates, last[i]).here];
        else *to = narrow<element_t>(sums[i]);
    }
}
