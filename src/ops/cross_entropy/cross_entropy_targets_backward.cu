/* SPDX-License-Identifier: Apache-2.0
 * Gradients of x, and of the probabilities, against targets with weights or probabilities. Constants:
 * those of cross_entropy_targets.cuh, ITEMS (vectors a thread keeps in registers; 0: rows are too long,
 * and are read twice), DTARGET (that gradient is wanted), those of cross_entropy_backward.cuh. Types: also
 * dloss_t, dx_t, dtarget_t. */
#include "kernels/overlap.cuh"
#include "ops/cross_entropy/cross_entropy_backward.cuh"
#include "ops/cross_entropy/cross_entropy_targets.cuh"

constexpr int KEPT = ITEMS > 0 ? ITEMS : 1;
/* Vectors of a long slice in flight. */
constexpr int VALUES = sizeof(acc_t) == 8 ? 4 : 16, BATCH = VECTOR >= VALUES ? 1 : VALUES / VECTOR < 8 ? VALUES / VECTOR : 8;
/* Whether x is read at all: the gradient of log-probabilities does not depend on them. */
constexpr bool READS = LOGITS || DTARGET;

struct row {
    const x_t *x;
    const target_t *target;
    dx_t *dx;
    dtarget_t *dtarget;
    extent e; /* empty past the last row */
    labelled l;
    acc_t gradient;
    /* dx = scale exp(x - max) - gradient target */
    acc_t max, scale, log_sum;
};

__device__ __forceinline__ row find_row(const mica_cross_entropy_args &args, long long index, double counted)
{
    row r = {};
    if (index >= args.rows.count) return r;
    long long at[6];
    layout_offsets<6>(args.rows, index, at);
    r.e = find_extent((const x_t *)args.x + at[0], args.classes, args.whole);
    r.x = (const x_t *)args.x + at[0] - r.e.lo;
    r.dx = (dx_t *)args.dx + at[3] - r.e.lo;
    if constexpr (PROBABILITIES) r.target = (const target_t *)args.target + at[4] - r.e.lo;
    if constexpr (DTARGET) r.dtarget = (dtarget_t *)args.dtarget + at[5] - r.e.lo;
    r.l = find_label(args, at[1]);
    r.gradient = widen<acc_t>(((const dloss_t *)args.dloss)[at[2]]);
    if constexpr (REDUCTION == MEAN) r.gradient /= (acc_t)counted;
    return r;
}

template <int N>
__device__ __forceinline__ void read(const mica_cross_entropy_args &args, const row &r, const long long *i, acc_t fill,
                                     acc_t (*v)[VECTOR], acc_t (*p)[VECTOR])
{
    if constexpr (READS) read_batch<N>(r.x, r.e, i, args.x_along, args.whole, fill, v);
    if constexpr (PROBABILITIES) read_batch<N>(r.target, r.e, i, args.target_along, args.whole, (acc_t)0, p);
}

/* Of what all threads of a slice have seen. */
__device__ __forceinline__ void finish(row &r, acc_t max, acc_t sum, acc_t total, acc_t *scratch)
{
    if constexpr (SPREAD && LOGITS) total = slice_reduce(total, scratch, add_op());
    r.max = max;
    r.scale = LOGITS ? r.gradient * (total + r.l.share) / sum : (acc_t)0;
    r.log_sum = DTARGET && LOGITS ? log_of(sum) : (acc_t)0;
}

/* v: x, p: probabilities, of the vector at i */
__device__ __forceinline__ void write(const mica_cross_entropy_args &args, const row &r, long long i, const acc_t *v,
                                      const acc_t *p)
{
    acc_t t[VECTOR], dx[VECTOR];
    if constexpr (SPREAD) make_target<VECTOR>(args, r.e, i, p, t);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        dx[k] = LOGITS ? r.scale * exp_for<dx_t>(v[k] - r.max) : (acc_t)0;
        if constexpr (SPREAD) dx[k] -= r.gradient * t[k];
        if constexpr (PROBABILITIES) continue;
        if (i + k - r.e.lo == r.l.label) dx[k] -= r.gradient * r.l.share;
        if (r.l.ignored) dx[k] = (acc_t)0;
        if (r.l.bad) dx[k] = (acc_t)NAN_F;
    }
    write_vector(r.dx, r.e, i, args.dx_along, args.whole, dx);
    if constexpr (!DTARGET) return;
    const acc_t by = -r.gradient * (acc_t)(1 - args.smoothing);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        const bool inside = i + k >= r.e.lo && i + k < r.e.hi;
        const acc_t l = LOGITS ? v[k] - r.max - r.log_sum : v[k];
        dx[k] = inside ? by * weight_of<acc_t>(args, i + k - r.e.lo) * l : (acc_t)0;
    }
    write_vector(r.dtarget, r.e, i, args.dtarget_along, args.whole, dx);
}

__device__ __forceinline__ acc_t total_of(const mica_cross_entropy_args &args, const row &r, long long i, const acc_t *p)
{
    acc_t t[VECTOR], total = 0;
    if constexpr (!SPREAD || !LOGITS) return total;
    make_target<VECTOR>(args, r.e, i, p, t);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) total += t[k];
    return total;
}

__device__ __forceinline__ void backward_kept(const mica_cross_entropy_args &args, row &r, acc_t *scratch)
{
    acc_t v[KEPT][VECTOR], p[KEPT][VECTOR], max = negative_infinity<acc_t>(), sum = 0, total = 0;
    long long i[KEPT];
#pragma unroll
    for (int j = 0; j < KEPT; j++) i[j] = position(j);
    read<KEPT>(args, r, i, negative_infinity<acc_t>(), v, p);
    if constexpr (LOGITS) {
#pragma unroll
        for (int j = 0; j < KEPT; j++)
#pragma unroll
            for (int k = 0; k < VECTOR; k++) max = max_of(max, v[j][k]);
        max = slice_reduce(max, scratch, max_op());
#pragma unroll
        for (int j = 0; j < KEPT; j++) {
            total += total_of(args, r, i[j], p[j]);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum += exp_for<dx_t>(v[j][k] - max);
        }
        sum = slice_reduce(sum, scratch, add_op());
    }
    finish(r, max, sum, total, scratch);
#pragma unroll
    for (int j = 0; j < KEPT; j++) write(args, r, i[j], v[j], p[j]);
}

__device__ __forceinline__ void backward_long(const mica_cross_entropy_args &args, row &r, acc_t *scratch)
{
    running<acc_t> seen = {negative_infinity<acc_t>(), (acc_t)0};
    acc_t v[BATCH][VECTOR], p[BATCH][VECTOR], total = 0;
    long long i[BATCH];
    for (long long first = 0; LOGITS && position(first) < r.e.hi; first += BATCH) {
#pragma unroll
        for (int j = 0; j < BATCH; j++) i[j] = position(first + j);
        read<BATCH>(args, r, i, negative_infinity<acc_t>(), v, p);
        running_add<BATCH * VECTOR>(seen, &v[0][0]);
#pragma unroll
        for (int j = 0; j < BATCH; j++) total += total_of(args, r, i[j], p[j]);
    }
    if constexpr (LOGITS) seen = running_reduce(seen, scratch);
    finish(r, seen.max, seen.sum, total, scratch);
    for (long long first = 0; position(first) < r.e.hi; first += BATCH) {
#pragma unroll
        for (int j = 0; j < BATCH; j++) i[j] = position(first + j);
        read<BATCH>(args, r, i, (acc_t)0, v, p);
#pragma unroll
        for (int j = 0; j < BATCH; j++) write(args, r, i[j], v[j], p[j]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS *SLICES, 1)
    cross_entropy_targets_backward(const mica_cross_entropy_args args)
{
    overlap_wait();
    __shared__ acc_t scratch[SLICE_SCRATCH];
    __shared__ counted_t counts[32];
    const double counted = (double)counted_rows(args, counts);
    for (long long first = (long long)blockIdx.x * SLICES; first < args.rows.count;
         first += (long long)gridDim.x * SLICES) {
        row r = find_row(args, first + slice_in_block(), counted);
        if constexpr (ITEMS > 0) backward_kept(args, r, scratch);
        else backward_long(args, r, scratch);
    }
}
