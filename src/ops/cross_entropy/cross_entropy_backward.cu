/* SPDX-License-Identifier: Apache-2.0
 * Gradient of the logits. Constants: those of kernels/slices.cuh, ITEMS (vectors a thread keeps in
 * registers; 0: rows are too long, and are read twice), those of cross_entropy_backward.cuh. Types x_t,
 * label_t, dloss_t, dx_t, acc_t. */
#include "kernels/overlap.cuh"
#include "kernels/slices.cuh"
#include "ops/cross_entropy/cross_entropy_backward.cuh"

constexpr int KEPT = ITEMS > 0 ? ITEMS : 1;
constexpr int BATCH = vectors_in_flight<acc_t>();

struct row {
    const x_t *x;
    dx_t *dx;
    extent e; /* empty past the last row */
    shares of;
};

__device__ __forceinline__ row find_row(const mica_cross_entropy_args &args, long long index, double counted)
{
    row r = {};
    if (index >= args.rows.count) return r;
    long long at[4];
    layout_offsets<4>(args.rows, index, at);
    r.e = find_extent((const x_t *)args.x + at[0], args.classes, args.whole);
    r.x = (const x_t *)args.x + at[0] - r.e.lo;
    r.dx = (dx_t *)args.dx + at[3] - r.e.lo;
    r.of = find_shares(args, at[1], at[2], counted);
    return r;
}

/* v: exp(x - max) */
__device__ __forceinline__ void write(const mica_cross_entropy_args &args, const row &r, long long i,
                                      acc_t *v, acc_t scale)
{
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        acc_t dx = scale * v[k] + r.of.bias;
        if (i + k - r.e.lo == r.of.label) dx -= r.of.label_share;
        v[k] = r.of.ignored ? (acc_t)0 : dx;
    }
    write_vector(r.dx, r.e, i, args.dx_along, args.whole, v);
}

__device__ __forceinline__ void backward_kept(const mica_cross_entropy_args &args, const row &r, acc_t *scratch)
{
    acc_t v[KEPT][VECTOR], sum = 0;
    long long i[KEPT];
    find_positions<KEPT>(0, i);
    read_batch<KEPT>(r.x, r.e, i, args.x_along, args.whole, negative_infinity<acc_t>(), v);
    const acc_t max = kept_max<KEPT>(v, scratch);
#pragma unroll
    for (int j = 0; j < KEPT; j++)
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
            v[j][k] = exp_for<dx_t>(v[j][k] - max);
            sum += v[j][k];
        }
    acc_t scale = r.of.gradient / slice_reduce(sum, scratch, add_op());
#pragma unroll
    for (int j = 0; j < KEPT; j++) write(args, r, i[j], v[j], scale);
}

__device__ __forceinline__ void backward_long(const mica_cross_entropy_args &args, const row &r, acc_t *scratch)
{
    running<acc_t> seen = running_read<x_t, acc_t>(r.x, r.e, args.x_along, args.whole, nullptr);
    seen = running_reduce(seen, scratch);
    acc_t scale = r.of.gradient / seen.sum;
    for (long long first = 0; position(first) < r.e.hi; first += BATCH) {
        acc_t v[BATCH][VECTOR];
        long long i[BATCH];
        find_positions<BATCH>(first, i);
        read_batch<BATCH>(r.x, r.e, i, args.x_along, args.whole, (acc_t)0, v);
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[j][k] = exp_for<dx_t>(v[j][k] - seen.max);
            write(args, r, i[j], v[j], scale);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS *SLICES, 1)
    cross_entropy_backward(const mica_cross_entropy_args args)
{
    overlap_wait();
    __shared__ acc_t scratch[SLICE_SCRATCH];
    __shared__ counted_t counts[32];
    double counted = (double)counted_rows(args, counts);
    for (long long first = (long long)blockIdx.x * SLICES; first < args.rows.count;
         first += (long long)gridDim.x * SLICES) {
        row r = find_row(args, first + slice_in_block(), counted);
        if constexpr (ITEMS > 0) backward_kept(args, r, scratch);
        else backward_long(args, r, scratch);
    }
}
