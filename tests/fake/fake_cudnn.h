/* SPDX-License-Identifier: Apache-2.0
 * A cuDNN without a GPU: it keeps books of descriptors, answers searches as it is told to, computes
 * nothing. Chosen through MICA_CUDNN; these functions are found by dlsym in the same library. */
#ifndef MICA_TESTS_FAKE_FAKE_CUDNN_H
#define MICA_TESTS_FAKE_FAKE_CUDNN_H

#define FAKE_ENGINES 4
#define FAKE_TENSORS 16

typedef struct fake_tensor {
    int type, is_virtual, rank;
    long long id, dims[5], strides[5];
} fake_tensor;

typedef struct fake_cudnn {
    /* set by the test */
    unsigned
        notes[FAKE_ENGINES]; /* bit i: note i; engines 0 and 1 come in mode A, the rest after */
    unsigned unplannable;    /* bit i: engine i */
    int index;               /* the library's number of engine 0 */
    long fail_call;          /* the n-th call of the library gives 4000; 0: none */
    long long workspace;
    /* written by the library */
    long alive, calls, runs;
    int tensor_count, engine; /* engine: of the last run */
    fake_tensor tensors[FAKE_TENSORS];
    long long ids[FAKE_TENSORS];
    void *pointers[FAKE_TENSORS], *run_workspace, *stream;
    int given;
} fake_cudnn;

typedef fake_cudnn *fake_cudnn_fn(void); /* "fake_cudnn_books" */

#endif
