/* SPDX-License-Identifier: Apache-2.0
 * Transforms where x runs along another dimension than y: a tile goes through shared memory, read
 * along x's run (its columns) and written along y's (its rows), each in vectors. Constants: TILE_ROWS
 * and TILE_COLS; X_RUN (the tile has all columns of x and its rows follow each other in memory: one
 * run, which vectors cross rows in), Y_RUN (the same of y and its columns); X_VECTOR, Y_VECTOR
 * (elements of an access), BLOCK, and those of transform_convert.cuh. */
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "kernels/vector.cuh"
#include "ops/transform/transform_convert.cuh"

static_assert(X_RUN || TILE_COLS % X_VECTOR == 0, "vectors end with rows");
static_assert(Y_RUN || TILE_ROWS % Y_VECTOR == 0, "vectors end with columns");

constexpr int SIZE = (int)sizeof(x_t), ELEMENTS = TILE_ROWS * TILE_COLS;
/* An odd number of 4-byte words: neighbouring rows lie in neighbouring banks. */
constexpr int PITCH = SIZE < 4 ? ((TILE_COLS * SIZE + 3) / 4 | 1) * 4 / SIZE : TILE_COLS | 1;
constexpr int X_VECTORS = (ELEMENTS + X_VECTOR - 1) / X_VECTOR, Y_VECTORS = (ELEMENTS + Y_VECTOR - 1) / Y_VECTOR;
constexpr int X_STEPS = (X_VECTORS + BLOCK - 1) / BLOCK, Y_STEPS = (Y_VECTORS + BLOCK - 1) / BLOCK;
constexpr int BATCH = X_STEPS < 8 ? X_STEPS : 8; /* vectors in flight */

struct corner {
    const x_t *x;
    y_t *y;
    int rows, cols; /* that the tensors have from here on, at most the tile */
};

__device__ __forceinline__ corner find_tile(const mica_transform_args &a)
{
    unsigned block = blockIdx.x, rest = block / (unsigned)a.row_tiles;
    long long row = (long long)(block - rest * (unsigned)a.row_tiles) * TILE_ROWS, at[2];
    unsigned outer = rest / (unsigned)a.col_tiles;
    long long col = (long long)(rest - outer * (unsigned)a.col_tiles) * TILE_COLS;
    layout_offsets<2>(a.layout, outer, at);
    corner t;
    t.x = (const x_t *)a.x + at[1] + row * a.x_row + col * a.x_col;
    t.y = (y_t *)a.y + at[0] + row * a.y_row + col * a.y_col;
    t.rows = a.rows - row < TILE_ROWS ? (int)(a.rows - row) : TILE_ROWS;
    t.cols = a.cols - col < TILE_COLS ? (int)(a.cols - col) : TILE_COLS;
    return t;
}

/* Elements of x's vector i that exist. */
__device__ __forceinline__ int x_length(const corner &t, int i)
{
    int e = i * X_VECTOR, r = e / TILE_COLS;
    int n = X_RUN ? t.rows * TILE_COLS - e : r < t.rows ? t.cols - e % TILE_COLS : 0;
    return n < X_VECTOR ? n : X_VECTOR;
}
__device__ __forceinline__ int y_length(const corner &t, int i)
{
    int e = i * Y_VECTOR, c = e / TILE_ROWS;
    int n = Y_RUN ? t.cols * TILE_ROWS - e : c < t.cols ? t.rows - e % TILE_ROWS : 0;
    return n < Y_VECTOR ? n : Y_VECTOR;
}

__device__ __forceinline__ const x_t *x_address(const mica_transform_args &a, const corner &t, int i)
{
    int e = i * X_VECTOR;
    return X_RUN ? t.x + e : t.x + e / TILE_COLS * a.x_row + e % TILE_COLS * a.x_col;
}
__device__ __forceinline__ y_t *y_address(const mica_transform_args &a, const corner &t, int i)
{
    int e = i * Y_VECTOR;
    return Y_RUN ? t.y + e : t.y + e % TILE_ROWS * a.y_row + e / TILE_ROWS * a.y_col;
}

__device__ __forceinline__ void keep(x_t *tile, int i, const x_t *v, int n)
{
    int e = i * X_VECTOR;
    if constexpr (!X_RUN && SIZE < 4 && SIZE * X_VECTOR >= 4) {
        x_t *to = tile + e / TILE_COLS * PITCH + e % TILE_COLS;
#pragma unroll
        for (int k = 0; k < X_VECTOR; k += 4 / SIZE)
            if (k < n) store_vector<4 / SIZE>(to + k, v + k);
    } else {
#pragma unroll
        for (int k = 0; k < X_VECTOR; k++)
            if (k < n) tile[(e + k) / TILE_COLS * PITCH + (e + k) % TILE_COLS] = v[k];
    }
}

/* All loads of a batch are in flight before the first is used. */
template <bool WHOLE> __device__ __forceinline__ void read_tile(const mica_transform_args &a, const corner &t, x_t *tile)
{
#pragma unroll
    for (int first = 0; first < X_STEPS; first += BATCH) {
        x_t v[BATCH][X_VECTOR];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            int i = (first + j) * BLOCK + (int)threadIdx.x;
            if (i < X_VECTORS) load_some<X_VECTOR>(x_address(a, t, i), v[j], WHOLE ? X_VECTOR : x_length(t, i), WHOLE);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            int i = (first + j) * BLOCK + (int)threadIdx.x;
            if (i < X_VECTORS) keep(tile, i, v[j], WHOLE ? X_VECTOR : x_length(t, i));
        }
    }
}

template <bool WHOLE> __device__ __forceinline__ void write_tile(const mica_transform_args &a, const corner &t, const x_t *tile)
{
#pragma unroll 4
    for (int step = 0; step < Y_STEPS; step++) {
        int i = step * BLOCK + (int)threadIdx.x, e = i * Y_VECTOR;
        int n = WHOLE ? Y_VECTOR : y_length(t, i);
        if (i >= Y_VECTORS) break;
        y_t v[Y_VECTOR], *to = y_address(a, t, i);
        if (a.scaled && a.beta != 0) load_some<Y_VECTOR>(to, v, n, WHOLE);
#pragma unroll
        for (int k = 0; k < Y_VECTOR; k++) {
            if (k >= n) break;
            x_t x = tile[(e + k) % TILE_ROWS * PITCH + (e + k) / TILE_ROWS];
            v[k] = a.scaled ? scale(a, x, v[k]) : convert<y_t>(x);
        }
        store_some<Y_VECTOR>(to, v, n, WHOLE);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) transform_tile(const mica_transform_args a)
{
    overlap_wait();
    __shared__ __align__(16) x_t tile[TILE_ROWS * PITCH];
    corner t = find_tile(a);
    bool whole = a.aligned && t.rows == TILE_ROWS && t.cols == TILE_COLS;
    if (whole) read_tile<true>(a, t, tile);
    else read_tile<false>(a, t, tile);
    __syncthreads();
    if (whole) write_tile<true>(a, t, tile);
    else write_tile<false>(a, t, tile);
}
