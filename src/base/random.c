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

void mica_philox(const uint32_t key[2], uint32_t word[4])
{
    uint32_t key0 = key[0], key1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)word[0] * 0xD2511F53u, b = (uint64_t)word[2] * 0xCD9E8D57u;
        uint32_t w1 = word[1], w3 = word[3];
        word[0] = (uint32_t)(b >> 32) ^ w1 ^ key0;
        word[1] = (uint32_t)b;
        word[2] = (uint32_t)(a >> 32) ^ w3 ^ key1;
        word[3] = (uint32_t)a;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}
