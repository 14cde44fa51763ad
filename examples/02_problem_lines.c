/* SPDX-License-Identifier: Apache-2.0
 * Plans from problem lines, what a refusal says, and what every engine thinks of a problem. */
#include <mica/mica.h>
#include <stdio.h>
#include <string.h>

static void show_verdicts(mica_context *ctx, const char *line)
{
    mica_problem *problem;
    mica_verdict v;
    if (mica_problem_from_text(line, &problem) != MICA_OK) return;
    for (int i = 0; mica_problem_verdict(ctx, problem, i, &v) == MICA_OK; i++)
        printf("  %-8s %s\n", v.engine, v.status == MICA_OK ? "takes it" : v.reason);
    mica_problem_destroy(problem);
}

int main(void)
{
    mica_context *ctx;
    mica_plan *plan;
    if (mica_context_create("cpu", &ctx) != MICA_OK) return 1;

    /* Softmax over the last axis of a 2 x 3 matrix, in place. */
    float x[6] = {1, 2, 3, 3, 2, 1};
    if (mica_plan_from_text(ctx, "softmax x=f32:2x3 axis=-1", NULL, &plan) != MICA_OK) return 1;
    mica_run run = {.args = {[MICA_SOFTMAX_X] = x, [MICA_SOFTMAX_Y] = x}};
    if (mica_plan_run(plan, &run) != MICA_OK) return 1;
    printf("softmax: %.4f %.4f %.4f\n", (double)x[0], (double)x[1], (double)x[2]);
    mica_plan_destroy(plan);

    /* What cannot be is said with the value and the rule. */
    const char *wrong = "gemm a=f32:4x5 b=f32:6x7";
    if (mica_plan_from_text(ctx, wrong, NULL, &plan) != MICA_INVALID) return 1;
    printf("%s\n", mica_error());
    if (!strstr(mica_error(), "5") || !strstr(mica_error(), "6")) return 1;

    const char *line = "gemm a=bf16:64x32 b=bf16:32x48 epilogue=bias,gelu";
    printf("%s\n", line);
    show_verdicts(ctx, line);
    mica_context_destroy(ctx);
    return 0;
}
