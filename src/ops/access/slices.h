/* SPDX-License-Identifier: Apache-2.0
 * How threads of a GPU share slices of tensors: the host side of kernels/slices.cuh. */
#ifndef MICA_OPS_ACCESS_SLICES_H
#define MICA_OPS_ACCESS_SLICES_H

#include "cuda/cuda.h"
#include "kernels/layout.h"

typedef struct mica_slices {
    int threads; /* per slice, a power of two */
    int slices;  /* per block */
    bool along;  /* neighbouring threads are neighbours on the axis */
    int vector;  /* neighbouring elements a thread loads at once */
    bool ragged; /* slices start anywhere in a vector, alike in all tensors */
    int items;   /* vectors of a slice that a thread keeps; 0: slices are too long for that */
} mica_slices;

/* outer: the slices, with the strides of `count` tensors; along: their strides on the axis of n
 * elements; bytes: of an element; keep: values that a thread may keep in registers, half as many
 * where neighbouring threads lie across the axis. */
void mica_slices_choose(mica_slices *s, const mica_layout *outer, int64_t n, const int64_t *along,
                        const int *bytes, int count, int keep);
/* Slices that lie side by side in all tensors, 32 of them or more: a thread has `vector` neighbours
 * for itself, in blocks of `slices` threads. False where they do not. */
bool mica_slices_beside(mica_slices *s, const mica_layout *outer, const int64_t *along,
                        const int *bytes, int count);
/* Whether vectors can be used at these addresses; bytes: of an element, alike in all if ragged. */
bool mica_slices_whole(const mica_slices *s, const void *const *pointers, const int *bytes,
                       int count);
/* THREADS, SLICES, ALONG, VECTOR, RAGGED, ITEMS. */
void mica_slices_prologue(mica_text *prologue, const mica_slices *s);
/* One block per s->slices slices, as many as a grid may have. */
mica_grid mica_slices_grid(const mica_slices *s, int64_t slices);

#endif
