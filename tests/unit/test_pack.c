/* SPDX-License-Identifier: Apache-2.0
 * Packed arguments on the CPU: refusals, sizes, results, records, forks. Numbers of the results are
 * `mica check`'s work (lines with "; packed="); here they are exact integers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mica/mica.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static mica_context *ctx;

enum { M = 5, K = 70, N = 41, A = M * K, B = K * N, C = M * N };
static const char product[] = "gemm a=f32:5x70 b=f32:70x41";
static const uint32_t pack_b = 1u << MICA_GEMM_B;

static int open_context(void **state)
{
    (void)state;
    return mica_context_create("cpu", &ctx) != MICA_OK;
}

static int close_context(void **state)
{
    (void)state;
    mica_context_destroy(ctx);
    return 0;
}

static mica_plan *plan_of(const char *line, mica_options o)
{
    mica_plan *plan;
    if (mica_plan_from_text(ctx, line, &o, &plan) != MICA_OK) fail_msg("%s", mica_error());
    return plan;
}

static void *memory(size_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
    assert_non_null(p);
    return p;
}

static void says(mica_status status, mica_status want, const char *fragment)
{
    assert_int_equal(status, want);
    if (!strstr(mica_error(), fragment)) fail_msg("\"%s\" has no \"%s\"", mica_error(), fragment);
}

static void fill(float *a, float *b)
{
    for (int i = 0; i < A; i++) a[i] = (float)(i % 7 - 3);
    for (int i = 0; i < B; i++) b[i] = (float)(i % 5 - 2);
}

static int wrong(const float *a, const float *b, const float *c, float alpha)
{
    int count = 0;
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += a[m * K + k] * b[k * N + n];
            count += c[m * N + n] != alpha * sum;
        }
    return count;
}

static void options_are_checked(void **state)
{
    (void)state;
    const struct {
        const char *line;
        uint64_t packed;
        const char *says;
    } rows[] = {{product, 1u << MICA_GEMM_C, "packed has c of gemm, which is no input"},
                {product, 1u << MICA_GEMM_BIAS, "packed has bias of gemm, which is not there"},
                {product, 1u << 15, "packed has bit 15, gemm has 12 arguments"},
                {product, 1u << 31, "packed has bit 31"},
                {product, UINT64_C(1) << 63, "packed has bit 63"},
                {product, pack_b | 1u << MICA_GEMM_C, "which is no input"},
                {"conv pass=dgrad x=f32:1x2x3x3 w=f32:2x2x3x3 pad=1x1", 1u << MICA_CONV_X,
                 "packed has x of conv, which is no input"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mica_plan *plan = NULL;
        mica_options o = {.packed = rows[i].packed};
        says(mica_plan_from_text(ctx, rows[i].line, &o, &plan), MICA_INVALID, rows[i].says);
        assert_null(plan);
    }
}

static void pack_checks_its_arguments(void **state)
{
    (void)state;
    mica_plan *plan = plan_of(product, (mica_options){.packed = pack_b});
    size_t bytes = mica_plan_packed_bytes(plan, MICA_GEMM_B);
    assert_true(bytes >= B * sizeof(float));
    char *from = memory(bytes + B * sizeof(float)), *to = memory(bytes);
    says(mica_plan_pack(NULL, MICA_GEMM_B, from, to, NULL), MICA_INVALID, "plan is NULL");
    says(mica_plan_pack(plan, -1, from, to, NULL), MICA_INVALID, "argument -1, gemm has 12");
    says(mica_plan_pack(plan, 99, from, to, NULL), MICA_INVALID, "argument 99");
    says(mica_plan_pack(plan, MICA_GEMM_A, from, to, NULL), MICA_INVALID, "not have a packed");
    says(mica_plan_pack(plan, MICA_GEMM_B, NULL, to, NULL), MICA_INVALID, "is NULL");
    says(mica_plan_pack(plan, MICA_GEMM_B, from, NULL, NULL), MICA_INVALID, "is NULL");
    says(mica_plan_pack(plan, MICA_GEMM_B, from + 2, to, NULL), MICA_INVALID, "4-byte alignment");
    says(mica_plan_pack(plan, MICA_GEMM_B, from, to + 64, NULL), MICA_INVALID, "256-byte");
    says(mica_plan_pack(plan, MICA_GEMM_B, to, to, NULL), MICA_INVALID, "overlap");
    assert_int_equal(mica_plan_packed_bytes(NULL, 0), 0);
    assert_int_equal(mica_plan_packed_bytes(plan, MICA_GEMM_A), 0);
    assert_int_equal(mica_plan_packed_bytes(plan, -1), 0);
    assert_int_equal(mica_plan_packed_bytes(plan, 40), 0);
    mica_plan_destroy(plan);
    plan = plan_of(product, (mica_options){0});
    assert_int_equal(mica_plan_packed_bytes(plan, MICA_GEMM_B), 0);
    says(mica_plan_pack(plan, MICA_GEMM_B, from, to, NULL), MICA_INVALID, "not have b packed");
    mica_plan_destroy(plan);
    free(from);
    free(to);
}

/* Every engine takes the packed form that its own plan made; alpha sends runs by other ways. */
static void every_engine_takes_packed_memory(void **state)
{
    (void)state;
    static float a[A], b[B], c[C];
    fill(a, b);
    for (int i = 0; mica_op_engine("gemm", i); i++) {
        mica_plan *plan;
        mica_options o = {.packed = pack_b, .engine = mica_op_engine("gemm", i)};
        if (mica_plan_from_text(ctx, product, &o, &plan) != MICA_OK) continue; /* of GPUs */
        void *packed = memory(mica_plan_packed_bytes(plan, MICA_GEMM_B));
        void *workspace = memory(mica_plan_workspace(plan));
        assert_int_equal(mica_plan_pack(plan, MICA_GEMM_B, b, packed, NULL), MICA_OK);
        for (int alpha = 1; alpha < 3; alpha++) {
            memset(c, 0xff, sizeof c);
            mica_run run = {
                .args = {a, packed, c}, .scalars = (double[]){alpha, 0}, .workspace = workspace};
            assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
            assert_int_equal(wrong(a, b, c, (float)alpha), 0);
        }
        mica_run bad = {.args = {a, (char *)packed + 4, c}, .workspace = workspace};
        says(mica_plan_run(plan, &bad), MICA_INVALID, "256-byte alignment");
        bad.args[MICA_GEMM_B] = NULL;
        says(mica_plan_run(plan, &bad), MICA_INVALID, "pointer of b is NULL");
        free(packed);
        free(workspace);
        mica_plan_destroy(plan);
    }
}

/* Constants may be mapped read-only; padding of the layout must not be written by runs. */
static void runs_only_read_packed_memory(void **state)
{
    (void)state;
    static float a[A], b[B], c[C];
    fill(a, b);
    mica_plan *plan = plan_of(product, (mica_options){.packed = pack_b});
    size_t bytes = mica_plan_packed_bytes(plan, MICA_GEMM_B);
    void *packed = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *workspace = memory(mica_plan_workspace(plan));
    assert_true(packed != MAP_FAILED);
    assert_int_equal(mica_plan_pack(plan, MICA_GEMM_B, b, packed, NULL), MICA_OK);
    assert_int_equal(mprotect(packed, bytes, PROT_READ), 0);
    mica_run run = {.args = {a, packed, c}, .workspace = workspace};
    assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
    assert_int_equal(wrong(a, b, c, 1), 0);
    munmap(packed, bytes);
    free(workspace);
    mica_plan_destroy(plan);
}

/* An engine without a layout of its own keeps a copy; its element 0 need not come first. */
static void copies_keep_negative_strides(void **state)
{
    (void)state;
    float x[4] = {-1, 2, -3, 4}, y[4];
    mica_plan *plan =
        plan_of("activation act=relu x=f32:4:-1 y=f32:4", (mica_options){.packed = 1});
    assert_int_equal(mica_plan_packed_bytes(plan, 0), sizeof x);
    char *packed = memory(sizeof x);
    assert_int_equal(mica_plan_pack(plan, 0, x + 3, packed, NULL), MICA_OK);
    assert_int_equal(mica_plan_run(plan, &(mica_run){.args = {packed, y}}), MICA_OK);
    const float want[4] = {4, 0, 2, 0};
    assert_memory_equal(y, want, sizeof y);
    /* A result may not lie on its packed input, though it may on the plain one. */
    says(mica_plan_run(plan, &(mica_run){.args = {packed, packed}}), MICA_INVALID, "overlaps");
    mica_plan_destroy(plan);
    free(packed);
}

static void nothing_packs_to_nothing(void **state)
{
    (void)state;
    mica_plan *plan = plan_of("gemm a=f32:4x5 b=f32:5x0", (mica_options){.packed = pack_b});
    assert_int_equal(mica_plan_packed_bytes(plan, MICA_GEMM_B), 0);
    assert_int_equal(mica_plan_pack(plan, MICA_GEMM_B, NULL, NULL, NULL), MICA_OK);
    float a[20] = {0};
    assert_int_equal(mica_plan_run(plan, &(mica_run){.args = {a}}), MICA_OK);
    mica_plan_destroy(plan);
}

/* The mask is part of the cache's key and of a record's problem. */
static void plans_are_told_apart(void **state)
{
    (void)state;
    mica_plan *plain = plan_of(product, (mica_options){0});
    mica_plan *packed = plan_of(product, (mica_options){.packed = pack_b});
    mica_plan *again = plan_of(product, (mica_options){.packed = pack_b});
    assert_ptr_not_equal(plain, packed);
    assert_ptr_equal(packed, again);
    mica_plan_destroy(plain);
    mica_plan_destroy(packed);
    mica_plan_destroy(again);

    mica_device_info info;
    char path[] = "/tmp/mica-pack-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    mica_context_info(ctx, &info);
    fprintf(f, "%s ; packed=b | %s | ref |  | 1 | mica\n", product, info.model);
    fclose(f);
    mica_context *own;
    assert_int_equal(mica_context_create("cpu", &own), MICA_OK);
    assert_int_equal(mica_context_load_records(own, path), MICA_OK);
    unlink(path);
    mica_options o = {.packed = pack_b}, none = {0};
    assert_int_equal(mica_plan_from_text(own, product, &o, &packed), MICA_OK);
    assert_int_equal(mica_plan_from_text(own, product, &none, &plain), MICA_OK);
    assert_string_equal(mica_plan_engine(packed), "ref");
    assert_string_not_equal(mica_plan_engine(plain), "ref");
    mica_plan_destroy(plain);
    mica_plan_destroy(packed);
    mica_context_destroy(own);
}

static void measuring_packs(void **state)
{
    (void)state;
    mica_options o = {
        .packed = pack_b | 1u << MICA_GEMM_A, .mode = MICA_MODE_MEASURE, .measure_ms = 20};
    mica_plan *plan = plan_of("gemm a=f32:33x70 b=f32:70x41", o);
    assert_true(mica_plan_packed_bytes(plan, MICA_GEMM_A) > 0);
    mica_plan_destroy(plan);
}

/* A forked child has none of the parent's threads: it packs and runs alone; what oneDNN would pack
 * it is told to have packed before. */
static void forked_children_pack_and_run(void **state)
{
    (void)state;
    static float a[A], b[B], c[C];
    fill(a, b);
    mica_plan *plan = plan_of(product, (mica_options){.packed = pack_b});
    char *packed = memory(mica_plan_packed_bytes(plan, MICA_GEMM_B));
    mica_run run = {.args = {a, packed, c}, .workspace = memory(mica_plan_workspace(plan))};
    assert_int_equal(mica_plan_pack(plan, MICA_GEMM_B, b, packed, NULL), MICA_OK);
    assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        memset(c, 0, sizeof c);
        float old = b[0];
        b[0] = 9;
        mica_status packs = mica_plan_pack(plan, MICA_GEMM_B, b, packed, NULL);
        if (packs == MICA_FORKED_PROCESS && !strcmp(mica_plan_engine(plan), "onednn"))
            b[0] = old, packs = MICA_OK;
        bool ok = packs == MICA_OK && mica_plan_run(plan, &run) == MICA_OK;
        _exit(ok && wrong(a, b, c, 1) == 0 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    mica_plan_destroy(plan);
    free(packed);
    free(run.workspace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(pack_checks_its_arguments),
        cmocka_unit_test(every_engine_takes_packed_memory),
        cmocka_unit_test(runs_only_read_packed_memory),
        cmocka_unit_test(copies_keep_negative_strides),
        cmocka_unit_test(nothing_packs_to_nothing),
        cmocka_unit_test(plans_are_told_apart),
        cmocka_unit_test(measuring_packs),
        cmocka_unit_test(forked_children_pack_and_run),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
