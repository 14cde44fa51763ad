/* SPDX-License-Identifier: Apache-2.0
 * What the files of attention_merge share. */
#ifndef MICA_OPS_ATTENTION_MERGE_ATTENTION_MERGE_H
#define MICA_OPS_ATTENTION_MERGE_ATTENTION_MERGE_H

#include "mica/attention_merge.h"
#include "ops/op.h"
#include "kernels/layout.h"

extern const mica_op mica_op_attention_merge;
extern const mica_engine mica_attention_merge_cpu, mica_attention_merge_cuda;

/* Tensors in a layout of the rows; without lse the last is as LSES. */
enum { MERGE_OUTS, MERGE_LSES, MERGE_OUT, MERGE_LSE, MERGE_TENSORS };
void attention_merge_rows(const mica_attention_merge_desc *d, mica_layout *layout);

#endif
