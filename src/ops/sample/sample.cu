/* SPDX-License-Identifier: Apache-2.0
 * A token of each row, by a block. Constants: BLOCK, VECTOR (neighbours of x that a thread reads at once),
 * BATCH (as many vectors in flight), PROBABILITIES, PROCESSED (there are a mask, bias or counts), TOP (the largest are wanted);
 * types x_t, bias_t. Kernels are few, so that plans are made soon: what else differs is asked for each row. All sums that decide are of integers, so their order does not matter. */
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"

#include "ops/random/random_rounded.cuh"
#include "ops/sample/sample_body.h"

/* Elements are ordered by digits, the largest first: the leading bits of their keys, twice 9 bits more, and the
 * column's number in pieces, and where so few are left that the list holds them they are sorted there. */
constexpr int SHIFT = 18, BINS = (SAMPLE_BITS << (23 - SHIFT)) + 1, PIECE_BITS = 11, DIGITS = SAMPLE_COLUMNS >> PIECE_BITS;
constexpr int LIST = 2048, SLOTS = 4, DEEP = PROCESSED || TOP || VECTOR < 4 ? 1 : 4 /* batches in flight when the row is read first */, CHUNKS = BLOCK * SLOTS, WARPS = BLOCK / 32;
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

/* f(column, element) of the thread `lane`'s share of so many vectors from a batch on. */
template <int VECTORS, typename F> __device__ __forceinline__ void each_of_vectors(const row &r, int vector, int lane, F f)
{
    lanes<x_t, VECTOR> raw[VECTORS];
    const int first = (vector * BLOCK + lane) * VECTOR;
#pragma unroll
    for (int b = 0; b < VECTORS; b++) {
        const int c = first + b * (BLOCK * VECTOR);
        if (c + VECTOR <= r.columns) raw[b] = fetch<VECTOR>(r.x + (VECTOR > 1 ? (s64)c : c * r.a.x.column), r.a.whole);
    }
#pragma unroll
    for (int b = 0; b < VECTORS; b++) {
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
template <int COUNT = 1, typename F> __device__ __forceinline__ void each_of_batch(const row &r, int batch, int lane, F f)
{
    each_of_vectors<COUNT * BATCH>(r, batch * BATCH, lane, f);
}
/* The same of the whole row, few at a time: where much is done to each. */
constexpr int FEW = BATCH * VECTOR < 4 ? BATCH : VECTOR < 4 ? 4 / VECTOR : 1;
template <typename F> __device__ __forceinline__ void each_of_row(const row &r, F f)
{
    for (int vector = 0; vector < batches_of(r) * BATCH; vector += FEW) each_of_vectors<FEW>(r, vector, threadIdx.x, f);
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

/* Where the largest stands, the chunks' maxima, and the maximum of the row as it came, if it is needed: all before
 * the temperature, so that fewer parameters are in registers. */
__device__ __forceinline__ u64 find_largest(const row &r, float &raw_max)
{
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
                if constexpr (PROCESSED)
                    if (r.a.raw) raw_best = raw_value(x) > raw_best ? raw_value(x) : raw_best;
            });
        shared().chunk_max[slot * BLOCK + threadIdx.x] = most;
    }
    if constexpr (!PROCESSED) raw_best = best;
    raw_max = r.a.raw ? sample_unorder((u32)(block_reduce(standing(raw_best, 0), larger()) >> 32)) : SAMPLE_NEVER;
    return block_reduce(standing(best, at), larger());
}

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
    sample_left left; /* where something is left out as not typical */
};

__device__ __forceinline__ void take_key(const pass &p, u32 key, int c)
{
    if (!has_prefix(p.levels, p.prefix, p.piece, key, c)) return;
    if (p.what == TO_BINS)
        bin_add(&p.bins[digit_of(p.levels, key, c)], key);
    else
        list_add(sample_element(key, c));
}

__device__ __noinline__ void each_typical_key(const row &r, const pass &p)
{
    each_of_row(r, [&](int c, float x) {
        const u32 key = key_of(r.value(c, x), p.max, p.least);
        if (key && sample_is_left(&p.left, key, c)) take_key(p, key, c);
    });
}

/* One text for all other passes: its loops are long. Returns the thread's sum of weights. */
__device__ __noinline__ u64 each_key(const row &r, const pass &p)
{
    u64 sum = 0;
    if (p.left.deviation != ~0u) {
        each_typical_key(r, p);
        return 0;
    }
    for (int batch = 0; batch < batches_of(r); batch++)
        each_of_batch(r, batch, threadIdx.x, [&](int c, float x) {
            const u32 key = key_of(p.raw ? raw_value(x) : r.value(c, x), p.max, p.least);
            if (p.what == SUM)
                sum += sample_weight(key);
            else
                take_key(p, key, c);
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
__device__ __noinline__ u64 find(const row &r, float max, const sample_left &left, bool counted, u64 target, sums &through)
{
    sums before = {0, 0};
    pass p = {TO_BINS, false, 0, 0, 0, left.least, max, shared().first_bins, left};
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
    return shared().list[list_reach((int)inside, counted, target, before, through)];
}

/* The sums of all that have weights. */
__device__ __forceinline__ sums fill_bins(const row &r, float max, const sample_left &left)
{
    clear_bins(shared().first_bins, BINS);
    each_key(r, pass{TO_BINS, false, 0, 0, 0, left.least, max, shared().first_bins, left});
    __syncthreads();
    u64 count = 0, weight = 0;
    for (int i = threadIdx.x; i < BINS; i += BLOCK) {
        count += shared().first_bins[i].count;
        weight += bin_weight(shared().first_bins[i], key_at(0, 0, i));
    }
    return sums{block_reduce(count, plus()), block_reduce(weight, plus())};
}

/* ---- typical_p ---- */

/* Bins without units. */
__device__ __forceinline__ void deviation_add(const sample_left &left, bin *bins, int shift, u32 prefix, u32 key)
{
    const u32 deviation = sample_deviation(key, left.mean);
    if (deviation >> shift >> 10 != prefix >> shift >> 10) return;
    const u64 weight = sample_weight(key);
    bin *b = &bins[deviation >> shift & 1023];
    const u32 carry = atomicAdd(&b->low, (u32)weight) + (u32)weight < (u32)weight ? 1u : 0u;
    const u32 high = (u32)(weight >> 32) + carry;
    if (high) atomicAdd(&b->high, high);
}

/* Sums of the two halves of the moments of what is left; with bins, weights of deviations instead: those that begin
 * as `prefix` above shift + 10, by the next ten bits. */
__device__ __noinline__ sums each_deviation(const row &r, float max, const sample_left &left, bin *bins, int shift, u32 prefix)
{
    sums s = {0, 0};
    each_of_row(r, [&](int c, float x) {
        const u32 key = key_of(r.value(c, x), max, left.least);
        if (sample_element(key, c) < left.cut || key == 0) return;
        if (bins == nullptr) {
            const u64 moment = sample_moment(key);
            s.count += moment >> 32, s.weight += (u32)moment;
            return;
        }
        deviation_add(left, bins, shift, prefix, key);
    });
    return s;
}

/* Of weights that sum to `sum`; the sum of those left, whose bins of level 0 are filled. */
__device__ __forceinline__ u64 leave_typical(const row &r, float max, u64 sum, sample_left &left)
{
    const sums moments = each_deviation(r, max, left, nullptr, 0, 0);
    const u64 high = block_reduce(moments.count, plus()), low = block_reduce(moments.weight, plus());
    left.mean = sample_mean(high, low, sum);
    const u64 target = sample_reached(r.p.typical_p, sum);
    sums before = {0, 0}, through;
    u32 prefix = 0;
    for (int shift = 20; shift >= 0; shift -= 10) {
        clear_bins(shared().bins, 1024);
        each_deviation(r, max, left, shared().bins, shift, prefix);
        prefix |= (u32)reach(1024, false, target, before, through,
                             [](int i) { return sums{0, (u64)shared().bins[i].high << 32 | shared().bins[i].low}; })
                  << shift;
    }
    left.deviation = prefix;
    return fill_bins(r, max, left).weight;
}

/* The same of the first n, at most a block's threads, of the list. Deviations stand where the chunks' maxima stood. */
__device__ __forceinline__ u64 leave_typical_of_few(const row &r, int n, u64 sum, sample_left &left)
{
    const int i = threadIdx.x;
    const u32 key = i < n ? (u32)(shared().list[i] >> 32) : 0;
    const u64 moment = key ? sample_moment(key) : 0;
    const u64 high = block_reduce(moment >> 32, plus()), low = block_reduce((u64)(u32)moment, plus());
    left.mean = sample_mean(high, low, sum);
    const u64 target = sample_reached(r.p.typical_p, sum);
    const u32 deviation = key ? sample_deviation(key, left.mean) : ~0u;
    if (i < n) shared().chunk_max[i] = __uint_as_float(deviation);
    __syncthreads();
    u64 weight = 0; /* of those as typical */
    for (int j = 0; j < n; j++)
        if (key && __float_as_uint(shared().chunk_max[j]) <= deviation) weight += sample_weight((u32)(shared().list[j] >> 32));
    left.deviation = ~(u32)block_reduce(key && weight >= target ? ~deviation : 0, larger());
    return block_reduce(key && deviation <= left.deviation ? sample_weight(key) : 0, plus());
}

__device__ int draw_from_all(const row &r, float max, u64 &weight, sample_left &left)
{
    left = sample_left_from(sample_least(&r.p));
    sums s = fill_bins(r, max, left), unused;
    if (s.count > (u64)r.p.top_k) left.cut = find(r, max, left, true, (u64)r.p.top_k, s);
    const u64 nucleus = sample_reached(r.p.top_p, s.weight);
    if (nucleus < s.weight) left.cut = find(r, max, left, false, nucleus, s);
    if (r.p.typical_p < 1) s.weight = leave_typical(r, max, s.weight, left);
    weight = s.weight;
    return column_of(find(r, max, left, false, sample_target(&r.p, s.weight), unused));
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
__device__ __forceinline__ int draw_from_few(const row &r, float max, u64 &weight, sample_left &left)
{
    const int k = (int)r.p.top_k;
    const float threshold = threshold_of(k), from = add32(threshold, -MARGIN);
    if (threshold == SAMPLE_NEVER) return -1;
    const u32 least = sample_least(&r.p);
    left = sample_left_from(least);
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
    int n = (int)shared().list_count < k ? (int)shared().list_count : k;
    sums before = {0, 0}, s;
    list_reach(n, false, ~(u64)0, before, s);
    const u64 nucleus = sample_reached(r.p.top_p, s.weight);
    before = {0, 0};
    if (nucleus < s.weight) n = list_reach(n, false, nucleus, before, s) + 1;
    left.cut = shared().list[n - 1];
    if (r.p.typical_p < 1) s.weight = leave_typical_of_few(r, n, s.weight, left);
    weight = s.weight;
    before = {0, 0};
    const u64 target = sample_target(&r.p, s.weight);
    if (left.deviation == ~0u) return column_of(shared().list[list_reach(n, false, target, before, s)]);
    return column_of(shared().list[reach(n, false, target, before, s, [&](int i) {
        const u32 key = (u32)(shared().list[i] >> 32);
        return sums{0, key && sample_deviation(key, left.mean) <= left.deviation ? sample_weight(key) : 0};
    })]);
}

/* ---- log-probabilities ---- */

__device__ __forceinline__ u64 sum_weights(const row &r, float max, bool raw)
{
    return block_reduce(each_key(r, pass{SUM, raw, 0, 0, 0, 0, max, nullptr, sample_left_from(0)}), plus());
}

/* ---- the largest ---- */

constexpr int TOP_BITS = 11, TOP_SHIFT = 44; /* 54 bits of a rank by digits of 11 */
static_assert(1 << TOP_BITS <= DIGITS, "a digit of ranks has a bin for each of its values");

/* What the largest are sought among: all, or what is left to draw from; by a maximum of the row. */
struct among {
    bool raw, all;
    float max;
    sample_left left;
};

__device__ __forceinline__ bool is_among(const among &m, float v, int c)
{
    const u32 key = key_of(v, m.max, m.left.least);
    return key && sample_is_left(&m.left, key, c);
}

/* Ranks from `from` on are put into the list; with bins counted instead: those that begin as `from` above shift +
 * TOP_BITS, by the next digit. */
__device__ __noinline__ void each_rank(const row &r, const among &m, bin *bins, int shift, u64 from)
{
    each_of_row(r, [&](int c, float x) {
        const float v = m.raw ? raw_value(x) : r.value(c, x);
        const u64 rank = sample_rank(v, c);
        if (v == SAMPLE_NEVER || rank < from) return;
        if (bins && rank >> shift >> TOP_BITS != from >> shift >> TOP_BITS) return;
        if (!m.all && !is_among(m, v, c)) return;
        if (bins)
            atomicAdd(&bins[rank >> shift & ((1 << TOP_BITS) - 1)].count, 1u);
        else
            list_add(rank);
    });
}

/* The list gets the n largest, sorted, and perhaps others behind them. So many are as large as the n-th of the
 * threads' largest. */
__device__ __forceinline__ void list_top(const row &r, const among &m, int n)
{
    u64 from = 0;
    if (m.all && n <= BLOCK) {
        float best = SAMPLE_NEVER;
        each_of_row(r, [&](int c, float x) {
            const float v = m.raw ? raw_value(x) : r.value(c, x);
            best = v > best ? v : best;
        });
        for (int slot = 0; slot < SLOTS; slot++) shared().chunk_max[slot * BLOCK + threadIdx.x] = slot ? SAMPLE_NEVER : best;
        from = sample_rank(threshold_of(n), SAMPLE_COLUMNS - 1);
    }
    list_begin();
    each_rank(r, m, nullptr, 0, from);
    __syncthreads();
    if (shared().list_count > LIST) {
        sums before = {0, 0}, through;
        from = 0;
        for (int shift = TOP_SHIFT;; shift -= TOP_BITS) {
            constexpr int DIGIT = 1 << TOP_BITS;
            clear_bins(shared().bins, DIGIT);
            each_rank(r, m, shared().bins, shift, from);
            const int at = reach(DIGIT, true, (u64)n, before, through,
                                 [](int i) { return sums{shared().bins[DIGIT - 1 - i].count, 0}; });
            from |= (u64)(DIGIT - 1 - at) << shift;
            if (through.count <= LIST) break;
        }
        list_begin();
        each_rank(r, m, nullptr, 0, from);
    }
    list_sort();
}

/* weight: the sum by which probabilities are; none: nothing may be chosen. */
__device__ __noinline__ void put_top(const row &r, const among &m, bool none, u64 weight)
{
    const int n = (int)r.a.top;
    if (none)
        list_begin();
    else
        list_top(r, m, n);
    for (int i = threadIdx.x; i < n; i += BLOCK) {
        const bool there = i < (int)shared().list_count;
        const int token = there ? (int)sample_rank_column(shared().list[i]) : -1;
        const s64 at = r.index * r.a.top_token_row + i * r.a.top_token_column;
        if (r.a.top_token && r.a.long_top) ((s64 *)r.a.top_token)[at] = token;
        if (r.a.top_token && !r.a.long_top) ((s32 *)r.a.top_token)[at] = token;
        if (r.a.top_logprob)
            r.a.top_logprob[r.index * r.a.top_logprob_row + i * r.a.top_logprob_column] =
                there ? sample_logprob(PROBABILITIES, sample_unorder((u32)(shared().list[i] >> 22)), m.max, weight) : SAMPLE_NEVER;
    }
}

/* The token's log-probability, and the largest. The token is -1 where nothing may be chosen. */
__device__ __forceinline__ void put_logs(const row &r, const among &m, int token, u64 weight)
{
    if (token >= 0 && m.all) weight = sum_weights(r, m.max, m.raw);
    if (threadIdx.x == 0 && r.a.logprob) {
        float logprob = SAMPLE_NEVER;
        if (token >= 0) {
            const float x = widen<float>(r.x[token * r.a.x.column]);
            logprob = sample_logprob(PROBABILITIES, m.raw ? raw_value(x) : r.value(token, x), m.max, weight);
        }
        r.a.logprob[r.index * r.a.logprob_row] = logprob;
    }
    if constexpr (TOP) put_top(r, m, token < 0, weight);
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) sample(const __grid_constant__ mica_sample_args a)
{
    overlap_wait();
    for (s64 index = blockIdx.x; index < a.rows; index += gridDim.x) {
        sample_row p;
        if constexpr (PROCESSED) sample_row_make(&a, index, &p);
        const row r = {a, p, (const x_t *)a.x.at + index * a.x.row, index, (int)a.columns};
        float raw_max;
        const u64 first = find_largest(r, raw_max);
        if constexpr (!PROCESSED) sample_row_make(&a, index, &p);
        for (int slot = 0; slot < SLOTS; slot++) {
            float &most = shared().chunk_max[slot * BLOCK + threadIdx.x];
            most = r.tempered(most);
        }
        int token = first ? column_of(first) : -1;
        const float max = first ? r.tempered(sample_unorder((u32)(first >> 32))) : SAMPLE_NEVER;
        u64 weight = 0;
        sample_left left = sample_left_from(0);
        if (first && !p.greedy) {
            token = -1;
            if (p.top_k <= LIST / 4) token = draw_from_few(r, max, weight, left);
            if (token < 0) token = draw_from_all(r, max, weight, left);
        }
        if (a.logprob || a.top) put_logs(r, {(bool)a.raw, a.raw || p.greedy, a.raw ? raw_max : max, left}, token, weight);
        if (threadIdx.x == 0 && a.long_token) ((s64 *)a.token)[index * a.token_row] = token;
        if (threadIdx.x == 0 && !a.long_token) ((s32 *)a.token)[index * a.token_row] = token;
        __syncthreads();
    }
}
