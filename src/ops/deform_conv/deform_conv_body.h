/* SPDX-License-Identifier: Apache-2.0
 * Places between elements, for the CPU and the kernel. The including file defines DEFORM
 * (qualifiers), real, floor_of and add_of (a sum that is rounded by itself). */

/* Two neighbours along an axis, their weights (0: not read), and those of the derivative. */
typedef struct deform_pair {
    long long first;
    real weight[2], slope[2];
} deform_pair;

DEFORM deform_pair deform_pair_of(long long place, real offset, long long size)
{
    deform_pair p = {0, {0, 0}, {0, 0}};
    const real u = add_of((real)place, offset);
    if (!(u >= -1 && u < (real)size)) return p;
    const real low = floor_of(u), over = u - low;
    p.first = (long long)low;
    if (p.first >= 0) p.weight[0] = 1 - over, p.slope[0] = -1;
    if (p.first + 1 < size) p.weight[1] = over, p.slope[1] = 1;
    return p;
}
