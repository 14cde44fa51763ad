/* SPDX-License-Identifier: Apache-2.0
 * A token of each row, by a block. Constants: BLOCK, VECTOR (neighbours of x that a thread reads at once),
 * BATCH (as many vectors in flight), PROBABILITIES, PROCESSED (there are a mask, bias or counts); types x_t,
 * bias_t. Kernels are few, so that plans are made soon: what else differs is asked for each row. All sums that decide are of integers, so their order does not matter. */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"

#include "ops/random/random_rounded.cuh"
#include "ops/sample/sample_body.h"

/* Elements are ordered by digits, the largest first: the leading bits of their keys, twice 9 bits more, and the
 * column's number in pieces, and where so few are left that the list holds them they are sorted there. */
constexpr int SHIFT = 18, BINS = (SAMPLE_BITS << (23 - SHIFT)) + 1, PIECE_BITS = 11, DIGITS = SAMPLE_COLUMNS >> PIECE_BITS;
constexpr int LIST = 2048, SLOTS = 4, DEEP = PROCESSED || VECTOR < 4 ? 1 : 4 /* batches in flight when the row is read first */, CHUNKS = BLOCK * SLOTS, WARPS = BLOCK / 32;
static_assert(1 << PIECE_BITS <= LIST, "what has all digits in common fits the list");
constexpr float MARGIN = PROBABILITIES ? 0.0f : 0x1p-18f; /* farther apart exponentials are in order */

struct bin {
    u32 count, low, high; /* units, see unit_of */
};
struct sums {
    u64 count, weight;
};

struct storage {
    bin first_bins[BINS];
    union {
        bin bins[DIGITS];
        u64 list[LIST];
        u32 digits[256];
    };
    float chunk_max[CHUNKS];
    u64 scratch[WARPS], found[3];
    u32 list_count;
};
__device__ __forceinline__ storage &shared()
{
    __shared__ storage s;
    return s;
}

/* ---- the row ---- */

struct row {
    const mica_sample_args &a;
    const sample_row &p;
    const x_t *x;
    s64 index;
    int columns;

    /* Without the temperature, then with it. */
    __device__ __forceinline__ float penalised(int c, float v) const
    {
        float bias = 0;
        int allowed = 1, count = 0, in_prompt = 0;
        if constexpr (PROCESSED) {
            if (a.mask.at) allowed = sample_bit(a.mask, index, c);
            if (a.bias.at) bias = widen<float>(((const bias_t *)a.bias.at)[index * a.bias.row + c * a.bias.column]);
            if (a.counts.at) count = ((const int *)a.counts.at)[index * a.counts.row + c * a.counts.column];
            if (a.prompt.at) in_prompt = sample_bit(a.prompt, index, c);
        }
        if constexpr (PROBABILITIES) return sample_probability(v, allowed);
        return sample_penalised(&p, v, allowed, bias, count, in_prompt);
    }
    __device__ __forceinline__ float tempered(float v) const { return PROBABILITIES ? v : sample_tempered(&p, v); }
    __device__ __forceinline__ float value(int c, float v) const { return tempered(penalised(c, v)); }
};

__device__ __forceinline__ float raw_value(float v)
{
    if constexpr (PROBABILITIES) return sample_probability(v, 1);
    return v == v ? v : SAMPLE_NEVER;
}

/* Batches of the row, and how many of them are a chunk of a thread's. */
__device__ __forceinline__ int batches_of(const row &r) { return (r.columns + BLOCK * BATCH * VECTOR - 1) / (BLOCK * BATCH * VECTOR); }
__device__ __forceinline__ int batches_of_chunk(const row &r)
{
    return (batches_of(r) + SLOTS * DEEP - 1) / (SLOTS * DEEP) * DEEP;
}

/* f(column, element) of the thread `lane`'s share of so many batches from one on. */
template <int COUNT = 1, typename F> __device__ __forceinline__ void each_of_batch(const row &r, int batch, int lane, F f)
{
    lanes<x_t, VECTOR> raw[COUNT * BATCH];
    const int first = (batch * BATCH * BLOCK + lane) * VECTOR;
#pragma unroll
    for (int b = 0; b < COUNT * BATCH; b++) {
        const int c = first + b * (BLOCK * VECTOR);
        if (c + VECTOR <= r.columns) raw[b] = fetch<VECTOR>(r.x + (VECTOR > 1 ? (s64)c : c * r.a.x.column), r.a.whole);
    }
#pragma unroll
    for (int b = 0; b < COUNT * BATCH; b++) {
        const int c = first + b * (BLOCK * VECTOR);
        if (c + VECTOR <= r.columns) {
            float v[VECTOR];
            unpack(raw[b], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) f(c + k, v[k]);
        } else {
            for (int k = c; k < r.columns && k < c + VECTOR; k++) f(k, widen<float>(r.x[k * r.a.x.column]));
        }
    }
}
/* ---- of all threads ---- */

template <typename Op> __device__ __forceinline__ u64 block_reduce(u64 v, Op op)
{
    for (int lane = 1; lane < 32; lane *= 2) v = op(v, __shfl_xor_sync(0xffffffffu, v, lane));
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared().scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared().scratch[0];
    for (int i = 1; i < WARPS; i++) v = op(v, shared().scratch[i]);
    return v;
}
struct larger {
    __device__ __forceinline__ u64 operator()(u64 a, u64 b) const { return a > b ? a : b; }
};
struct plus {
    __device__ __forceinline__ u64 operator()(u64 a, u64 b) const { return a + b; }
};

/* A number and the column where it stands: the larger, of equal ones the first. 0 of those that are never chosen. */
__device__ __forceinline__ u64 standing(float v, int c)
{
    return v == SAMPLE_NEVER ? 0 : (u64)sample_order(v) << 32 | (u32)(SAMPLE_COLUMNS - c);
}
__device__ __forceinline__ int column_of(u64 element) { return SAMPLE_COLUMNS - (int)(u32)element; }

/* ---- weights in bins ---- */

/* Weights of a bin are multiples of a power of two, the unit: their sums need a word, and seldom carry. */
__device__ __forceinline__ int unit_of(u32 key)
{
    const int shift = SAMPLE_BITS - 23 - (127 - (int)(key >> 23));
    return shift > 0 ? shift : 0;
}
__device__ __forceinline__ void bin_add(bin *b, u32 key)
{
    const u32 units = (u32)(sample_weight(key) >> unit_of(key));
    atomicAdd(&b->count, 1u);
    if (atomicAdd(&b->low, units) + units < units) atomicAdd(&b->high, 1u);
}
__device__ __forceinline__ u64 bin_weight(const bin &b, u32 key)
{
    return ((u64)b.high << 32 | b.low) << unit_of(key);
}
__device__ __forceinline__ u32 key_of(float v, float max, u32 least)
{
    if (v == SAMPLE_NEVER) return 0;
    const u32 key = sample_key(sample_share(PROBABILITIES, v, max));
    return key < least ? 0 : key;
}

/* The digit's place `level` of an element, and whether those before are as `prefix`. */
__device__ __forceinline__ int digit_of(int level, u32 key, int c)
{
    return level == 0   ? (int)((key - SAMPLE_LEAST) >> SHIFT)
           : level == 1 ? (int)(key >> 9 & 511)
           : level == 2 ? (int)(key & 511)
                        : (int)((SAMPLE_COLUMNS - 1 - c) >> PIECE_BITS);
}
__device__ __forceinline__ bool has_prefix(int levels, u32 prefix, u32 piece, u32 key, int c)
{
    if (key == 0 || levels == 0) return key != 0;
    if (levels == 1) return key >> SHIFT == prefix >> SHIFT;
    if (levels == 2) return key >> 9 == prefix >> 9;
    return key == prefix && (levels == 3 || (u32)digit_of(3, key, c) == piece);
}
__device__ __forceinline__ int digits_at(int level) { return level == 0 ? BINS : level == 3 ? DIGITS : 512; }
/* The key of the bin's elements as far as it is known. */
__device__ __forceinline__ u32 key_at(int level, u32 prefix, int digit)
{
    return level == 0   ? SAMPLE_LEAST + ((u32)digit << SHIFT)
           : level == 1 ? prefix | (u32)digit << 9
           : level == 2 ? prefix | (u32)digit
                        : prefix;
}

/* Inclusive sums of a warp. */
__device__ __forceinline__ sums warp_scan(sums s)
{
    const int lane = threadIdx.x % 32;
    for (int by = 1; by < 32; by *= 2) {
        const u64 count = __shfl_up_sync(0xffffffffu, s.count, by), weight = __shfl_up_sync(0xffffffffu, s.weight, by);
        if (lane >= by) s.count += count, s.weight += weight;
    }
    return s;
}

/* The first of n, by sums_of(i), at which the target is reached, the sums before it, and with it; n - 1 if it is
 * not. All threads of the block call it and receive the same. */
template <typename F>
__device__ __forceinline__ int reach(int n, bool counted, u64 target, sums &before, sums &through, F sums_of)
{
    const int lane = threadIdx.x % 32;
    __syncthreads();
    if (threadIdx.x < 32) {
        sums base = before;
        for (int from = 0; from < n; from += 32) {
            const int i = from + lane;
            sums own = {0, 0};
            if (i < n) own = sums_of(i);
            const sums s = warp_scan(own);
            const bool there = (counted ? base.count + s.count : base.weight + s.weight) >= target;
            const u32 ballot = __ballot_sync(0xffffffffu, there || i == n - 1);
            if (ballot) {
                if (lane == __ffs((int)ballot) - 1) {
                    shared().found[0] = base.count + s.count, shared().found[1] = base.weight + s.weight;
                    shared().found[2] = (u64)i;
                    shared().scratch[0] = own.count, shared().scratch[1] = own.weight;
                }
                break;
            }
            base.count += __shfl_sync(0xffffffffu, s.count, 31);
            base.weight += __shfl_sync(0xffffffffu, s.weight, 31);
        }
    }
    __syncthreads();
    through = {shared().found[0], shared().found[1]};
    before = {through.count - shared().scratch[0], through.weight - shared().scratch[1]};
    return (int)shared().found[2];
}

/* ---- the list ---- */

__device__ __forceinline__ void list_begin()
{
    __syncthreads();
    if (threadIdx.x == 0) shared().list_count = 0;
    __syncthreads();
}
__device__ __forceinline__ void list_add(u64 element)
{
    const u32 at = atomicAdd(&shared().list_count, 1u);
    if (at < LIST) shared().list[at] = element;
}

/* Largest first, by a bitonic network; up to 64 by one warp. */
__device__ __forceinline__ void list_sort()
{
    __syncthreads();
    const int n = (int)shared().list_count;
    int size = 2;
    while (size < n) size *= 2;
    const bool narrow = size <= 64;
    for (int i = n + threadIdx.x; i < size; i += BLOCK) shared().list[i] = 0;
    __syncthreads();
    for (int run = 2; run <= size && (!narrow || threadIdx.x < 32); run *= 2)
        for (int by = run / 2; by; by /= 2) {
            for (int k = threadIdx.x; k < size / 2; k += BLOCK) {
                const int i = k / by * 2 * by + k % by, j = i + by;
                const u64 a = shared().list[i], b = shared().list[j];
                if ((a < b) == ((i & run) == 0)) shared().list[i] = b, shared().list[j] = a;
            }
            if (narrow)
                __syncwarp();
            else
                __syncthreads();
        }
    __syncthreads();
}

__device__ __forceinline__ int list_reach(int n, bool counted, u64 target, sums &before, sums &through)
{
    return reach(n, counted, target, before, through,
                 [](int i) { return sums{1, sample_weight((u32)(shared().list[i] >> 32))}; });
}

/* ---- passes over keys ---- */

enum purpose { TO_BINS, TO_LIST, SUM };
/* What a pass does with elements whose first digits, so many levels, are known. */
struct pass {
    purpose what;
    bool raw;
    int levels;
    u32 prefix, piece, least;
    float max;
    bin *bins;
};

/* One text for all passes: its loops are long. Returns the thread's sum of weights. */
__device__ __noinline__ u64 each_key(const row &r, const pass &p)
{
    u64 sum = 0;
    for (int batch = 0; batch < batches_of(r); batch++)
        each_of_batch(r, batch, threadIdx.x, [&](int c, float x) {
            const u32 key = key_of(p.raw ? raw_value(x) : r.value(c, x), p.max, p.least);
            if (p.what == SUM)
                sum += sample_weight(key);
            else if (!has_prefix(p.levels, p.prefix, p.piece, key, c))
                return;
            else if (p.what == TO_BINS)
                bin_add(&p.bins[digit_of(p.levels, key, c)], key);
            else
                list_add((u64)key << 32 | (u32)(SAMPLE_COLUMNS - c));
        });
    return sum;
}

__device__ __forceinline__ void clear_bins(bin *bins, int n)
{
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += BLOCK) bins[i] = bin{0, 0, 0};
    __syncthreads();
}

/* ---- places in the order of all ---- */

/* The element at which the target is reached, and the sums up to it; bins of level 0 are filled. */
__device__ __noinline__ int find(const row &r, float max, u32 least, bool counted, u64 target, sums &through)
{
    sums before = {0, 0};
    pass p = {TO_BINS, false, 0, 0, 0, least, max, shared().first_bins};
    u32 inside;
    for (;;) {
        const int n = digits_at(p.levels), level = p.levels;
        const u32 prefix = p.prefix;
        const bin *bins = p.bins;
        const int at = reach(n, counted, target, before, through, [=](int i) {
            const int digit = n - 1 - i;
            return sums{bins[digit].count, bin_weight(bins[digit], key_at(level, prefix, digit))};
        });
        const int digit = n - 1 - at;
        inside = bins[digit].count;
        p.prefix = key_at(level, prefix, digit);
        if (level == 3) p.piece = (u32)digit;
        p.levels++;
        p.bins = shared().bins;
        if (inside <= LIST) break;
        clear_bins(p.bins, digits_at(p.levels));
        each_key(r, p);
    }
    p.what = TO_LIST;
    list_begin();
    each_key(r, p);
    list_sort();
    return column_of(shared().list[list_reach((int)inside, counted, target, before, through)]);
}

/* The sums of all that have weights. */
__device__ __forceinline__ sums fill_bins(const row &r, float max, u32 least)
{
    clear_bins(shared().first_bins, BINS);
    each_key(r, pass{TO_BINS, false, 0, 0, 0, least, max, shared().first_bins});
    __syncthreads();
    u64 count = 0, weight = 0;
    for (int i = threadIdx.x; i < BINS; i += BLOCK) {
        count += shared().first_bins[i].count;
        weight += bin_weight(shared().first_bins[i], key_at(0, 0, i));
    }
    return sums{block_reduce(count, plus()), block_reduce(weight, plus())};
}

__device__ int draw_from_all(const row &r, float max, u64 &left)
{
    const u32 least = sample_least(&r.p);
    sums s = fill_bins(r, max, least), unused;
    if (s.count > (u64)r.p.top_k) find(r, max, least, true, (u64)r.p.top_k, s);
    const u64 nucleus = sample_nucleus(&r.p, s.weight);
    if (nucleus < s.weight) find(r, max, least, false, nucleus, s);
    left = s.weight;
    return find(r, max, least, false, sample_target(&r.p, s.weight), unused);
}

/* ---- top_k by chunks ---- */

/* The k-th largest maximum of chunks, digit by digit of 8 bits: so many elements are as large. */
__device__ __forceinline__ float threshold_of(int k)
{
    u32 prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        for (int i = threadIdx.x; i < 256; i += BLOCK) shared().digits[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < CHUNKS; i += BLOCK) {
            const u32 order = sample_order(shared().chunk_max[i]);
            if (shift == 24 || order >> (shift + 8) == prefix >> (shift + 8)) atomicAdd(&shared().digits[order >> shift & 255], 1u);
        }
        sums before = {0, 0}, through;
        const int at = reach(256, true, (u64)k, before, through, [](int i) { return sums{shared().digits[255 - i], 0}; });
        prefix |= (u32)(255 - at) << shift;
        k -= (int)before.count;
    }
    return sample_unorder(prefix);
}

/* The token if the list holds all that may be among the first k, else -1. */
__device__ __forceinline__ int draw_from_few(const row &r, float max, u64 &left)
{
    const int k = (int)r.p.top_k;
    const float threshold = threshold_of(k), from = add32(threshold, -MARGIN);
    if (threshold == SAMPLE_NEVER) return -1;
    const u32 least = sample_least(&r.p);
    list_begin();
    for (int chunk = threadIdx.x; chunk < CHUNKS; chunk += BLOCK) {
        if (!(shared().chunk_max[chunk] >= from)) continue;
        const int each_chunk = batches_of_chunk(r), begin = chunk / BLOCK * each_chunk;
        for (int batch = begin; batch < begin + each_chunk && batch < batches_of(r); batch++)
            each_of_batch(r, batch, chunk % BLOCK, [&](int c, float x) {
                const float v = r.value(c, x);
                if (v >= from) list_add((u64)__float_as_uint(v) << 32 | (u32)(SAMPLE_COLUMNS - c));
            });
    }
    __syncthreads();
    if (shared().list_count > LIST) return -1;
    for (int i = threadIdx.x; i < (int)shared().list_count; i += BLOCK) {
        const u64 e = shared().list[i];
        shared().list[i] = (u64)key_of(__uint_as_float((u32)(e >> 32)), max, least) << 32 | (u32)e;
    }
    list_sort();
    const int n = (int)shared().list_count < k ? (int)shared().list_count : k;
    sums before = {0, 0}, s;
    list_reach(n, false, ~(u64)0, before, s);
    const u64 nucleus = sample_nucleus(&r.p, s.weight);
    before = {0, 0};
    if (nucleus < s.weight) list_reach(n, false, nucleus, before, s);
    left = s.weight;
    before = {0, 0};
    const u64 target = sample_target(&r.p, s.weight);
    return column_of(shared().list[list_reach(n, false, target, before, s)]);
}

/* ---- log-probabilities ---- */

__device__ __forceinline__ u64 sum_weights(const row &r, float max, bool raw)
{
    return block_reduce(each_key(r, pass{SUM, raw, 0, 0, 0, 0, max, nullptr}), plus());
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) sample(const __grid_constant__ mica_sample_args a)
{
    overlap_wait();
    for (s64 index = blockIdx.x; index < a.rows; index += gridDim.x) {
        sample_row p;
        sample_row_make(&a, index, &p);
        const row r = {a, p, (const x_t *)a.x.at + index * a.x.row, index, (int)a.columns};
        float best = SAMPLE_NEVER, raw_best = SAMPLE_NEVER;
        int at = 0;
        for (int slot = 0; slot < SLOTS; slot++) {
            const int each_chunk = batches_of_chunk(r), begin = slot * each_chunk;
            float most = SAMPLE_NEVER;
            for (int batch = begin; batch < begin + each_chunk && batch < batches_of(r); batch += DEEP)
                each_of_batch<DEEP>(r, batch, threadIdx.x, [&](int c, float x) {
                    const float v = r.penalised(c, x);
                    most = v > most ? v : most;
                    if (v > best) best = v, at = c;
                    if (a.raw) raw_best = raw_value(x) > raw_best ? raw_value(x) : raw_best;
                });
            shared().chunk_max[slot * BLOCK + threadIdx.x] = r.tempered(most);
        }
        const u64 first = block_reduce(standing(best, at), larger());
        int token = first ? column_of(first) : -1;
        const float max = first ? r.tempered(sample_unorder((u32)(first >> 32))) : SAMPLE_NEVER;
        u64 left = 0;
        if (first && !p.greedy) {
            token = -1;
            if (p.top_k <= LIST / 4) token = draw_from_few(r, max, left);
            if (token < 0) token = draw_from_all(r, max, left);
        }
        if (a.logprob) {
            float all = max, v = SAMPLE_NEVER;
            if (a.raw) all = sample_unorder((u32)(block_reduce(standing(raw_best, 0), larger()) >> 32));
            if (first && (a.raw || p.greedy)) left = sum_weights(r, all, a.raw);
            if (first && threadIdx.x == 0) {
                const float x = widen<float>(r.x[token * a.x.column]);
                v = a.raw ? raw_value(x) : r.value(token, x);
            }
            if (threadIdx.x == 0)
                a.logprob[index * a.logprob_row] = first ? sample_logprob(PROBABILITIES, v, all, left) : SAMPLE_NEVER;
        }
        if (threadIdx.x == 0 && a.long_token) ((s64 *)a.token)[index * a.token_row] = token;
        if (threadIdx.x == 0 && !a.long_token) ((s32 *)a.token)[index * a.token_row] = token;
        __syncthreads();
    }
}
