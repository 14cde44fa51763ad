/* SPDX-License-Identifier: Apache-2.0
 * Reductions of the values of an expression, of slices or of parts of slices. Constants and types: those
 * of reduce.cuh and reduce_op.cuh, x_t being that of the values; real, the same; INPUTS (those that the
 * expression has), operand_t (their types); FUNCTIONS and EXPRESSION as in ops/pointwise, the values of the
 * inputs in v[0] on, and the result behind them. */
#include "ops/reduce/reduce.cuh"
#include "ops/reduce/reduce_op.cuh"
#include "ops/pointwise/expression.cuh"

static_assert(VECTOR == 1 && BESIDE == 1 && !INDEXED, "elements one by one");

/* Elements whose inputs a thread reads before it works on them: of rows few, whose places take registers. */
constexpr int BATCH = ROWS ? 2 : INPUTS <= 2 ? 8 : 4;

template <int K> using input_type = typename type_of<K, operand_t>::type;

/* Of the layouts: x, y, further inputs. */
constexpr int LAYOUTS = INPUTS + 1;
REDUCE constexpr int layout_of(int k) { return k ? k + 1 : 0; }

template <int K> REDUCE void load_inputs(const mica_reduce_map_args &m, const long long *at, real *v)
{
    if constexpr (K < INPUTS) {
        v[K] = widen<real>(((const input_type<K> *)m.inputs[K])[at[layout_of(K)]]);
        load_inputs<K + 1>(m, at, v);
    }
}

/* Inputs of element q of a slice, whose first elements lie at `first`. */
REDUCE void load_element(const mica_reduce_map_args &m, const long long *first, long long q, real *v)
{
    const mica_reduce_args &a = m.reduce;
    long long at[LAYOUTS], i = q;
    if constexpr (ROWS) {
        const long long row = q / a.n;
        i = q - row * a.n;
        layout_offsets<LAYOUTS>(a.rows, row, at);
    }
#pragma unroll
    for (int k = 0; k < INPUTS; k++) {
        const long long of_row = ROWS ? at[layout_of(k)] : 0;
        at[layout_of(k)] = first[layout_of(k)] + of_row + i * m.along[k];
    }
    load_inputs<0>(m, at, v);
}

REDUCE real map_element(real *v)
{
    EXPRESSION
    return v[INPUTS];
}

/* Elements [from, to) of a slice, every THREADS-th. */
REDUCE void walk_mapped(const mica_reduce_map_args &m, const long long *first, long long from, long long to, state &s)
{
    state::running r;
    long long seen = 0;
    running_begin(r);
    const auto nowhere = [](int) { return 0ll; };
    const auto all = [](int) { return true; };
#pragma unroll 1
    for (long long q = from + thread_in_slice(); q < to; q += BATCH * THREADS) {
        real v[BATCH][INPUTS + 1], mapped[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (q + b * THREADS < to) load_element(m, first, q + b * THREADS, v[b]);
        if (q + (BATCH - 1) * THREADS < to) {
#pragma unroll
            for (int b = 0; b < BATCH; b++) mapped[b] = map_element(v[b]);
            running_add<BATCH>(r, mapped, all, nowhere, seen == 0);
            seen += BATCH;
            continue;
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            if (q + b * THREADS >= to) continue;
            mapped[b] = map_element(v[b]);
            running_add<1>(r, mapped + b, all, nowhere, seen == 0);
            seen++;
        }
    }
    s = running_end(r, seen);
}

extern "C" __global__ void __launch_bounds__(BLOCK) reduce_map(const mica_reduce_map_args m)
{
    __shared__ __align__(16) unsigned char memory[SCRATCH * sizeof(state)];
    const mica_reduce_args &a = m.reduce;
    const long long from = blockIdx.y * a.per_part, end = from + a.per_part, to = end < a.vectors ? end : a.vectors;
    overlap_wait();
    for (long long first = (long long)blockIdx.x * SLICES; first < a.kept.count; first += (long long)gridDim.x * SLICES) {
        const long long slice = first + slice_in_block();
        const bool inside = slice < a.kept.count;
        long long at[LAYOUTS];
        state s[1];
        state_begin(s[0]);
        if (inside) {
            layout_offsets<LAYOUTS>(a.kept, slice, at);
            walk_mapped(m, at, from, to, s[0]);
        }
        state_merge_group(s, (state *)memory);
        if (!inside || thread_in_slice() != 0) continue;
        if (a.parts) ((state *)a.parts)[blockIdx.y * a.kept.count + slice] = s[0];
        else store_result(a, at[1], s[0]);
    }
}
