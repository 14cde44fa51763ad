/* SPDX-License-Identifier: Apache-2.0
 * onednn_calls.h says what dnnl.h says: sizes, numbers, prototypes of its version, 2 or 3. Where
 * there is no dnnl.h (Debian: libdnnl-dev) there is nothing to compare, and the test is skipped. */
#include <stdio.h>

#if __has_include(<dnnl.h>)
#include <dnnl.h>

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t onednn_md_ref;
typedef dnnl_memory_desc_t onednn_md;
#define BY_VERSION(two, three) (three)
#define CALLS_OF_VERSION       ONEDNN_CALLS_3
#else
typedef const dnnl_memory_desc_t *onednn_md_ref;
typedef dnnl_memory_desc_t *onednn_md;
#define BY_VERSION(two, three) (two)
#define CALLS_OF_VERSION       ONEDNN_CALLS_2
#endif
#define MICA_ONEDNN_TYPES_GIVEN
#include "ops/onednn/onednn_calls.h"

#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #theirs)

/* ---- prototypes ---- */

#define MICA_X(name, symbol, result, arguments)                                                    \
    _Static_assert(__builtin_types_compatible_p(__typeof__(symbol), result arguments), #symbol);
ONEDNN_CALLS(MICA_X)
CALLS_OF_VERSION(MICA_X)
#undef MICA_X

/* ---- numbers ---- */

#define MICA_X(name, two, three) enum { number_##name = BY_VERSION(two, three) };
ONEDNN_NUMBERS(MICA_X)
#undef MICA_X
SAME(number_eltwise_relu, dnnl_eltwise_relu);
SAME(number_eltwise_clip, dnnl_eltwise_clip);
SAME(number_post_op_arg, DNNL_ARG_ATTR_MULTIPLE_POST_OP(0));
SAME(number_post_op_arg * 4, DNNL_ARG_ATTR_MULTIPLE_POST_OP(3));
SAME(ONEDNN_SUCCESS, dnnl_success);
SAME(ONEDNN_INVALID_ARGUMENTS, dnnl_invalid_arguments);
SAME(ONEDNN_UNDEF, dnnl_data_type_undef);
SAME(ONEDNN_F16, dnnl_f16);
SAME(ONEDNN_BF16, dnnl_bf16);
SAME(ONEDNN_F32, dnnl_f32);
SAME(ONEDNN_S32, dnnl_s32);
SAME(ONEDNN_S8, dnnl_s8);
SAME(ONEDNN_U8, dnnl_u8);
SAME(ONEDNN_ANY_LAYOUT, dnnl_format_tag_any);
SAME(ONEDNN_FORWARD_INFERENCE, dnnl_forward_inference);
SAME(ONEDNN_CONVOLUTION_DIRECT, dnnl_convolution_direct);
SAME(ONEDNN_BINARY_ADD, dnnl_binary_add);
SAME(ONEDNN_BINARY_MUL, dnnl_binary_mul);
SAME(ONEDNN_CPU, dnnl_cpu);
SAME(ONEDNN_STREAM_DEFAULT, dnnl_stream_default_flags);
SAME(ONEDNN_SCRATCHPAD_USER, dnnl_scratchpad_mode_user);
SAME(ONEDNN_QUERY_IMPLEMENTATION, dnnl_query_impl_info_str);
SAME(ONEDNN_QUERY_EXEC_ARG_MD, dnnl_query_exec_arg_md);
SAME(ONEDNN_ARG_FROM, DNNL_ARG_FROM);
SAME(ONEDNN_ARG_SRC, DNNL_ARG_SRC);
SAME(ONEDNN_ARG_SRC_1, DNNL_ARG_SRC_1);
SAME(ONEDNN_ARG_TO, DNNL_ARG_TO);
SAME(ONEDNN_ARG_DST, DNNL_ARG_DST);
SAME(ONEDNN_ARG_WEIGHTS, DNNL_ARG_WEIGHTS);
SAME(ONEDNN_ARG_BIAS, DNNL_ARG_BIAS);
SAME(ONEDNN_ARG_SCRATCHPAD, DNNL_ARG_SCRATCHPAD);
SAME(ONEDNN_ARG_DIFF_SRC, DNNL_ARG_DIFF_SRC);
SAME(ONEDNN_ARG_DIFF_DST, DNNL_ARG_DIFF_DST);
SAME(ONEDNN_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_WEIGHTS);
SAME(ONEDNN_SEQUENTIAL, DNNL_RUNTIME_SEQ);
SAME(ONEDNN_OMP, DNNL_RUNTIME_OMP);
SAME(ONEDNN_TBB, DNNL_RUNTIME_TBB);
SAME(ONEDNN_THREADPOOL, DNNL_RUNTIME_THREADPOOL);
SAME(ONEDNN_SYCL, DNNL_RUNTIME_SYCL);

/* ---- sizes ---- */

#if DNNL_VERSION_MAJOR < 3
SAME(sizeof(struct dnnl_memory_desc), sizeof(dnnl_memory_desc_t));
SAME(sizeof(struct onednn_conv_2), sizeof(dnnl_convolution_desc_t));
SAME(sizeof(struct onednn_matmul_2), sizeof(dnnl_matmul_desc_t));
SAME(_Alignof(struct dnnl_memory_desc), _Alignof(dnnl_memory_desc_t));
SAME(_Alignof(struct onednn_conv_2), _Alignof(dnnl_convolution_desc_t));
SAME(_Alignof(struct onednn_matmul_2), _Alignof(dnnl_matmul_desc_t));
#endif

/* The structs and types that both sides spell by the same names: ours, under names of their own. */
#define dnnl_exec_arg_t our_exec_arg_t
#define dnnl_version_t  our_version_t
#define dnnl_dims_t     our_dims_t
ONEDNN_STRUCTS
#undef dnnl_exec_arg_t
#undef dnnl_version_t
#undef dnnl_dims_t
#define SAME_FIELD(type, ours, field)                                                              \
    SAME(offsetof(ours, field), offsetof(type, field));                                            \
    SAME(sizeof((ours){0}.field), sizeof((type){0}.field))
SAME(sizeof(our_dims_t), sizeof(dnnl_dims_t));
SAME(sizeof(our_exec_arg_t), sizeof(dnnl_exec_arg_t));
SAME_FIELD(dnnl_exec_arg_t, our_exec_arg_t, arg);
SAME_FIELD(dnnl_exec_arg_t, our_exec_arg_t, memory);
SAME_FIELD(dnnl_version_t, our_version_t, major);
SAME_FIELD(dnnl_version_t, our_version_t, minor);
SAME_FIELD(dnnl_version_t, our_version_t, patch);
SAME_FIELD(dnnl_version_t, our_version_t, cpu_runtime);

int main(void)
{
    printf("onednn_calls.h agrees with dnnl.h %d.%d.%d\n", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR,
           DNNL_VERSION_PATCH);
    return 0;
}
#else
int main(void)
{
    printf("skipped: no dnnl.h to compare with\n");
    return 77;
}
#endif
