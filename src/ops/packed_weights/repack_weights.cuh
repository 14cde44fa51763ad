/* SPDX-License-Identifier: Apache-2.0
 * Codes of 4 and 8 bits are put where they belong. */
#pragma once
#include "kernels/types.cuh"

/* half: only the low four bits, the others belong to nobody or to another tensor. */
PACKED void put_byte(u8 *to, u64 byte, bool half)
{
    *to = (u8)(half ? (*to & 0xf0) | (byte & 15) : byte);
}

/* Four bits go into the word around them, where other threads may put theirs at the same time. */
template <int SIZE> PACKED void put_code(void *base, s64 i, u32 code)
{
    if constexpr (SIZE == 8) ((u8 *)base)[i] = (u8)code;
    else {
        u8 *byte = (u8 *)base + (i >> 1);
        const u64 off = (u64)byte & 3;
        u32 *word = (u32 *)(byte - off), old = *word, seen;
        const int shift = (int)off * 8 + (i & 1 ? 4 : 0);
        do {
            seen = old;
            old = atomicCAS(word, seen, (seen & ~(15u << shift)) | (code & 15) << shift);
        } while (old != seen);
    }
}
