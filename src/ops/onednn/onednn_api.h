/* SPDX-License-Identifier: Apache-2.0
 * oneDNN's two C APIs, of versions 2 and 3, as one; and what a primitive consists of. For the files
 * of onednn.h alone. */
#ifndef MICA_OPS_ONEDNN_ONEDNN_API_H
#define MICA_OPS_ONEDNN_ONEDNN_API_H

#include "ops/onednn/onednn.h"
#include "ops/onednn/onednn_calls.h"

#include <stdatomic.h>
#include <string.h>

/* dnnl_memory objects carry pointers, so a run needs a set of its own; the ninth thread that runs
 * one plan at one time waits for the first of eight to finish. */
#define CONTEXTS 8
#define MAX_ARGS (MICA_ONEDNN_TENSORS + MICA_MAX_STEPS + 2)

/* ---- the library ---- */

/* Filled once by mica_onednn_load, which every plan asks before it makes anything. Calls of the
 * other version are NULL. */
typedef struct mica_onednn_table {
#define MICA_X(name, symbol, result, arguments) result(*name) arguments;
    ONEDNN_CALLS(MICA_X)
    ONEDNN_CALLS_2(MICA_X)
    ONEDNN_CALLS_3(MICA_X)
#undef MICA_X
    int major;
    struct {
#define MICA_X(name, two, three) int name;
        ONEDNN_NUMBERS(MICA_X)
#undef MICA_X
    } numbers;
    /* Threads of the OpenMP that this oneDNN calls, which need not be ours; NULL where it has none.
     */
    int (*get_threads)(void);
    void (*set_threads)(int);
    int (*in_parallel)(void);
} mica_onednn_table;
extern mica_onednn_table mica_dnnl;
/* Around each use of the library. exit() destroys the static objects that it was loaded with while
 * other threads compute: so it first waits until none is inside, and from then on nobody comes in:
 * false. */
bool mica_onednn_enter(void);
void mica_onednn_leave(void);
#define ONEDNN(name) (mica_dnnl.numbers.name)

/* Has oneDNN use that many threads on the calling one; returns what to give back afterwards. */
static inline int swap_threads(int threads)
{
    if (!mica_dnnl.get_threads) return threads;
    int before = mica_dnnl.get_threads();
    if (before != threads) mica_dnnl.set_threads(threads);
    return before;
}

static inline dnnl_data_type_t type_of(mica_dtype d)
{
    switch (d) {
    case MICA_F32:
        return ONEDNN_F32;
    case MICA_F16:
        return ONEDNN_F16;
    case MICA_BF16:
        return ONEDNN_BF16;
    case MICA_S8:
        return ONEDNN_S8;
    case MICA_U8:
        return ONEDNN_U8;
    case MICA_S32:
        return ONEDNN_S32;
    default:
        return ONEDNN_UNDEF;
    }
}

/* Its arrays hold DNNL_MAX_NDIMS numbers, ours fewer. */
static inline void to_dims(dnnl_dims_t to, const int64_t *from, int count)
{
    memset(to, 0, sizeof(dnnl_dims_t));
    for (int i = 0; i < count; i++) to[i] = from[i];
}

/* ---- the two C APIs ---- */

typedef struct md {
    onednn_md object;            /* version 3 */
    struct dnnl_memory_desc two; /* version 2 */
} md;
static inline onednn_md_ref md_get(const md *m)
{
    return mica_dnnl.major == 2 ? &m->two : m->object;
}
/* Of a tensor that may be missing. */
static inline onednn_md_ref md_given(const md *m, bool given)
{
    return given ? md_get(m) : NULL;
}
static inline dnnl_status_t md_make(md *m, const mica_tensor *t, bool any)
{
    dnnl_dims_t dims, strides;
    to_dims(dims, t->dims, t->rank);
    to_dims(strides, t->strides, t->rank);
    dnnl_data_type_t type = type_of(t->dtype);
    const mica_onednn_table *lib = &mica_dnnl;
    if (lib->major == 2)
        return any ? lib->md_init_tag_2(&m->two, t->rank, dims, type, ONEDNN_ANY_LAYOUT)
                   : lib->md_init_strides_2(&m->two, t->rank, dims, type, strides);
    return any ? lib->md_create_tag_3(&m->object, t->rank, dims, type, ONEDNN_ANY_LAYOUT)
               : lib->md_create_strides_3(&m->object, t->rank, dims, type, strides);
}
static inline void md_drop(md *m)
{
    if (m->object) mica_dnnl.md_destroy_3(m->object);
    m->object = NULL;
}
static inline dnnl_status_t append_act(dnnl_post_ops_t ops, dnnl_alg_kind_t alg, float a, float b)
{
    return mica_dnnl.major == 2 ? mica_dnnl.append_eltwise_2(ops, 1.0f, alg, a, b)
                                : mica_dnnl.append_eltwise_3(ops, alg, a, b);
}
static inline dnnl_status_t append_sum(dnnl_post_ops_t ops, float scale)
{
    return mica_dnnl.major == 2 ? mica_dnnl.append_sum_2(ops, scale)
                                : mica_dnnl.append_sum_3(ops, scale, 0, ONEDNN_UNDEF);
}

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

static inline dnnl_status_t make_pd_3(const maker *m, dnnl_primitive_desc_t *pd)
{
    onednn_md_ref src = md_get(&m->tensor[0]), wei = md_get(&m->tensor[1]),
                  dst = md_get(&m->tensor[2]), bias = md_given(&m->bias, m->spec->bias.dtype);
    switch (m->spec->kind) {
    case MICA_ONEDNN_MATMUL:
        return mica_dnnl.matmul_3(pd, m->engine, src, wei, bias, dst, m->attr);
    case MICA_ONEDNN_CONV_FWD:
        return mica_dnnl.conv_fwd_3(pd, m->engine, ONEDNN_FORWARD_INFERENCE,
                                    ONEDNN_CONVOLUTION_DIRECT, src, wei, bias, dst, m->stride,
                                    m->dilation, m->low, m->high, m->attr);
    case MICA_ONEDNN_CONV_DGRAD:
        return mica_dnnl.conv_dgrad_3(pd, m->engine, ONEDNN_CONVOLUTION_DIRECT, src, wei, dst,
                                      m->stride, m->dilation, m->low, m->high, NULL, m->attr);
    case MICA_ONEDNN_CONV_WGRAD:
        return mica_dnnl.conv_wgrad_3(pd, m->engine, ONEDNN_CONVOLUTION_DIRECT, src, wei, NULL, dst,
                                      m->stride, m->dilation, m->low, m->high, NULL, m->attr);
    }
    return ONEDNN_INVALID_ARGUMENTS;
}
static inline dnnl_status_t make_matmul_2(const maker *m, dnnl_primitive_desc_t *pd)
{
    dnnl_matmul_desc_t d;
    onednn_md_ref bias = md_given(&m->bias, m->spec->bias.dtype);
    dnnl_status_t s = mica_dnnl.matmul_2(&d, md_get(&m->tensor[0]), md_get(&m->tensor[1]), bias,
                                         md_get(&m->tensor[2]));
    return s ? s : mica_dnnl.pd_create_2(pd, &d, m->attr, m->engine, NULL);
}
static inline dnnl_status_t make_pd_2(const maker *m, dnnl_primitive_desc_t *pd)
{
    onednn_md_ref src = md_get(&m->tensor[0]), wei = md_get(&m->tensor[1]),
                  dst = md_get(&m->tensor[2]), bias = md_given(&m->bias, m->spec->bias.dtype);
    dnnl_convolution_desc_t d;
    dnnl_status_t s = ONEDNN_INVALID_ARGUMENTS;
    switch (m->spec->kind) {
    case MICA_ONEDNN_MATMUL:
        return make_matmul_2(m, pd);
    case MICA_ONEDNN_CONV_FWD:
        s = mica_dnnl.conv_fwd_2(&d, ONEDNN_FORWARD_INFERENCE, ONEDNN_CONVOLUTION_DIRECT, src, wei,
                                 bias, dst, m->stride, m->dilation, m->low, m->high);
        break;
    case MICA_ONEDNN_CONV_DGRAD:
        s = mica_dnnl.conv_dgrad_2(&d, ONEDNN_CONVOLUTION_DIRECT, src, wei, dst, m->stride,
                                   m->dilation, m->low, m->high);
        break;
    case MICA_ONEDNN_CONV_WGRAD:
        s = mica_dnnl.conv_wgrad_2(&d, ONEDNN_CONVOLUTION_DIRECT, src, wei, NULL, dst, m->stride,
                                   m->dilation, m->low, m->high);
        break;
    }
    return s ? s : mica_dnnl.pd_create_2(pd, &d, m->attr, m->engine, NULL);
}
static inline dnnl_status_t make_pd(const maker *m, dnnl_primitive_desc_t *pd)
{
    return mica_dnnl.major == 2 ? make_pd_2(m, pd) : make_pd_3(m, pd);
}

/* ---- what a primitive consists of ---- */

typedef struct context {
    atomic_int busy; /* 0, or one more than the forks before the process that has it */
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
        [MICA_ONEDNN_MATMUL] = {ONEDNN_ARG_SRC, ONEDNN_ARG_WEIGHTS, ONEDNN_ARG_DST},
        [MICA_ONEDNN_CONV_FWD] = {ONEDNN_ARG_SRC, ONEDNN_ARG_WEIGHTS, ONEDNN_ARG_DST},
        [MICA_ONEDNN_CONV_DGRAD] = {ONEDNN_ARG_DIFF_SRC, ONEDNN_ARG_WEIGHTS, ONEDNN_ARG_DIFF_DST},
        [MICA_ONEDNN_CONV_WGRAD] = {ONEDNN_ARG_SRC, ONEDNN_ARG_DIFF_WEIGHTS, ONEDNN_ARG_DIFF_DST},
    };
    return numbers[kind][tensor];
}

static inline onednn_md_ref inner_md(const mica_onednn *p, int i)
{
    return mica_dnnl.pd_query_md(p->pd, ONEDNN_QUERY_EXEC_ARG_MD, arg_number(p->kind, i));
}

static inline dnnl_status_t new_reorder(const mica_onednn *p, onednn_md_ref from, onednn_md_ref to,
                                        dnnl_primitive_t *reorder)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s = mica_dnnl.reorder_pd(&pd, from, p->engine, to, p->engine, NULL);
    if (s == ONEDNN_SUCCESS) s = mica_dnnl.primitive_create(reorder, pd);
    if (pd) mica_dnnl.pd_destroy(pd);
    return s;
}

static inline dnnl_status_t new_memory(const mica_onednn *p, onednn_md_ref what,
                                       dnnl_memory_t *memory)
{
    return mica_dnnl.memory_create(memory, what, p->engine, NULL);
}

static inline void drop_memory(dnnl_memory_t memory)
{
    if (memory) mica_dnnl.memory_destroy(memory);
}

#endif
