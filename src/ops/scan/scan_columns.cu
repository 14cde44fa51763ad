/* SPDX-License-Identifier: Apache-2.0
 * Scans across neighbouring slices: a thread has BESIDE of them for itself, or a part of them, and passes
 * their elements one by one, AHEAD of them in flight. PHASE: 0 slices are whole, 1 what parts are the sum of,
 * 2 parts, from what comes before them. */
#include "ops/scan/scan.cuh"

constexpr int BLOCK = 128, BYTES = BESIDE * (int)sizeof(a_t), AHEAD = READS_C || BYTES > 16 ? 2 : 4;

template <typename T>
SCAN void load(const mica_scan_args &a, int operand, const T *from, long long across, T *v)
{
    if (BESIDE > 1 && across == 1) {
        const lanes<T, BESIDE> raw = fetch<BESIDE>(from, a.whole >> operand & 1);
        memcpy(v, raw.words, BESIDE * sizeof(T));
        return;
    }
#pragma unroll
    for (int k = 0; k < BESIDE; k++) v[k] = from[k * across];
}

template <typename T> SCAN void store(const mica_scan_args &a, int operand, T *to, long long across, const T *v)
{
    if (BESIDE > 1 && across == 1 && (a.whole >> operand & 1)) {
        store_vector<BESIDE>(to, v);
        return;
    }
#pragma unroll
    for (int k = 0; k < BESIDE; k++) to[k * across] = v[k];
}

struct columns {
    long long at[SCAN_OPERANDS], across[SCAN_OPERANDS];
};

/* Step i of the slices. */
SCAN void read(const mica_scan_args &a, const columns &c, long long i, element *e)
{
    const long long p = REVERSE ? a.n - 1 - i : i;
    a_t va[BESIDE];
    load(a, SCAN_A, (const a_t *)a.in[SCAN_A] + c.at[SCAN_A] + p * a.along[SCAN_A], c.across[SCAN_A], va);
#pragma unroll
    for (int k = 0; k < BESIDE; k++) e[k].a = va[k];
    const b_t *b = (const b_t *)a.in[SCAN_B] + c.at[SCAN_B];
    if constexpr (READS_B) {
        b_t vb[BESIDE];
        load(a, SCAN_B, b + p * a.along[SCAN_B], c.across[SCAN_B], vb);
#pragma unroll
        for (int k = 0; k < BESIDE; k++) e[k].b = vb[k];
    }
    if constexpr (READS_C && (PHASE != 1 || BY == SCAN_EXP_SLOPES)) {
        c_t vc[BESIDE];
        load(a, SCAN_C, (const c_t *)a.in[SCAN_C] + c.at[SCAN_C] + p * a.along[SCAN_C], c.across[SCAN_C], vc);
#pragma unroll
        for (int k = 0; k < BESIDE; k++) e[k].c = vc[k];
    }
    if constexpr (SEGMENTED) {
        flag_t f[BESIDE];
        memset(f, 0, sizeof f);
        const long long q = REVERSE ? p + 1 : p;
        if (q < a.n)
            load(a, SCAN_FLAGS, (const flag_t *)a.in[SCAN_FLAGS] + c.at[SCAN_FLAGS] + q * a.along[SCAN_FLAGS],
                 c.across[SCAN_FLAGS], f);
#pragma unroll
        for (int k = 0; k < BESIDE; k++) e[k].head = widen<s64>(f[k]) != 0;
    }
    if constexpr (BY == SCAN_RUNS) {
        b_t earlier[BESIDE];
        memset(earlier, 0, sizeof earlier);
        if (i > 0) load(a, SCAN_B, b + (REVERSE ? p + 1 : p - 1) * a.along[SCAN_B], c.across[SCAN_B], earlier);
#pragma unroll
        for (int k = 0; k < BESIDE; k++) find_run(e[k], widen<long long>(earlier[k]), i == 0, p);
    }
}

/* Results of step p. */
template <typename S> SCAN void show(const mica_scan_args &a, const columns &c, long long p, const element *e, S *run)
{
    out_t v[BESIDE];
    index_t index[BESIDE];
#pragma unroll
    for (int k = 0; k < BESIDE; k++) {
        long long at = 0;
        v[k] = stored<out_t>(step(run[k], e[k], p, &at));
        if constexpr (INDEXED) index[k] = (index_t)at;
    }
    store(a, SCAN_OUT, (out_t *)a.out + c.at[SCAN_OUT] + p * a.along[SCAN_OUT], c.across[SCAN_OUT], v);
    if constexpr (INDEXED)
        store(a, SCAN_INDEX, (index_t *)a.index + c.at[SCAN_INDEX] + p * a.along[SCAN_INDEX], c.across[SCAN_INDEX], index);
}

template <typename S>
SCAN void take(const mica_scan_args &a, const columns &c, long long i, const element *e, S *run)
{
    const long long p = REVERSE ? a.n - 1 - i : i;
    if constexpr (PHASE == 1) {
#pragma unroll
        for (int k = 0; k < BESIDE; k++) run[k] = join(run[k], state_of<S>(e[k], p));
    } else {
        show(a, c, p, e, run);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) scan_columns(const mica_scan_args a)
{
    overlap_wait();
    const long long threads = a.outer.count / BESIDE, all = threads * a.parts;
    for (long long thread = blockIdx.x * (long long)BLOCK + threadIdx.x; thread < all; thread += gridDim.x * (long long)BLOCK) {
        const long long slice = thread % threads * BESIDE, part = thread / threads;
        const long long from = part * a.per_part, end = from + a.per_part, to = end < a.n ? end : a.n;
        columns c;
        layout_offsets<SCAN_OPERANDS>(a.outer, slice, c.at);
#pragma unroll
        for (int t = 0; t < SCAN_OPERANDS; t++)
            c.across[t] = a.outer.rank ? a.outer.strides[t][a.outer.rank - 1] : 0;
        state run[BESIDE];
#pragma unroll
        for (int k = 0; k < BESIDE; k++) run[k] = nothing<state>();
        if constexpr (PHASE == 2)
            for (long long q = 0; q < part; q++)
#pragma unroll
                for (int k = 0; k < BESIDE; k++)
                    run[k] = join(run[k], ((const state *)a.states)[q * a.outer.count + slice + k]);
        long long i = from;
        for (; i + AHEAD <= to; i += AHEAD) {
            element e[AHEAD][BESIDE];
#pragma unroll
            for (int b = 0; b < AHEAD; b++) read(a, c, i + b, e[b]);
#pragma unroll
            for (int b = 0; b < AHEAD; b++) take(a, c, i + b, e[b], run);
        }
        for (; i < to; i++) {
            element e[BESIDE];
            read(a, c, i, e);
            take(a, c, i, e, run);
        }
        if constexpr (PHASE == 1)
#pragma unroll
            for (int k = 0; k < BESIDE; k++) ((state *)a.states)[part * a.outer.count + slice + k] = run[k];
    }
}
