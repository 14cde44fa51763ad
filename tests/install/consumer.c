/* SPDX-License-Identifier: Apache-2.0
 * A program of somebody else's, C and C++ alike: multiplies two small matrices on the CPU and ends
 * with 0 if the product is right and the library loaded is the one that the header belongs to. */
#include <mica/mica.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    char expected[32];
    snprintf(expected, sizeof expected, "%d.%d.%d", MICA_VERSION_MAJOR, MICA_VERSION_MINOR,
             MICA_VERSION_PATCH);
    if (strcmp(mica_version(), expected) != 0) {
        fprintf(stderr, "header %s, library %s\n", expected, mica_version());
        return 1;
    }

    const int64_t a_dims[] = {2, 3}, b_dims[] = {3, 2};
    float a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, 0, -1, 2, 3, 1}, c[4] = {0, 0, 0, 0};
    const float product[] = {8, 7, 17, 16};
    mica_gemm_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.a = mica_tensor_packed(MICA_F32, 2, a_dims);
    desc.b = mica_tensor_packed(MICA_F32, 2, b_dims);
    mica_options options;
    memset(&options, 0, sizeof options);
    options.workspace_limit = MICA_NO_WORKSPACE;

    mica_context *context = NULL;
    mica_plan *plan = NULL;
    mica_run run;
    memset(&run, 0, sizeof run);
    run.args[MICA_GEMM_A] = a;
    run.args[MICA_GEMM_B] = b;
    run.args[MICA_GEMM_C] = c;
    if (mica_context_create("cpu", &context) != MICA_OK ||
        mica_gemm_plan(context, &desc, &options, &plan) != MICA_OK ||
        mica_plan_run(plan, &run) != MICA_OK) {
        fprintf(stderr, "%s\n", mica_error());
        return 1;
    }
    mica_plan_destroy(plan);
    mica_context_destroy(context);
    if (memcmp(c, product, sizeof c) != 0) {
        fprintf(stderr, "wrong product: %g %g %g %g\n", c[0], c[1], c[2], c[3]);
        return 1;
    }
    return 0;
}
