/* SPDX-License-Identifier: Apache-2.0
 * Indexed random numbers. */
#include "base/random.h"

#include <math.h>

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t mica_random_bits(uint64_t seed, uint64_t index)
{
    return mix(mix(seed + 0x9e3779b97f4a7c15u) + index * 0x9e3779b97f4a7c15u);
}

double mica_random_uniform(uint64_t seed, uint64_t index)
{
    return (double)(mica_random_bits(seed, index) >> 11) * 0x1p-53;
}

double mica_random_normal(uint64_t seed, uint64_t index)
{
    /* Box and Muller; 1 - u keeps the logarithm's argument above zero. */
    double u = 1 - mica_random_uniform(seed, 2 * index);
    double v = mica_random_uniform(seed, 2 * index + 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}
