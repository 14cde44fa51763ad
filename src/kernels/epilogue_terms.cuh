/* SPDX-License-Identifier: Apache-2.0
 * The epilogue where a thread has many results of few channels: what depends on the channel alone is
 * loaded once, so that nothing stands between the results but arithmetic. */
#pragma once
#include "kernels/epilogue.cuh"

/* What is read beside the sums, decided for a whole tile: a branch at each result would cost more than the
 * products. SINGLE: residuals and what memory holds at the results' places, one by one; WIDE: residuals alone,
 * which have been brought to where the results will stand. */
enum reading { NOTHING, SINGLE, WIDE };

/* Of one channel, by step. */
struct channel_terms {
    float step[EPILOGUE_STEPS + 1];
};

/* PACKED: the vectors' strides are 1. */
template <bool PACKED = false, int I = 0>
__device__ __forceinline__ void load_terms(const mica_epilogue_args &e, long long channel, channel_terms &t)
{
    if constexpr (I < EPILOGUE_STEPS) {
        if constexpr (EPILOGUE[I] == STEP_BIAS)
            t.step[I] = widen<float>(((const bias_t *)e.bias)[PACKED ? channel : channel * e.bias_stride]);
        else if constexpr (EPILOGUE[I] == STEP_SCALE)
            t.step[I] = widen<float>(((const scale_t *)e.scale)[PACKED ? channel : channel * e.scale_stride]);
        else if constexpr (EPILOGUE[I] == STEP_SHIFT)
            t.step[I] = widen<float>(((const shift_t *)e.shift)[PACKED ? channel : channel * e.shift_stride]);
        load_terms<PACKED, I + 1>(e, channel, t);
    }
}

/* residual: the value already read, where there is such a step. */
template <int I = 0>
__device__ __forceinline__ float apply_terms(const mica_epilogue_args &e, const channel_terms &t, float v,
                                             float residual)
{
    if constexpr (I < EPILOGUE_STEPS) {
        constexpr int STEP = EPILOGUE[I];
        if constexpr (STEP == STEP_BIAS || STEP == STEP_SHIFT)
            v += t.step[I];
        else if constexpr (STEP == STEP_SCALE)
            v *= t.step[I];
        else if constexpr (STEP == STEP_RESIDUAL)
            v += residual;
        else
            v = activate<STEP - STEP_ACT>(v, (float)e.act_a, (float)e.act_b);
        return apply_terms<I + 1>(e, t, v, residual);
    } else {
        return v;
    }
}
