/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolution and its gradient with respect to the image on tensor cores, stride 1. For one channel
 * a row of 16 streams (depthwise_mma.cuh) is a matrix, the filter's row of taps a band along the
 * diagonal of another, the same for every window of 8 columns: 16 x 16 by 16 x 8 gives 8 columns of 16
 * streams, of which 3 taps use a fifth and 7 nearly half. The units have that to spare; what counts is that
 * an element costs some 20 instructions from memory to memory, where 7 x 7 taps take 49 multiply-adds alone.
 * A warp has a channel or several, whose filter and last rows it keeps in registers. A result that is not
 * finite is formed again of its own taps alone: zeros of the band would spread an infinity to its neighbours.
 * Constants: those of depthwise_mma.cuh and the epilogue's; HAS_RESIDUAL. */
#include "kernels/epilogue.cuh"
#include "kernels/overlap.cuh"
#include "ops/conv/depthwise/depthwise_mma.cuh"

constexpr int READ_WORDS = READ_WINDOWS * 4, WRITE_WORDS = WINDOWS * 4;
typedef planes<STREAMS, READ_WORDS> image_planes;
typedef planes<STREAMS, WRITE_WORDS, 8> result_planes;
typedef reader<STREAMS, READ_WORDS, READ_ROWS> image_reader;

typedef u32 rows[HELD][READ_WINDOWS][2]; /* row j at j % HELD */
typedef u32 band[ROWS][SPAN];

/* Where a stream's pixel 0, 0 is. */
struct place {
    s64 from, residual;
};

/* ---- the filter ---- */

__device__ __forceinline__ in_t tap_of(const conv_depthwise_mma_args &a, int channel, int row, int col)
{
    if constexpr (DGRAD) row = ROWS - 1 - row, col = COLS - 1 - col;
    return ((const in_t *)a.other)[channel * a.filter_c + row * a.filter_s[0] + col * a.filter_s[1]];
}

/* Column o of a window reads columns o + i * DILATION_X of what the window reads. */
__device__ __forceinline__ void load_band(const conv_depthwise_mma_args &a, band &w, int channel)
{
    const int lane = (int)threadIdx.x % 32, first = WHOLE ? a.origin[1] : 0;
#pragma unroll
    for (int row = 0; row < ROWS; row++)
#pragma unroll
        for (int i = 0; i < SPAN; i++) {
            in_t v[2] = {};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int at = i * 8 + lane % 4 * 2 + e - lane / 4 - first, col = at / DILATION_X;
                if (at >= 0 && at % DILATION_X == 0 && col < COLS && channel < a.channels)
                    v[e] = tap_of(a, channel, row, col);
            }
            memcpy(&w[row][i], v, 4);
        }
}

/* ---- a step of a warp ---- */

/* c += a b for 16 rows, 8 columns and 8 terms. */
__device__ __forceinline__ void multiply_half(bf16, float (&c)[4], const u32 (&a)[2], u32 b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}
__device__ __forceinline__ void multiply_half(f16, float (&c)[4], const u32 (&a)[2], u32 b)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* One channel of the row at place I of those held, and the results whose last row it is. */
template <int I>
__device__ __forceinline__ void multiply(rows &image, const band &filter, const u32 *from, bool complete, float2 *to)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int w = 0; w < READ_WINDOWS; w++) load_window<image_planes>(from, w, image[I][w]);
    if (!complete) return;
#pragma unroll
    for (int w = 0; w < WINDOWS; w++) {
        float sum[4] = {};
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            const u32(&line)[READ_WINDOWS][2] = image[(I + 1 + row * DILATION_Y + 2 * HELD - NEEDED) % HELD];
            /* halves: registers of whole products would have to lie side by side, in two places */
#pragma unroll
            for (int i = 0; i < SPAN; i++) multiply_half(in_t{}, sum, line[w + i], filter[row][i]);
        }
        to[lane / 4 * result_planes::PITCH + w * 4 + lane % 4] = make_float2(sum[0], sum[1]);
        to[(lane / 4 + 8) * result_planes::PITCH + w * 4 + lane % 4] = make_float2(sum[2], sum[3]);
    }
}

template <int I, int K = 0>
__device__ __forceinline__ void multiply_rows(rows &image, const band &filter, const u32 *from, int step, float2 *to)
{
    multiply<I + K>(image, filter, from + K * image_planes::SIZE, step * STEP_ROWS + K >= NEEDED - 1, to + K * result_planes::SIZE);
    if constexpr (K + 1 < STEP_ROWS) multiply_rows<I, K + 1>(image, filter, from, step, to);
}

/* Which registers a row goes to is known to the compiler: there is a multiply for each place. */
template <int I = 0>
__device__ __forceinline__ void multiply_all(rows (&image)[EACH], const band (&filter)[EACH], const u32 *from, int at, int step,
                                             float2 *to)
{
    if (at == I) {
#pragma unroll
        for (int e = 0; e < EACH; e++)
            multiply_rows<I>(image[e], filter[e], from + e * image_planes::CHANNEL, step, to + e * result_planes::CHANNEL);
        return;
    }
    if constexpr (I + STEP_ROWS < HELD) multiply_all<I + STEP_ROWS>(image, filter, from, at, step, to);
}

/* ---- results ---- */

/* Where a thread's item of results goes: two pixels of a chunk. */
struct target {
    out_t *to; /* of the row that is stored next */
    int y, x, channel, stream;
    bool first, second; /* whether the pixels are the tile's */
};

/* A sum of taps alone: zeros of the band spread what is not finite. */
__device__ __forceinline__ float plain_sum(const conv_depthwise_mma_args &a, const place &p, int channel, int y, int x)
{
    const in_t *image = (const in_t *)a.image + p.from + channel;
    float sum = 0;
#pragma unroll 1
    for (int row = 0; row < ROWS; row++)
#pragma unroll 1
        for (int col = 0; col < COLS; col++) {
            const int v = y + a.origin[0] + row * DILATION_Y, u = x + a.origin[1] + col * DILATION_X;
            if ((unsigned)v < (unsigned)a.size_from[0] && (unsigned)u < (unsigned)a.size_from[1])
                sum += widen<float>(image[v * a.from.s[0] + u * a.from.s[1]]) * widen<float>(tap_of(a, channel, row, col));
        }
    return sum;
}

__device__ __forceinline__ out_t finished(const conv_depthwise_mma_args &a, const place &p, int channel, int y, int x, float v)
{
    s64 residual = 0;
    if constexpr (HAS_RESIDUAL)
        residual = p.residual + y * a.residual.s[0] + x * a.residual.s[1] + channel * a.residual_c;
    return narrow<out_t>(epilogue(a.epilogue, v, channel, residual));
}

/* The pixel of a chunk at column x. */
__device__ __forceinline__ void store_chunk(const conv_depthwise_mma_args &a, const place &p, const target &t, out_t *to, int x,
                                            bool plain, bool finite, float (&sum)[CHUNK])
{
    if (finite) {
        if (!plain) {
#pragma unroll
            for (int c = 0; c < CHUNK; c++) {
                sum[c] *= (float)a.alpha;
                if (a.beta != 0) sum[c] += (float)a.beta * widen<float>(to[c]);
            }
        }
        out_t v[CHUNK];
#pragma unroll
        for (int c = 0; c < CHUNK; c++) v[c] = finished(a, p, t.channel + c, t.y, x, sum[c]);
        store_some<CHUNK>(to, v, CHUNK, a.to_aligned);
    } else {
#pragma unroll 1
        for (int c = 0; c < CHUNK; c++) {
            float v = plain_sum(a, p, t.channel + c, t.y, x) * (float)a.alpha;
            if (a.beta != 0) v += (float)a.beta * widen<float>(to[c]);
            to[c] = finished(a, p, t.channel + c, t.y, x, v);
        }
    }
}

/* The next row of all strips. */
__device__ __forceinline__ void store_row(const conv_depthwise_mma_args &a, const place *places, const float2 *from,
                                          target (&targets)[result_planes::ITEMS], bool plain)
{
#pragma unroll
    for (int i = 0; i < result_planes::ITEMS; i++) {
        target &t = targets[i];
        if ((unsigned)t.y < (unsigned)a.size_to[0]) {
            const item at = item_of<result_planes, STREAMS, WRITE_WORDS>(i);
            const float2 *word = from + at.chunk * CHUNK * result_planes::CHANNEL + at.line * result_planes::PITCH + at.word;
            float sum[2][CHUNK], none = 0; /* what is not finite reaches all of a window's 8 columns */
#pragma unroll
            for (int c = 0; c < CHUNK; c++) {
                const float2 two = word[c * result_planes::CHANNEL];
                sum[0][c] = two.x;
                sum[1][c] = two.y;
                none += two.x * 0;
            }
            if (t.first) store_chunk(a, places[t.stream], t, t.to, t.x, plain, none == 0, sum[0]);
            if (t.second) store_chunk(a, places[t.stream], t, t.to + a.to.s[1], t.x + 1, plain, none == 0, sum[1]);
        }
        t.y++;
        t.to += a.to.s[0];
    }
}

__device__ __forceinline__ void store_step(const conv_depthwise_mma_args &a, const place *places, const float2 *from,
                                           target (&targets)[result_planes::ITEMS], bool plain, int step)
{
#pragma unroll
    for (int k = 0; k < STEP_ROWS; k++) {
        const int row = step * STEP_ROWS + k - (NEEDED - 1);
        if (row >= 0 && row < STRIP_H) store_row(a, places, from + k * result_planes::SIZE, targets, plain);
    }
}

__device__ __forceinline__ void make_places(const conv_depthwise_mma_args &a, place *places, unsigned group)
{
    if (threadIdx.x >= STREAMS) return;
    const stream s = stream_of(a, group, (int)threadIdx.x);
    places[threadIdx.x] = place{s.n * a.from.n, s.n * a.residual.n};
}

__device__ __forceinline__ void make_reader(const conv_depthwise_mma_args &a, image_reader &r, unsigned group, int channel,
                                            int x, unsigned char *staging)
{
    r.row = a.from.s[0];
    r.height = a.size_from[0];
    r.aligned = a.from_aligned;
    r.staging = staging;
#pragma unroll
    for (int i = 0; i < image_reader::ITEMS; i++) {
        const item at = item_of<image_planes, STREAMS, READ_WORDS>(i);
        const stream s = stream_of(a, group, at.line);
        const int y = s.y + a.origin[0], c = channel + at.chunk * CHUNK;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int word_col = at.word * 2 + e, col = (WHOLE ? 0 : x + a.origin[1]) + word_col;
            const bool exists = at.exists && s.exists && c < a.channels && word_col < READ_COLS &&
                                (unsigned)col < (unsigned)a.size_from[1];
            const in_t *from = (const in_t *)a.image + s.n * a.from.n + y * a.from.s[0] + col * a.from.s[1] + c;
            r.runs[i][e] = run_of_channels{from, exists ? y : NOWHERE};
        }
    }
}

__device__ __forceinline__ void make_targets(const conv_depthwise_mma_args &a, target (&targets)[result_planes::ITEMS],
                                             unsigned group, int channel, int x)
{
#pragma unroll
    for (int i = 0; i < result_planes::ITEMS; i++) {
        const item at = item_of<result_planes, STREAMS, WRITE_WORDS>(i);
        const stream s = stream_of(a, group, at.line);
        const int col = at.word * 2;
        target &t = targets[i];
        t = target{0, s.y, x + col, channel + at.chunk * CHUNK, at.line, false, false};
        if (!at.exists || !s.exists || t.channel >= a.channels) t.y = NOWHERE;
        t.first = col < TILE_W && t.x < a.size_to[1];
        t.second = col + 1 < TILE_W && t.x + 1 < a.size_to[1];
        t.to = (out_t *)a.out + s.n * a.to.n + s.y * a.to.s[0] + t.x * a.to.s[1] + t.channel;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    conv_depthwise_mma(const __grid_constant__ conv_depthwise_mma_args a)
{
    overlap_wait();
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ place places[STREAMS];
    float2 *const result = (float2 *)(memory + DEPTH * image_reader::STEP_BYTES);
    u32 *const image = (u32 *)(result + 2 * STEP_ROWS * result_planes::SIZE);
    const unsigned tile = mica_fastdiv_of(a.channel_blocks, blockIdx.x), group = mica_fastdiv_of(a.across, tile);
    const int channel = (int)(blockIdx.x - tile * a.channel_blocks.divisor) * CHANNELS;
    const int x = (int)(tile - group * a.across.divisor) * TILE_W, mine = (int)threadIdx.x / 32 * EACH;
    const bool plain = a.alpha == 1 && a.beta == 0;
    make_places(a, places, group);
    target targets[result_planes::ITEMS];
    make_targets(a, targets, group, channel, x);
    image_reader reader;
    make_reader(a, reader, group, channel, x, memory);
#pragma unroll
    for (int i = 0; i < DEPTH - 1; i++) {
        reader.copy(i);
        copies_commit();
    }
    band filter[EACH];
    rows held[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) load_band(a, filter[e], channel + mine + e);
    copies_wait<DEPTH - 2>();
    reader.turn(0, image);
    __syncthreads();
    int at = 0; /* the place of the step's first row */
#pragma unroll 1
    for (int step = 0; step <= STEPS; step++) { /* the last one only stores */
        reader.copy(step + DEPTH - 1);
        copies_commit();
        const int now = step % 2 * STEP_ROWS, other = STEP_ROWS - now;
        if (step < STEPS)
            multiply_all(held, filter, image + now * image_planes::SIZE + mine * image_planes::CHANNEL, at, step,
                         result + now * result_planes::SIZE + mine * result_planes::CHANNEL);
        at = at + STEP_ROWS == HELD ? 0 : at + STEP_ROWS;
        if (step > 0) store_step(a, places, result + other * result_planes::SIZE, targets, plain, step - 1);
        copies_wait<DEPTH - 2>();
        if (step + 1 < STEPS) reader.turn(step + 1, image + other * image_planes::SIZE);
        __syncthreads();
    }
}
