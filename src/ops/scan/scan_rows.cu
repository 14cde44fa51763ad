/* SPDX-License-Identifier: Apache-2.0
 * Scans of rows: THREADS (a power of two) share a slice, SLICES are in a block. A block of a row is
 * CHUNKS accesses of VECTOR elements of each thread, those of a warp beside each other, and is put
 * together in a fixed order: elements of an access, lanes, accesses of a warp, warps. CHAINED: each
 * block of a row is a thread block, which takes the next number, so that those before it have begun; it
 * says what it is the sum of, adds up those before it in its group of SCAN_GROUP, in a fixed order, and
 * what the group begins with, and the last block of a group says what the next begins with. Blocks never
 * wait for others of their group to have waited. TOGETHER: a state has 4 bytes, and travels in one word
 * with the number that says that it is there, so that nobody waits for what was written to be seen. Else the threads pass the row's blocks one by one. */
#include "ops/scan/scan.cuh"
#include "kernels/bulk.cuh"

constexpr int BLOCK = THREADS * SLICES, LANES = THREADS < 32 ? THREADS : 32, WARPS = THREADS / LANES;
constexpr int TILE = THREADS * CHUNKS * VECTOR;
static_assert((THREADS & (THREADS - 1)) == 0 && BLOCK % 32 == 0 && BLOCK <= 1024, "whole warps of one block");
static_assert(!CHAINED || (SLICES == 1 && THREADS == SCAN_GROUP), "a thread for each block of a group");

SCAN int lane_of() { return (int)threadIdx.x % LANES; }
SCAN int warp_of() { return (int)threadIdx.x % THREADS / LANES; }

/* ---- elements of a row ---- */

SCAN long long position(const mica_scan_args &a, long long i) { return REVERSE ? a.n - 1 - i : i; }

/* Blocks of a row that are FULL have all their elements, at addresses that are aligned for vectors, and
 * are read without a question: loads beside questions would wait for one another. Not where neighbours
 * are asked for, too. */
constexpr bool MAY_BE_FULL = !SEGMENTED && BY != SCAN_RUNS;
constexpr int VECTORS_OF =
    1 << SCAN_A | 1 << SCAN_OUT | READS_B << SCAN_B | READS_C << SCAN_C | INDEXED << SCAN_INDEX;

/* VECTOR elements from step i on; `shift` positions beside it. */
template <bool FULL, typename T>
SCAN void load(const mica_scan_args &a, const T *from, int operand, long long i, long long shift, T *v)
{
    const long long along = a.along[operand];
    bool vector = VECTOR > 1 && i + VECTOR <= a.n && along == 1 && shift == 0;
    if constexpr (FULL) vector = VECTOR > 1;
    if (vector) {
        T e[VECTOR];
        const lanes<T, VECTOR> raw =
            fetch<VECTOR>(from + (REVERSE ? a.n - i - VECTOR : i), FULL || a.whole >> operand & 1);
        memcpy(e, raw.words, sizeof e);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[k] = e[REVERSE ? VECTOR - 1 - k : k];
        return;
    }
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        const long long p = position(a, i + k) + shift;
        if (FULL || (i + k < a.n && p < a.n)) v[k] = from[p * along];
    }
}

template <bool FULL, typename T>
SCAN void store(const mica_scan_args &a, T *to, int operand, long long i, const T *v)
{
    const long long along = a.along[operand];
    bool vector = VECTOR > 1 && i + VECTOR <= a.n && along == 1 && (a.whole >> operand & 1);
    if constexpr (FULL) vector = VECTOR > 1;
    if (vector) {
        T e[VECTOR];
#pragma unroll
        for (int k = 0; k < VECTOR; k++) e[k] = v[REVERSE ? VECTOR - 1 - k : k];
        store_vector<VECTOR>(to + (REVERSE ? a.n - i - VECTOR : i), e);
        return;
    }
#pragma unroll
    for (int k = 0; k < VECTOR; k++)
        if (i + k < a.n) to[position(a, i + k) * along] = v[k];
}

struct row {
    const a_t *a;
    const b_t *b;
    const c_t *c;
    const flag_t *flags;
    out_t *out;
    index_t *index;
};

SCAN row row_at(const mica_scan_args &a, long long slice)
{
    long long at[SCAN_OPERANDS];
    layout_offsets<SCAN_OPERANDS>(a.outer, slice, at);
    return row{(const a_t *)a.in[SCAN_A] + at[SCAN_A],          (const b_t *)a.in[SCAN_B] + at[SCAN_B],
               (const c_t *)a.in[SCAN_C] + at[SCAN_C],          (const flag_t *)a.in[SCAN_FLAGS] + at[SCAN_FLAGS],
               (out_t *)a.out + at[SCAN_OUT], (index_t *)a.index + at[SCAN_INDEX]};
}

template <bool FULL> SCAN void read(const mica_scan_args &a, const row &r, long long i, element *e)
{
    a_t va[VECTOR];
    load<FULL>(a, r.a, SCAN_A, i, 0, va);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) e[k].a = va[k];
    if constexpr (READS_B) {
        b_t vb[VECTOR];
        load<FULL>(a, r.b, SCAN_B, i, 0, vb);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) e[k].b = vb[k];
    }
    if constexpr (READS_C) {
        c_t vc[VECTOR];
        load<FULL>(a, r.c, SCAN_C, i, 0, vc);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) e[k].c = vc[k];
    }
    if constexpr (SEGMENTED) {
        flag_t f[VECTOR];
        memset(f, 0, sizeof f);
        load<FULL>(a, r.flags, SCAN_FLAGS, i, REVERSE ? 1 : 0, f);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) e[k].head = widen<s64>(f[k]) != 0;
    }
    if constexpr (BY == SCAN_RUNS) {
        long long earlier = 0;
        if (i > 0 && i <= a.n) earlier = widen<long long>(r.b[position(a, i - 1) * a.along[SCAN_B]]);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            find_run(e[k], earlier, i + k == 0, position(a, i + k));
            earlier = widen<long long>(e[k].b);
        }
    }
}

/* ---- a block of a row ---- */

/* The states of WIDTH lanes up to each. */
template <int WIDTH, typename S> SCAN S scan_lanes_by_joins(S s, int lane)
{
#pragma unroll
    for (int by = 1; by < WIDTH; by *= 2) {
        const S o = state_by_words(s, [&](u32 w) { return __shfl_up_sync(0xffffffffu, w, by, WIDTH); });
        if (lane >= by) s = join(o, s);
    }
    return s;
}

/* Of logsumexp about one maximum, where sums about the first lane's do not vanish beside it: two exponentials
 * instead of five. */
constexpr int NEAR = 60;
template <int WIDTH, typename S> SCAN S scan_lanes(S s, int lane)
{
    if constexpr (BY == SCAN_EXP && !CUTS && WIDTH > 4) {
        auto top = s.b; /* of S, so that other states need not have exponentials */
#pragma unroll
        for (int by = 1; by < WIDTH; by *= 2) {
            const auto o = __shfl_up_sync(0xffffffffu, top, by, WIDTH);
            if (lane >= by && o > top) top = o;
        }
        const auto least = __shfl_sync(0xffffffffu, top, 0, WIDTH), most = __shfl_sync(0xffffffffu, top, WIDTH - 1, WIDTH);
        if (__all_sync(0xffffffffu, most - least <= NEAR)) {
            auto sum = s.a * exp_of(s.b - most);
#pragma unroll
            for (int by = 1; by < WIDTH; by *= 2) {
                const auto o = __shfl_up_sync(0xffffffffu, sum, by, WIDTH);
                if (lane >= by) sum += o;
            }
            s.a = sum * exp_of(most - top), s.b = top;
            return s;
        }
    }
    return scan_lanes_by_joins<WIDTH>(s, lane);
}

/* What comes before the thread's accesses, from the block's begin on; returns the sum of its warp. */
template <bool FULL, typename S>
SCAN S scan_warp(const mica_scan_args &a, const element (*e)[VECTOR], long long first, S *before)
{
    S all = nothing<S>();
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        S s = nothing<S>();
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            const long long i = first + j * (LANES * VECTOR) + k;
            if (FULL && k == 0) s = state_of<S>(e[j][k], position(a, i));
            else if (FULL || i < a.n) s = join(s, state_of<S>(e[j][k], position(a, i)));
        }
        s = scan_lanes<LANES>(s, lane_of());
        before[j] = state_by_words(s, [&](u32 w) { return __shfl_up_sync(0xffffffffu, w, 1, LANES); });
        const S last = state_by_words(s, [&](u32 w) { return __shfl_sync(0xffffffffu, w, LANES - 1, LANES); });
        before[j] = lane_of() == 0 ? all : j == 0 ? before[j] : join(all, before[j]);
        all = j == 0 ? last : join(all, last);
    }
    return all;
}

/* What comes before a warp; `all` becomes the sum of the block. */
template <typename S> SCAN S scan_warps(S *scratch, S &all)
{
    if constexpr (WARPS == 1) return nothing<S>();
    S *mine = scratch + (int)threadIdx.x / THREADS * WARPS;
    if (lane_of() == 0) mine[warp_of()] = all;
    __syncthreads();
    S before = nothing<S>();
    all = nothing<S>();
    if constexpr (LOGS && WARPS <= LANES) { /* few exponentials: by the lanes of each warp */
        const S s = scan_lanes<WARPS>(mine[lane_of() % WARPS], lane_of() % WARPS);
        all = state_by_words(s, [&](u32 w) { return __shfl_sync(0xffffffffu, w, WARPS - 1); });
        const S last = state_by_words(s, [&](u32 w) { return __shfl_sync(0xffffffffu, w, (warp_of() + WARPS - 1) % WARPS); });
        if (warp_of() > 0) before = last;
    } else {
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            if (w == warp_of()) before = all;
            all = join(all, mine[w]);
        }
    }
    __syncthreads(); /* the scratch is used again */
    return before;
}

template <bool FULL, typename S>
SCAN void write_as(const mica_scan_args &a, const row &r, const element (*e)[VECTOR], long long first, const S &head,
                const S *before)
{
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        const long long i = first + j * (LANES * VECTOR);
        S run = join(head, before[j]);
        out_t v[VECTOR];
        index_t index[VECTOR];
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            long long at = 0;
            if (!FULL && i + k >= a.n) continue;
            v[k] = stored<out_t>(step(run, e[j][k], position(a, i + k), &at));
            if constexpr (INDEXED) index[k] = (index_t)at;
        }
        if (!FULL && i >= a.n) continue;
        store<FULL>(a, r.out, SCAN_OUT, i, v);
        if constexpr (INDEXED) store<FULL>(a, r.index, SCAN_INDEX, i, index);
    }
}

template <typename S>
SCAN void write(const mica_scan_args &a, const row &r, const element (*e)[VECTOR], long long first, const S &head,
                const S *before, bool full)
{
    if (MAY_BE_FULL && full) write_as<MAY_BE_FULL>(a, r, e, first, head, before);
    else write_as<false>(a, r, e, first, head, before);
}

/* ---- blocks of a row, each a thread block ---- */

static_assert(!TOGETHER || sizeof(state) == 4, "one word");

SCAN u64 word_of(const state &s)
{
    u32 bits;
    memcpy(&bits, &s, 4);
    return (u64)1 << 32 | bits;
}

SCAN state wait_for_word(const u64 *from)
{
    u64 word = 0;
    do word = *(const volatile u64 *)from;
    while (word == 0);
    const u32 bits = (u32)word;
    state s;
    memcpy(&s, &bits, 4);
    return s;
}

SCAN void wait_for(const int *number)
{
    while (acquire_number(number) == 0) {}
}

/* Sums of blocks and of groups, as blocks tell them one another. */
struct board {
    state *states, *prefixes;
    int *there, *begun;
    u64 *words, *group_words;
};

SCAN board board_of(const mica_scan_args &a, long long slice, long long groups)
{
    board b = {};
    if (TOGETHER) {
        u64 *words = (u64 *)a.numbers + 1;
        b.words = words + slice * a.parts, b.group_words = words + a.outer.count * a.parts + slice * groups;
    } else {
        b.states = (state *)a.states + slice * a.parts, b.prefixes = (state *)a.prefixes + slice * groups;
        b.there = a.numbers + 1 + slice * a.parts;
        b.begun = a.numbers + 1 + a.outer.count * a.parts + slice * groups;
    }
    return b;
}

SCAN void tell(state *states, int *there, u64 *words, long long at, const state &s)
{
    if constexpr (TOGETHER) {
        *(volatile u64 *)(words + at) = word_of(s);
    } else {
        states[at] = s;
        release_number(there + at, 1);
    }
}

SCAN state ask(const state *states, const int *there, const u64 *words, long long at)
{
    if constexpr (TOGETHER) return wait_for_word(words + at);
    wait_for(there + at);
    return states[at];
}

/* What comes before block `at` of a row whose sum is `all`. By all threads; the last is of no block
 * before, and asks for what the group begins with. */
SCAN state look_back(const mica_scan_args &a, long long slice, long long at, const state &all, state *scratch)
{
    const long long groups = (a.parts + SCAN_GROUP - 1) / SCAN_GROUP, group = at / SCAN_GROUP;
    const board b = board_of(a, slice, groups);
    if (threadIdx.x == 0) tell(b.states, b.there, b.words, at, all);
    const long long other = group * SCAN_GROUP + threadIdx.x;
    state s = nothing<state>();
    if (other < at) s = ask(b.states, b.there, b.words, other);
    const bool last = threadIdx.x == THREADS - 1;
    if (last && group > 0) scratch[THREADS / 32] = ask(b.prefixes, b.begun, b.group_words, group);
#pragma unroll
    for (int by = 1; by < 32; by *= 2)
        s = join(s, state_by_words(s, [&](u32 w) { return __shfl_down_sync(0xffffffffu, w, by); }));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = s;
    __syncthreads();
    s = scratch[0];
#pragma unroll
    for (int w = 1; w < THREADS / 32; w++) s = join(s, scratch[w]);
    if (group > 0) s = join(scratch[THREADS / 32], s);
    if (threadIdx.x == 0 && at % SCAN_GROUP == SCAN_GROUP - 1 && group + 1 < groups)
        tell(b.prefixes, b.begun, b.group_words, group + 1, join(s, all));
    return s;
}

SCAN long long next_number(int *numbers)
{
    __shared__ long long number;
    if (threadIdx.x == 0) number = atomicAdd(numbers, 1);
    __syncthreads();
    return number;
}

/* Elements of a block of a row, what comes before each access in it, and where the thread's first is. */
struct block {
    element e[CHUNKS][VECTOR];
    state before[CHUNKS];
    long long first;
};

template <bool FULL> SCAN state take_as(const mica_scan_args &a, const row &r, block &b)
{
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) read<FULL>(a, r, b.first + j * (LANES * VECTOR), b.e[j]);
    return scan_warp<FULL>(a, b.e, b.first, b.before);
}

/* Reads a block and scans it by warps; returns what comes before the thread's warp. */
SCAN state take(const mica_scan_args &a, const row &r, long long first, bool full, block &b, state *scratch, state &all)
{
    b.first = first;
    if (MAY_BE_FULL && full) all = take_as<MAY_BE_FULL>(a, r, b);
    else all = take_as<false>(a, r, b);
    return scan_warps(scratch, all);
}

SCAN bool has_all(const mica_scan_args &a, long long at)
{
    return at + TILE <= a.n && (a.whole & VECTORS_OF) == VECTORS_OF;
}

/* One block of a row, the next of all. */
SCAN void pass_one(const mica_scan_args &a, long long own, state *scratch)
{
    const long long number = next_number(a.numbers);
    const long long slice = number % a.outer.count, at = number / a.outer.count;
    const row r = row_at(a, slice);
    block b;
    state all;
    const bool full = has_all(a, at * TILE);
    const state warps = take(a, r, at * TILE + own, full, b, scratch, all);
    write(a, r, b.e, b.first, join(look_back(a, slice, at, all, scratch), warps), b.before, full);
}

/* Whole rows, block by block. */
SCAN void pass_rows(const mica_scan_args &a, long long own, state *scratch)
{
    for (long long slices = (long long)blockIdx.x * SLICES; slices < a.outer.count;
         slices += (long long)gridDim.x * SLICES) {
        const long long slice = slices + threadIdx.x / THREADS;
        const bool inside = slice < a.outer.count;
        const row r = row_at(a, inside ? slice : 0);
        state carry = nothing<state>();
        for (long long at = 0; at < a.n; at += TILE) {
            block b;
            state all;
            const bool full = has_all(a, at) && slices + SLICES <= a.outer.count;
            const state warps = take(a, r, inside ? at + own : a.n, full, b, scratch, all);
            write(a, r, b.e, b.first, join(carry, warps), b.before, full);
            carry = join(carry, all);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) scan_rows(const mica_scan_args a)
{
    __shared__ __align__(16) unsigned char memory[(BLOCK / 32 + 1) * sizeof(state)];
    const long long own = warp_of() * (long long)(LANES * CHUNKS * VECTOR) + lane_of() * VECTOR;
    overlap_wait();
    if constexpr (CHAINED) pass_one(a, own, (state *)memory);
    else pass_rows(a, own, (state *)memory);
}
