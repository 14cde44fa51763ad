/* SPDX-License-Identifier: Apache-2.0
 * The compiler, where NVRTC is installed: kernels for devices that are not there. */
#define _GNU_SOURCE
#include "cuda/cuda.h"
#include "cuda/compile/nvrtc.h"
#include "base/why.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>

static const char *const targets[] = {"sm_80", "sm_89", "sm_90a"};

static const char scale_source[] = "#pragma once\n"
                                   "#include \"args.h\"\n"
                                   "#include \"args.h\"\n"
                                   "extern \"C\" __global__ void scale(scale_args a)\n"
                                   "{\n"
                                   "    __shared__ float rows[64];\n"
                                   "    rows[threadIdx.x % 64] = to_float(((const x_t *)a.x)[0]);\n"
                                   "    __syncthreads();\n"
                                   "    for (int i = 0; i < COUNT; i++)\n"
                                   "        a.y[i] = (float)SCALE * rows[(threadIdx.x + i) % 64];\n"
                                   "}\n";
static const char args_source[] = "typedef struct scale_args {\n"
                                  "    const void *x;\n"
                                  "    float *y;\n"
                                  "} scale_args;\n";

static void make_prologue(char *buffer, size_t size)
{
    mica_text text = {buffer, size, 0};
    mica_prologue_int(&text, "COUNT", 3);
    mica_prologue_int(&text, "LARGE", INT64_MIN);
    mica_prologue_int(&text, "LONG", (int64_t)1 << 40);
    mica_prologue_double(&text, "SCALE", 1.0 / 3);
    mica_prologue_double(&text, "LOWEST", -INFINITY);
    mica_prologue_double(&text, "NOTHING", NAN);
    mica_prologue_type(&text, "x_t", MICA_BF16);
    assert_true(text.length < size);
}

static void compiles_for_every_target(void **state)
{
    (void)state;
    char prologue[1024];
    make_prologue(prologue, sizeof prologue);
    mica_kernel_spec spec = {"test/scale.cu", "scale", prologue, 0};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        mica_cuda *cuda;
        mica_kernel *kernel;
        mica_kernel_info info;
        assert_int_equal(mica_cuda_open(targets[i], &cuda), MICA_OK);
        if (mica_kernel_get(cuda, &spec, &kernel) != MICA_OK) fail_msg("%s", mica_error());
        mica_kernel_describe(kernel, &info);
        assert_string_equal(info.file, "test/scale.cu");
        assert_string_equal(info.entry, "scale");
        assert_string_equal(info.prologue, prologue);
        assert_string_equal(info.origin, "compiled");
        assert_in_range(info.registers, 4, 64);
        assert_int_equal(info.spill_bytes, 0);
        assert_int_equal(info.local_bytes, 0);
        assert_int_equal(info.shared_bytes, 256);
        assert_true(info.cubin_bytes > 1000 && info.compile_ms > 0);
        assert_int_equal(mica_kernel_launch(kernel, &(mica_grid){0}, NULL, NULL), MICA_NO_DEVICE);
        mica_kernel_put(kernel);
        mica_cuda_close(cuda);
    }
}

static void reads_spills_of_the_log(void **state)
{
    (void)state;
    mica_cuda *cuda;
    mica_kernel *kernel;
    mica_kernel_info info;
    assert_int_equal(mica_cuda_open("sm_90a", &cuda), MICA_OK);
    mica_kernel_spec spec = {"test/spill.cu", "spill", "", 0};
    if (mica_kernel_get(cuda, &spec, &kernel) != MICA_OK) fail_msg("%s", mica_error());
    mica_kernel_describe(kernel, &info);
    assert_true(info.spill_bytes > 0);
    assert_true(info.local_bytes > 0);
    assert_true(info.registers <= 32);
    mica_kernel_put(kernel);
    mica_cuda_close(cuda);
}

static void comes_from_disk_the_next_time(void **state)
{
    (void)state;
    char prologue[1024];
    make_prologue(prologue, sizeof prologue);
    mica_kernel_spec spec = {"test/scale.cu", "scale", prologue, 0};
    mica_kernel_info info[2];
    static const char *const origins[] = {"disk", "memory"};
    mica_cuda *cuda[2];
    mica_kernel *kernel[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mica_cuda_open("sm_90a", &cuda[i]), MICA_OK);
        assert_int_equal(mica_kernel_get(cuda[i], &spec, &kernel[i]), MICA_OK);
        mica_kernel_describe(kernel[i], &info[i]);
        assert_string_equal(info[i].origin, origins[i]);
        assert_in_range(info[i].registers, 4, 64);
        assert_int_equal(info[i].shared_bytes, 256);
    }
    mica_stats stats;
    mica_cuda_kernel_stats(cuda[0], &stats);
    assert_int_equal(stats.kernels, 1);
    assert_int_equal(stats.kernel_hits, 1);
    assert_int_equal(stats.kernel_compiles, 0);
    for (int i = 0; i < 2; i++) {
        mica_kernel_put(kernel[i]);
        mica_cuda_close(cuda[i]);
    }
}

static void an_error_names_file_and_line(void **state)
{
    (void)state;
    mica_cuda *cuda;
    mica_kernel *kernel;
    mica_kernel_spec spec = {"test/broken.cu", "broken", "", 0};
    assert_int_equal(mica_cuda_open("sm_90a", &cuda), MICA_OK);
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel), MICA_COMPILE_FAILED);
    assert_null(kernel);
    assert_ptr_equal(strstr(mica_error(), "test/broken.cu(3): error: "), mica_error());
    assert_non_null(strstr(mica_error(), "wrong_name"));

    spec = (mica_kernel_spec){"test/broken.cu", "broken", "int x = ;\n", 0};
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel), MICA_COMPILE_FAILED);
    assert_ptr_equal(strstr(mica_error(), "prologue(1): error: "), mica_error());

    char prologue[1024];
    make_prologue(prologue, sizeof prologue);
    spec = (mica_kernel_spec){"test/scale.cu", "another", prologue, 0};
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel), MICA_COMPILE_FAILED);
    assert_non_null(strstr(mica_error(), "no kernel extern \"C\" another"));

    spec = (mica_kernel_spec){"test/absent.cu", "absent", "", 0};
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel), MICA_INTERNAL);
    assert_non_null(strstr(mica_error(), "test/absent.cu"));
    mica_cuda_close(cuda);
}

static void too_much_shared_memory_is_refused_offline(void **state)
{
    (void)state;
    char prologue[1024];
    make_prologue(prologue, sizeof prologue);
    mica_kernel_spec spec = {"test/scale.cu", "scale", prologue, 232448 - 256};
    mica_cuda *cuda;
    mica_kernel *kernel;
    assert_int_equal(mica_cuda_open("sm_90a", &cuda), MICA_OK);
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel), MICA_OK);
    mica_kernel_put(kernel);
    spec.dynamic_shared++;
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel), MICA_UNSUPPORTED);
    assert_non_null(strstr(mica_error(), "232448"));
    mica_cuda_close(cuda);
}

static void several_at_once_are_all_or_none(void **state)
{
    (void)state;
    enum { N = 6 };
    char prologues[N][64];
    mica_kernel_spec specs[N];
    mica_kernel *kernels[N];
    mica_kernel_info info;
    for (int i = 0; i < N; i++) {
        /* the last two are equal */
        snprintf(prologues[i], sizeof prologues[i], "constexpr int N = %d;\n", i < 5 ? i : 4);
        specs[i] = (mica_kernel_spec){"test/many.cu", "many", prologues[i], 0};
    }
    mica_cuda *cuda;
    mica_stats stats;
    assert_int_equal(mica_cuda_open("sm_90a", &cuda), MICA_OK);
    if (mica_kernel_get_all(cuda, specs, N, kernels) != MICA_OK) fail_msg("%s", mica_error());
    assert_ptr_equal(kernels[4], kernels[5]);
    for (int i = 0; i < N; i++) {
        mica_kernel_describe(kernels[i], &info);
        assert_string_equal(info.prologue, specs[i].prologue);
        mica_kernel_put(kernels[i]);
    }
    mica_cuda_kernel_stats(cuda, &stats);
    assert_int_equal(stats.kernels, 5);
    assert_int_equal(stats.kernel_compiles, 5);

    specs[2].file = "test/broken.cu";
    assert_int_equal(mica_kernel_get_all(cuda, specs, N, kernels), MICA_COMPILE_FAILED);
    for (int i = 0; i < N; i++) assert_null(kernels[i]);
    mica_cuda_close(cuda);
}

static mica_log_level logged_level;
static char logged[8192];
static void remember(void *user, mica_log_level level, const char *line)
{
    (void)user;
    if (level == logged_level && strlen(logged) + strlen(line) + 2 < sizeof logged)
        strcat(strcat(logged, line), "\n");
}

static void warnings_and_compiles_are_logged(void **state)
{
    (void)state;
    mica_cuda *cuda;
    mica_kernel *kernel;
    mica_kernel_spec spec = {"test/warns.cu", "warns", "constexpr int UNUSED = 1;\n", 0};
    assert_int_equal(mica_cuda_open("sm_90a", &cuda), MICA_OK);
    logged_level = MICA_LOG_INFO;
    mica_log_set(remember, NULL, MICA_LOG_INFO);
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel), MICA_OK);
    assert_non_null(strstr(logged, "test/warns.cu warns sm_90a compiled in "));
    mica_kernel_put(kernel);
    mica_cuda_close(cuda);

    /* the warning is kept with the entry, and said again */
    logged[0] = 0;
    logged_level = MICA_LOG_WARN;
    assert_int_equal(mica_cuda_open("sm_90a", &cuda), MICA_OK);
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel), MICA_OK);
    assert_non_null(strstr(logged, "\"left_over\""));
    assert_null(strstr(logged, "UNUSED"));
    mica_log_set(NULL, NULL, MICA_LOG_ERROR);
    mica_kernel_put(kernel);
    mica_cuda_close(cuda);
}

static void make_sources(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/src/test", help_directory);
    mkdir(path, 0700);
    help_kernel("test/scale.cu", scale_source);
    help_kernel("test/args.h", args_source);
    help_kernel("test/broken.cu", "/* one\n two */\nint x = wrong_name;\n");
    help_kernel("test/many.cu", "extern \"C\" __global__ void many(int *p) { *p = N; }\n");
    help_kernel("test/warns.cu",
                "extern \"C\" __global__ void warns(int *p) { int left_over; *p = 1; }\n");
    help_kernel("test/spill.cu",
                "extern \"C\" __global__ void __launch_bounds__(1024, 2) spill(float *p)\n"
                "{\n"
                "    float a[96];\n"
                "    for (int i = 0; i < 96; i++) a[i] = p[i * 1024 + threadIdx.x];\n"
                "    __syncthreads();\n"
                "    for (int k = 0; k < 96; k++)\n"
                "        for (int i = 0; i < 96; i++) a[i] = a[i] * a[(i + 1) % 96] + a[k];\n"
                "    for (int i = 0; i < 96; i++) p[i * 1024 + threadIdx.x] = a[i];\n"
                "}\n");
}

int main(void)
{
    help_begin(__FILE__);
    make_sources();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compiles_for_every_target),
        cmocka_unit_test(comes_from_disk_the_next_time),
        cmocka_unit_test(reads_spills_of_the_log),
        cmocka_unit_test(an_error_names_file_and_line),
        cmocka_unit_test(too_much_shared_memory_is_refused_offline),
        cmocka_unit_test(several_at_once_are_all_or_none),
        cmocka_unit_test(warnings_and_compiles_are_logged),
    };
    int failed = 0;
    if (mica_nvrtc_load() == MICA_OK)
        failed = cmocka_run_group_tests(tests, NULL, NULL);
    else
        printf("SKIPPED: the tests of the compiler need NVRTC: %s\n", mica_error());
    help_end();
    return mica_nvrtc_path()[0] ? failed : 77;
}
