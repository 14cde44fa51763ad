/* SPDX-License-Identifier: Apache-2.0
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011):
 * four words by a key and a counter, which they replace. Host and device share this file. */
#ifndef MICA_KERNELS_PHILOX_H
#define MICA_KERNELS_PHILOX_H

static inline void mica_philox(const unsigned key[2], unsigned word[4])
{
    unsigned key0 = key[0], key1 = key[1];
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#pragma GCC unroll 10 /* or gcc does not vectorise loops of calls */
#elif defined(__CUDACC__)
#pragma unroll
#endif
    for (int round = 0; round < 10; round++) {
        const unsigned long long a = (unsigned long long)word[0] * 0xD2511F53u;
        const unsigned long long b = (unsigned long long)word[2] * 0xCD9E8D57u;
        word[0] = (unsigned)(b >> 32) ^ word[1] ^ key0;
        word[1] = (unsigned)b;
        word[2] = (unsigned)(a >> 32) ^ word[3] ^ key1;
        word[3] = (unsigned)a;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

#endif
