/* SPDX-License-Identifier: Apache-2.0
 * Random numbers and dropout, by Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3", 2011).
 *
 * Which number an element gets depends on its index alone, not on the device, threads, strides or
 * the rest of the tensor: the bits are the same on CPUs and GPUs. rng holds {seed, offset}. The
 * index of element (c0, c1, ...) is
 *
 *     i = first + c0 steps[0] + c1 steps[1] + ...,    0 <= i < 2^62
 *
 * where steps of 0 throughout mean those of a packed tensor: so a part of a tensor gets what the
 * whole one would get there if `first` is the part's first index and `steps` the whole one's, and a
 * step of 0 gives all along a dimension the same number (steps=64x1x0x0: a whole channel is dropped
 * or kept). A counter serves E elements; element i takes from
 *
 *     words   = Philox(key = {seed mod 2^32, seed / 2^32},
 *                      counter = {i / E mod 2^32, i / E / 2^32, 0, offset mod 2^32})
 *
 * those of lane j = i % E:
 *
 *     E = 4 words[j] = W              uniform, normal, exponential, truncated_normal of types
 *                                     shorter than f64; bernoulli and dropout of all types
 *     E = 2 words[2j] + 2^32 words[2j + 1] = V      those of f64; integers
 *     E = 16 / bytes                  bits: the bytes that the words have in memory
 *
 * Attention's dropout draws from the same generator: use another offset or seed for it. Who draws
 * again counts the offset up.
 *
 *     bits              u8, s8, u32, s32, s64: as they are
 *     uniform           low + (high - low) u. u has as many digits as the type, up to 24: f32 the
 *                       upper 24 bits of W, f16 11, bf16 8, e4m3 4, e5m2 3; f64 the upper 53 of V.
 *                       So [0, 1) is exact and never 1. With other bounds the sum is rounded in f32
 *                       (f64), becomes low where that gives high, and is rounded to the type, which
 *                       of narrow types may give high
 *     normal            mean + std r (cos t, sin t), Box and Muller: lanes 2k and 2k + 1 are a pair
 *                       of words A, B: r = sqrt(-2 log((A / 2 + 1/2) 2^-31)), t = B 2^-32 turns.
 *                       Up to 6.7 std. f64: (A / 4096 + 1/2) 2^-52, B 2^-64 turns, up to 8.6
 *     truncated_normal  the same distribution within [low, high], by its quantile (Wichura 1988) in
 *                       f64, which is then rounded to the type; u = (W + 1/2) 2^-32, of f64
 *                       (V / 4096 + 1/2) 2^-52, counted from high where low is above the mean
 *     exponential       -log((W / 2 + 1/2) 2^-31) / rate, from 0 up to 22.2 / rate; f64 36.7 / rate
 *     bernoulli         1 if W < p 2^32 rounded down, else 0; any type
 *     integers          from + V (to - from) / 2^64, and where that would favour some (Lemire
 *                       2019) again with a third counter word of 1, 2, ...: all are equally likely
 *     permutation       i's place in a random order of 0, 1, ... n - 1. Up to 256 exact: by rank of
 *                       words V; more: 8 rounds of a Feistel network whose round r takes counter
 *                       {half, 0, r, offset}, until the result is below n. With n above the number
 *                       of elements: so many of n, none twice
 *
 * Quotients above are of integers, rounded down. Logarithm, circle and quantile are mica's own, in
 * the arithmetic of the type (f32 or f64) and within a few units in the last place.
 *
 * dropout: element i is dropped if W < p 2^32 rounded down, and what is kept is multiplied by
 * 1 / (1 - p):
 *
 *     fwd   y = residual + (dropped ? 0 : x / (1 - p))
 *     bwd   dx = dropped ? 0 : dy / (1 - p)
 *
 * 1 / (1 - p) is rounded to f32 (f64 if a tensor is), then the product, then the sum. p = 1 drops
 * everything. What is dropped is 0 whatever it was, NaN and infinity included, where PyTorch's
 * product with a mask is NaN. The gradient of residual is dy itself. fwd says what it kept where it
 * is asked to: mask (1 kept, 0 dropped), or bits, a bit for each: bit c % 8 of byte c / 8 along the
 * last dimension is element c's, as numpy.packbits(axis=-1, bitorder="little"), unused ones 0. bwd
 * takes either instead of rng (mask: kept unless 0).
 *
 * With numbering=attention dropout drops what attention does with the same rng and share: x is
 * [.. x] I x J, and element (.., i, j) takes lane j % 4 of the words of
 *
 *     counter = {j / 4, i, number of the matrix, offset mod 2^32}
 *
 * matrices being counted in logical order (n H + h of weights B x H x Sq x Sk). Up to 2^18 matrices
 * of 2^20 rows and 2^24 columns; `first` and `steps` have no meaning then.
 *
 * Errors, MICA_INVALID: a type that the kind has not; bounds that are not finite or not in order; p
 * outside [0, 1]; std below 0, rate not above it; from..to or n beyond the type; indices below 0 or
 * not below 2^62; bounds of a truncated normal that all lie farther than 37 std from the mean. */
#ifndef MICA_RANDOM_H
#define MICA_RANDOM_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MICA_RANDOM_Y, MICA_RANDOM_RNG };

typedef enum mica_random_kind {
    MICA_RANDOM_BITS,
    MICA_RANDOM_UNIFORM,
    MICA_RANDOM_NORMAL,
    MICA_RANDOM_TRUNCATED_NORMAL,
    MICA_RANDOM_BERNOULLI,
    MICA_RANDOM_EXPONENTIAL,
    MICA_RANDOM_INTEGERS,
    MICA_RANDOM_PERMUTATION
} mica_random_kind;

typedef struct mica_random_desc {
    mica_random_kind kind;        /* 0 means bits */
    mica_tensor y;                /* any strides; needed */
    mica_tensor rng;              /* s64, 2 elements: seed, offset; 0 means inferred */
    int64_t first;                /* index of the first element; 0 means 0 */
    int64_t steps[MICA_MAX_RANK]; /* of the index along each dimension; 0 means packed */
    double low;                   /* 0 means 0, of truncated_normal -2 */
    double high;                  /* 0 means 1, of truncated_normal 2 */
    double mean;                  /* 0 means 0 */
    double std;                   /* 0 means 1 */
    double p;                     /* of bernoulli; 0 means 0.5 */
    double rate;                  /* of exponential; 0 means 1 */
    int64_t from;                 /* integers: the lowest; 0 means 0 */
    int64_t to;                   /* integers: above the highest; 0 means 0 */
    int64_t n;                    /* permutation: of how many; 0 means as y has */
} mica_random_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_random_plan(mica_context *context, const mica_random_desc *desc,
                                           const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "random", desc, sizeof *desc, options, plan);
}

enum {
    MICA_DROPOUT_X,
    MICA_DROPOUT_RESIDUAL,
    MICA_DROPOUT_Y,
    MICA_DROPOUT_DY,
    MICA_DROPOUT_DX,
    MICA_DROPOUT_MASK,
    MICA_DROPOUT_BITS,
    MICA_DROPOUT_RNG
};

typedef enum mica_dropout_pass { MICA_DROPOUT_FWD, MICA_DROPOUT_BWD } mica_dropout_pass;

typedef enum mica_dropout_numbering {
    MICA_DROPOUT_BY_INDEX,
    MICA_DROPOUT_BY_ATTENTION
} mica_dropout_numbering;

typedef struct mica_dropout_desc {
    mica_dropout_pass pass;       /* 0 means fwd */
    double p;                     /* share that is dropped, 0 to 1; 0 means 0.5 */
    mica_tensor x;                /* fwd: needed */
    mica_tensor residual;         /* fwd: added; as x, any type; 0 means none */
    mica_tensor y;                /* fwd: 0 means inferred: as x */
    mica_tensor dy;               /* bwd: needed */
    mica_tensor dx;               /* bwd: 0 means inferred: as dy */
    mica_tensor mask;             /* u8 or bool, dimensions of x; 0 means none */
    mica_tensor bits;             /* u8, the last dimension an eighth, rounded up; 0 means none */
    mica_tensor rng;              /* s64, 2 elements; 0 means inferred where it is used */
    int64_t first;                /* index of the first element; 0 means 0 */
    int64_t steps[MICA_MAX_RANK]; /* of the index along each dimension; 0 means packed */
    mica_dropout_numbering numbering; /* which words elements take; 0 means index */
} mica_dropout_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_dropout_plan(mica_context *context, const mica_dropout_desc *desc,
                                            const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "dropout", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
