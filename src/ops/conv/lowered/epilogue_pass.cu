/* SPDX-License-Identifier: Apache-2.0
 * From the sums of a convolution to y, element by element: alpha, beta, epilogue, the values before the
 * activation, the largest magnitude, quantising. Constants: BLOCK; AUX AMAX SCALE_Y (0 or 1); types sum_t,
 * y_t, aux_t, fin_t (what is computed in) and, but for step_t, those of epilogue_quantise.cuh. */
#include "kernels/epilogue.cuh"
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "ops/conv/lowered/passes_args.h"

typedef fin_t step_t;
#include "kernels/epilogue_quantise.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) conv_epilogue_pass(const __grid_constant__ conv_epilogue_pass_args a)
{
    overlap_wait();
    maximum amax = {0};
    const s64 step = (s64)gridDim.x * BLOCK;
    for (s64 i = (s64)blockIdx.x * BLOCK + threadIdx.x; i < a.layout.count; i += step) {
        s64 at[CONV_PASS_CHANNEL + 1];
        layout_offsets<CONV_PASS_CHANNEL + 1>(a.layout, i, at);
        const s64 channel = at[CONV_PASS_CHANNEL], residual = at[CONV_PASS_RESIDUAL];
        y_t *y = (y_t *)a.y + at[CONV_PASS_Y];
        fin_t v = times((fin_t)a.alpha, (fin_t)((const sum_t *)a.sums)[at[CONV_PASS_SUMS]]);
        if (a.beta != 0) v = plus(v, times((fin_t)a.beta, widen<fin_t>(*y)));
        v = some_steps<0, ACT_STEP>(a.epilogue, v, channel, residual);
        if constexpr (AUX) ((aux_t *)a.aux)[at[CONV_PASS_AUX]] = narrow<aux_t>(v);
        v = some_steps<ACT_STEP, EPILOGUE_STEPS>(a.epilogue, v, channel, residual);
        if constexpr (AMAX) amax.keep(v);
        if constexpr (SCALE_Y) v = times(v, (fin_t)*a.scale_y);
        *y = quantise<y_t>(v);
    }
    if constexpr (AMAX) amax.store(a.amax);
}
