/* SPDX-License-Identifier: Apache-2.0
 * What the files of integer_gemm share. */
#ifndef MICA_OPS_INTEGER_GEMM_INTEGER_GEMM_H
#define MICA_OPS_INTEGER_GEMM_INTEGER_GEMM_H

#include "mica/integer_gemm.h"
#include "ops/op.h"

void mica_integer_gemm_reference(const void *desc, const mica_view *views, const double *scalars);

extern const mica_op mica_op_integer_gemm;
extern const mica_engine mica_integer_gemm_compose, mica_integer_gemm_compose_cuda;

#endif
