/* SPDX-License-Identifier: Apache-2.0
 * Softmax, its logarithm and their gradients, any strides. Constants: BACKWARD, LOG, those of
 * kernels/slices.cuh, VECTOR (neighbours a thread loads at once; 1 unless the axis is contiguous),
 * ITEMS (vectors a thread keeps in registers; 0: slices are too long), HELD (these are kept in shared
 * memory, with room for so many blocks; 0: they are read twice; forward). Types a_t (x; bwd: y), b_t (dy),
 * out_t, acc_t. */
#include "kernels/slices.cuh"
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "ops/softmax/softmax_args.h"

static_assert(VECTOR == 1 || ALONG, "vectors lie along the axis");
static_assert(!HELD || (ALONG && ITEMS == 0 && !BACKWARD && SLICES == 1), "long slices");

constexpr int TENSORS = BACKWARD ? 3 : 2, OUT = TENSORS - 1;
constexpr int KEPT = ITEMS > 0 ? ITEMS : 1;
constexpr int BATCH = vectors_in_flight<acc_t>();

struct slice {
    const a_t *a;
    const b_t *b;
    out_t *out;
    extent e; /* empty past the last slice */
    long long along[3];
    bool whole;
};

__device__ __forceinline__ slice find_slice(const mica_softmax_args &args, long long index)
{
    slice s = {};
    if (index >= args.outer.count) return s;
    long long at[TENSORS];
    layout_offsets<TENSORS>(args.outer, index, at);
    s.whole = args.whole;
    s.e = find_extent((const a_t *)args.a + at[0], args.n, s.whole);
    s.a = (const a_t *)args.a + at[0] - s.e.lo;
    s.b = (const b_t *)args.b + at[OUT - 1] - s.e.lo;
    s.out = (out_t *)args.out + at[OUT] - s.e.lo;
    for (int t = 0; t < TENSORS; t++) s.along[t] = args.along[t];
    return s;
}

template <int BATCH> __device__ __forceinline__ void read_a(const slice &s, const long long *i, acc_t fill, acc_t (*v)[VECTOR])
{
    read_batch<BATCH>(s.a, s.e, i, s.along[0], s.whole, fill, v);
}
template <int BATCH> __device__ __forceinline__ void read_b(const slice &s, const long long *i, acc_t (*v)[VECTOR])
{
    read_batch<BATCH>(s.b, s.e, i, s.along[OUT - 1], s.whole, (acc_t)0, v);
}
template <int BATCH> __device__ __forceinline__ void read_both(const slice &s, const long long *i, acc_t (*a)[VECTOR], acc_t (*b)[VECTOR])
{
    lanes<a_t, VECTOR> raw_a[BATCH];
    lanes<b_t, VECTOR> raw_b[BATCH];
    fetch_batch<BATCH>(s.a, s.e, i, s.along[0], s.whole, raw_a);
    fetch_batch<BATCH>(s.b, s.e, i, s.along[OUT - 1], s.whole, raw_b);
    unpack_batch<BATCH>(s.a, s.e, i, raw_a, (acc_t)0, a);
    unpack_batch<BATCH>(s.b, s.e, i, raw_b, (acc_t)0, b);
}
__device__ __forceinline__ void write(const slice &s, long long i, const acc_t *v)
{
    write_vector(s.out, s.e, i, s.along[OUT], s.whole, v);
}

/* ---- forward ---- */

__device__ __forceinline__ void forward_kept(const slice &s, acc_t *scratch)
{
    acc_t v[KEPT][VECTOR], sum = 0;
    long long i[KEPT];
    find_positions<KEPT>(0, i);
    read_a<KEPT>(s, i, negative_infinity<acc_t>(), v);
    const acc_t max = kept_max<KEPT>(v, scratch);
#pragma unroll
    for (int j = 0; j < KEPT; j++)
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            acc_t d = v[j][k] - max, e = exp_for<out_t>(d);
            sum += e;
            v[j][k] = LOG ? d : e;
        }
    sum = slice_reduce(sum, scratch, add_op());
    acc_t by = LOG ? log_of(sum) : (acc_t)1 / sum;
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v[j][k] = LOG ? v[j][k] - by : v[j][k] * by;
        write(s, i[j], v[j]);
    }
}

__device__ __forceinline__ void forward_long(const slice &s, acc_t *scratch)
{
    running<acc_t> r = running_read<a_t, acc_t>(s.a, s.e, s.along[0], s.whole, nullptr);
    r = running_reduce(r, scratch);
    acc_t by = LOG ? log_of(r.sum) : (acc_t)1 / r.sum;
    for (long long first = 0; position(first) < s.e.hi; first += BATCH) {
        acc_t v[BATCH][VECTOR];
        long long i[BATCH];
        find_positions<BATCH>(first, i);
        read_a<BATCH>(s, i, (acc_t)0, v);
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
#pragma unroll
            for (int k = 0; k < VECTOR; k++)
                v[j][k] = LOG ? (v[j][k] - r.max) - by : exp_for<out_t>(v[j][k] - r.max) * by;
            write(s, i[j], v[j]);
        }
    }
}

/* ---- forward, held: a thread finds in shared memory what it put there ---- */

/* Counts are of 32 bits, and vectors are unpacked one by one: two blocks share the registers. */
constexpr int STEP = THREADS * VECTOR; /* to a thread's next vector */
constexpr int AHEAD = sizeof(acc_t) == 8 ? 4 : VECTOR < 8 ? 8 : 4; /* vectors in flight */

__device__ __forceinline__ bool is_whole(const slice &s, int i)
{
    return RAGGED ? i >= (int)s.e.lo && i + VECTOR <= (int)s.e.hi : i < (int)s.e.hi;
}

/* The vector at i as it is held: what lies outside of the slice is -infinity. */
__device__ __forceinline__ void unpack_edge(const slice &s, int i, acc_t (&v)[VECTOR])
{
#pragma unroll
    for (int k = 0; k < VECTOR; k++)
        v[k] = i + k >= (int)s.e.lo && i + k < (int)s.e.hi ? widen<acc_t>(s.a[i + k]) : negative_infinity<acc_t>();
}

__device__ __forceinline__ running<acc_t> read_and_hold(const slice &s, a_t *held)
{
    running<acc_t> r = {negative_infinity<acc_t>(), (acc_t)0};
    const int hi = (int)s.e.hi;
#pragma unroll 1
    for (int first = (int)position(0); first < hi; first += AHEAD * STEP) {
        lanes<a_t, VECTOR> raw[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int i = first + j * STEP;
            if (is_whole(s, i)) raw[j] = fetch<VECTOR>(s.a + (VECTOR > 1 ? i : i * s.along[0]), s.whole);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int i = first + j * STEP;
            if (i >= hi) continue;
            acc_t v[VECTOR];
            if (is_whole(s, i))
                unpack(raw[j], v);
            else if constexpr (RAGGED)
                unpack_edge(s, i, v);
            store_elements<a_t, VECTOR>(held + i, true, v);
            running_add<VECTOR>(r, v);
        }
    }
    return r;
}

__device__ __forceinline__ void forward_held(const slice &s, acc_t *scratch)
{
    extern __shared__ __align__(16) unsigned char memory[];
    a_t *held = (a_t *)memory;
    running<acc_t> r = running_reduce(read_and_hold(s, held), scratch);
    const acc_t by = LOG ? log_of(r.sum) : (acc_t)1 / r.sum;
    const int hi = (int)s.e.hi;
#pragma unroll 2
    for (int i = (int)position(0); i < hi; i += STEP) {
        acc_t v[VECTOR];
        unpack(fetch<VECTOR>(held + i, true), v);
#pragma unroll
        for (int k = 0; k < VECTOR; k++)
            v[k] = LOG ? (v[k] - r.max) - by : exp_for<out_t>(v[k] - r.max) * by;
        out_t *to = s.out + (VECTOR > 1 ? i : i * s.along[OUT]);
        if (is_whole(s, i)) {
            store_elements<out_t, VECTOR>(to, s.whole, v);
        } else if constexpr (RAGGED) {
#pragma unroll
            for (int k = 0; k < VECTOR; k++)
                if (i + k >= (int)s.e.lo && i + k < hi) to[k] = narrow<out_t>(v[k]);
        }
    }
}

/* ---- backward ---- */

template <int COUNT> __device__ __forceinline__ acc_t add_terms(const acc_t (*y)[VECTOR], const acc_t (*dy)[VECTOR])
{
    acc_t sum = 0;
#pragma unroll
    for (int j = 0; j < COUNT; j++)
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum += LOG ? dy[j][k] : y[j][k] * dy[j][k];
    return sum;
}

template <int COUNT> __device__ __forceinline__ void finish_backward(const slice &s, const long long *i, const acc_t (*y)[VECTOR], acc_t (*dy)[VECTOR], acc_t sum)
{
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
#pragma unroll
        for (int k = 0; k < VECTOR; k++)
            dy[j][k] = LOG ? dy[j][k] - exp_for<out_t>(y[j][k]) * sum : y[j][k] * (dy[j][k] - sum);
        write(s, i[j], dy[j]);
    }
}

/* y stays as it was read until its second use: fewer registers, more blocks. */
__device__ __forceinline__ void backward_kept(const slice &s, acc_t *scratch)
{
    lanes<a_t, VECTOR> raw_y[KEPT];
    lanes<b_t, VECTOR> raw_dy[KEPT];
    acc_t y[KEPT][VECTOR], dy[KEPT][VECTOR];
    long long i[KEPT];
    find_positions<KEPT>(0, i);
    fetch_batch<KEPT>(s.a, s.e, i, s.along[0], s.whole, raw_y);
    fetch_batch<KEPT>(s.b, s.e, i, s.along[OUT - 1], s.whole, raw_dy);
    if constexpr (!LOG) unpack_batch<KEPT>(s.a, s.e, i, raw_y, (acc_t)0, y);
    unpack_batch<KEPT>(s.b, s.e, i, raw_dy, (acc_t)0, dy);
    acc_t sum = slice_reduce(add_terms<KEPT>(y, dy), scratch, add_op());
    if constexpr (LOG) unpack_batch<KEPT>(s.a, s.e, i, raw_y, (acc_t)0, y);
    finish_backward<KEPT>(s, i, y, dy, sum);
}

__device__ __forceinline__ void backward_long(const slice &s, acc_t *scratch)
{
    acc_t sum = 0, y[BATCH][VECTOR], dy[BATCH][VECTOR];
    long long i[BATCH];
    for (long long first = 0; position(first) < s.e.hi; first += BATCH) {
        find_positions<BATCH>(first, i);
        if constexpr (LOG) read_b<BATCH>(s, i, dy);
        else read_both<BATCH>(s, i, y, dy);
        sum += add_terms<BATCH>(y, dy);
    }
    sum = slice_reduce(sum, scratch, add_op());
    for (long long first = 0; position(first) < s.e.hi; first += BATCH) {
        find_positions<BATCH>(first, i);
        read_both<BATCH>(s, i, y, dy);
        finish_backward<BATCH>(s, i, y, dy, sum);
    }
}

/* Blocks that have to fit beside each other: threads enough for the loads that memory needs in flight. */
constexpr int BLOCK = THREADS * SLICES, RESIDENT = sizeof(acc_t) == 8 ? 0 : sizeof(a_t) + sizeof(b_t) <= 4 ? 1024 : 768;
constexpr int BLOCKS = HELD > 1 ? HELD : BACKWARD && VECTOR > 1 && ITEMS > 0 && !RAGGED && RESIDENT > BLOCK ? RESIDENT / BLOCK : 1;

extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS) softmax(const mica_softmax_args args)
{
    overlap_wait();
    __shared__ acc_t scratch[SLICE_SCRATCH];
    for (long long first = (long long)blockIdx.x * SLICES; first < args.outer.count;
         first += (long long)gridDim.x * SLICES) {
        slice s = find_slice(args, first + slice_in_block());
        if constexpr (BACKWARD) {
            if constexpr (ITEMS > 0) backward_kept(s, scratch);
            else backward_long(s, scratch);
        } else {
            if constexpr (ITEMS > 0) forward_kept(s, scratch);
            else if constexpr (HELD > 0) forward_held(s, scratch);
            else forward_long(s, scratch);
        }
    }
}
