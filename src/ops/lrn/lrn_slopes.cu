/* SPDX-License-Identifier: Apache-2.0
 * The gradient's first stage: dy x s^(-beta - 1), which the second sums over windows, and dy s^-beta. Floor: x
 * and dy read, two numbers of an element written. Constants of lrn.cuh. */
#include "ops/lrn/lrn.cuh"

struct slopes : squares {
    INLINE void finish(const mica_lrn_args &a, const column &c, int_t m, const real *sum) const
    {
        real slope[VEC], scaled[VEC];
        unpack(fetch<VEC>(x + m * (int_t)a.x_step.at[MARCH], a.whole), slope);
        unpack(fetch<VEC>((const x_t *)a.dy + place(a.dy_step, c, m), a.whole), scaled);
#pragma unroll
        for (int v = 0; v < VEC; v++) {
            const real s = fma_of((real)a.alpha, sum[v], (real)a.k);
            scaled[v] *= power_of(a, s);
            slope[v] = ordinary(a, s) ? scaled[v] * (slope[v] / s) : (real)NAN_F;
        }
        const s64 to = place(a.packed_step, c, m);
        store_vector<VEC>((real *)a.slopes + to, slope);
        store_vector<VEC>((real *)a.scaled + to, scaled);
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK) lrn_slopes(const __grid_constant__ mica_lrn_args a)
{
    overlap_wait();
    column c;
    if (!find_column(a, c)) return;
    slopes f;
    f.begin(a, c);
    march(a, c, f);
}
