/* SPDX-License-Identifier: Apache-2.0
 * A tile of a matrix product on the tensor cores: slices of 64 bytes of k travel through STAGES
 * buffers in shared memory, warps multiply WARP_M x WARP_N pieces of the tile, and results are transposed
 * in shared memory so that they are stored along the output's lines. Sums run over k in order.
 *
 * f32 is rounded to tf32 on its way to the units unless PRECISE: then an element is two numbers of tf32 and
 * a product three products, see below.
 *
 * An operand has lines (rows of a, columns of b) and k. Each thread fetches pieces of VECTOR elements
 * along k (K_FAST) or along the lines. In shared memory a slice lies as rows of k for each line
 * (K_MAJOR) or rows of lines for each k; 16-byte chunks are permuted so that eight chunks of
 * neighbouring rows lie in different banks.
 *
 * A SHIFTED operand's pieces have 16 bytes that begin at any element: they come as the aligned 16 bytes around
 * them, and are shifted on their way from registers to shared memory. Its source has low and high, the ends of
 * the memory that may be read.
 *
 * Prologue (ops/mma/mma_tile.h): TILE_M TILE_N WARP_M WARP_N STAGES RESIDENT SHARED; A_VECTOR
 * A_K_FAST A_SHIFTED B_VECTOR B_K_FAST B_SHIFTED; C_VECTOR C_N_FAST: elements stored at once, along the columns or rows;
 * PRECISE; types a_t b_t c_t sum_t. */
#pragma once
#include "kernels/mma.cuh"
#include "kernels/shifted.cuh"
#include "kernels/vector.cuh"

constexpr int SLICE_BYTES = 64;
constexpr int TILE_K = SLICE_BYTES / (int)sizeof(a_t);
constexpr int WARPS_N = TILE_N / WARP_N;
constexpr int WARPS = TILE_M / WARP_M * WARPS_N, THREADS = WARPS * 32;
constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8;
static_assert(sizeof(a_t) == sizeof(b_t), "one slice depth");
static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "fragments come in 16 lines");
static_assert(!PRECISE || sizeof(a_t) == 4, "f32 is what tf32 is short of");

typedef sum_t sums[BLOCKS_M][BLOCKS_N][4];

template <typename T, bool SHIFTED> struct piece_in_registers {
    typedef T type;
};
template <typename T> struct piece_in_registers<T, true> {
    typedef shifted_piece type;
};

template <typename T, int LINES, int VECTOR_, bool K_FAST_, bool SHIFTED_> struct operand {
    static constexpr int VECTOR = VECTOR_, SIZE = (int)sizeof(T);
    static constexpr bool K_FAST = K_FAST_, SHIFTED = SHIFTED_;
    typedef typename piece_in_registers<T, SHIFTED>::type held_t;
    /* ldmatrix transposes 16-bit words only; 32-bit ones are read one by one, bytes must be transposed otherwise. */
    static constexpr bool K_MAJOR = K_FAST || SIZE == 1;
    static constexpr int PITCH = K_MAJOR ? SLICE_BYTES : LINES * SIZE + (SIZE == 4 ? 32 : 0);
    static constexpr int BYTES = (K_MAJOR ? LINES : TILE_K) * PITCH;
    /* cp.async moves 4 bytes at least; less goes through registers while the slice before is used. */
    static constexpr bool ASYNC = !SHIFTED && VECTOR * SIZE >= 4;
    static constexpr int FAST = (K_FAST ? TILE_K : LINES) / VECTOR, EACH = THREADS / FAST;
    static constexpr int PIECES = LINES * TILE_K / VECTOR / THREADS;
    static constexpr int HELD = ASYNC ? 1 : PIECES;
    static_assert(THREADS % FAST == 0 && PIECES > 0, "a thread's pieces differ in one index only");
    static_assert(VECTOR == 1 || K_FAST == K_MAJOR, "pieces are not turned");
    static_assert(VECTOR == 1 || ASYNC || SHIFTED, "a register holds one element of a piece");
    static_assert(!SHIFTED || VECTOR * SIZE == 16, "a store to shared memory has a whole piece");

    /* Line and k of a thread's piece i. */
    static __device__ __forceinline__ int line(int i)
    {
        return K_FAST ? (int)threadIdx.x / FAST + i * EACH : (int)threadIdx.x % FAST * VECTOR;
    }
    static __device__ __forceinline__ int depth(int i)
    {
        return K_FAST ? (int)threadIdx.x % FAST * VECTOR : (int)threadIdx.x / FAST + i * EACH;
    }
    static __device__ __forceinline__ int at(int line, int k)
    {
        if constexpr (K_MAJOR)
            return line * PITCH + ((k * SIZE / 16 ^ (line >> 1 & 3)) << 4) + k * SIZE % 16;
        else if constexpr (SIZE == 2)
            return k * PITCH + ((line / 8 ^ (k & 7)) << 4) + line % 8 * 2;
        else
            return k * PITCH + line * SIZE;
    }

    /* source.locate(i, line, k, p): address of a piece and how many of its elements exist. */
    template <typename S>
    static __device__ __forceinline__ void fetch(const S &source, char *slice, held_t (&held)[HELD])
    {
        if constexpr (SHIFTED) {
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                const T *p;
                const int count = source.locate(i, line(i), depth(i), p);
                held[i] = read_shifted(p, count, source.low, source.high);
            }
        } else if constexpr (!ASYNC) {
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                const T *p;
                held[i] = source.locate(i, line(i), depth(i), p) > 0 ? *p : T{};
            }
        } else if (VECTOR == 1 || source.aligned) {
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                const T *p;
                const int count = source.locate(i, line(i), depth(i), p);
                copy_async<VECTOR * SIZE>(shared_address(slice) + at(line(i), depth(i)), p, count * SIZE);
            }
        } else {
#pragma unroll 1
            for (int i = 0; i < PIECES; i++) fetch_apart(source, slice, i);
        }
    }
    /* A piece that is not aligned as its strides would allow. */
    template <typename S> static __device__ __forceinline__ void fetch_apart(const S &source, char *slice, int i)
    {
        const T *p;
        const int count = source.locate(i, line(i), depth(i), p);
        T v[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; j++) v[j] = j < count ? p[j] : T{};
        store_vector<VECTOR>((T *)(slice + at(line(i), depth(i))), v);
    }
    static __device__ __forceinline__ void deposit(char *slice, const held_t (&held)[HELD])
    {
        if constexpr (SHIFTED) {
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                u32 word[4];
                shift_piece(held[i], word);
                store_vector<4>((u32 *)(slice + at(line(i), depth(i))), word);
            }
        } else if constexpr (!ASYNC) {
#pragma unroll
            for (int i = 0; i < PIECES; i++) *(T *)(slice + at(line(i), depth(i))) = held[i];
        }
    }

    static __device__ __forceinline__ u32 rounded(u32 v)
    {
        if constexpr (SIZE == 4 && !PRECISE)
            return round_tf32(v);
        else
            return v;
    }

    /* Fragments of N blocks of 16 rows from line `first`, at 32-byte step `step` of the slice. */
    template <int N>
    static __device__ __forceinline__ void rows(u32 (&f)[N][4], u32 slice, int first, int step)
    {
        const int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < N; i++) {
            if constexpr (K_MAJOR) {
                int l = first + lane % 16, base = l * PITCH + ((lane / 16 ^ (l >> 1 & 3)) << 4);
                load_matrices(f[i][0], f[i][1], f[i][2], f[i][3], slice + (base ^ step << 5) + i * 16 * PITCH);
            } else if constexpr (SIZE == 2) {
                int r = lane % 8, m = lane / 8;
                int base = (m / 2 * 8 + r) * PITCH + (((first / 8 + m % 2) ^ r) << 4);
                load_transposed(f[i][0], f[i][1], f[i][2], f[i][3], slice + (base ^ i << 5) + step * 16 * PITCH);
            } else {
                u32 base = slice + (step * 8 + lane % 4) * PITCH + (first + i * 16 + lane / 4) * 4;
                f[i][0] = load_shared(base), f[i][1] = load_shared(base + 32);
                f[i][2] = load_shared(base + 4 * PITCH), f[i][3] = load_shared(base + 4 * PITCH + 32);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) f[i][j] = rounded(f[i][j]);
        }
    }
    /* The same for N blocks of 8 columns. */
    template <int N>
    static __device__ __forceinline__ void cols(u32 (&f)[N][2], u32 slice, int first, int step)
    {
        const int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            if constexpr (K_MAJOR) {
                int l = first + lane / 16 * 8 + lane % 8;
                int base = l * PITCH + ((lane / 8 % 2 ^ (l >> 1 & 3)) << 4);
                load_matrices(f[i][0], f[i][1], f[i + 1][0], f[i + 1][1], slice + (base ^ step << 5) + i * 8 * PITCH);
            } else if constexpr (SIZE == 2) {
                int r = lane % 8, m = lane / 8;
                int base = (m % 2 * 8 + r) * PITCH + (((first / 8 + m / 2) ^ r) << 4);
                load_transposed(f[i][0], f[i][1], f[i + 1][0], f[i + 1][1],
                                slice + (base ^ i << 4) + step * 16 * PITCH);
            } else {
                u32 base = slice + (step * 8 + lane % 4) * PITCH + (first + i * 8 + lane / 4) * 4;
                f[i][0] = load_shared(base), f[i][1] = load_shared(base + 4 * PITCH);
                f[i + 1][0] = load_shared(base + 32), f[i + 1][1] = load_shared(base + 4 * PITCH + 32);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) f[i + j / 2][j % 2] = rounded(f[i + j / 2][j % 2]);
        }
    }
};
typedef operand<a_t, TILE_M, A_VECTOR, A_K_FAST, A_SHIFTED> operand_a;
typedef operand<b_t, TILE_N, B_VECTOR, B_K_FAST, B_SHIFTED> operand_b;
constexpr int STAGE_BYTES = operand_a::BYTES + operand_b::BYTES;
static_assert(operand_a::BYTES % 128 == 0 && operand_b::BYTES % 128 == 0, "banks repeat in each slice");

__device__ __forceinline__ int warp_row() { return (int)threadIdx.x / 32 / WARPS_N * WARP_M; }
__device__ __forceinline__ int warp_col() { return (int)threadIdx.x / 32 % WARPS_N * WARP_N; }

/* ---- PRECISE: a = high + low, a b = high high + high low + low high ----
 *
 * high is a rounded to 11 bits, low the rest, of which the unit drops at most the last bit. low is held
 * 2^13 times larger, and what it enters is summed apart: otherwise the rest of elements below 2^-115 would
 * lie below the smallest number of tf32. Each instruction starts its sum of high products from 0, and a
 * rounded addition takes it over: the unit cuts sums, which over many terms is a bias.
 *
 * Elements that are not finite, or whose high is not, leave a sum that is not finite either, because
 * infinity - infinity is in every product's sum: find such sums with is_lost and compute them otherwise. */

__device__ __forceinline__ bool is_lost(float sum) { return PRECISE && !(fabsf(sum) < INFINITY_F); }
__device__ __forceinline__ bool is_lost(s32) { return false; }

constexpr float LOW_SCALE = 8192.0f, LOW_UNSCALE = 1.0f / LOW_SCALE;

template <int N, int R> __device__ __forceinline__ void split(u32 (&f)[N][R], u32 (&low)[N][R])
{
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < R; j++) {
            const float whole = __uint_as_float(f[i][j]);
            f[i][j] = f[i][j] + 0x1000u & ~0x1fffu;
            low[i][j] = __float_as_uint((whole - __uint_as_float(f[i][j])) * LOW_SCALE);
        }
}

/* Columns come in twos: fragments of all of them would not fit into registers beside the sums. */
__device__ __forceinline__ void multiply_precisely(sums &sum, sums &small, u32 a, u32 b, int step)
{
    u32 x[BLOCKS_M][4], low_x[BLOCKS_M][4];
    operand_a::rows(x, a, warp_row(), step);
    split(x, low_x);
#pragma unroll
    for (int j = 0; j < BLOCKS_N; j += 2) {
        u32 y[2][2], low_y[2][2];
        operand_b::cols(y, b, warp_col() + j * 8, step);
        split(y, low_y);
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                sum_t part[4] = {};
                matrix_unit<a_t, b_t>::multiply(part, x[i], y[h]);
                matrix_unit<a_t, b_t>::multiply(small[i][j + h], low_x[i], y[h]);
                matrix_unit<a_t, b_t>::multiply(small[i][j + h], x[i], low_y[h]);
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j + h][e] += part[e];
            }
    }
}

__device__ __forceinline__ void add_small(sums &sum, const sums &small)
{
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[i][j][e] += small[i][j][e] * (sum_t)LOW_UNSCALE;
}

/* small: of PRECISE. */
__device__ __forceinline__ void multiply_slice(sums &sum, sums &small, const char *stage)
{
    const u32 a = shared_address(stage), b = a + operand_a::BYTES;
#pragma unroll(PRECISE ? 1 : SLICE_BYTES / 32)
    for (int step = 0; step < SLICE_BYTES / 32; step++) {
        if constexpr (PRECISE) {
            multiply_precisely(sum, small, a, b, step);
        } else {
            u32 x[BLOCKS_M][4], y[BLOCKS_N][2];
            operand_a::rows(x, a, warp_row(), step);
            operand_b::cols(y, b, warp_col(), step);
#pragma unroll
            for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
                for (int j = 0; j < BLOCKS_N; j++) matrix_unit<a_t, b_t>::multiply(sum[i][j], x[i], y[j]);
        }
    }
}

/* source: prepare(slice) writes what locating slice number `slice` needs to shared memory (nothing,
 * or what a barrier will make visible: then TABLES); a(slice), b(slice) give the operands' sources.
 * A block enters with no copies in flight and leaves the same; shared memory is free after a barrier. */
template <typename S> __device__ __forceinline__ void multiply_tile(sums &sum, char *shared, S &source, s64 slices)
{
    typename operand_a::held_t held_a[operand_a::HELD];
    typename operand_b::held_t held_b[operand_b::HELD];
    sums small = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        char *stage = shared + s * STAGE_BYTES;
        if (s < slices) {
            source.prepare(s);
            if constexpr (S::TABLES) __syncthreads();
            operand_a::fetch(source.a(s), stage, held_a);
            operand_b::fetch(source.b(s), stage + operand_a::BYTES, held_b);
            operand_a::deposit(stage, held_a);
            operand_b::deposit(stage + operand_a::BYTES, held_b);
        }
        copies_commit();
    }
    if (S::TABLES && STAGES - 1 < slices) source.prepare(STAGES - 1);
    int use = 0, fill = STAGES - 1;
    for (s64 s = 0; s < slices; s++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        const s64 next = s + STAGES - 1;
        char *stage = shared + fill * STAGE_BYTES;
        if (next < slices) {
            operand_a::fetch(source.a(next), stage, held_a);
            operand_b::fetch(source.b(next), stage + operand_a::BYTES, held_b);
        }
        if (S::TABLES && next + 1 < slices) source.prepare(next + 1);
        multiply_slice(sum, small, shared + use * STAGE_BYTES);
        if (next < slices) {
            operand_a::deposit(stage, held_a);
            operand_b::deposit(stage + operand_a::BYTES, held_b);
        }
        copies_commit();
        use = use + 1 == STAGES ? 0 : use + 1;
        fill = fill + 1 == STAGES ? 0 : fill + 1;
    }
    if constexpr (PRECISE) add_small(sum, small);
    copies_wait<0>();
}

/* ---- results ---- */

constexpr int PASS_M = TILE_M < 64 ? TILE_M : 64; /* rows that are transposed at a time */
constexpr int TURN_PITCH = C_N_FAST ? TILE_N + 8 : PASS_M + 4;
constexpr int TURN_BYTES = (C_N_FAST ? PASS_M : TILE_N) * TURN_PITCH * (int)sizeof(sum_t);
static_assert(STAGES * STAGE_BYTES <= SHARED && TURN_BYTES <= SHARED, "the launcher's shared memory");

struct alignas(8) sum_pair {
    sum_t v[2];
};

__device__ __forceinline__ void turn_block(const sum_t (&s)[4], sum_t *turned, int row, int col)
{
    if constexpr (C_N_FAST) {
        *(sum_pair *)&turned[row * TURN_PITCH + col] = {s[0], s[1]};
        *(sum_pair *)&turned[(row + 8) * TURN_PITCH + col] = {s[2], s[3]};
    } else {
        turned[col * TURN_PITCH + row] = s[0], turned[(col + 1) * TURN_PITCH + row] = s[1];
        turned[col * TURN_PITCH + row + 8] = s[2], turned[(col + 1) * TURN_PITCH + row + 8] = s[3];
    }
}

/* Where nothing is fetched. */
struct no_more {};

/* PASS_M rows of the tile, from `first` on, to shared memory, between barriers: after what used it, before what reads. */
__device__ __forceinline__ void turn_rows(const sums &sum, char *shared, int first)
{
    const int lane = (int)threadIdx.x % 32;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++) {
        const int row = warp_row() + i * 16 - first;
        if (row < 0 || row >= PASS_M) continue;
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++)
            turn_block(sum[i][j], (sum_t *)shared, row + lane / 4, warp_col() + j * 8 + lane % 4 * 2);
    }
    __syncthreads();
}

/* Calls store(row, col, count, turned, slow, fast, more) for C_VECTOR results of COLUMNS along the output's lines, of
 * which `count` exist; the sums of the tile lie in `turned`, in lines of TURN_PITCH. more is what fetch(row, col, count)
 * gave: several of those loads are in flight at a time. Barriers separate it from what used the shared memory
 * before. */
template <int COLUMNS, typename G, typename F>
__device__ __forceinline__ void store_turned(const sums &sum, char *shared, int rows, int cols, const G &fetch,
                                             const F &store)
{
    typedef decltype(fetch(0, 0, 0)) more_t;
    constexpr int ALONG = (C_N_FAST ? COLUMNS : PASS_M) / C_VECTOR, ALL = PASS_M * COLUMNS / C_VECTOR;
    constexpr int AT_ONCE = same_type<more_t, no_more> ? 1 : 4;
    const sum_t *turned = (const sum_t *)shared;
    for (int first = 0; first < TILE_M; first += PASS_M) {
        turn_rows(sum, shared, first);
        const auto each = [&](int v, const auto &act) {
            const int fast = v % ALONG * C_VECTOR, slow = v / ALONG;
            const int row = first + (C_N_FAST ? slow : fast), col = C_N_FAST ? fast : slow;
            if (v >= ALL || row >= rows || col >= cols) return;
            const int left = C_N_FAST ? cols - col : rows - row;
            act(row, col, left < C_VECTOR ? left : C_VECTOR, slow, fast);
        };
        for (int v = (int)threadIdx.x; v < ALL; v += THREADS * AT_ONCE) {
            more_t more[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if constexpr (!same_type<more_t, no_more>)
                    each(v + i * THREADS, [&](int row, int col, int count, int, int) { more[i] = fetch(row, col, count); });
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                each(v + i * THREADS, [&](int row, int col, int count, int slow, int fast) {
                    store(row, col, count, turned, slow, fast, more[i]);
                });
        }
    }
}

/* The same, with the sums of these results: store(row, col, count, sums, more). */
template <typename G, typename F>
__device__ __forceinline__ void store_tile(const sums &sum, char *shared, int rows, int cols, const G &fetch, const F &store)
{
    store_turned<TILE_N>(sum, shared, rows, cols, fetch,
                         [&](int row, int col, int count, const sum_t *turned, int slow, int fast, const auto &more) {
                             sum_t piece[C_VECTOR];
                             load_vector<C_VECTOR>(turned + slow * TURN_PITCH + fast, piece);
                             store(row, col, count, piece, more);
                         });
}

/* The same one by one, where lines of the output begin at any element: to[row * step_m + col * step_n] becomes
 * result(row, col, sum, old), several lines at a time. Lines that are not there are computed too, as the last is, and not
 * stored. */
template <typename T, typename F>
__device__ __forceinline__ void store_scalars(const sums &sum, char *shared, int rows, int cols, T *to, s64 step_m, s64 step_n,
                                              const F &result)
{
    constexpr int AT_ONCE = 8, ALONG = C_N_FAST ? TILE_N : PASS_M, LINES = C_N_FAST ? PASS_M : TILE_N;
    constexpr int EACH = THREADS / ALONG; /* lines of the output that all threads store at once */
    static_assert(THREADS % ALONG == 0 && LINES % (EACH * AT_ONCE) == 0, "whole rounds");
    const int fast = (int)threadIdx.x % ALONG, slow = (int)threadIdx.x / ALONG;
    const s64 fast_step = C_N_FAST ? step_n : step_m, slow_step = C_N_FAST ? step_m : step_n;
    for (int first = 0; first < TILE_M; first += PASS_M) {
        turn_rows(sum, shared, first);
        const int along = fast + (C_N_FAST ? 0 : first), end = C_N_FAST ? cols : rows;
        const int line = slow + (C_N_FAST ? first : 0), last = (C_N_FAST ? rows : cols) - 1;
        const sum_t *from = (const sum_t *)shared + slow * TURN_PITCH + fast;
        T *at = to + along * fast_step + line * slow_step;
        if (along >= end) continue;
#pragma unroll 1
        for (int i = line; i <= last && i < line + LINES; i += EACH * AT_ONCE) {
            sum_t held[AT_ONCE];
            T results[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) held[j] = from[j * EACH * TURN_PITCH];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const int here = min(i + j * EACH, last);
                results[j] = result(C_N_FAST ? here : along, C_N_FAST ? along : here, held[j], at + (here - i) * slow_step);
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (i + j * EACH <= last) at[j * EACH * slow_step] = results[j];
            from += AT_ONCE * EACH * TURN_PITCH;
            at += AT_ONCE * EACH * slow_step;
        }
    }
}

/* A piece of a residual, along the output's lines: step elements apart, aligned if all C_VECTOR are one access. */
template <typename T> struct residual_piece {
    T v[C_VECTOR];

    __device__ __forceinline__ static residual_piece read(const T *from, s64 step, int count, bool aligned)
    {
        residual_piece r;
        if (aligned && count == C_VECTOR)
            load_vector<C_VECTOR>(from, r.v);
        else
#pragma unroll
            for (int i = 0; i < C_VECTOR; i++) r.v[i] = from[min(i, count - 1) * step];
        return r;
    }
};
