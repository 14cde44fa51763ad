/* SPDX-License-Identifier: Apache-2.0
 * The kernel sources that were embedded at build time, without their comments: packed all together
 * (tools/embed.c and xz), since they resemble each other. */
#ifndef MICA_CUDA_COMPILE_SOURCES_H
#define MICA_CUDA_COMPILE_SOURCES_H

#include "mica/types.h"

/* The text of a source by its name relative to src/ ("kernels/types.cuh"); NULL if there is none.
 * The first call of a process unpacks all of them, in about 10 ms, and the text is kept until the
 * process ends; MICA_OUT_OF_MEMORY where there was no room for it, and the next call tries again.
 */
mica_status mica_source_text(const char *name, const char **text);

/* Unpacked: the name of each and its text, a zero after either. */
extern const unsigned char mica_packed_sources[];
extern const size_t mica_packed_sources_size, mica_sources_size;

#endif
