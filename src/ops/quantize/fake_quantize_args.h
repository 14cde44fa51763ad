/* SPDX-License-Identifier: Apache-2.0
 * Operands and numbers of fake_quantize; host and device share this file. */
#ifndef MICA_OPS_FAKE_QUANTIZE_ARGS_H
#define MICA_OPS_FAKE_QUANTIZE_ARGS_H

enum { FAKE_X, FAKE_SCALE, FAKE_ZERO, FAKE_DY, FAKE_OUT, FAKE_OPERANDS };
enum { FAKE_LOW, FAKE_TOP, FAKE_NUMBERS };

#endif
