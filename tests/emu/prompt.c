/* SPDX-License-Identifier: Apache-2.0
 * A prompt plan gives the product before its engine is compiled and afterwards: integers whose sums
 * are exact, so that both engines' bits are those of the host.  prompt [DEVICE], default cuda:0. */
#include <mica/mica.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char line[] = "gemm a=f32:64x128 b=f32:128x96 compute=tf32";
enum { M = 64, K = 128, N = 96 };
static float a[M * K], b[K * N], want[M * N], c[M * N];

static void try(mica_status status)
{
    if (status == MICA_OK) return;
    fprintf(stderr, "prompt: %s\n", mica_error());
    exit(1);
}

static void fill(void)
{
    for (int i = 0; i < M * K; i++) a[i] = (float)(i * 7 % 13 - 6);
    for (int i = 0; i < K * N; i++) b[i] = (float)(i * 11 % 17 - 8);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < K; k++) want[i * N + j] += a[i * K + k] * b[k * N + j];
}

static void run(mica_context *context, const mica_plan *plan, const mica_run *r)
{
    try(mica_memset(context, r->args[MICA_GEMM_C], 0xff, sizeof c, NULL));
    try(mica_plan_run(plan, r));
    try(mica_download(context, c, r->args[MICA_GEMM_C], sizeof c, NULL));
    mica_kernel_info kernel;
    try(mica_plan_kernel(plan, 0, &kernel));
    if (memcmp(c, want, sizeof c) != 0) {
        fprintf(stderr, "prompt: %s (%s) gives another product\n", mica_plan_engine(plan),
                kernel.entry);
        exit(1);
    }
    printf("%s: %s\n", mica_plan_engine(plan), kernel.entry);
}

int main(int argc, char **argv)
{
    mica_context *context;
    mica_plan *there, *plan;
    const mica_options other = {.engine = "sm80"};
    const mica_options prompt = {.prompt = true, .nondeterministic = true};
    fill();
    try(mica_disk_cache_limit(0)); /* what earlier runs left is not at hand */
    try(mica_context_create(argc > 1 ? argv[1] : "cuda:0", &context));
    try(mica_plan_from_text(context, line, &other, &there));
    try(mica_plan_from_text(context, line, &prompt, &plan));
    if (strcmp(mica_plan_engine(plan), "sm80") != 0 || !*mica_plan_pending(plan)) {
        fprintf(stderr, "prompt: %s does not stand in\n", mica_plan_engine(plan));
        return 1;
    }
    mica_run r = {0};
    try(mica_malloc(context, sizeof a, &r.args[MICA_GEMM_A]));
    try(mica_malloc(context, sizeof b, &r.args[MICA_GEMM_B]));
    try(mica_malloc(context, sizeof c, &r.args[MICA_GEMM_C]));
    try(mica_malloc(context, (int64_t)mica_plan_workspace(plan), &r.workspace));
    try(mica_upload(context, r.args[MICA_GEMM_A], a, sizeof a, NULL));
    try(mica_upload(context, r.args[MICA_GEMM_B], b, sizeof b, NULL));
    run(context, plan, &r);
    try(mica_plan_await(plan));
    if (!strcmp(mica_plan_engine(plan), "sm80") || *mica_plan_pending(plan)) {
        fprintf(stderr, "prompt: %s stays: %s\n", mica_plan_engine(plan), mica_plan_pending(plan));
        return 1;
    }
    run(context, plan, &r);
    for (int i = 0; i < MICA_MAX_ARGS; i++) mica_free(context, r.args[i]);
    mica_free(context, r.workspace);
    mica_plan_destroy(plan);
    mica_plan_destroy(there);
    mica_context_destroy(context);
    return 0;
}
