/* SPDX-License-Identifier: Apache-2.0
 * oneDNN's two C APIs, of versions 2 and 3, as one; and what a primitive consists of. For the files
 * of onednn.h alone. */
#ifndef MICA_OPS_SHARED_ONEDNN_API_H
#define MICA_OPS_SHARED_ONEDNN_API_H

#include "ops/shared/onednn.h"

#include <stdatomic.h>
#include <string.h>

#include <dnnl.h>

/* dnnl_memory objects carry pointers, so a run needs a set of its own; the ninth thread that runs
 * one plan at one time waits for the first of eight to finish. */
#define CONTEXTS 8
#define MAX_ARGS (MICA_ONEDNN_TENSORS + MICA_MAX_STEPS + 2)

static inline dnnl_data_type_t type_of(mica_dtype d)
{
    switch (d) {
    case MICA_F32:
        return dnnl_f32;
    case MICA_F16:
        return dnnl_f16;
    case MICA_BF16:
        return dnnl_bf16;
    case MICA_S8:
        return dnnl_s8;
    case MICA_U8:
        return dnnl_u8;
    case MICA_S32:
        return dnnl_s32;
    default:
        return dnnl_data_type_undef;
    }
}

/* Its arrays hold DNNL_MAX_NDIMS numbers, ours fewer. */
static inline void to_dims(dnnl_dims_t to, const int64_t *from, int count)
{
    memset(to, 0, sizeof(dnnl_dims_t));
    for (int i = 0; i < count; i++) to[i] = from[i];
}

/* ---- the two C APIs ---- */

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t md_ref;
typedef struct md {
    dnnl_memory_desc_t it;
} md;
static inline md_ref md_get(const md *m)
{
    return m->it;
}
static inline dnnl_status_t md_make(md *m, const mica_tensor *t, bool any)
{
    dnnl_dims_t dims, strides;
    to_dims(dims, t->dims, t->rank);
    to_dims(strides, t->strides, t->rank);
    dnnl_data_type_t type = type_of(t->dtype);
    if (any)
        return dnnl_memory_desc_create_with_tag(&m->it, t->rank, dims, type, dnnl_format_tag_any);
    return dnnl_memory_desc_create_with_strides(&m->it, t->rank, dims, type, strides);
}
static inline void md_drop(md *m)
{
    if (m->it) dnnl_memory_desc_destroy(m->it);
    m->it = NULL;
}
static inline dnnl_status_t append_act(dnnl_post_ops_t ops, dnnl_alg_kind_t alg, float a, float b)
{
    return dnnl_post_ops_append_eltwise(ops, alg, a, b);
}
static inline dnnl_status_t append_sum(dnnl_post_ops_t ops, float scale)
{
    return dnnl_post_ops_append_sum(ops, scale, 0, dnnl_data_type_undef);
}
#else
typedef const dnnl_memory_desc_t *md_ref;
typedef struct md {
    dnnl_memory_desc_t it;
} md;
static inline md_ref md_get(const md *m)
{
    return &m->it;
}
static inline dnnl_status_t md_make(md *m, const mica_tensor *t, bool any)
{
    dnnl_dims_t dims, strides;
    to_dims(dims, t->dims, t->rank);
    to_dims(strides, t->strides, t->rank);
    dnnl_data_type_t type = type_of(t->dtype);
    if (any) return dnnl_memory_desc_init_by_tag(&m->it, t->rank, dims, type, dnnl_format_tag_any);
    return dnnl_memory_desc_init_by_strides(&m->it, t->rank, dims, type, strides);
}
static inline void md_drop(md *m)
{
    (void)m;
}
static inline dnnl_status_t append_act(dnnl_post_ops_t ops, dnnl_alg_kind_t alg, float a, float b)
{
    return dnnl_post_ops_append_eltwise(ops, 1.0f, alg, a, b);
}
static inline dnnl_status_t append_sum(dnnl_post_ops_t ops, float scale)
{
    return dnnl_post_ops_append_sum(ops, scale);
}
#endif

/* Packed inputs as bytes: version 2 writes the padding of a layout whenever it is given a pointer,
 * here into memory that other threads read. Primitives go by their own descriptions. */
static inline dnnl_status_t md_bytes(md *m, size_t bytes)
{
    mica_tensor t = {.dtype = MICA_U8, .rank = 1, .dims = {(int64_t)bytes}, .strides = {1}};
    return md_make(m, &t, false);
}

typedef struct maker {
    const mica_onednn_spec *spec;
    dnnl_engine_t engine;
    dnnl_primitive_attr_t attr;
    md tensor[MICA_ONEDNN_TENSORS], bias;
    dnnl_dims_t stride, dilation, low, high; /* dilation 0 is dense */
} maker;

#if DNNL_VERSION_MAJOR >= 3
static inline dnnl_status_t make_pd(const maker *m, dnnl_primitive_desc_t *pd)
{
    const mica_onednn_spec *s = m->spec;
    md_ref src = m->tensor[0].it, wei = m->tensor[1].it, dst = m->tensor[2].it, bias = m->bias.it;
    switch (s->kind) {
    case MICA_ONEDNN_MATMUL:
        return dnnl_matmul_primitive_desc_create(pd, m->engine, src, wei, bias, dst, m->attr);
    case MICA_ONEDNN_CONV_FWD:
        return dnnl_convolution_forward_primitive_desc_create(
            pd, m->engine, dnnl_forward_inference, dnnl_convolution_direct, src, wei, bias, dst,
            m->stride, m->dilation, m->low, m->high, m->attr);
    case MICA_ONEDNN_CONV_DGRAD:
        return dnnl_convolution_backward_data_primitive_desc_create(
            pd, m->engine, dnnl_convolution_direct, src, wei, dst, m->stride, m->dilation, m->low,
            m->high, NULL, m->attr);
    case MICA_ONEDNN_CONV_WGRAD:
        return dnnl_convolution_backward_weights_primitive_desc_create(
            pd, m->engine, dnnl_convolution_direct, src, wei, NULL, dst, m->stride, m->dilation,
            m->low, m->high, NULL, m->attr);
    }
    return dnnl_invalid_arguments;
}
#else
static inline dnnl_status_t make_matmul(const maker *m, dnnl_primitive_desc_t *pd)
{
    dnnl_matmul_desc_t d;
    const dnnl_memory_desc_t *bias = m->spec->bias.dtype ? &m->bias.it : NULL;
    dnnl_status_t s =
        dnnl_matmul_desc_init(&d, &m->tensor[0].it, &m->tensor[1].it, bias, &m->tensor[2].it);
    return s ? s : dnnl_primitive_desc_create(pd, &d, m->attr, m->engine, NULL);
}
static inline dnnl_status_t make_pd(const maker *m, dnnl_primitive_desc_t *pd)
{
    const mica_onednn_spec *s = m->spec;
    const dnnl_memory_desc_t *src = &m->tensor[0].it, *wei = &m->tensor[1].it,
                             *dst = &m->tensor[2].it, *bias = s->bias.dtype ? &m->bias.it : NULL;
    dnnl_convolution_desc_t d;
    dnnl_status_t status = dnnl_invalid_arguments;
    switch (s->kind) {
    case MICA_ONEDNN_MATMUL:
        return make_matmul(m, pd);
    case MICA_ONEDNN_CONV_FWD:
        status = dnnl_dilated_convolution_forward_desc_init(
            &d, dnnl_forward_inference, dnnl_convolution_direct, src, wei, bias, dst, m->stride,
            m->dilation, m->low, m->high);
        break;
    case MICA_ONEDNN_CONV_DGRAD:
        status = dnnl_dilated_convolution_backward_data_desc_init(
            &d, dnnl_convolution_direct, src, wei, dst, m->stride, m->dilation, m->low, m->high);
        break;
    case MICA_ONEDNN_CONV_WGRAD:
        status = dnnl_dilated_convolution_backward_weights_desc_init(&d, dnnl_convolution_direct,
                                                                     src, wei, NULL, dst, m->stride,
                                                                     m->dilation, m->low, m->high);
        break;
    }
    return status ? status : dnnl_primitive_desc_create(pd, &d, m->attr, m->engine, NULL);
}
#endif

/* ---- what a primitive consists of ---- */

typedef struct context {
    atomic_flag busy;
    dnnl_stream_t stream;
    dnnl_memory_t user[MICA_ONEDNN_TENSORS], inner[MICA_ONEDNN_TENSORS];
    dnnl_memory_t bias, steps[MICA_MAX_STEPS], scratch;
    dnnl_exec_arg_t args[MAX_ARGS];
    int arg_count;
} context;

struct mica_onednn {
    mica_onednn_kind kind;
    int threads, output; /* the tensor that is written */
    dnnl_engine_t engine;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    dnnl_primitive_t reorder[MICA_ONEDNN_TENSORS]; /* NULL: in the user's memory */
    /* Of packed inputs, which are not reordered in runs; serial, so that they run anywhere. */
    dnnl_primitive_t unpack[MICA_ONEDNN_TENSORS];
    size_t inner_at[MICA_ONEDNN_TENSORS], scratch_at, workspace;
    /* Plain copies share the workspace with what runs of the primitive need. */
    size_t plain_at[MICA_ONEDNN_TENSORS], plain_bytes;
    double reorder_bytes;
    context contexts[CONTEXTS];
};

static inline int arg_number(mica_onednn_kind kind, int tensor)
{
    static const int numbers[][MICA_ONEDNN_TENSORS] = {
        [MICA_ONEDNN_MATMUL] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
        [MICA_ONEDNN_CONV_FWD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
        [MICA_ONEDNN_CONV_DGRAD] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
        [MICA_ONEDNN_CONV_WGRAD] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
    };
    return numbers[kind][tensor];
}

static inline md_ref inner_md(const mica_onednn *p, int i)
{
    return dnnl_primitive_desc_query_md(p->pd, dnnl_query_exec_arg_md, arg_number(p->kind, i));
}

static inline dnnl_status_t new_reorder(const mica_onednn *p, md_ref from, md_ref to,
                                        dnnl_primitive_t *reorder)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s = dnnl_reorder_primitive_desc_create(&pd, from, p->engine, to, p->engine, NULL);
    if (s == dnnl_success) s = dnnl_primitive_create(reorder, pd);
    if (pd) dnnl_primitive_desc_destroy(pd);
    return s;
}

static inline dnnl_status_t new_memory(const mica_onednn *p, md_ref what, dnnl_memory_t *memory)
{
    return dnnl_memory_create(memory, what, p->engine, DNNL_MEMORY_NONE);
}

static inline void drop_memory(dnnl_memory_t memory)
{
    if (memory) dnnl_memory_destroy(memory);
}

#endif
