/* SPDX-License-Identifier: Apache-2.0
 * Numbers for test data: splitmix64 (Steele, Lea, Flood 2014), indexed, so element i of a fill does
 * not depend on how many were drawn before it. */
#ifndef MICA_BASE_RANDOM_H
#define MICA_BASE_RANDOM_H

#include <stdint.h>

uint64_t mica_random_bits(uint64_t seed, uint64_t index);
/* Uniform in [0, 1). */
double mica_random_uniform(uint64_t seed, uint64_t index);
/* Normal, mean 0, variance 1. */
double mica_random_normal(uint64_t seed, uint64_t index);

#endif
