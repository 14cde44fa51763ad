/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of attention's engine "cuda" receive; host and device share this file. */
#ifndef MICA_OPS_ATTENTION_CUDA_ATTENTION_CUDA_ARGS_H
#define MICA_OPS_ATTENTION_CUDA_ATTENTION_CUDA_ARGS_H

/* Types that are told apart while a kernel runs, where that costs nothing. */
enum {
    ATTENTION_F64,
    ATTENTION_F32,
    ATTENTION_F16,
    ATTENTION_BF16,
    ATTENTION_E4M3,
    ATTENTION_E5M2
};

/* A tensor of up to four dimensions; strides of what is broadcast are 0. data NULL: absent. */
typedef struct attention_operand {
    void *data;
    long long stride[4], dim[4];
    int type;
    int whole; /* lines may be read and written by vectors of 16 bytes */
} attention_operand;

typedef struct attention_cuda_args {
    attention_operand q, k, v, out, lse, dout, d_q, d_k, d_v;
    attention_operand bias, mask, dbias, slopes, sinks, dsinks;
    attention_operand scale_q, scale_k, scale_v; /* f32 */
    attention_operand cu_q, cu_k, seq_q, seq_k;  /* s32 */
    attention_operand pages, rng;                /* s32; s64 */
    long long sequences, heads, kv_heads, group;
    long long rows, keys; /* of the tensors, at most of a sequence */
    long long d, dv;
    long long left, right; /* query i sees keys j with -left < j - i - shift < right */
    long long diagonal;    /* shift; what is added to K - Q if bottom_right */
    int bottom_right;
    int k_across, v_across, q_across, dout_across; /* neighbouring lines lie closer than elements */
    double scale, soft_cap;
    unsigned threshold; /* of dropout */
    double keep_scale;
    long long tiles;  /* of the longest sequence; packed: 0 */
    long long splits; /* of the keys of a tile */
    /* workspace, by row of q ((batch H + head) rows + row): */
    void *partial, *partial_stats; /* sums and {maximum, sum} of splits */
    void *delta;                   /* bwd: sum of dout out, or NULL */
} attention_cuda_args;

/* attention_cuda_clear.cu */
typedef struct attention_clear_args {
    attention_operand to;
    long long count;
    double value;
} attention_clear_args;

#endif
