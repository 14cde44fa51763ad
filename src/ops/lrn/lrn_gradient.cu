/* SPDX-License-Identifier: Apache-2.0
 * The gradient's second stage: dx = dy s^-beta - t and dmeans = t, t = 2 alpha beta u times the slopes of all
 * windows that hold the element, which are those windows seen from their other end. Floor: two numbers of an element and
 * x read, dx written. Constants of lrn.cuh, windows the other way round; DMEANS (dmeans is written). */
#include "ops/lrn/lrn.cuh"

struct gradient {
    const real *slopes; /* of the column's element 0 */

    INLINE void add(const mica_lrn_args &a, int_t m, int_t i, int_t j, int_t k, int_t l, real *sum) const
    {
        real slope[VEC];
        load_vector<VEC>(slopes + m * (int_t)a.packed_step.at[MARCH] + distance(a.packed_step, i, j, k, l), slope);
#pragma unroll
        for (int v = 0; v < VEC; v++) sum[v] += slope[v];
    }
    INLINE void finish(const mica_lrn_args &a, const column &c, int_t m, const real *sum) const
    {
        real dx[VEC], t[VEC];
        bool all = true;
        load_centred(a, (const x_t *)a.x + place(a.x_step, c, m), MEANS ? (const x_t *)a.means + place(a.means_step, c, m) : nullptr, t);
        load_vector<VEC>((const real *)a.scaled + place(a.packed_step, c, m), dx);
#pragma unroll
        for (int v = 0; v < VEC; v++) {
            t[v] = (real)(2 * a.alpha * a.beta) * t[v] * sum[v];
            dx[v] -= t[v];
            all &= is_finite(dx[v]) && is_finite(t[v]);
        }
        if (!all) leave(a);
        store_elements<x_t, VEC>((x_t *)a.dx + place(a.dx_step, c, m), a.whole, dx);
        if constexpr (DMEANS) store_elements<x_t, VEC>((x_t *)a.dmeans + place(a.dmeans_step, c, m), a.whole, t);
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK) lrn_gradient(const __grid_constant__ mica_lrn_args a)
{
    overlap_wait();
    column c;
    if (!find_column(a, c)) return;
    gradient f = {(const real *)a.slopes + place(a.packed_step, c, 0)};
    march(a, c, f);
}
