/* SPDX-License-Identifier: Apache-2.0
 * The kernel sources that were embedded at build time, without their comments. */
#ifndef MICA_CUDA_SOURCES_H
#define MICA_CUDA_SOURCES_H

typedef struct mica_source {
    const char *name; /* relative to src/, "kernels/types.cuh" */
    const char *text;
} mica_source;

extern const mica_source mica_sources[]; /* ended by a NULL name */

#endif
