/* SPDX-License-Identifier: Apache-2.0
 * What the CUDA engines of rope and kv_append share on the host. */
#ifndef MICA_OPS_ROPE_ROPE_CUDA_H
#define MICA_OPS_ROPE_ROPE_CUDA_H

#include "ops/rope/rope.h"
#include "ops/rope/rope_args.h"

enum { ROPE_BLOCK = 256, ROPE_HEADS = 4, ROPE_GROUP = 8 };

/* Columns of a run for which all of these tensors can be read or written in one access: of rows of
 * `pairs` pairs and `rest` other columns. */
int rope_vector(const mica_tensor *const *tensors, int count, int64_t pairs, int64_t rest);
/* What a kernel is told of the angles. */
void rope_prologue(mica_text *p, const rope_angles *a, mica_dtype from, mica_dtype accumulator,
                   int vector);
/* What a launch is told, without pointers; then these. */
void rope_source_of(const rope_angles *a, rope_source *at);
void rope_source_point(const rope_angles *a, const rope_data *data, int vector, rope_source *at);
rope_side rope_side_of(const mica_tensor *from, const mica_tensor *to);
void rope_side_point(const mica_tensor *const tensors[2], const void *from, void *to, int vector,
                     rope_side *side);
/* Whether heads of a row lie nearer to each other than rows of a head. */
int rope_by_row(const rope_side *side);
/* Units, of two runs each, that copy `runs` runs of a row. */
int64_t rope_copied(int64_t runs);
/* Pairs of one launch. */
int64_t rope_slice(const rope_angles *a);
/* The frequencies by theta of pairs first to first + count; kept: those that the plan has. */
void rope_frequencies(const rope_angles *a, const double *kept, int64_t first, int64_t count,
                      double *to, double *below);
/* Knob "heads" of both engines, heads of a thread: few where there are few rows. items: units of
 * all rows; heads: of q and of k (kv_append: of both, whose items count together, and 0). */
int64_t rope_group(int64_t items, const int64_t heads[2], const mica_device_info *device);
/* That, and the extremes. */
int rope_configs(int64_t group, const int64_t heads[2], mica_config *out);
int64_t rope_ceil(int64_t a, int64_t b);

#endif
