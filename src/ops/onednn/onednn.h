/* SPDX-License-Identifier: Apache-2.0
 * oneDNN behind one door: convolutions and matrix products over tensors in the user's memory. The
 * library is opened when it is first asked for; where it is not, every create is refused. The C
 * APIs of versions 2 and 3 differ; only onednn_api.h knows. */
#ifndef MICA_OPS_ONEDNN_ONEDNN_H
#define MICA_OPS_ONEDNN_ONEDNN_H

#include "mica/epilogue.h"
#include "base/why.h"

typedef struct mica_onednn mica_onednn; /* a primitive with its reorders; shared by threads */

typedef enum mica_onednn_kind {
    MICA_ONEDNN_MATMUL,     /* src M x K, wei K x N, dst M x N; with batch dimensions in front */
    MICA_ONEDNN_CONV_FWD,   /* src N x C x .., wei (G x) K x C x .., dst N x K x .. */
    MICA_ONEDNN_CONV_DGRAD, /* writes src */
    MICA_ONEDNN_CONV_WGRAD  /* writes wei */
} mica_onednn_kind;

/* What is done to a result before it is rounded and stored, in f32. */
typedef enum mica_onednn_step_kind {
    MICA_ONEDNN_SUM, /* + scale * old content of the output */
    MICA_ONEDNN_ADD, /* + t, of the output's rank, each dimension 1 or the output's */
    MICA_ONEDNN_MUL, /* * t */
    MICA_ONEDNN_ACT  /* act: only those that mica_onednn_has_act names */
} mica_onednn_step_kind;

typedef struct mica_onednn_step {
    mica_onednn_step_kind kind;
    mica_tensor t;
    float scale;
    mica_act act;
    float a;
} mica_onednn_step;

enum { MICA_ONEDNN_SRC, MICA_ONEDNN_WEI, MICA_ONEDNN_DST, MICA_ONEDNN_TENSORS };

typedef struct mica_onednn_spec {
    mica_onednn_kind kind;
    mica_tensor tensor[MICA_ONEDNN_TENSORS]; /* SRC, WEI, DST, as they lie in the user's memory */
    /* The primitive picks its own layout; a reorder through the workspace joins the two. */
    bool any[MICA_ONEDNN_TENSORS];
    /* Inputs with any: runs get them in the primitive's layout already (mica_onednn_pack), unless
     * mica_onednn_packed_bytes says 0. */
    bool packed[MICA_ONEDNN_TENSORS];
    mica_tensor bias; /* conv: rank 1; matmul: of dst's rank; dtype none: no bias */
    int64_t stride[3], dilation[3], pad_low[3], pad_high[3]; /* conv; dilation 1 is dense */
    mica_onednn_step steps[MICA_MAX_STEPS];
    int step_count;
} mica_onednn_spec;

/* Pointers of a run, to element 0. */
typedef struct mica_onednn_args {
    void *tensor[MICA_ONEDNN_TENSORS];
    void *bias;
    void *steps[MICA_MAX_STEPS]; /* of the ADD and MUL steps */
} mica_onednn_args;

/* Whether this process is a fork of one that had opened oneDNN, whose locks may be held here for
 * ever: nothing is made or freed, and plans compute without it. */
bool mica_onednn_forked(void);
/* Whether it can be called: not there, and not while the process ends. */
bool mica_onednn_usable(void);

/* Opens it once; UNSUPPORTED with every place that was looked in, and why what was found there
 * cannot be used. What the engines that stand on it are asked first. */
mica_status mica_onednn_load(mica_why *why);
/* "2.6.3"; NULL if there is none. And where it is. */
const char *mica_onednn_version(void);
const char *mica_onednn_path(void);
/* Activations that oneDNN computes exactly (comparisons and products, no approximations). */
bool mica_onednn_has_act(mica_act act);
/* Whether this epilogue may make a number of NaN there: mica_contract's hides_nan. */
bool mica_onednn_hides_nan(const int32_t *epilogue, double act_a);
/* Sums of 8-bit products are exact only with the VNNI instructions: older kernels saturate pairs
 * at 16 bits. */
bool mica_onednn_exact_int8(void);
/* Kernels without AVX-512 store sums first and add a tensor as large as the result to them after:
 * it must not be the result's memory; and of grouped convolutions 2.6 adds the wrong elements. */
bool mica_onednn_adds_late(void);

/* UNSUPPORTED with the reason where oneDNN has nothing better than its reference loops. Cheap: no
 * code is generated. */
mica_status mica_onednn_probe(const mica_onednn_spec *spec, mica_why *why);
/* The primitive itself; the same refusals. */
mica_status mica_onednn_create(const mica_onednn_spec *spec, mica_onednn **primitive,
                               mica_why *why);
void mica_onednn_destroy(mica_onednn *primitive); /* NULL is allowed */
/* Bytes a run needs, 256-byte aligned: reorders and scratchpad. */
/* What it holds, for the bound of the plan cache; an estimate, since oneDNN does not say. */
size_t mica_onednn_bytes(const mica_onednn *primitive);
size_t mica_onednn_workspace(const mica_onednn *primitive);
/* oneDNN's name of the implementation, "brgconv:avx512_core". */
const char *mica_onednn_name(const mica_onednn *primitive);
/* Bytes that reorders copy (read plus written) in each run. */
double mica_onednn_reorder_bytes(const mica_onednn *primitive);
/* Bytes of a packed input in the primitive's layout; 0: it lies as in the user's memory. */
size_t mica_onednn_packed_bytes(const mica_onednn *primitive, int tensor);
mica_status mica_onednn_pack(const mica_onednn *primitive, int tensor, const void *from, void *to);
/* For runs that the primitive cannot do: puts plain copies of what is packed into the workspace,
 * on one thread, and their pointers into args. */
mica_status mica_onednn_unpack(const mica_onednn *primitive, mica_onednn_args *args,
                               void *workspace);
/* Whether a run is possible here and now: oneDNN fixed its number of threads when the primitive was
 * made, and a forked child or a caller inside a parallel region cannot give that many. */
bool mica_onednn_ready(const mica_onednn *primitive);
mica_status mica_onednn_run(const mica_onednn *primitive, const mica_onednn_args *args,
                            void *workspace);

/* c = alpha a b + beta c, rows apart by ld elements, columns by 1; a_t, b_t: the matrix is stored
 * transposed. type f32: all three are; s8 or u8: a is, b is s8, c s32 with exact sums, alpha 1 and
 * beta 0. beta = 0 does not read c. Inside a parallel region it runs on one thread. */
typedef struct mica_onednn_gemm_args {
    mica_dtype type;
    bool a_t, b_t;
    int64_t m, n, k, a_ld, b_ld, c_ld;
    float alpha, beta;
    const void *a, *b;
    void *c;
} mica_onednn_gemm_args;
mica_status mica_onednn_gemm(const mica_onednn_gemm_args *args);

#endif
