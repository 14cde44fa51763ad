/* SPDX-License-Identifier: Apache-2.0
 * LZMA (I. Pavlov; the format is described in the LZMA SDK's lzma-specification.txt): bytes and
 * copies of earlier bytes, coded bit by bit by a range coder whose probabilities follow what came
 * before. Text has no alignment, so positions take no part (lp = pb = 0), and the window is all
 * that was written. */
#include "base/lzma.h"

#include <stdint.h>
#include <string.h>

enum {
    HEADER = 13, /* a byte for lc, lp and pb, four for the window, eight for the size */
    LITERAL_BITS = 3,
    STATES = 12,
    SHORTEST = 2,
    DIRECT_SLOT = 4, /* the first distances with extra bits */
    ALIGNED_SLOT = 14,
    ALIGN_BITS = 4
};

typedef uint16_t prob; /* of a 0, in 2048 parts */

typedef struct lengths {
    prob beyond_low, beyond_middle;
    prob low[8], middle[8], high[256];
} lengths;

typedef struct decoder {
    const unsigned char *in, *end;
    uint32_t range, code;
    bool starved; /* bits were asked for past the end */
    unsigned char *out;
    size_t at, size;
    unsigned state;   /* the kinds of the last few: below 7 the last one was a byte */
    uint32_t last[4]; /* distances, the latest first */
    /* From here on all are probabilities. */
    prob is_copy[STATES], is_repeated[STATES], is_not_first[STATES], is_not_second[STATES];
    prob is_fourth[STATES], is_longer[STATES];
    lengths fresh, repeated;
    prob slot[4][64], near[115], align[1 << ALIGN_BITS];
    prob literal[1 << LITERAL_BITS][3][256];
} decoder;

static void refill(decoder *d)
{
    d->range <<= 8;
    d->code = d->code << 8 | (d->in < d->end ? *d->in : 0);
    if (d->in < d->end)
        d->in++;
    else
        d->starved = true;
}

static unsigned take_bit(decoder *d, prob *p)
{
    if (d->range < 1u << 24) refill(d);
    uint32_t bound = (d->range >> 11) * *p;
    if (d->code < bound) {
        d->range = bound;
        *p = (prob)(*p + ((2048 - *p) >> 5));
        return 0;
    }
    d->range -= bound;
    d->code -= bound;
    *p = (prob)(*p - (*p >> 5));
    return 1;
}

/* `count` bits that may be 0 or 1 alike. */
static uint32_t take_even(decoder *d, int count)
{
    uint32_t value = 0;
    for (; count > 0; count--) {
        if (d->range < 1u << 24) refill(d);
        d->range >>= 1;
        unsigned bit = d->code >= d->range;
        if (bit) d->code -= d->range;
        value = value << 1 | bit;
    }
    return value;
}

/* The highest bit first; each has its probability by those before it. */
static unsigned take_tree(decoder *d, prob *tree, int bits)
{
    unsigned node = 1;
    for (int i = 0; i < bits; i++) node = node << 1 | take_bit(d, &tree[node]);
    return node - (1u << bits);
}

static unsigned take_reversed(decoder *d, prob *tree, int bits)
{
    unsigned node = 1, value = 0;
    for (int i = 0; i < bits; i++) {
        unsigned bit = take_bit(d, &tree[node]);
        node = node << 1 | bit;
        value |= bit << i;
    }
    return value;
}

static unsigned take_length(decoder *d, lengths *l)
{
    if (!take_bit(d, &l->beyond_low)) return SHORTEST + take_tree(d, l->low, 3);
    if (!take_bit(d, &l->beyond_middle)) return SHORTEST + 8 + take_tree(d, l->middle, 3);
    return SHORTEST + 16 + take_tree(d, l->high, 8);
}

/* Less one; all ones ends the data. */
static uint32_t take_distance(decoder *d, unsigned length)
{
    unsigned group = length - SHORTEST < 3 ? length - SHORTEST : 3;
    unsigned slot = take_tree(d, d->slot[group], 6);
    if (slot < DIRECT_SLOT) return slot;
    int bits = (int)(slot >> 1) - 1;
    uint32_t base = (2u | (slot & 1)) << bits;
    if (slot < ALIGNED_SLOT) return base + take_reversed(d, d->near + base - slot, bits);
    base += take_even(d, bits - ALIGN_BITS) << ALIGN_BITS;
    return base + take_reversed(d, d->align, ALIGN_BITS);
}

/* After a copy the byte is mostly not the one that would have continued it, which takes part. */
static void put_literal(decoder *d)
{
    unsigned before = d->at ? d->out[d->at - 1] : 0;
    prob(*trees)[256] = d->literal[before >> (8 - LITERAL_BITS)];
    unsigned node = 1;
    if (d->state >= 7) {
        unsigned continued = d->out[d->at - d->last[0] - 1];
        for (bool same = true; same && node < 256; continued <<= 1) {
            unsigned bit = continued >> 7 & 1;
            unsigned taken = take_bit(d, &trees[1 + bit][node]);
            node = node << 1 | taken;
            same = taken == bit;
        }
    }
    while (node < 256) node = node << 1 | take_bit(d, &trees[0][node]);
    d->out[d->at++] = (unsigned char)node;
    d->state = d->state < 4 ? 0 : d->state < 10 ? d->state - 3 : d->state - 6;
}

/* The length of a copy from one of the last four distances, which becomes the first of them. */
static unsigned take_repeated(decoder *d)
{
    if (!take_bit(d, &d->is_not_first[d->state])) {
        if (!take_bit(d, &d->is_longer[d->state])) {
            d->state = d->state < 7 ? 9 : 11;
            return 1;
        }
    } else {
        unsigned which = 1;
        if (take_bit(d, &d->is_not_second[d->state]))
            which = 2 + take_bit(d, &d->is_fourth[d->state]);
        uint32_t distance = d->last[which];
        memmove(d->last + 1, d->last, which * sizeof *d->last);
        d->last[0] = distance;
    }
    unsigned length = take_length(d, &d->repeated);
    d->state = d->state < 7 ? 8 : 11;
    return length;
}

static unsigned take_fresh(decoder *d)
{
    memmove(d->last + 1, d->last, 3 * sizeof *d->last);
    unsigned length = take_length(d, &d->fresh);
    d->state = d->state < 7 ? 7 : 10;
    d->last[0] = take_distance(d, length);
    return length;
}

/* Each round writes a byte at least, or is the last. */
static bool unpack(decoder *d)
{
    while (!d->starved) {
        if (!take_bit(d, &d->is_copy[d->state])) {
            if (d->at == d->size) return false;
            put_literal(d);
            continue;
        }
        bool repeats = take_bit(d, &d->is_repeated[d->state]);
        unsigned length = repeats ? take_repeated(d) : take_fresh(d);
        if (!repeats && d->last[0] == UINT32_MAX) break;
        if (d->last[0] >= d->at || length > d->size - d->at) return false;
        const unsigned char *from = d->out + d->at - d->last[0] - 1;
        for (unsigned i = 0; i < length; i++) d->out[d->at + i] = from[i]; /* they may overlap */
        d->at += length;
    }
    if (d->range < 1u << 24) refill(d);
    return !d->starved && d->in == d->end && d->code == 0 && d->at == d->size;
}

bool mica_lzma_unpack(const void *packed, size_t packed_size, void *out, size_t size)
{
    const unsigned char *in = packed;
    decoder d = {.range = UINT32_MAX, .out = out, .size = size};
    if (packed_size < HEADER + 5 || in[0] != LITERAL_BITS || in[HEADER] != 0) return false;
    prob *first = (prob *)(void *)((char *)&d + offsetof(decoder, is_copy));
    for (size_t i = 0; i < (sizeof d - offsetof(decoder, is_copy)) / sizeof *first; i++)
        first[i] = 1024;
    d.in = in + HEADER + 1;
    d.end = in + packed_size;
    for (int i = 0; i < 4; i++) refill(&d);
    d.range = UINT32_MAX;
    return unpack(&d);
}
