/* SPDX-License-Identifier: Apache-2.0
 * Where codes lie in words of 32 bits, in C and in CUDA: PACKED is what functions begin with. Where
 * format and bits are constants, so is all but a few shifts. */
#include "ops/packed_weights/packed_weights_args.h"

/* Row and column of a word, and the lowest bit of the code in it. */
typedef struct packed_place {
    long long row, col;
    int bit;
} packed_place;

PACKED int packed_zero_offset(int format)
{
    return format == PACKED_GPTQ ? 1 : 0;
}

/* The place of each of eight neighbours that lie in the order 0 2 4 6 1 3 5 7; of four in the order
 * 0 2 1 3. */
PACKED int packed_interleaved(int bits, int i)
{
    return bits == 4 ? i >> 1 | (i & 1) << 2 : i >> 1 | (i & 1) << 1;
}

/* Marlin: a tile of 16 x 64 is 32 threads by four tiles of 16 x 16; a thread has of each two
 * columns, 8 apart, by two pairs of rows, 8 apart: those of the operand of an mma of 16 x 8 x 16.
 */
PACKED packed_place packed_marlin_weight(int bits, long long k, long long n)
{
    const int r = (int)(k & 15), c = (int)(n & 15), per_word = 32 / bits;
    const int thread = (c & 7) * 4 + (r & 7) / 2, of_eight = (c >> 3) * 4 + (r >> 3) * 2 + (r & 1);
    const int at = thread * 32 + (int)(n >> 4 & 3) * 8 + of_eight;
    packed_place p = {k >> 4, (n >> 6) * 1024 / per_word + at / per_word, 0};
    p.bit = packed_interleaved(bits, at & (per_word - 1)) * bits;
    return p;
}

PACKED packed_place packed_weight(int format, int bits, long long k, long long n)
{
    if (format == PACKED_MARLIN) return packed_marlin_weight(bits, k, n);
    if (format == PACKED_AWQ) {
        const packed_place p = {k, n >> 3, packed_interleaved(4, (int)(n & 7)) * 4};
        return p;
    }
    const long long first = k * bits;
    const packed_place p = {first >> 5, n, (int)(first & 31)};
    return p;
}

/* Marlin: columns i + 8j of 64 stand at 8i + j; with a single group, columns 2i + 8j and their
 * right neighbours of 32 at 8i + 2j. */
PACKED long long packed_scale_column(int format, bool single, long long n)
{
    if (format != PACKED_MARLIN) return n;
    if (single) return (n & ~31ll) + (n & 7) / 2 * 8 + (n >> 3 & 3) * 2 + (n & 1);
    return (n & ~63ll) + (n & 7) * 8 + (n >> 3 & 7);
}

PACKED packed_place packed_zero(int format, int bits, long long g, long long n)
{
    const int per_word = 32 / bits;
    if (format == PACKED_MARLIN) n = packed_scale_column(format, false, n);
    if (format == PACKED_MARLIN || format == PACKED_AWQ) {
        const int i = (int)(n & (per_word - 1));
        const packed_place p = {g, n / per_word, packed_interleaved(bits, i) * bits};
        return p;
    }
    const long long first = n * bits;
    const packed_place p = {g, first >> 5, (int)(first & 31)};
    return p;
}
