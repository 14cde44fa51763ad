/* SPDX-License-Identifier: Apache-2.0
 * Blocks of fake_quantize on the CPU. */
#include "ops/quantize/fake_quantize.h"
#include "ops/quantize/fake_quantize_args.h"
#include "ops/quantize/quantize_rounded.h"
#include "cpu/cpu.h"

typedef struct fake {
    int code;
    bool product;
    double low, top;
} fake;

#define real         float
#define rint_of      near_f32
#define sign_of      copysignf
#define CODE_NAME(n) n##_f32
#include "ops/quantize/cpu/fake_quantize_loops.h"
#undef real
#undef rint_of
#undef sign_of
#undef CODE_NAME
#define real         double
#define rint_of      near_f64
#define sign_of      copysign
#define CODE_NAME(n) n##_f64
#include "ops/quantize/cpu/fake_quantize_loops.h"
#undef real

const mica_pointwise mica_fake_quantize_pointwise = {.kernel = "ops/quantize/fake_quantize.cu",
                                                     .entry = "fake_quantize",
                                                     .operands = mica_fake_quantize_operands,
                                                     .numbers = mica_fake_quantize_numbers,
                                                     .number_count = FAKE_NUMBERS,
                                                     .prologue = mica_fake_quantize_prologue,
                                                     .f32 = fake_block_f32,
                                                     .f64 = fake_block_f64,
                                                     .truth = mica_fake_quantize_truth};
