/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as an expression of inputs of several types. Whatever is read has a program within its
 * bounds, which both arithmetics run, a text for kernels that fits, and gradients or a reason. */
#include "ops/pointwise/expression.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N = 5, LONGEST = 480, TEXT = 1 << 16 };

static void require(bool truth, const char *what, const char *text)
{
    if (truth) return;
    fprintf(stderr, "fuzz_expression: %s: %s\n", what, text);
    abort();
}

static void run(mica_expr_program *p, const char *text)
{
    static const double numbers[MICA_EXPR_SCALARS] = {1, 2, -1, 0.5};
    static const float numbers_f32[MICA_EXPR_SCALARS] = {1, 2, -1, 0.5f};
    _Alignas(64) double memory[MICA_POINTWISE_OPERANDS][N] = {{0}};
    double values[MICA_POINTWISE_OPERANDS] = {1, 2, 3, 4}, mag[MICA_POINTWISE_OPERANDS] = {0};
    void *v[MICA_POINTWISE_OPERANDS];
    const int inputs[MICA_EXPR_INPUTS] = {0, 1, 2,  3,  10, -1, -1, -1, 4,  5,
                                          6, 7, 11, 11, 11, 11, -1, -1, -1, -1};
    for (int i = 0; i < MICA_EXPR_INPUTS; i++) p->operand[i] = inputs[i];
    for (int i = 0; i < MICA_EXPR_Y; i++) p->result_operand[i] = 8 + i;
    for (int i = 0; i < MICA_POINTWISE_OPERANDS; i++) v[i] = memory[i];
    mica_expr_compile(p);
    require(p->buffers <= MICA_EXPR_NODES, "buffers fit", text);
    p->f64 = true;
    mica_expr_truth(p, numbers, values, mag);
    mica_expr_block_f64(p, 0, v, numbers, N);
    p->f64 = false;
    memset(memory, 0, sizeof memory);
    if (!mica_expr_is_wide(&p->expr)) mica_expr_block_f32(p, 0, v, numbers_f32, N);
    mica_text kernel = {NULL, 0, 0};
    mica_expr_prologue(p, &kernel);
    require(kernel.length < TEXT - 2048, "the kernel's text fits", text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static mica_expr_program p;
    char text[LONGEST];
    mica_why why = {""};
    if (size >= sizeof text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    memset(&p, 0, sizeof p);
    const mica_dtype types[] = {MICA_F32, MICA_S32, MICA_U8, MICA_BOOL, MICA_S64};
    for (int i = 0; i < 5; i++) p.expr.inputs[i] = types[i];
    for (int i = MICA_EXPR_DY; i < MICA_EXPR_INDEX; i++) p.expr.inputs[i] = MICA_F32;
    for (int i = MICA_EXPR_INDEX; i < MICA_EXPR_INPUTS; i++) p.expr.inputs[i] = MICA_S64;
    p.expr.rank = 4;
    p.expr.extent = N;
    if (mica_expr_parse(&p.expr, text, &why) != MICA_OK) {
        require(*why.text != 0, "a refusal has a reason", text);
        return 0;
    }
    run(&p, text);
    /* Results in tensors of s64 and of reals. */
    const mica_dtype stored[] = {MICA_S64, MICA_F64, MICA_BF16, MICA_S64};
    mica_expr forward = p.expr;
    for (int i = 0; i < p.expr.result_count; i++)
        if (p.expr.nodes[p.expr.results[i]].type != MICA_F64 || stored[i] != MICA_S64)
            require(mica_expr_store(&p.expr, i, stored[i], &why) == MICA_OK || *why.text != 0,
                    "a refusal has a reason", text);
    run(&p, text);
    p.expr = forward;
    if (mica_expr_derive(&p.expr, 1, &why) == MICA_OK)
        run(&p, text);
    else
        require(*why.text != 0, "a refusal has a reason", text);
    return 0;
}
