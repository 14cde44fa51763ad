/* SPDX-License-Identifier: Apache-2.0
 * Transforms where x runs along another dimension than y: a tile goes through shared memory, read
 * along x's run and written along y's. Constants: TILE_ROWS and TILE_COLS (powers of two), BLOCK, and
 * those of transform_convert.cuh. */
#include "cuda/device/layout.cuh"
#include "ops/transform/transform_convert.cuh"

static_assert((TILE_ROWS & (TILE_ROWS - 1)) == 0 && (TILE_COLS & (TILE_COLS - 1)) == 0, "masks");
static_assert(TILE_ROWS * TILE_COLS % BLOCK == 0, "whole steps");

/* An odd number of 4-byte words: neighbouring rows lie in neighbouring banks. */
constexpr int PITCH = TILE_COLS + (sizeof(x_t) < 4 ? 4 / (int)sizeof(x_t) : 1);
constexpr int STEPS = TILE_ROWS * TILE_COLS / BLOCK;

extern "C" __global__ void __launch_bounds__(BLOCK) transform_tile(const mica_transform_args a)
{
    __shared__ x_t tile[TILE_ROWS * PITCH];
    long long block = blockIdx.x;
    long long row = block % a.row_tiles * TILE_ROWS;
    block /= a.row_tiles;
    long long col = block % a.col_tiles * TILE_COLS, at[2];
    layout_offsets<2>(a.layout, block / a.col_tiles, at);
    const x_t *x = (const x_t *)a.x + at[1] + row * a.x_row + col * a.x_col;
    y_t *y = (y_t *)a.y + at[0] + row * a.y_row + col * a.y_col;
    int rows = a.rows - row < TILE_ROWS ? (int)(a.rows - row) : TILE_ROWS;
    int cols = a.cols - col < TILE_COLS ? (int)(a.cols - col) : TILE_COLS;

#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        int i = k * BLOCK + (int)threadIdx.x, r = i / TILE_COLS, c = i % TILE_COLS;
        if (r < rows && c < cols) tile[r * PITCH + c] = x[r * a.x_row + c * a.x_col];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        int i = k * BLOCK + (int)threadIdx.x, c = i / TILE_ROWS, r = i % TILE_ROWS;
        if (r >= rows || c >= cols) continue;
        x_t v = tile[r * PITCH + c];
        y_t *to = y + r * a.y_row + c * a.y_col;
        if (!a.scaled)
            *to = convert<y_t>(v);
        else
            *to = scale(a, v, a.beta != 0 ? *to : y_t());
    }
}
