/* SPDX-License-Identifier: Apache-2.0
 * What cannot be mended: sticky faults of a device and forked processes. */
#define _GNU_SOURCE
#include "cuda/cuda.h"
#include "base/why.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

static const mica_kernel_spec spec = {"test/one.cu", "one", "", 0};
static const mica_grid grid = {.block = {32}};
static const long long args[2] = {1, 2};

/* Each call of the interface that can fail, on an open device. */
static void assert_every_call_gives(mica_cuda *cuda, const mica_kernel *kernel, void *memory,
                                    void *stream, mica_status expected)
{
    mica_kernel *k;
    void *p;
    double ms;
    char byte = 0;
    mica_tensor_map map;
    const mica_tensor_map_spec map_spec = {.dtype = MICA_F32, .rank = 1, .dims = {64}, .box = {64}};
    assert_int_equal(mica_cuda_health(cuda), expected);
    assert_int_equal(mica_kernel_launch(kernel, &grid, stream, args), expected);
    assert_int_equal(mica_kernel_get(cuda, &spec, &k), expected);
    assert_null(k);
    assert_int_equal(mica_cuda_malloc(cuda, 8, &p), expected);
    assert_null(p);
    assert_int_equal(mica_cuda_memset(cuda, memory, 0, 1, stream), expected);
    assert_int_equal(mica_cuda_upload(cuda, memory, &byte, 1, stream), expected);
    assert_int_equal(mica_cuda_download(cuda, &byte, memory, 1, stream), expected);
    assert_int_equal(mica_cuda_stream_create(cuda, &p), expected);
    assert_int_equal(mica_cuda_synchronize(cuda, stream), expected);
    assert_int_equal(mica_cuda_event_create(cuda, &p), expected);
    assert_int_equal(mica_cuda_event_record(cuda, NULL, stream), expected);
    assert_int_equal(mica_cuda_event_elapsed(cuda, NULL, NULL, &ms), expected);
    assert_int_equal(mica_tensor_map_encode(cuda, &map_spec, memory, &map), expected);
}

static void lose(int ordinal, int code, const char *call)
{
    char name[16], place[64];
    mica_cuda *cuda, *again;
    mica_kernel *kernel;
    void *memory, *stream, *event;
    snprintf(name, sizeof name, "cuda:%d", ordinal);
    assert_int_equal(mica_cuda_open(name, &cuda), MICA_OK);
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel), MICA_OK);
    assert_int_equal(mica_cuda_malloc(cuda, 64, &memory), MICA_OK);
    assert_int_equal(mica_cuda_stream_create(cuda, &stream), MICA_OK);
    assert_int_equal(mica_cuda_event_create(cuda, &event), MICA_OK);
    assert_int_equal(mica_cuda_health(cuda), MICA_OK);

    help_fail(call, code, 1, true);
    mica_status status = mica_kernel_launch(kernel, &grid, stream, args);
    if (status == MICA_OK) status = mica_cuda_synchronize(cuda, stream);
    assert_int_equal(status, MICA_DEVICE_LOST);
    snprintf(place, sizeof place, "%s gave ", call);
    assert_non_null(strstr(mica_error(), place));
    snprintf(place, sizeof place, "(%d)", code);
    assert_non_null(strstr(mica_error(), place));
    assert_non_null(strstr(mica_error(), "start a new process"));
    /* a fault that a later call sees names the kernel that ran before it */
    bool later = !strcmp(call, "cuStreamSynchronize");
    assert_int_equal(strstr(mica_error(), "the kernel launched last was one ") != NULL, later);

    /* from now on the driver is not even asked, and what is given back is dropped */
    long calls = help_books().calls;
    assert_every_call_gives(cuda, kernel, memory, stream, MICA_DEVICE_LOST);
    assert_non_null(strstr(mica_error(), place));
    mica_cuda_event_destroy(cuda, event);
    mica_cuda_stream_destroy(cuda, stream);
    mica_cuda_free(cuda, memory);
    mica_kernel_put(kernel);
    mica_cuda_close(cuda);
    assert_int_equal(help_books().calls, calls);

    /* even if the driver claimed to be well again */
    help_fail("", 0, 0, false);
    assert_int_equal(mica_cuda_open(name, &again), MICA_DEVICE_LOST);
    assert_null(again);
}

static void a_sticky_code_loses_the_device(void **state)
{
    (void)state;
    static const int codes[] = {214, 220, 226, 700, 702, 709, 710,
                                714, 715, 716, 717, 718, 719, 721};
    int ordinal = 1;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        lose(ordinal++, codes[i], "cuStreamSynchronize");
        lose(ordinal++, codes[i], "cuLaunchKernel");
    }
    /* the others are well */
    mica_cuda *cuda;
    assert_int_equal(mica_cuda_open("cuda:0", &cuda), MICA_OK);
    assert_int_equal(mica_cuda_health(cuda), MICA_OK);
    mica_cuda_close(cuda);
}

static void a_fault_seen_while_freeing_loses_it_too(void **state)
{
    (void)state;
    mica_cuda *cuda;
    void *memory;
    assert_int_equal(mica_cuda_open("cuda:50", &cuda), MICA_OK);
    assert_int_equal(mica_cuda_malloc(cuda, 64, &memory), MICA_OK);
    help_fail("cuMemFree", 700, 1, true);
    mica_cuda_free(cuda, memory);
    assert_int_equal(mica_cuda_health(cuda), MICA_DEVICE_LOST);
    help_fail("", 0, 0, false);
    mica_cuda_close(cuda);
}

static void an_ordinary_code_does_not(void **state)
{
    (void)state;
    static const int codes[] = {1, 2, 201, 400, 701, 801, 900, 999};
    mica_cuda *cuda;
    void *memory;
    assert_int_equal(mica_cuda_open("cuda:51", &cuda), MICA_OK);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        help_fail("cuMemAlloc", codes[i], 1, false);
        assert_int_not_equal(mica_cuda_malloc(cuda, 64, &memory), MICA_OK);
        assert_int_equal(mica_cuda_health(cuda), MICA_OK);
        assert_int_equal(mica_cuda_malloc(cuda, 64, &memory), MICA_OK);
        mica_cuda_free(cuda, memory);
    }
    mica_cuda_close(cuda);
}

static mica_log_level highest;
static void watch(void *user, mica_log_level level, const char *line)
{
    (void)user, (void)line;
    if (level < highest) highest = level;
}

static void a_driver_that_is_gone_is_no_trouble(void **state)
{
    (void)state;
    mica_cuda *cuda;
    mica_kernel *kernel;
    void *memory, *stream;
    assert_int_equal(mica_cuda_open("cuda:52", &cuda), MICA_OK);
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel), MICA_OK);
    assert_int_equal(mica_cuda_malloc(cuda, 64, &memory), MICA_OK);
    assert_int_equal(mica_cuda_stream_create(cuda, &stream), MICA_OK);
    highest = MICA_LOG_DEBUG;
    mica_log_set(watch, NULL, MICA_LOG_WARN);
    help_fail("*", 4, 1, true);
    mica_cuda_free(cuda, memory);
    mica_cuda_stream_destroy(cuda, stream);
    mica_kernel_put(kernel);
    mica_cuda_close(cuda);
    help_fail("", 0, 0, false);
    mica_log_set(NULL, NULL, MICA_LOG_ERROR);
    assert_int_equal(highest, MICA_LOG_DEBUG); /* nothing was said */
}

static void a_forked_child_is_told(void **state)
{
    (void)state;
    int code;
    mica_cuda *cuda, *offline, *other;
    mica_kernel *kernel;
    void *memory, *stream;
    assert_int_equal(mica_cuda_open("cuda:53", &cuda), MICA_OK);
    assert_int_equal(mica_cuda_open("sm_90a", &offline), MICA_OK);
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel), MICA_OK);
    assert_int_equal(mica_cuda_malloc(cuda, 64, &memory), MICA_OK);
    assert_int_equal(mica_cuda_stream_create(cuda, &stream), MICA_OK);
    pid_t child = fork();
    if (child == 0) {
        long calls = help_books().calls;
        alarm(20); /* a lock that is waited for shows as a killed child */
        assert_every_call_gives(cuda, kernel, memory, stream, MICA_FORKED_PROCESS);
        assert_non_null(strstr(mica_error(), "posix_spawn"));
        assert_int_equal(mica_cuda_open("cuda:0", &other), MICA_FORKED_PROCESS);
        assert_int_equal(mica_cuda_open("sm_90a", &other), MICA_FORKED_PROCESS);
        assert_int_equal(mica_kernel_get(offline, &spec, &kernel), MICA_FORKED_PROCESS);
        assert_int_equal(mica_cuda_count(), 0);
        mica_cuda_free(cuda, memory);
        mica_cuda_stream_destroy(cuda, stream);
        mica_kernel_put(kernel);
        mica_cuda_close(cuda);
        _exit(help_books().calls == calls ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    /* the parent goes on */
    assert_int_equal(mica_kernel_launch(kernel, &grid, stream, args), MICA_OK);
    mica_cuda_free(cuda, memory);
    mica_cuda_stream_destroy(cuda, stream);
    mica_kernel_put(kernel);
    mica_cuda_close(cuda);
    mica_cuda_close(offline);
}

static atomic_bool enough;

static void *get_and_put(void *user)
{
    mica_kernel *kernel;
    while (!atomic_load(&enough))
        if (mica_kernel_get(user, &spec, &kernel) == MICA_OK) mica_kernel_put(kernel);
    return NULL;
}

/* A child forked while another thread holds our locks must not wait for them. */
static void a_child_of_a_busy_process_does_not_hang(void **state)
{
    (void)state;
    mica_cuda *cuda;
    pthread_t thread;
    assert_int_equal(mica_cuda_open("cuda:54", &cuda), MICA_OK);
    assert_int_equal(pthread_create(&thread, NULL, get_and_put, cuda), 0);
    for (int i = 0; i < 20; i++) {
        int code;
        pid_t child = fork();
        if (child == 0) {
            mica_kernel *kernel;
            alarm(20);
            bool told = mica_kernel_get(cuda, &spec, &kernel) == MICA_FORKED_PROCESS &&
                        mica_cuda_health(cuda) == MICA_FORKED_PROCESS;
            mica_cuda_close(cuda);
            _exit(told ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &code, 0), child);
        assert_int_equal(code, 0);
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    mica_cuda_close(cuda);
}

int main(void)
{
    char path[512];
    help_begin(__FILE__);
    help_fakes();
    snprintf(path, sizeof path, "%s/src/test", help_directory);
    mkdir(path, 0700);
    help_kernel("test/one.cu", "extern \"C\" __global__ void one(long long a) {}\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sticky_code_loses_the_device),
        cmocka_unit_test(a_fault_seen_while_freeing_loses_it_too),
        cmocka_unit_test(an_ordinary_code_does_not),
        cmocka_unit_test(a_driver_that_is_gone_is_no_trouble),
        cmocka_unit_test(a_forked_child_is_told),
        cmocka_unit_test(a_child_of_a_busy_process_does_not_hang),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    help_end();
    return failed;
}
