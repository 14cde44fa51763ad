/* SPDX-License-Identifier: Apache-2.0
 * Local response normalisation. Floor: x read and y written once at copy bandwidth; an element's own x, which
 * its window met before, and neighbours across a column come from the first-level cache. Constants of lrn.cuh. */
#include "ops/lrn/lrn.cuh"

struct forward : squares {
    INLINE void finish(const mica_lrn_args &a, const column &c, int_t m, const real *sum) const
    {
        real y[VEC];
        bool all = true;
        unpack(fetch<VEC>(x + m * (int_t)a.x_step.at[MARCH], a.whole), y);
#pragma unroll
        for (int v = 0; v < VEC; v++) {
            const real s = fma_of((real)a.alpha, sum[v], (real)a.k);
            y[v] = ordinary(a, s) ? y[v] * power_of(a, s) : (real)NAN_F;
            all &= ordinary(a, s);
        }
        if (!all) leave(a);
        store_elements<x_t, VEC>((x_t *)a.y + place(a.y_step, c, m), a.whole, y);
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK) lrn_forward(const __grid_constant__ mica_lrn_args a)
{
    overlap_wait();
    column c;
    if (!find_column(a, c)) return;
    forward f;
    f.begin(a, c);
    march(a, c, f);
}
