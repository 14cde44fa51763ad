/* SPDX-License-Identifier: Apache-2.0
 * The gradient of a depthwise filter on tensor cores, stride 1. For one channel and row of taps, 16 columns of
 * the image by 16 streams times 16 streams by 8 columns of b gives what every pair of columns adds to the
 * gradient; the sums along the diagonals are its taps, and they are formed once, at a block's end. A warp has
 * a channel or several, keeps the rows of b that later rows of the image meet, and the products' sums. A block
 * takes every `parts`th tile; conv_parts.cu adds up the parts. Constants: those of depthwise_mma.cuh. */
#include "kernels/overlap.cuh"
#include "ops/conv/depthwise/depthwise_mma.cuh"

constexpr int LINES = STREAMS / 2, READ_WORDS = READ_WINDOWS * WINDOW, OTHER_WORDS = WINDOWS * WINDOW;
typedef planes<LINES, READ_WORDS> image_planes;
typedef planes<LINES, OTHER_WORDS> other_planes;
typedef reader<LINES, READ_WORDS, READ_ROWS> image_reader;
typedef reader<LINES, OTHER_WORDS, STRIP_H> other_reader;

typedef u32 rows[HELD][WINDOWS][2]; /* of b: row j at j % HELD */
typedef float sums[ROWS][4];

constexpr int PRODUCTS = 16 * WINDOW; /* of one row of taps: [column of the image][column of b] */

/* first: the first row of a strip that is read; count: columns of the tile that are. */
template <typename R, int WORDS>
__device__ __forceinline__ void aim(const conv_depthwise_mma_args &a, R &r, const void *base, const conv_depthwise_mma_strides &s,
                                    const int (&size)[2], unsigned group, int channel, int first, int x, int count)
{
    r.row = s.s[0];
    r.height = size[0];
#pragma unroll
    for (int i = 0; i < R::ITEMS; i++) {
        const item at = item_of<typename R::plane, LINES, WORDS>(i);
        const int col = x + at.word, c = channel + at.chunk * CHUNK;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const stream t = stream_of(a, group, 2 * at.line + e);
            const bool exists = at.exists && t.exists && c < a.channels && at.word < count && (unsigned)col < (unsigned)size[1];
            const int y = t.y + first;
            const in_t *from = (const in_t *)base + t.n * s.n + y * s.s[0] + col * s.s[1] + c;
            r.runs[i][e] = run_of_channels{from, exists ? y : NOWHERE};
        }
    }
}

/* What 8 columns of b meet: the columns of the image from window `window` on. Neighbours share half of them,
 * but the units want theirs side by side: two loads cost less than the copies of one. */
__device__ __forceinline__ void load_product(const u32 *plane, int window, u32 (&x)[4])
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = (lane % 4 + i / 2 * 4) * image_planes::PITCH + (window + i % 2) * WINDOW + lane / 4;
        x[i] = i % 2 < SPAN ? load_shared(shared_address(plane + at)) : 0u;
    }
}

/* A row of the image and one of b, which is row I of those held. */
template <int I>
__device__ __forceinline__ void multiply(const u32 *image, const u32 *from, rows &other, sums &sum)
{
    u32 line[WINDOWS][4];
#pragma unroll
    for (int w = 0; w < WINDOWS; w++) load_product(image, w, line[w]);
#pragma unroll
    for (int w = 0; w < WINDOWS; w++) load_window<other_planes>(from, w, other[I][w]);
#pragma unroll
    for (int row = 0; row < ROWS; row++)
#pragma unroll
        for (int w = 0; w < WINDOWS; w++)
            matrix_unit<in_t, in_t>::multiply(sum[row], line[w], other[(I + HELD - row * DILATION_Y) % HELD][w]);
}

template <int I, int K = 0>
__device__ __forceinline__ void multiply_rows(const u32 *image, const u32 *from, rows &other, sums &sum)
{
    multiply<I + K>(image + K * image_planes::SIZE, from + K * other_planes::SIZE, other, sum);
    if constexpr (K + 1 < STEP_ROWS) multiply_rows<I, K + 1>(image, from, other, sum);
}

/* Which registers a row goes to is known to the compiler: there is a multiply for each place. */
template <int I = 0>
__device__ __forceinline__ void multiply_all(const u32 *image, const u32 *from, rows (&other)[EACH], int at, sums (&sum)[EACH])
{
    if (at == I) {
#pragma unroll
        for (int e = 0; e < EACH; e++)
            multiply_rows<I>(image + e * image_planes::CHANNEL, from + e * other_planes::CHANNEL, other[e], sum[e]);
        return;
    }
    if constexpr (I + STEP_ROWS < HELD) multiply_all<I + STEP_ROWS>(image, from, other, at, sum);
}

/* A warp's taps of one channel and row: sums along diagonals of the products. */
__device__ __forceinline__ void store_taps(const conv_depthwise_mma_args &a, unsigned part, int channel, int row,
                                           const float (&sum)[4], float *space)
{
    const int lane = (int)threadIdx.x % 32, first = WHOLE ? a.origin[1] : 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) space[(lane / 4 + i / 2 * 8) * WINDOW + lane % 4 * 2 + i % 2] = sum[i];
    __syncwarp();
    if (lane >= COLS || channel >= a.channels) return;
    float v = 0;
    for (int o = 0; o < WINDOW; o++) {
        const int at = o + lane * DILATION_X + first;
        if (at >= 0 && at < SPAN * WINDOW) v += space[at * WINDOW + o];
    }
    out_t *out = (out_t *)a.out + part * a.part + channel * a.filter_c + row * a.filter_s[0] + lane * a.filter_s[1];
    v *= (float)a.alpha;
    if (a.beta != 0) v += (float)a.beta * widen<float>(*out);
    *out = narrow<out_t>(v);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv_depthwise_mma_wgrad(const __grid_constant__ conv_depthwise_mma_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    u32 *const image = (u32 *)(memory + DEPTH * (image_reader::STEP_BYTES + other_reader::STEP_BYTES));
    u32 *const other = image + 2 * STEP_ROWS * image_planes::SIZE;
    const unsigned part = mica_fastdiv_of(a.channel_blocks, blockIdx.x), parts = gridDim.x / a.channel_blocks.divisor;
    const int channel = (int)(blockIdx.x - part * a.channel_blocks.divisor) * CHANNELS, mine = (int)threadIdx.x / 32 * EACH;
    image_reader from;
    other_reader to;
    from.staging = memory;
    to.staging = memory + DEPTH * image_reader::STEP_BYTES;
    from.aligned = a.from_aligned;
    to.aligned = a.to_aligned;
    sums sum[EACH] = {};
#pragma unroll 1
    for (unsigned tile = part; tile < a.tiles; tile += parts) {
        const unsigned group = mica_fastdiv_of(a.across, tile);
        const int x = (int)(tile - group * a.across.divisor) * TILE_W;
        aim<image_reader, READ_WORDS>(a, from, a.image, a.from, a.size_from, group, channel, a.origin[0],
                                      WHOLE ? 0 : x + a.origin[1], READ_COLS);
        aim<other_reader, OTHER_WORDS>(a, to, a.other, a.to, a.size_to, group, channel, 0, x, TILE_W);
        const auto copy = [&](int step) {
            from.copy(step);
            to.copy(step);
            copies_commit();
        };
        const auto turn = [&](int step) {
            from.turn(step, image + step % 2 * STEP_ROWS * image_planes::SIZE);
            to.turn(step, other + step % 2 * STEP_ROWS * other_planes::SIZE);
        };
#pragma unroll
        for (int i = 0; i < DEPTH - 1; i++) copy(i);
        copies_wait<DEPTH - 2>();
        turn(0);
        __syncthreads();
        rows held[EACH] = {};
        int at = 0; /* the place of the step's first row */
#pragma unroll 1
        for (int step = 0; step < STEPS; step++) {
            copy(step + DEPTH - 1);
            multiply_all(image + step % 2 * STEP_ROWS * image_planes::SIZE + mine * image_planes::CHANNEL,
                         other + step % 2 * STEP_ROWS * other_planes::SIZE + mine * other_planes::CHANNEL, held, at, sum);
            at = at + STEP_ROWS == HELD ? 0 : at + STEP_ROWS;
            copies_wait<DEPTH - 2>();
            turn(step + 1);
            __syncthreads();
        }
        copies_wait<0>();
    }
    float *const space = (float *)memory + (int)threadIdx.x / 32 * PRODUCTS;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; e++)
#pragma unroll
        for (int row = 0; row < ROWS; row++) store_taps(a, part, channel + mine + e, row, sum[e][row], space);
}
