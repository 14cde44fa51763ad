/* SPDX-License-Identifier: Apache-2.0
 * Pointers and numbers of an epilogue; host and device share this file. */
#ifndef MICA_KERNELS_EPILOGUE_ARGS_H
#define MICA_KERNELS_EPILOGUE_ARGS_H

typedef struct mica_epilogue_args {
    const void *bias, *scale, *shift, *residual;
    long long bias_stride, scale_stride, shift_stride; /* in elements */
    double act_a, act_b;
} mica_epilogue_args;

#endif
