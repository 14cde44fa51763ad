/* SPDX-License-Identifier: Apache-2.0
 * Numbers for test data: splitmix64 (Steele, Lea, Flood 2014), indexed, so element i of a fill does
 * not depend on how many were drawn before it. And those of dropout. */
#ifndef MICA_BASE_RANDOM_H
#define MICA_BASE_RANDOM_H

#include <stdint.h>

uint64_t mica_random_bits(uint64_t seed, uint64_t index);
/* Uniform in [0, 1). */
double mica_random_uniform(uint64_t seed, uint64_t index);
/* Normal, mean 0, variance 1. */
double mica_random_normal(uint64_t seed, uint64_t index);

/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011):
 * four words by a key and a counter, which they replace. */
void mica_philox(const uint32_t key[2], uint32_t word[4]);

#endif
