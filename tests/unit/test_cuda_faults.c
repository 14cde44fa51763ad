/* SPDX-License-Identifier: Apache-2.0
 * Every allocation, driver call and system call of a whole session is made to fail, once and then
 * for good: nothing may leak, no context may stay pushed, and the next attempt must succeed. */
#define _GNU_SOURCE
#include "cuda/cuda.h"
#include "base/memory.h"
#include "base/why.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <sys/wait.h>

enum { KERNELS = 3 };

typedef struct session {
    mica_cuda *cuda;
    mica_kernel *kernels[KERNELS];
    void *memory, *stream, *start, *stop;
    mica_tensor_map map;
} session;

static mica_status run_kernels(session *s)
{
    const long long args[2] = {1, 2};
    const mica_grid plain = {.block = {128}}, cluster = {.grid = {4}, .block = {32}, .cluster = 2};
    MICA_TRY(mica_kernel_launch(s->kernels[0], &plain, s->stream, args));
    return mica_kernel_launch(s->kernels[1], &cluster, NULL, args);
}

static mica_status run_session(session *s, const mica_kernel_spec *specs)
{
    char bytes[16] = "fifteen letters", back[16] = "";
    double ms;
    const mica_tensor_map_spec map = {.dtype = MICA_BF16,
                                      .rank = 2,
                                      .dims = {64, 8},
                                      .stride_bytes = {2, 128},
                                      .box = {64, 8},
                                      .swizzle_bytes = 128};
    MICA_TRY(mica_cuda_open("cuda:0", &s->cuda));
    MICA_TRY(mica_kernel_get_all(s->cuda, specs, KERNELS, s->kernels));
    MICA_TRY(mica_cuda_malloc(s->cuda, 16, &s->memory));
    MICA_TRY(mica_cuda_stream_create(s->cuda, &s->stream));
    MICA_TRY(mica_cuda_event_create(s->cuda, &s->start));
    MICA_TRY(mica_cuda_event_create(s->cuda, &s->stop));
    MICA_TRY(mica_tensor_map_encode(s->cuda, &map, s->memory, &s->map));
    MICA_TRY(mica_cuda_event_record(s->cuda, s->start, s->stream));
    MICA_TRY(run_kernels(s));
    MICA_TRY(mica_cuda_event_record(s->cuda, s->stop, s->stream));
    MICA_TRY(mica_cuda_event_elapsed(s->cuda, s->start, s->stop, &ms));
    MICA_TRY(mica_cuda_upload(s->cuda, s->memory, bytes, 16, s->stream));
    MICA_TRY(mica_cuda_memset(s->cuda, s->memory, 'F', 1, s->stream));
    MICA_TRY(mica_cuda_download(s->cuda, back, s->memory, 16, s->stream));
    MICA_TRY(mica_cuda_synchronize(s->cuda, NULL));
    assert_string_equal(back, "Fifteen letters");
    return MICA_OK;
}

static void end_session(session *s)
{
    for (int i = 0; i < KERNELS; i++) mica_kernel_put(s->kernels[i]);
    if (s->cuda) {
        mica_cuda_event_destroy(s->cuda, s->start);
        mica_cuda_event_destroy(s->cuda, s->stop);
        mica_cuda_stream_destroy(s->cuda, s->stream);
        mica_cuda_free(s->cuda, s->memory);
    }
    mica_cuda_close(s->cuda);
}

static mica_status whole_session(bool cold)
{
    /* the third equals the first, and asks for more than 48 KiB */
    const mica_kernel_spec specs[KERNELS] = {
        {"test/two.cu", "first", "constexpr int A = 1;", 0},
        {"test/two.cu", "second", "constexpr int A = 2;", 0},
        {"test/two.cu", "first", "constexpr int A = 1;", 99999}};
    char cache[512];
    session s = {0};
    snprintf(cache, sizeof cache, "%s/cache", help_directory);
    if (cold) help_remove_tree(cache);
    mica_status status = run_session(&s, specs);
    end_session(&s);
    return status;
}

static void assert_nothing_left(const char *where, long n)
{
    fake_books b = help_books();
    if (b.allocations || b.modules || b.contexts || b.streams || b.events || b.pushed ||
        help_programs())
        fail_msg(
            "%s, n = %ld: %ld allocations, %ld modules, %ld contexts, %ld streams, %ld events, "
            "%ld pushed, %ld programs are left",
            where, n, b.allocations, b.modules, b.contexts, b.streams, b.events, b.pushed,
            help_programs());
}

/* Which statuses a failure of that kind may show as. */
static bool is_expected(mica_fault kind, mica_status status)
{
    switch (kind) {
    case MICA_FAULT_ALLOC:
        return status == MICA_OUT_OF_MEMORY;
    case MICA_FAULT_DRIVER:
        return status == MICA_DEVICE_ERROR || status == MICA_OUT_OF_MEMORY ||
               status == MICA_NO_DEVICE || status == MICA_NO_COMPILER;
    default:
        return status == MICA_IO; /* of MICA_KERNEL_DIR: the cache never fails a call */
    }
}

static void fail_each(mica_fault kind, const char *name, bool cold, bool persistent, long at_least)
{
    long n = 0, failures = 0;
    mica_status status;
    bool fired;
    do {
        n++;
        mica_fault_set(kind, n, persistent);
        status = whole_session(cold);
        fired = mica_fault_count(kind) >= n;
        mica_fault_set(kind, 0, false);
        assert_nothing_left(name, n);
        if (status != MICA_OK) {
            failures++;
            if (!fired || !is_expected(kind, status) || !mica_error()[0])
                fail_msg("%s, n = %ld: %s %s", name, n, mica_status_name(status), mica_error());
        }
        if (fired && whole_session(false) != MICA_OK)
            fail_msg("%s, n = %ld: the next attempt fails: %s", name, n, mica_error());
        assert_nothing_left(name, n);
    } while (fired && n < 10000);
    assert_int_equal(status, MICA_OK);
    printf("          %s%s%s: %ld events, %ld failed the session\n", name, cold ? ", cold" : "",
           persistent ? ", persistent" : "", n - 1, failures);
    assert_true(n - 1 >= at_least);
}

static void allocations_fail(void **state)
{
    (void)state;
    fail_each(MICA_FAULT_ALLOC, "allocation", true, false, 30);
    fail_each(MICA_FAULT_ALLOC, "allocation", false, false, 30);
    fail_each(MICA_FAULT_ALLOC, "allocation", true, true, 30);
}

/* Opening the libraries happens once in a process, so each of its calls needs a process: this test
 * runs before the library is used in this one. */
static void loading_fails(void **state)
{
    (void)state;
    long n = 0;
    int code;
    do {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            mica_fault_set(MICA_FAULT_DRIVER, ++n, false);
            mica_status status = whole_session(true);
            bool fired = mica_fault_count(MICA_FAULT_DRIVER) >= n;
            mica_fault_set(MICA_FAULT_DRIVER, 0, false);
            if (!fired) _exit(2);
            bool sound = status != MICA_OK && is_expected(MICA_FAULT_DRIVER, status) &&
                         mica_error()[0] && whole_session(true) == MICA_OK;
            fake_books b = help_books();
            _exit(sound && !b.allocations && !b.modules && !b.contexts && !help_programs() ? 0 : 1);
        }
        n++;
        assert_int_equal(waitpid(child, &code, 0), child);
        if (code != 0 && (!WIFEXITED(code) || WEXITSTATUS(code) != 2))
            fail_msg("call %ld of a fresh process: wait status %x", n, (unsigned)code);
    } while (code == 0 && n < 1000);
    printf("          %ld events\n", n - 1);
    assert_true(n - 1 > 75); /* more than in a process that has opened the libraries */
}

static void driver_calls_fail(void **state)
{
    (void)state;
    fail_each(MICA_FAULT_DRIVER, "driver call", true, false, 60);
    fail_each(MICA_FAULT_DRIVER, "driver call", true, true, 60);
}

static void system_calls_fail(void **state)
{
    (void)state;
    fail_each(MICA_FAULT_FILE, "system call", true, false, 20);
    fail_each(MICA_FAULT_FILE, "system call", false, false, 20);
    fail_each(MICA_FAULT_FILE, "system call", true, true, 20);
}

/* What a failed driver call means is told by its code; the fake gives it in place of an answer. */
static void each_call_gives_each_code(void **state)
{
    (void)state;
    static const struct {
        int code;
        mica_status status;
        const char *text;
    } codes[] = {{1, MICA_DEVICE_ERROR, "(1)"},
                 {2, MICA_OUT_OF_DEVICE_MEMORY, ""},
                 {100, MICA_NO_DEVICE, "CUDA_VISIBLE_DEVICES"},
                 {304, MICA_DEVICE_ERROR, "CUDA_ERROR_OPERATING_SYSTEM (304)"},
                 {803, MICA_NO_DEVICE, "reinstall"},
                 {999, MICA_DEVICE_ERROR, "an unknown error (999)"}};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        for (long n = 1, errors = 0;; n++) {
            long before = help_books().errors;
            help_fail("*", codes[i].code, n, false);
            mica_status status = whole_session(false);
            help_fail("*", 0, 0, false);
            errors = help_books().errors - before;
            if (errors == 0) break;
            /* a release that fails leaks what it would have released, but breaks nothing */
            if (status != MICA_OK && status != codes[i].status)
                fail_msg("code %d at call %ld: %s %s", codes[i].code, n, mica_status_name(status),
                         mica_error());
            if (status != MICA_OK) assert_non_null(strstr(mica_error(), codes[i].text));
            assert_true(n < 1000);
        }
}

static void make_sources(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/src/test", help_directory);
    mkdir(path, 0700);
    help_kernel("test/two.cu", "#include \"two.h\"\n"
                               "extern \"C\" __global__ void first(two a) {}\n"
                               "extern \"C\" __global__ void second(two a) {}\n");
    help_kernel("test/two.h", "typedef struct two { long long a, b; } two;\n");
}

int main(void)
{
    help_begin(__FILE__);
    help_fakes();
    make_sources();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loading_fails),
        cmocka_unit_test(driver_calls_fail),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(system_calls_fail),
        cmocka_unit_test(each_call_gives_each_code),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    help_end();
    return failed;
}
