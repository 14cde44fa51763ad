/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of grid_sample share: outputs and their taps. Constants: AXES, MODE, BLOCK; types grid_t,
 * real (sums, weights and coordinates), offset_t (within a sample of x). */
#pragma once
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"
#include "ops/grid_sample/grid_sample_args.h"

#define INLINE __device__ __forceinline__
#define SAMPLE INLINE

INLINE float add_of(float a, float b) { return __fadd_rn(a, b); }
INLINE double add_of(double a, double b) { return __dadd_rn(a, b); }
INLINE float mul_of(float a, float b) { return __fmul_rn(a, b); }
INLINE double mul_of(double a, double b) { return __dmul_rn(a, b); }
INLINE float floor_of(float a) { return floorf(a); }
INLINE double floor_of(double a) { return floor(a); }
INLINE float rint_of(float a) { return rintf(a); }
INLINE double rint_of(double a) { return rint(a); }
INLINE float fmod_of(float a, float b) { return fmodf(a, b); }
INLINE double fmod_of(double a, double b) { return fmod(a, b); }
INLINE float abs_of(float a) { return fabsf(a); }
INLINE double abs_of(double a) { return fabs(a); }

#include "ops/grid_sample/grid_sample_body.h"

constexpr int EACH = MODE == SAMPLE_NEAREST ? 1 : MODE == SAMPLE_BILINEAR ? 2 : 4;
constexpr int TAPS = AXES == 3 ? EACH * EACH * EACH : EACH * EACH;

/* Output i of all samples. */
struct output_t { s64 n, at[AXES]; };

template <typename U> INLINE output_t output_of(const mica_grid_sample_args &a, U i)
{
    output_t o;
#pragma unroll
    for (int d = AXES - 1; d >= 0; d--) {
        const U size = (U)a.shape.out[d], q = i / size;
        o.at[d] = (s64)(i - q * size);
        i = q;
    }
    o.n = (s64)i;
    return o;
}

INLINE output_t find_output(const mica_grid_sample_args &a, s64 i)
{
    return i >> 32 ? output_of<u64>(a, (u64)i) : output_of<u32>(a, (u32)i);
}

INLINE s64 place_of(const output_t &o, const mica_taps_strides &s)
{
    s64 place = o.n * s.n;
#pragma unroll
    for (int d = 0; d < AXES; d++) place += o.at[d] * s.at[d];
    return place;
}

struct axes_t {
    sample_axis axis[AXES];
    real scale[AXES];
};

INLINE axes_t axes_of(const mica_grid_sample_args &a, const output_t &o)
{
    axes_t t;
    const grid_t *grid = (const grid_t *)a.grid + place_of(o, a.grid_step);
#pragma unroll
    for (int d = 0; d < AXES; d++)
        t.scale[d] = sample_along(MODE, a.padding, a.align, widen<real>(grid[(AXES - 1 - d) * a.grid_step.c]),
                                  a.shape.in[d], &t.axis[d]);
    return t;
}

/* Tap k of all, along an axis. In one expression: indices that are no constants would keep taps in memory. */
INLINE constexpr int tap_of(int k, int axis)
{
    return (axis == AXES - 1 ? k : axis == AXES - 2 ? k / EACH : k / EACH / EACH) % EACH;
}

/* No tap: strides may be negative, so that any other number may be an offset. */
template <typename T> constexpr T NO_TAP = (T)((T)1 << (sizeof(T) * 8 - 2)) * -2;

/* By strides (or sizes) of the axes. */
template <typename T> INLINE T tap_place(const axes_t &t, int k, const long long *step)
{
    s64 place = 0;
    bool inside = true;
#pragma unroll
    for (int d = 0; d < AXES; d++) {
        const s64 i = t.axis[d].at[tap_of(k, d)];
        inside &= i >= 0;
        place += i * step[d];
    }
    return inside ? (T)place : NO_TAP<T>;
}

/* The product of all axes but one, of -1: of all. */
INLINE real tap_weight(const axes_t &t, int k, int but)
{
    real w = 1;
#pragma unroll
    for (int d = 0; d < AXES; d++)
        if (d != but) w *= t.axis[d].weight[tap_of(k, d)];
    return w;
}
