/* SPDX-License-Identifier: Apache-2.0
 * Digests of results, by which two builds are compared bit by bit. */
#ifndef MICA_CLI_CHECK_DIGEST_H
#define MICA_CLI_CHECK_DIGEST_H

#include "check/case.h"

enum { CLI_DIGESTS = 4 };

/* The different results that runs of one plan on the same data had, in the order of their first
 * appearance: as a rule one, or another one where pointers are less aligned. */
typedef struct cli_digest {
    uint64_t found[CLI_DIGESTS];
    int count;
} cli_digest;

/* Of the elements of a fetched output in logical order, whatever its strides, going on from
 * `digest`. Zeros of either sign differ, but any NaN is like any other: which operand's bits one
 * takes on is left to the compiler. */
uint64_t cli_digest_buffer(const cli_buffer *buffer, uint64_t digest);
/* Adds what the last run left in the outputs. */
void cli_digest_add(cli_digest *digest, const cli_case *c);
/* Hexadecimal, joined by +. */
void cli_digest_text(const cli_digest *digest, char *text, size_t size);

#endif
