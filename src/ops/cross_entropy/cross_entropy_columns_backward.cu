/* SPDX-License-Identifier: Apache-2.0
 * Gradient of logits whose rows lie side by side. The second look finds most of them in the cache.
 * Constants: those of cross_entropy_columns.cuh and cross_entropy_backward.cuh. Types x_t, label_t,
 * dloss_t, dx_t, acc_t. */
#include "kernels/overlap.cuh"
#include "ops/cross_entropy/cross_entropy_backward.cuh"
#include "ops/cross_entropy/cross_entropy_columns.cuh"

/* VECTOR rows from `index` on. */
__device__ __forceinline__ void do_rows(const mica_cross_entropy_args &args, long long index, double counted)
{
    long long at[4];
    layout_offsets<4>(args.rows, index, at);
    const x_t *x = (const x_t *)args.x + at[0];
    dx_t *dx = (dx_t *)args.dx + at[3];
    const statistics s = read_statistics(args, x, [](long long, const acc_t *, const acc_t *, const acc_t *) {});
    shares row[VECTOR];
    acc_t scale[VECTOR];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        row[k] = find_shares(args, beside(args, at, 1, k), beside(args, at, 2, k), counted);
        scale[k] = row[k].gradient / s.sum[k];
    }
    for (long long first = 0; first < args.classes; first += BATCH) {
        batch x_batch;
        acc_t v[VECTOR];
        x_batch.read(args, x, first);
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (first + b >= args.classes) break;
            unpack(x_batch.raw[b], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                v[k] = scale[k] * exp_for<dx_t>(v[k] - s.max[k]) + row[k].bias;
                if (first + b == row[k].label) v[k] -= row[k].label_share;
                if (row[k].ignored) v[k] = 0;
            }
            store_elements<dx_t, VECTOR>(dx + (first + b) * args.dx_along, args.whole, v);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
cross_entropy_columns_backward(const mica_cross_entropy_args args)
{
    overlap_wait();
    __shared__ counted_t counts[32];
    const double counted = (double)counted_rows(args, counts);
    for (long long i = ((long long)blockIdx.x * THREADS + threadIdx.x) * VECTOR; i < args.rows.count;
         i += (long long)gridDim.x * THREADS * VECTOR)
        do_rows(args, i, counted);
}
