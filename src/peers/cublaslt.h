/* SPDX-License-Identifier: Apache-2.0
 * cuBLASLt, opened at run time where it is: a peer to measure against. Not needed for anything. */
#ifndef MICA_PEERS_CUBLASLT_H
#define MICA_PEERS_CUBLASLT_H

#include "mica/plan.h"
#include "cuda/cuda.h"

/* A matrix in memory, column by column, the columns `ld` elements apart. */
typedef struct mica_cublaslt_matrix {
    mica_dtype dtype;
    bool transposed; /* it enters the product as its transpose */
    int64_t rows, cols, ld, batch_stride;
} mica_cublaslt_matrix;

/* d = alpha a b + beta d, then relu if asked for; bias has one element per row of d. */
typedef struct mica_cublaslt_spec {
    mica_cublaslt_matrix a, b, d;
    int64_t batches;
    mica_dtype bias; /* 0: none */
    bool relu, tf32, scale_a, scale_b;
    unsigned alignment; /* bytes that divide every pointer that runs give */
} mica_cublaslt_spec;

typedef struct mica_cublaslt mica_cublaslt;

/* Opens the library once; UNSUPPORTED with every place that was looked in. */
mica_status mica_cublaslt_load(void);
/* "" and 0 before it is loaded. Version 130000 is 13.0. */
const char *mica_cublaslt_path(void);
size_t mica_cublaslt_version(void);

/* The product by the library's candidate number `rank`, best first by its own heuristic.
 * UNSUPPORTED where it has none of that rank. */
mica_status mica_cublaslt_create(mica_cuda *cuda, const mica_cublaslt_spec *spec, int rank,
                                 int64_t workspace_limit, mica_cublaslt **product);
void mica_cublaslt_destroy(mica_cublaslt *product); /* NULL is allowed */
size_t mica_cublaslt_workspace(const mica_cublaslt *product);

typedef struct mica_cublaslt_args {
    const void *a, *b, *bias, *scale_a, *scale_b; /* scales: one f32 on the device */
    void *d, *workspace, *stream;
    double alpha, beta;
} mica_cublaslt_args;
mica_status mica_cublaslt_run(const mica_cublaslt *product, const mica_cublaslt_args *args);

#endif
