/* SPDX-License-Identifier: Apache-2.0
 * cuDNN's graph interface, opened at run time where it is: a peer to measure against. Not needed
 * for anything. A graph is filled with tensors and operations, planned once, and then only run. */
#ifndef MICA_PEERS_CUDNN_H
#define MICA_PEERS_CUDNN_H

#include "mica/plan.h"
#include "cuda/cuda.h"

/* Opens the library once; UNSUPPORTED with every place that was looked in. */
mica_status mica_cudnn_load(void);
/* "" and 0 before it is loaded. Version 91900 is 9.19.0. */
const char *mica_cudnn_path(void);
size_t mica_cudnn_version(void);

typedef struct mica_cudnn mica_cudnn;

mica_status mica_cudnn_create(mica_cuda *cuda, mica_cudnn **graph);
void mica_cudnn_destroy(mica_cudnn *graph); /* NULL is allowed */

/* Pointers that runs give must be multiples of this. */
enum { MICA_CUDNN_ALIGNMENT = 16 };

/* Adds a tensor; tensors are numbered from 0 as they come. Runs give the memory of those that are
 * not virtual: a virtual one is only a name for what one operation hands to the next. */
mica_status mica_cudnn_add_tensor(mica_cudnn *graph, const mica_tensor *t, bool is_virtual,
                                  int *number);

typedef enum mica_cudnn_pass { MICA_CUDNN_FWD, MICA_CUDNN_WGRAD, MICA_CUDNN_DGRAD } mica_cudnn_pass;

/* y = x * w, or the gradient of x or w, with the tensors numbered x, w and y. */
typedef struct mica_cudnn_conv {
    mica_cudnn_pass pass;
    int x, w, y, axes;
    int64_t pad_low[3], pad_high[3], stride[3], dilation[3];
    bool flip;          /* the filter is mirrored */
    mica_dtype compute; /* f32 or f64 */
} mica_cudnn_conv;
mica_status mica_cudnn_add_conv(mica_cudnn *graph, const mica_cudnn_conv *conv);

typedef enum mica_cudnn_step {
    MICA_CUDNN_ADD = 0,
    MICA_CUDNN_MUL = 1,
    MICA_CUDNN_RELU = 100
} mica_cudnn_step;
/* to = step(from, other); other is -1 for relu. */
mica_status mica_cudnn_add_step(mica_cudnn *graph, mica_cudnn_step step, mica_dtype compute,
                                int from, int other, int to);

/* Makes the graph runnable by candidate `rank` of the library's heuristics; rank 0 is the first of
 * them that can be planned. Candidates that round their inputs or compute in a transformed domain
 * (Winograd, FFT) are left out, and without `matrix_units` those that use tensor cores.
 * UNSUPPORTED with the library's words. */
mica_status mica_cudnn_plan(mica_cudnn *graph, int rank, bool matrix_units);
size_t mica_cudnn_workspace(const mica_cudnn *graph);

/* memory: by tensor number. Takes a lock and lets the library allocate on the host, as it does for
 * everybody. */
mica_status mica_cudnn_run(const mica_cudnn *graph, void *const *memory, void *workspace,
                           void *stream);

#endif
