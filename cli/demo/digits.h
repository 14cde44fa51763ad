/* SPDX-License-Identifier: Apache-2.0
 * The demonstration's data: handwritten digits, read, shuffled and split. */
#ifndef MICA_CLI_DEMO_DIGITS_H
#define MICA_CLI_DEMO_DIGITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DIGIT_SIDE = 8, DIGIT_PIXELS = 64, DIGIT_CLASSES = 10 };

typedef struct digits {
    int count, held_out; /* the last held_out are kept from training */
    float *pixels;       /* count x 64, scaled to mean 0, variance 1 over the training part */
    uint8_t *levels;     /* count x 64, as in the file: 0 to 16 */
    int32_t *labels;     /* count */
} digits;

/* Reads the built-in copy, or a CSV file; shuffles by the seed; keeps a fifth for the test. Says
 * what is wrong (file, line, value, rule) and returns false on bad data. */
bool digits_read(digits *d, const char *path, uint64_t seed);
void digits_free(digits *d);

/* Random bits of a seed and an index (splitmix64). */
uint64_t digits_random(uint64_t seed, uint64_t index);

/* The built-in copy, made at build time from data/digits.csv.gz. */
extern const char digits_csv[];

#endif
