/* SPDX-License-Identifier: Apache-2.0
 * A 3x3 convolution with bias and ReLU, on the GPU if there is one. */
#include <mica/mica.h>
#include <stdio.h>

int main(void)
{
    mica_context *ctx;
    mica_plan *plan;
    void *x, *w, *bias, *y, *space;
    mica_conv_desc d = {.x = mica_tensor_packed(MICA_F32, 4, (int64_t[]){1, 3, 32, 32}),
                        .w = mica_tensor_packed(MICA_F32, 4, (int64_t[]){8, 3, 3, 3}),
                        .pad = {1, 1},
                        .epilogue = {MICA_STEP_BIAS, MICA_STEP_ACT + MICA_ACT_RELU}};
    if (mica_context_create("auto", &ctx) || mica_conv_plan(ctx, &d, NULL, &plan))
        return fprintf(stderr, "%s\n", mica_error()), 1;
    mica_malloc(ctx, 3 * 32 * 32 * 4, &x), mica_malloc(ctx, 8 * 3 * 3 * 3 * 4, &w);
    mica_malloc(ctx, 8 * 4, &bias), mica_malloc(ctx, 8 * 32 * 32 * 4, &y);
    mica_malloc(ctx, (int64_t)mica_plan_workspace(plan), &space);
    mica_memset(ctx, x, 0x3f, 3 * 32 * 32 * 4, NULL), mica_memset(ctx, w, 0x3d, 8 * 27 * 4, NULL);
    mica_memset(ctx, bias, 0, 8 * 4, NULL);
    float result = 0;
    if (mica_plan_run(plan, &(mica_run){.args = {x, w, y, bias}, .workspace = space}) ||
        mica_download(ctx, &result, y, sizeof result, NULL))
        return fprintf(stderr, "%s\n", mica_error()), 1;
    printf("engine %s, y[0] = %g\n", mica_plan_engine(plan), result);
    mica_free(ctx, x), mica_free(ctx, w), mica_free(ctx, bias), mica_free(ctx, y);
    mica_free(ctx, space), mica_plan_destroy(plan), mica_context_destroy(ctx);
    return result > 0 ? 0 : 1;
}
