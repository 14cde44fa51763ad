/* SPDX-License-Identifier: Apache-2.0
 * oneDNN's C interface as far as it is used, of versions 2 and 3, declared here: none of its
 * headers is needed to build. tests/unit/test_onednn_header.c compares every line with dnnl.h. */
#ifndef MICA_OPS_ONEDNN_ONEDNN_CALLS_H
#define MICA_OPS_ONEDNN_ONEDNN_CALLS_H

#include <stddef.h>
#include <stdint.h>

/* ---- types; left to dnnl.h where that is compared ---- */

#define ONEDNN_STRUCTS                                                                             \
    typedef dnnl_dim_t dnnl_dims_t[12];                                                            \
    typedef struct {                                                                               \
        int arg;                                                                                   \
        dnnl_memory_t memory;                                                                      \
    } dnnl_exec_arg_t;                                                                             \
    typedef struct {                                                                               \
        int major, minor, patch;                                                                   \
        const char *hash;                                                                          \
        unsigned cpu_runtime, gpu_runtime;                                                         \
    } dnnl_version_t;

#ifndef MICA_ONEDNN_TYPES_GIVEN
typedef int dnnl_status_t, dnnl_data_type_t, dnnl_alg_kind_t, dnnl_prop_kind_t, dnnl_query_t;
typedef int dnnl_engine_kind_t, dnnl_scratchpad_mode_t, dnnl_format_tag_t;
typedef int64_t dnnl_dim_t;
typedef struct dnnl_engine *dnnl_engine_t;
typedef struct dnnl_stream *dnnl_stream_t;
typedef struct dnnl_memory *dnnl_memory_t;
typedef struct dnnl_primitive *dnnl_primitive_t;
typedef struct dnnl_primitive_desc *dnnl_primitive_desc_t;
typedef struct dnnl_primitive_attr *dnnl_primitive_attr_t;
typedef struct dnnl_post_ops *dnnl_post_ops_t;
typedef const struct dnnl_memory *const_dnnl_memory_t;
typedef const struct dnnl_primitive *const_dnnl_primitive_t;
typedef const struct dnnl_primitive_desc *const_dnnl_primitive_desc_t;
typedef const struct dnnl_primitive_attr *const_dnnl_primitive_attr_t;
typedef const struct dnnl_post_ops *const_dnnl_post_ops_t;
typedef const void *const_dnnl_op_desc_t;
ONEDNN_STRUCTS
/* Descriptions of tensors: structs that callers hold in version 2, objects of the library in 3. */
typedef const struct dnnl_memory_desc *onednn_md_ref;
typedef struct dnnl_memory_desc *onednn_md;
/* Version 2's descriptions of operations, which it fills in. */
typedef struct onednn_conv_2 dnnl_convolution_desc_t;
typedef struct onednn_matmul_2 dnnl_matmul_desc_t;
#endif

/* Version 2's structs: nothing in them is read or written here, so they are their size. */
struct dnnl_memory_desc {
    uint64_t words[87];
};
struct onednn_conv_2 {
    uint64_t words[747];
};
struct onednn_matmul_2 {
    uint64_t words[350];
};

/* ---- numbers ---- */

/* X(name, its value in version 2, in version 3) of those that differ: read ONEDNN(name). */
#define ONEDNN_NUMBERS(X)                                                                          \
    X(eltwise_relu, 0x1f, 0x20)                                                                    \
    X(eltwise_clip, 0xff, 0x2e)                                                                    \
    X(post_op_arg, 16384, 32768) /* of step 0; those of the others are its multiples */

enum {
    ONEDNN_SUCCESS = 0,
    ONEDNN_INVALID_ARGUMENTS = 2,
    ONEDNN_UNDEF = 0,
    ONEDNN_F16 = 1,
    ONEDNN_BF16 = 2,
    ONEDNN_F32 = 3,
    ONEDNN_S32 = 4,
    ONEDNN_S8 = 5,
    ONEDNN_U8 = 6,
    ONEDNN_ANY_LAYOUT = 1,
    ONEDNN_FORWARD_INFERENCE = 96,
    ONEDNN_CONVOLUTION_DIRECT = 1,
    ONEDNN_BINARY_ADD = 0x1fff0,
    ONEDNN_BINARY_MUL = 0x1fff1,
    ONEDNN_CPU = 1,
    ONEDNN_STREAM_DEFAULT = 1,
    ONEDNN_SCRATCHPAD_USER = 1,
    ONEDNN_QUERY_IMPLEMENTATION = 8,
    ONEDNN_QUERY_EXEC_ARG_MD = 255,
    ONEDNN_ARG_FROM = 1,
    ONEDNN_ARG_SRC = 1,
    ONEDNN_ARG_SRC_1 = 2,
    ONEDNN_ARG_TO = 17,
    ONEDNN_ARG_DST = 17,
    ONEDNN_ARG_WEIGHTS = 33,
    ONEDNN_ARG_BIAS = 41,
    ONEDNN_ARG_SCRATCHPAD = 80,
    ONEDNN_ARG_DIFF_SRC = 129,
    ONEDNN_ARG_DIFF_DST = 145,
    ONEDNN_ARG_DIFF_WEIGHTS = 161,
    ONEDNN_SEQUENTIAL = 1, /* run times of the CPU */
    ONEDNN_OMP = 2,
    ONEDNN_TBB = 4,
    ONEDNN_THREADPOOL = 8,
    ONEDNN_SYCL = 512
};

/* ---- functions: X(name here, its symbol, what it returns, its arguments) ---- */

#define ONEDNN_CALLS(X)                                                                            \
    X(version, dnnl_version, const dnnl_version_t *, (void))                                       \
    X(engine_create, dnnl_engine_create, dnnl_status_t,                                            \
      (dnnl_engine_t *, dnnl_engine_kind_t, size_t))                                               \
    X(engine_destroy, dnnl_engine_destroy, dnnl_status_t, (dnnl_engine_t))                         \
    X(stream_create, dnnl_stream_create, dnnl_status_t,                                            \
      (dnnl_stream_t *, dnnl_engine_t, unsigned))                                                  \
    X(stream_wait, dnnl_stream_wait, dnnl_status_t, (dnnl_stream_t))                               \
    X(stream_destroy, dnnl_stream_destroy, dnnl_status_t, (dnnl_stream_t))                         \
    X(memory_create, dnnl_memory_create, dnnl_status_t,                                            \
      (dnnl_memory_t *, onednn_md_ref, dnnl_engine_t, void *))                                     \
    X(memory_md, dnnl_memory_get_memory_desc, dnnl_status_t,                                       \
      (const_dnnl_memory_t, onednn_md_ref *))                                                      \
    X(memory_set, dnnl_memory_set_data_handle, dnnl_status_t, (dnnl_memory_t, void *))             \
    X(memory_destroy, dnnl_memory_destroy, dnnl_status_t, (dnnl_memory_t))                         \
    X(md_equal, dnnl_memory_desc_equal, int, (onednn_md_ref, onednn_md_ref))                       \
    X(md_bytes, dnnl_memory_desc_get_size, size_t, (onednn_md_ref))                                \
    X(attr_create, dnnl_primitive_attr_create, dnnl_status_t, (dnnl_primitive_attr_t *))           \
    X(attr_destroy, dnnl_primitive_attr_destroy, dnnl_status_t, (dnnl_primitive_attr_t))           \
    X(attr_set_scratchpad, dnnl_primitive_attr_set_scratchpad_mode, dnnl_status_t,                 \
      (dnnl_primitive_attr_t, dnnl_scratchpad_mode_t))                                             \
    X(attr_set_post_ops, dnnl_primitive_attr_set_post_ops, dnnl_status_t,                          \
      (dnnl_primitive_attr_t, const_dnnl_post_ops_t))                                              \
    X(post_ops_create, dnnl_post_ops_create, dnnl_status_t, (dnnl_post_ops_t *))                   \
    X(post_ops_destroy, dnnl_post_ops_destroy, dnnl_status_t, (dnnl_post_ops_t))                   \
    X(append_binary, dnnl_post_ops_append_binary, dnnl_status_t,                                   \
      (dnnl_post_ops_t, dnnl_alg_kind_t, onednn_md_ref))                                           \
    X(pd_query, dnnl_primitive_desc_query, dnnl_status_t,                                          \
      (const_dnnl_primitive_desc_t, dnnl_query_t, int, void *))                                    \
    X(pd_query_md, dnnl_primitive_desc_query_md, onednn_md_ref,                                    \
      (const_dnnl_primitive_desc_t, dnnl_query_t, int))                                            \
    X(pd_destroy, dnnl_primitive_desc_destroy, dnnl_status_t, (dnnl_primitive_desc_t))             \
    X(reorder_pd, dnnl_reorder_primitive_desc_create, dnnl_status_t,                               \
      (dnnl_primitive_desc_t *, onednn_md_ref, dnnl_engine_t, onednn_md_ref, dnnl_engine_t,        \
       const_dnnl_primitive_attr_t))                                                               \
    X(primitive_create, dnnl_primitive_create, dnnl_status_t,                                      \
      (dnnl_primitive_t *, const_dnnl_primitive_desc_t))                                           \
    X(primitive_execute, dnnl_primitive_execute, dnnl_status_t,                                    \
      (const_dnnl_primitive_t, dnnl_stream_t, int, const dnnl_exec_arg_t *))                       \
    X(primitive_destroy, dnnl_primitive_destroy, dnnl_status_t, (dnnl_primitive_t))                \
    X(sgemm, dnnl_sgemm, dnnl_status_t,                                                            \
      (char, char, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, float, const float *, dnnl_dim_t,           \
       const float *, dnnl_dim_t, float, float *, dnnl_dim_t))                                     \
    X(gemm_u8s8s32, dnnl_gemm_u8s8s32, dnnl_status_t,                                              \
      (char, char, char, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, float, const uint8_t *, dnnl_dim_t,   \
       uint8_t, const int8_t *, dnnl_dim_t, int8_t, float, int32_t *, dnnl_dim_t,                  \
       const int32_t *))                                                                           \
    X(gemm_s8s8s32, dnnl_gemm_s8s8s32, dnnl_status_t,                                              \
      (char, char, char, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, float, const int8_t *, dnnl_dim_t,    \
       int8_t, const int8_t *, dnnl_dim_t, int8_t, float, int32_t *, dnnl_dim_t, const int32_t *))

#define ONEDNN_CALLS_2(X)                                                                          \
    X(md_init_strides_2, dnnl_memory_desc_init_by_strides, dnnl_status_t,                          \
      (onednn_md, int, const dnnl_dims_t, dnnl_data_type_t, const dnnl_dims_t))                    \
    X(md_init_tag_2, dnnl_memory_desc_init_by_tag, dnnl_status_t,                                  \
      (onednn_md, int, const dnnl_dims_t, dnnl_data_type_t, dnnl_format_tag_t))                    \
    X(append_sum_2, dnnl_post_ops_append_sum, dnnl_status_t, (dnnl_post_ops_t, float))             \
    X(append_eltwise_2, dnnl_post_ops_append_eltwise, dnnl_status_t,                               \
      (dnnl_post_ops_t, float, dnnl_alg_kind_t, float, float))                                     \
    X(pd_create_2, dnnl_primitive_desc_create, dnnl_status_t,                                      \
      (dnnl_primitive_desc_t *, const_dnnl_op_desc_t, const_dnnl_primitive_attr_t, dnnl_engine_t,  \
       const_dnnl_primitive_desc_t))                                                               \
    X(matmul_2, dnnl_matmul_desc_init, dnnl_status_t,                                              \
      (dnnl_matmul_desc_t *, onednn_md_ref, onednn_md_ref, onednn_md_ref, onednn_md_ref))          \
    X(conv_fwd_2, dnnl_dilated_convolution_forward_desc_init, dnnl_status_t,                       \
      (dnnl_convolution_desc_t *, dnnl_prop_kind_t, dnnl_alg_kind_t, onednn_md_ref, onednn_md_ref, \
       onednn_md_ref, onednn_md_ref, const dnnl_dims_t, const dnnl_dims_t, const dnnl_dims_t,      \
       const dnnl_dims_t))                                                                         \
    X(conv_dgrad_2, dnnl_dilated_convolution_backward_data_desc_init, dnnl_status_t,               \
      (dnnl_convolution_desc_t *, dnnl_alg_kind_t, onednn_md_ref, onednn_md_ref, onednn_md_ref,    \
       const dnnl_dims_t, const dnnl_dims_t, const dnnl_dims_t, const dnnl_dims_t))                \
    X(conv_wgrad_2, dnnl_dilated_convolution_backward_weights_desc_init, dnnl_status_t,            \
      (dnnl_convolution_desc_t *, dnnl_alg_kind_t, onednn_md_ref, onednn_md_ref, onednn_md_ref,    \
       onednn_md_ref, const dnnl_dims_t, const dnnl_dims_t, const dnnl_dims_t, const dnnl_dims_t))

#define ONEDNN_CALLS_3(X)                                                                          \
    X(md_create_strides_3, dnnl_memory_desc_create_with_strides, dnnl_status_t,                    \
      (onednn_md *, int, const dnnl_dims_t, dnnl_data_type_t, const dnnl_dims_t))                  \
    X(md_create_tag_3, dnnl_memory_desc_create_with_tag, dnnl_status_t,                            \
      (onednn_md *, int, const dnnl_dims_t, dnnl_data_type_t, dnnl_format_tag_t))                  \
    X(md_destroy_3, dnnl_memory_desc_destroy, dnnl_status_t, (onednn_md))                          \
    X(append_sum_3, dnnl_post_ops_append_sum, dnnl_status_t,                                       \
      (dnnl_post_ops_t, float, int32_t, dnnl_data_type_t))                                         \
    X(append_eltwise_3, dnnl_post_ops_append_eltwise, dnnl_status_t,                               \
      (dnnl_post_ops_t, dnnl_alg_kind_t, float, float))                                            \
    X(matmul_3, dnnl_matmul_primitive_desc_create, dnnl_status_t,                                  \
      (dnnl_primitive_desc_t *, dnnl_engine_t, onednn_md_ref, onednn_md_ref, onednn_md_ref,        \
       onednn_md_ref, const_dnnl_primitive_attr_t))                                                \
    X(conv_fwd_3, dnnl_convolution_forward_primitive_desc_create, dnnl_status_t,                   \
      (dnnl_primitive_desc_t *, dnnl_engine_t, dnnl_prop_kind_t, dnnl_alg_kind_t, onednn_md_ref,   \
       onednn_md_ref, onednn_md_ref, onednn_md_ref, const dnnl_dims_t, const dnnl_dims_t,          \
       const dnnl_dims_t, const dnnl_dims_t, const_dnnl_primitive_attr_t))                         \
    X(conv_dgrad_3, dnnl_convolution_backward_data_primitive_desc_create, dnnl_status_t,           \
      (dnnl_primitive_desc_t *, dnnl_engine_t, dnnl_alg_kind_t, onednn_md_ref, onednn_md_ref,      \
       onednn_md_ref, const dnnl_dims_t, const dnnl_dims_t, const dnnl_dims_t, const dnnl_dims_t,  \
       const_dnnl_primitive_desc_t, const_dnnl_primitive_attr_t))                                  \
    X(conv_wgrad_3, dnnl_convolution_backward_weights_primitive_desc_create, dnnl_status_t,        \
      (dnnl_primitive_desc_t *, dnnl_engine_t, dnnl_alg_kind_t, onednn_md_ref, onednn_md_ref,      \
       onednn_md_ref, onednn_md_ref, const dnnl_dims_t, const dnnl_dims_t, const dnnl_dims_t,      \
       const dnnl_dims_t, const_dnnl_primitive_desc_t, const_dnnl_primitive_attr_t))

#endif
