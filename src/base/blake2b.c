/* SPDX-License-Identifier: Apache-2.0
 * BLAKE2b from the text of RFC 7693. */
#include "base/blake2b.h"

#include <string.h>

static const uint64_t iv[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                               0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                               0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

static const unsigned char sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static uint64_t rotate(uint64_t x, int n)
{
    return x >> n | x << (64 - n);
}

static void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y)
{
    v[a] += v[b] + x;
    v[d] = rotate(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = rotate(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 63);
}

static void compress(mica_blake2b *b, int last)
{
    uint64_t v[16], m[16];
    for (int i = 0; i < 16; i++) {
        m[i] = 0;
        for (int k = 7; k >= 0; k--) m[i] = m[i] << 8 | b->block[8 * i + k];
    }
    memcpy(v, b->h, sizeof b->h);
    memcpy(v + 8, iv, sizeof iv);
    v[12] ^= b->total;
    if (last) v[14] = ~v[14];
    for (int round = 0; round < 12; round++) {
        const unsigned char *s = sigma[round % 10];
        for (int i = 0; i < 4; i++) mix(v, i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
        for (int i = 0; i < 4; i++)
            mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]],
                m[s[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++) b->h[i] ^= v[i] ^ v[8 + i];
}

void mica_blake2b_start(mica_blake2b *b, size_t digest_bytes)
{
    *b = (mica_blake2b){.digest_bytes = digest_bytes};
    memcpy(b->h, iv, sizeof iv);
    b->h[0] ^= 0x01010000 ^ digest_bytes;
}

void mica_blake2b_add(mica_blake2b *b, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    while (bytes > 0) {
        /* A full block waits: only more data shows that it is not the last. */
        if (b->fill == sizeof b->block) {
            b->total += sizeof b->block;
            compress(b, 0);
            b->fill = 0;
        }
        size_t take = sizeof b->block - b->fill;
        if (take > bytes) take = bytes;
        memcpy(b->block + b->fill, from, take);
        b->fill += take;
        from += take;
        bytes -= take;
    }
}

void mica_blake2b_end(mica_blake2b *b, unsigned char *digest)
{
    b->total += b->fill;
    memset(b->block + b->fill, 0, sizeof b->block - b->fill);
    compress(b, 1);
    for (size_t i = 0; i < b->digest_bytes; i++)
        digest[i] = (unsigned char)(b->h[i / 8] >> (8 * (i % 8)));
}
