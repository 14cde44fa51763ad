/* SPDX-License-Identifier: Apache-2.0
 * Where a coordinate of a grid points along one axis, in C and in CUDA. The including file defines
 * SAMPLE (how functions are declared), real and, of real: add_of and mul_of (each rounded by
 * itself), floor_of, rint_of, fmod_of, abs_of. */
#include "ops/grid_sample/modes_args.h"

/* Most taps along an axis. */
#define SAMPLE_TAPS 4

/* Taps along an axis: index (below 0: none), weight, and its derivative by u. */
typedef struct sample_axis {
    long long at[SAMPLE_TAPS];
    real weight[SAMPLE_TAPS], slope[SAMPLE_TAPS];
} sample_axis;

SAMPLE int sample_taps(int mode)
{
    return mode == SAMPLE_NEAREST ? 1 : mode == SAMPLE_BILINEAR ? 2 : 4;
}

/* To the border; NaN to index 0. */
SAMPLE real sample_clipped(real u, real last, real *slope)
{
    if (!(u > 0) || !(u < last)) *slope = 0;
    return !(u > 0) ? 0 : u < last ? u : last;
}

SAMPLE real sample_reflected(real u, int align, real size, real last, real *slope)
{
    const real low = align ? (real)0 : (real)-0.5, span = align ? last : size;
    real v = add_of(u, -low);
    if (v < 0) v = -v, *slope = -*slope;
    v = span > 0 ? fmod_of(v, 2 * span) : (real)0;
    if (v > span) v = 2 * span - v, *slope = -*slope;
    return sample_clipped(add_of(v, low), last, slope);
}

/* After how many indices reflections repeat. */
SAMPLE long long sample_period(int align, long long size)
{
    return align ? 2 * (size - 1) : 2 * size;
}

/* Index of a tap of bicubic; below 0: none. For reflection i is not below 0. */
SAMPLE long long sample_bordered(int padding, int align, long long i, long long size)
{
    if (i >= 0 && i < size) return i;
    if (padding == SAMPLE_ZEROS) return -1;
    if (padding == SAMPLE_BORDER) return i < 0 ? 0 : size - 1;
    const long long period = sample_period(align, size);
    if (period == 0) return 0;
    while (i >= period) i -= period;
    if (i < size) return i;
    return align ? period - i : period - 1 - i;
}

/* The first of four taps; for reflection within its period, a division for all of them. */
SAMPLE long long sample_first(int padding, int align, long long i, long long size)
{
    const long long period = sample_period(align, size);
    if (padding != SAMPLE_REFLECTION || period == 0 || (i >= 0 && i + 3 < size)) return i;
    i %= period;
    return i < 0 ? i + period : i;
}

SAMPLE void sample_cubic(int padding, int align, real u, long long size, sample_axis *a)
{
    const real A = (real)-0.75, most = (real)4e18, f = floor_of(u), t = u - f, s = 1 - t;
    const int finite = f - f == 0;
    const long long whole = !finite     ? 0
                            : f < -most ? (long long)-most
                            : f > most  ? (long long)most
                                        : (long long)f;
    const long long first = sample_first(padding, align, whole - 1, size);
    for (int k = 0; k < 4; k++)
        a->at[k] = finite ? sample_bordered(padding, align, first + k, size) : 0;
    a->weight[0] = A * t * (s * s);
    a->weight[1] = s * (1 + t * (1 - (A + 2) * t));
    a->weight[2] = t * (1 + s * (1 - (A + 2) * s));
    a->weight[3] = A * s * (t * t);
    a->slope[0] = A * (1 - 3 * t) * s;
    a->slope[1] = t * (3 * (A + 2) * t - 2 * (A + 3));
    a->slope[2] = s * (2 * (A + 3) - 3 * (A + 2) * s);
    a->slope[3] = A * t * (3 * s - 1);
}

/* Of coordinate g of the grid. Returns what slopes are to be multiplied by, the derivative of u:
 * 0 where it stays where it is whatever g is. */
SAMPLE real sample_along(int mode, int padding, int align, real g, long long size, sample_axis *a)
{
    const real last = (real)(size - 1), half = (align ? last : (real)size) / 2;
    real slope = half, u = mul_of(add_of(g, 1), half);
    if (!align) u = add_of(u, (real)-0.5);
    if (mode == SAMPLE_BICUBIC) {
        sample_cubic(padding, align, u, size, a);
        return slope;
    }
    if (padding == SAMPLE_BORDER) u = sample_clipped(u, last, &slope);
    if (padding == SAMPLE_REFLECTION) u = sample_reflected(u, align, (real)size, last, &slope);
    const real f = mode == SAMPLE_NEAREST ? rint_of(u) : floor_of(u);
    const int near = f >= -2 && f <= last + 1;
    const long long first = near ? (long long)f : -2;
    a->at[0] = first >= 0 && first < size ? first : -1;
    a->weight[0] = 1;
    a->slope[0] = 0;
    if (mode == SAMPLE_NEAREST) return 0;
    a->at[1] = first + 1 >= 0 && first + 1 < size ? first + 1 : -1;
    a->weight[1] = u - f;
    a->weight[0] = 1 - a->weight[1];
    a->slope[0] = -1, a->slope[1] = 1;
    return slope;
}
