/* SPDX-License-Identifier: Apache-2.0
 * Programs on blocks: step by step, each a loop over as many elements as a buffer in the
 * first-level cache holds. */
#include "ops/pointwise/expression.h"
#include "cpu/scratch.h"

#include <string.h>

/* What numbers and scalars are, in each of their buffers; an s64 by its bits. */
static double fixed_value(const mica_expr_program *p, int i, const float *f32, const double *f64)
{
    const mica_expr_node *n = &p->expr.nodes[p->fixed[i]];
    double bits;
    memcpy(&bits, &n->whole, sizeof bits);
    if (n->kind == MICA_EXPR_NUMBER) return n->type == MICA_S64 ? bits : n->value;
    return f32 ? (double)f32[n->index] : f64[n->index];
}

void mica_expr_block_f32(const void *program, int variant, void *const *v, const void *numbers,
                         int64_t n)
{
    enum { CHUNK = MICA_EXPR_BYTES / sizeof(float) };
    const mica_expr_program *p = program;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    float(*buffers)[CHUNK] = mica_scratch_take(MICA_EXPR_NODES * sizeof *buffers);
    const int64_t widest = n < CHUNK ? n : CHUNK;
    (void)variant;
    for (int i = 0; i < p->fixed_count; i++) {
        const float value = (float)fixed_value(p, i, numbers, NULL);
        for (int64_t k = 0; k < widest; k++) buffers[i][k] = value;
    }
    for (int64_t first = 0; first < n; first += CHUNK) {
        const int64_t count = n - first < CHUNK ? n - first : CHUNK;
        for (const mica_expr_step *s = p->steps; s < p->steps + p->step_count; s++) {
            const int16_t slots[] = {s->in[0], s->in[1], s->in[2], s->out};
            float *at[4];
            for (int k = 0; k < 4; k++)
                at[k] = slots[k] < MICA_POINTWISE_OPERANDS
                            ? (float *)v[slots[k]] + first
                            : buffers[slots[k] - MICA_POINTWISE_OPERANDS];
            if (s->function < 0)
                memmove(at[3], at[0], (size_t)count * sizeof(float));
            else
                mica_function_f32(s->function, at[3], (const float *const *)at, count);
        }
    }
}

void mica_expr_block_f64(const void *program, int variant, void *const *v, const void *numbers,
                         int64_t n)
{
    enum { CHUNK = MICA_EXPR_BYTES / sizeof(double) };
    const mica_expr_program *p = program;
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double(*buffers)[CHUNK] = mica_scratch_take(MICA_EXPR_NODES * sizeof *buffers);
    const int64_t widest = n < CHUNK ? n : CHUNK;
    (void)variant;
    for (int i = 0; i < p->fixed_count; i++) {
        const double value = fixed_value(p, i, NULL, numbers);
        for (int64_t k = 0; k < widest; k++) buffers[i][k] = value;
    }
    for (int64_t first = 0; first < n; first += CHUNK) {
        const int64_t count = n - first < CHUNK ? n - first : CHUNK;
        for (const mica_expr_step *s = p->steps; s < p->steps + p->step_count; s++) {
            const int16_t slots[] = {s->in[0], s->in[1], s->in[2], s->out};
            double *at[4];
            for (int k = 0; k < 4; k++)
                at[k] = slots[k] < MICA_POINTWISE_OPERANDS
                            ? (double *)v[slots[k]] + first
                            : buffers[slots[k] - MICA_POINTWISE_OPERANDS];
            if (s->function < 0)
                memmove(at[3], at[0], (size_t)count * sizeof(double));
            else if (s->of_s64)
                mica_function_s64(s->function, at[3], (const void *const[]){at[0], at[1], at[2]},
                                  count);
            else
                mica_function_f64(s->function, at[3], (const double *const *)at, count);
        }
    }
}
