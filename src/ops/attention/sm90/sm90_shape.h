/* SPDX-License-Identifier: Apache-2.0
 * What both passes of attention on Hopper share on the host. */
#ifndef MICA_OPS_ATTENTION_SM90_SM90_SHAPE_H
#define MICA_OPS_ATTENTION_SM90_SM90_SHAPE_H

#include "ops/attention/attention.h"
#include "ops/attention/sm90/sm90_args.h"

enum {
    ATTENTION_SM90_ROW = 128,  /* bytes of a row in shared memory */
    ATTENTION_SM90_CHUNK = 64, /* its columns of 16 bits; rows of a warpgroup */
    ATTENTION_SM90_DIM = 256,
    ATTENTION_SM90_LENGTH = 1 << 29
};

#define LOG2E 1.4426950408889634

/* Whether TMA can address a tensor. */
mica_status attention_sm90_check(const mica_tensor *t, const char *name, mica_why *why);
/* Rows in shared memory that hold one of so many bytes. */
int attention_sm90_chunks(int64_t bytes);
void attention_sm90_map(const mica_tensor *t, int rows, mica_tensor_map_spec *m);
void attention_sm90_fill_source(const mica_tensor *t, attention_sm90_source *s);
/* Bytes to which a tensor must be aligned for rows to be taken as vectors of 16 bytes, or pairs of
 * f32; 0: they cannot be. */
int attention_sm90_vector_bytes(const mica_tensor *t);
/* A window of the descriptor, as kernels have it. */
int attention_sm90_far(int64_t window);

#endif
