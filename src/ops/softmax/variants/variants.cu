/* SPDX-License-Identifier: Apache-2.0
 * Softmax with a scale, a mask or noise, sparsemax, and their gradients, any strides. Constants:
 * BACKWARD, LOG, SPARSE, NOISE, HARD, MASK (0 none, 1 bytes, 2 added), those of kernels/slices.cuh with
 * VECTOR 1, ITEMS (logits that a thread keeps; 0: they are formed in each pass). Types out_t, in_t
 * (x; bwd: y), grad_t (dy), mask_t, acc_t. What is left out has the logit -inf. */
#include "kernels/slices.cuh"
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "ops/random/random_rounded.cuh"
#include "ops/softmax/variants/variants_args.h"
#include "ops/softmax/variants/variants_body.h"

static_assert(VECTOR == 1 && ITEMS <= 32, "elements one by one");
static_assert(!SPARSE || BACKWARD || SLICES == 1, "passes of a sparsemax are counted by block");

constexpr int KEPT = ITEMS > 0 ? ITEMS : 1;

struct slice {
    const in_t *in;
    const grad_t *grad;
    const mask_t *mask;
    out_t *out;
    s64 index, n; /* n is 0 past the last slice */
};

/* Of equal logits the first. */
struct min_place {
    __device__ __forceinline__ s64 operator()(s64 a, s64 b) const { return a < b ? a : b; }
};

struct stream {
    u32 key[2], offset;
};

RANDOM float noise_at(const stream &s, s64 i, float) { return gumbel_at32(s.key, s.offset, i); }
RANDOM double noise_at(const stream &s, s64 i, double) { return gumbel_at64(s.key, s.offset, i); }
RANDOM float logit(float x, float scale, float more, float noise, float by) { return logit32(x, scale, more, noise, by); }
RANDOM double logit(double x, double scale, double more, double noise, double by) { return logit64(x, scale, more, noise, by); }

__device__ __forceinline__ slice find_slice(const mica_softmax_variants_args &a, s64 index)
{
    slice s = {};
    if (index >= a.outer.count) return s;
    long long at[MICA_SOFTMAX_PLACES];
    layout_offsets<MICA_SOFTMAX_PLACES>(a.outer, index, at);
    s.in = (const in_t *)a.at[MICA_SOFTMAX_PLACE_IN] + at[MICA_SOFTMAX_PLACE_IN];
    s.grad = (const grad_t *)a.at[MICA_SOFTMAX_PLACE_GRAD] + at[MICA_SOFTMAX_PLACE_GRAD];
    s.mask = (const mask_t *)a.at[MICA_SOFTMAX_PLACE_MASK] + at[MICA_SOFTMAX_PLACE_MASK];
    s.out = (out_t *)a.at[MICA_SOFTMAX_PLACE_OUT] + at[MICA_SOFTMAX_PLACE_OUT];
    s.index = at[MICA_SOFTMAX_PLACE_INDEX];
    s.n = a.n;
    return s;
}

/* Whether element i is there, and what the mask adds to it. */
__device__ __forceinline__ bool is_kept(const mica_softmax_variants_args &a, const slice &s, s64 i, acc_t &more)
{
    more = 0;
    if constexpr (MASK == 0) return true;
    const mask_t m = s.mask[i * a.along[MICA_SOFTMAX_PLACE_MASK]];
    if constexpr (MASK == 1) return widen<float>(m) != 0;
    more = widen<acc_t>(m);
    return more != negative_infinity<acc_t>();
}

__device__ __forceinline__ acc_t logit_at(const mica_softmax_variants_args &a, const slice &s, const stream &r, s64 i)
{
    acc_t more, noise = 0;
    if (!is_kept(a, s, i, more)) return negative_infinity<acc_t>();
    if constexpr (NOISE) noise = noise_at(r, s.index + i * a.along[MICA_SOFTMAX_PLACE_INDEX], acc_t());
    return logit(widen<acc_t>(s.in[i * a.along[MICA_SOFTMAX_PLACE_IN]]), (acc_t)a.scale, more, noise, (acc_t)a.by);
}

__device__ __forceinline__ void put(const mica_softmax_variants_args &a, const slice &s, s64 i, acc_t v)
{
    s.out[i * a.along[MICA_SOFTMAX_PLACE_OUT]] = narrow<out_t>(v);
}

/* f(i, logit) of the thread's elements. */
template <typename F> __device__ __forceinline__ void each(const mica_softmax_variants_args &a, const slice &s, const stream &r, const acc_t *z, F f)
{
    if constexpr (ITEMS > 0) {
#pragma unroll
        for (int j = 0; j < ITEMS; j++)
            if (position(j) < s.n) f(position(j), z[j]);
    } else {
#pragma unroll 1 /* branches in copies of the loop would spill */
        for (s64 i = thread_in_slice(); i < s.n; i += THREADS) f(i, logit_at(a, s, r, i));
    }
}

/* Of a slice that has no softmax: NaN, but where elements are left out. */
__device__ __forceinline__ void put_bad(const mica_softmax_variants_args &a, const slice &s)
{
    acc_t more;
    for (s64 i = thread_in_slice(); i < s.n; i += THREADS)
        put(a, s, i, is_kept(a, s, i, more) ? (acc_t)NAN_F : LOG ? negative_infinity<acc_t>() : (acc_t)0);
}

/* By Newton's method from the left, which ends where the same elements stay. The threshold of logits less
 * their maximum. */
template <typename Each> __device__ __forceinline__ acc_t find_threshold(acc_t max, acc_t *scratch, Each each_of)
{
    acc_t t = -1, last = -negative_infinity<acc_t>();
    while (true) {
        acc_t sum = 0, count = 0;
        each_of([&](s64, acc_t v) {
            v -= max;
            if (v > t) sum += v, count += 1;
        });
        count = slice_reduce(count, scratch, add_op());
        if (!(count < last)) return t;
        sum = slice_reduce(sum, scratch, add_op());
        t = (sum - 1) / count;
        last = count;
    }
}

__device__ __forceinline__ void forward(const mica_softmax_variants_args &a, const slice &s, const stream &r, acc_t *scratch, s64 *places)
{
    acc_t z[KEPT], max = negative_infinity<acc_t>();
    if constexpr (ITEMS > 0) {
#pragma unroll
        for (int j = 0; j < ITEMS; j++) z[j] = position(j) < s.n ? logit_at(a, s, r, position(j)) : negative_infinity<acc_t>();
    }
    auto each_of = [&](auto f) { each(a, s, r, z, f); };
    each_of([&](s64, acc_t v) { max = max_of(max, v); });
    max = slice_reduce(max, scratch, max_op());
    const bool bad = !(max - max == 0);
    if constexpr (HARD) {
        s64 place = s.n;
        each_of([&](s64 i, acc_t v) {
            if (v == max && i < place) place = i;
        });
        place = slice_reduce(place, places, min_place());
        if (!bad) each_of([&](s64 i, acc_t) { put(a, s, i, i == place ? (acc_t)1 : (acc_t)0); });
    } else if constexpr (SPARSE) {
        const acc_t t = find_threshold(max, scratch, each_of);
        if (!bad) each_of([&](s64 i, acc_t v) { put(a, s, i, v - max > t ? v - max - t : (acc_t)0); });
    } else {
        acc_t sum = 0;
        each_of([&](s64, acc_t v) { sum += exp_for<out_t>(v - max); });
        sum = slice_reduce(sum, scratch, add_op());
        const acc_t by = LOG ? log_of(sum) : (acc_t)1 / sum;
        if (!bad) each_of([&](s64 i, acc_t v) { put(a, s, i, LOG ? v - max - by : exp_for<out_t>(v - max) * by); });
    }
    if (bad) put_bad(a, s);
}

__device__ __forceinline__ void backward(const mica_softmax_variants_args &a, const slice &s, acc_t *scratch)
{
    acc_t sum = 0, count = 0, more;
    auto y_at = [&](s64 i) { return widen<acc_t>(s.in[i * a.along[MICA_SOFTMAX_PLACE_IN]]); };
    auto dy_at = [&](s64 i) { return widen<acc_t>(s.grad[i * a.along[MICA_SOFTMAX_PLACE_GRAD]]); };
    auto takes_part = [&](s64 i) { return is_kept(a, s, i, more) && (!SPARSE || y_at(i) > 0); };
#pragma unroll 1
    for (s64 i = thread_in_slice(); i < s.n; i += THREADS) {
        if (!takes_part(i)) continue;
        sum += LOG || SPARSE ? dy_at(i) : y_at(i) * dy_at(i);
        count += 1;
    }
    sum = slice_reduce(sum, scratch, add_op());
    if constexpr (SPARSE) sum /= slice_reduce(count, scratch, add_op());
#pragma unroll 1
    for (s64 i = thread_in_slice(); i < s.n; i += THREADS) {
        acc_t v = 0;
        if (takes_part(i)) {
            const acc_t dy = dy_at(i);
            v = SPARSE ? dy - sum : LOG ? dy - exp_for<out_t>(y_at(i)) * sum : y_at(i) * (dy - sum);
            v *= (acc_t)a.by;
        }
        put(a, s, i, v);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS * SLICES) softmax_variants(const __grid_constant__ mica_softmax_variants_args a)
{
    overlap_wait();
    __shared__ acc_t scratch[SLICE_SCRATCH];
    __shared__ s64 places[HARD ? SLICE_SCRATCH : 1];
    stream r = {};
    if constexpr (NOISE) {
        const u64 *numbers = (const u64 *)a.rng;
        r = {{(u32)numbers[0], (u32)(numbers[0] >> 32)}, (u32)numbers[a.rng_stride]};
    }
    for (s64 first = (s64)blockIdx.x * SLICES; first < a.outer.count; first += (s64)gridDim.x * SLICES) {
        const slice s = find_slice(a, first + slice_in_block());
        if constexpr (BACKWARD) backward(a, s, scratch);
        else forward(a, s, r, scratch, places);
    }
}
