/* SPDX-License-Identifier: Apache-2.0
 * The CUDA backend on the fake driver: what arrives there, and what the caller's thread keeps. */
#define _GNU_SOURCE
#include "cuda/cuda.h"
#include "cuda/driver.h"
#include "base/why.h"
#include "../fake/help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdint.h>

static const mica_kernel_spec one = {"test/one.cu", "one", "", 0};
static const mica_kernel_spec waits = {"test/waits.cu", "waits", "", 0};
static const long long args[2] = {1234567890123, -5};

static void a_device_tells_what_it_is(void **state)
{
    (void)state;
    mica_cuda *cuda;
    mica_device_info info;
    assert_int_equal(mica_cuda_count(), FAKE_DEVICES);
    assert_int_equal(mica_cuda_open("cuda:3", &cuda), MICA_OK);
    mica_cuda_device_info(cuda, &info);
    assert_string_equal(info.name, "cuda:3");
    assert_string_equal(info.model, "Fake GPU 3");
    assert_true(info.cuda && !info.offline);
    assert_int_equal(info.arch, 90);
    assert_int_equal(info.units, 132);
    assert_int_equal(info.shared_bytes, 232448);
    assert_int_equal(info.cache_bytes, 52428800);
    /* 2 GHz, both edges, 640 bytes, 90 %; 132 x 128 lanes x 2 x 1.98 GHz; 4096 flop a clock */
    assert_true(info.copy_gbps > 2303.9 && info.copy_gbps < 2304.1);
    assert_true(info.f32_tflops > 66.9 && info.f32_tflops < 67.0);
    assert_true(info.bf16_tflops > 1070.4 && info.bf16_tflops < 1070.6);
    mica_cuda_close(cuda);
    assert_int_equal(help_books().contexts, 0);
}

static void bad_names_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {
        "",       "cuda",    "cuda:", "cuda:-1", "cuda:64",
        "cuda:x", "cuda:1x", "sm_90", "sm_70",   "cuda:99999999999"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        mica_cuda *cuda = (mica_cuda *)state;
        assert_int_equal(mica_cuda_open(names[i], &cuda), MICA_NO_DEVICE);
        assert_null(cuda);
    }
    assert_int_equal(help_books().contexts, 0);
}

static void offline_devices_need_no_driver_and_run_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int arch, units;
        int64_t shared;
    } known[] = {
        {"sm_80", 80, 108, 166912}, {"sm_89", 89, 128, 101376}, {"sm_90a", 90, 132, 232448}};
    long calls = help_books().calls;
    for (size_t i = 0; i < 3; i++) {
        mica_cuda *cuda;
        mica_device_info info;
        mica_kernel *kernel;
        void *p;
        assert_int_equal(mica_cuda_open(known[i].name, &cuda), MICA_OK);
        mica_cuda_device_info(cuda, &info);
        assert_string_equal(info.name, known[i].name);
        assert_true(info.cuda && info.offline);
        assert_int_equal(info.arch, known[i].arch);
        assert_int_equal(info.units, known[i].units);
        assert_int_equal(info.shared_bytes, known[i].shared);
        assert_int_equal(mica_cuda_health(cuda), MICA_OK);
        assert_int_equal(mica_kernel_get(cuda, &one, &kernel), MICA_OK);
        assert_int_equal(mica_kernel_launch(kernel, &(mica_grid){0}, NULL, args), MICA_NO_DEVICE);
        assert_int_equal(mica_cuda_malloc(cuda, 1, &p), MICA_NO_DEVICE);
        assert_non_null(strstr(mica_error(), known[i].name));
        assert_int_equal(mica_cuda_stream_create(cuda, &p), MICA_NO_DEVICE);
        assert_int_equal(mica_cuda_synchronize(cuda, NULL), MICA_NO_DEVICE);
        mica_kernel_put(kernel);
        mica_cuda_close(cuda);
    }
    assert_int_equal(help_books().calls, calls);
}

static void a_launch_arrives_as_given(void **state)
{
    (void)state;
    mica_cuda *cuda;
    mica_kernel *kernel;
    void *stream;
    assert_int_equal(mica_cuda_open("cuda:2", &cuda), MICA_OK);
    assert_int_equal(mica_kernel_get(cuda, &one, &kernel), MICA_OK);
    assert_int_equal(mica_cuda_stream_create(cuda, &stream), MICA_OK);
    const mica_grid grid = {.grid = {7, 2}, .block = {64, 1, 3}, .dynamic_shared = 100};
    assert_int_equal(mica_kernel_launch(kernel, &grid, stream, args), MICA_OK);
    fake_launch l = help_launch();
    assert_string_equal(l.kernel, "one");
    assert_int_equal(l.device, 2);
    assert_memory_equal(l.grid, ((unsigned[]){7, 2, 1}), sizeof l.grid);
    assert_memory_equal(l.block, ((unsigned[]){64, 1, 3}), sizeof l.block);
    assert_int_equal(l.shared, 100);
    assert_int_equal(l.cluster, 0);
    assert_false(l.overlaps);
    assert_ptr_equal(l.stream, stream);
    assert_memory_equal(l.args, args, sizeof l.args);

    const mica_grid cluster = {.grid = {8, 0, 5}, .block = {32}, .cluster = 4, .dynamic_shared = 8};
    assert_int_equal(mica_kernel_launch(kernel, &cluster, NULL, args), MICA_OK);
    l = help_launch();
    assert_int_equal(l.cluster, 4);
    assert_memory_equal(l.grid, ((unsigned[]){8, 1, 5}), sizeof l.grid);
    assert_memory_equal(l.block, ((unsigned[]){32, 1, 1}), sizeof l.block);
    assert_int_equal(l.shared, 8);
    assert_null(l.stream);
    assert_memory_equal(l.args, args, sizeof l.args);

    mica_kernel *waiting;
    assert_int_equal(mica_kernel_get(cuda, &waits, &waiting), MICA_OK);
    assert_int_equal(mica_kernel_launch(waiting, &cluster, stream, args), MICA_OK);
    l = help_launch();
    assert_string_equal(l.kernel, "waits");
    assert_true(l.overlaps);
    assert_int_equal(l.cluster, 4);
    assert_ptr_equal(l.stream, stream);
    mica_kernel_put(waiting);

    /* all blocks at once, or none */
    mica_grid together = {.grid = {132}, .block = {32}, .cooperative = true};
    assert_int_equal(mica_cuda_cooperates(cuda), MICA_OK);
    assert_int_equal(mica_kernel_launch(kernel, &together, stream, args), MICA_OK);
    assert_true(help_launch().cooperative);
    assert_int_equal(help_launch().cluster, 0);
    together.grid[0] = 133;
    assert_int_equal(mica_kernel_launch(kernel, &together, stream, args), MICA_DEVICE_ERROR);
    assert_non_null(strstr(mica_error(), "do not fit on the device at once"));
    assert_int_equal(mica_kernel_launch(kernel, &grid, stream, args), MICA_OK);
    assert_false(help_launch().cooperative);

    /* a refusal says what was launched, and the device stays usable */
    const mica_grid large = {.block = {4096}};
    assert_int_equal(mica_kernel_launch(kernel, &large, NULL, args), MICA_DEVICE_ERROR);
    assert_non_null(strstr(mica_error(), "kernel one"));
    assert_non_null(strstr(mica_error(), "4096"));
    assert_int_equal(mica_kernel_launch(kernel, &grid, stream, args), MICA_OK);
    mica_cuda_stream_destroy(cuda, stream);
    mica_kernel_put(kernel);
    mica_cuda_close(cuda);
}

typedef struct in_thread {
    mica_cuda *cuda;
    mica_kernel *kernel;
    mica_status status;
    long pushed;
} in_thread;

static void *launch_in_thread(void *user)
{
    in_thread *t = user;
    t->status = mica_kernel_launch(t->kernel, &(mica_grid){.block = {32}}, NULL, args);
    t->pushed = help_books().pushed;
    return NULL;
}

/* Threads that never saw CUDA work; a caller's context stays current; and where ours is current
 * already, a launch is two calls of the driver. */
static void contexts_are_left_as_they_were(void **state)
{
    (void)state;
    mica_cuda *first, *second;
    mica_kernel *kernel;
    pthread_t thread;
    void *theirs, *current;
    assert_int_equal(mica_cuda_open("cuda:4", &first), MICA_OK);
    assert_int_equal(mica_cuda_open("cuda:5", &second), MICA_OK);
    assert_int_equal(mica_kernel_get(second, &one, &kernel), MICA_OK);
    assert_int_equal(help_books().pushed, 0);
    in_thread t = {.cuda = second, .kernel = kernel};
    assert_int_equal(pthread_create(&thread, NULL, launch_in_thread, &t), 0);
    pthread_join(thread, NULL);
    assert_int_equal(t.status, MICA_OK);
    assert_int_equal(t.pushed, 0);

    /* the program has device 4 current, and uses ours on device 5 */
    assert_int_equal(mica_driver.cuDevicePrimaryCtxRetain(&theirs, 4), 0);
    assert_int_equal(mica_driver.cuCtxPushCurrent(theirs), 0);
    assert_int_equal(mica_kernel_launch(kernel, &(mica_grid){.block = {32}}, NULL, args), MICA_OK);
    assert_int_equal(help_launch().device, 5);
    mica_driver.cuCtxGetCurrent(&current);
    assert_ptr_equal(current, theirs);
    mica_kernel_put(kernel);

    assert_int_equal(mica_kernel_get(first, &one, &kernel), MICA_OK);
    long calls = help_books().calls;
    assert_int_equal(mica_kernel_launch(kernel, &(mica_grid){.block = {32}}, NULL, args), MICA_OK);
    assert_int_equal(help_books().calls, calls + 2);
    mica_kernel_put(kernel);
    mica_driver.cuCtxPopCurrent(&current);
    mica_driver.cuDevicePrimaryCtxRelease(4);
    mica_cuda_close(first);
    mica_cuda_close(second);
    assert_int_equal(help_books().contexts, 0);
    assert_int_equal(help_books().modules, 0);
}

static int shared_allowed(void)
{
    fake_attribute_fn *attribute;
    help_find(help_driver, "fake_attribute", &attribute);
    return attribute();
}

/* The kernel has 1024 bytes of its own. One kernel may be asked for with different needs. */
static void large_shared_memory_is_asked_for(void **state)
{
    (void)state;
    mica_cuda *cuda;
    mica_kernel *kernel[4];
    mica_kernel_spec spec = one;
    assert_int_equal(mica_cuda_open("cuda:0", &cuda), MICA_OK);
    int before = shared_allowed();
    spec.dynamic_shared = (48 << 10) - 1024;
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel[0]), MICA_OK);
    assert_int_equal(shared_allowed(), before);
    spec.dynamic_shared++;
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel[1]), MICA_OK);
    assert_int_equal(shared_allowed(), spec.dynamic_shared);
    spec.dynamic_shared = 232448 - 1024;
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel[2]), MICA_OK);
    assert_int_equal(shared_allowed(), spec.dynamic_shared);
    spec.dynamic_shared = 60000; /* never lowered: another plan relies on it */
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel[3]), MICA_OK);
    assert_int_equal(shared_allowed(), 232448 - 1024);
    for (int i = 0; i < 4; i++) {
        assert_ptr_equal(kernel[i], kernel[0]);
        mica_kernel_put(kernel[i]);
    }
    spec.dynamic_shared = 232448 - 1023;
    assert_int_equal(mica_kernel_get(cuda, &spec, &kernel[0]), MICA_UNSUPPORTED);
    assert_int_equal(help_books().modules, 1); /* kept for the next plan */
    mica_cuda_close(cuda);
    assert_int_equal(help_books().modules, 0);
}

static void resources_are_read_from_the_log(void **state)
{
    (void)state;
    mica_cuda *cuda;
    mica_kernel *kernel;
    mica_kernel_info info;
    assert_int_equal(mica_cuda_open("cuda:0", &cuda), MICA_OK);
    assert_int_equal(mica_kernel_get(cuda, &one, &kernel), MICA_OK);
    mica_kernel_describe(kernel, &info);
    assert_int_equal(info.registers, 24);
    assert_int_equal(info.spill_bytes, 16 + 32);
    assert_int_equal(info.local_bytes, 8);
    assert_int_equal(info.shared_bytes, 1024);
    mica_kernel_put(kernel);
    mica_cuda_close(cuda);
}

static void sizes_of_memory_are_checked(void **state)
{
    (void)state;
    mica_cuda *cuda;
    void *p, *empty;
    assert_int_equal(mica_cuda_open("cuda:0", &cuda), MICA_OK);
    assert_int_equal(mica_cuda_malloc(cuda, -1, &p), MICA_INVALID);
    assert_int_equal(mica_cuda_malloc(cuda, 0, &empty), MICA_OK);
    assert_non_null(empty);
    assert_int_equal(mica_cuda_memset(cuda, empty, 0, 0, NULL), MICA_OK);
    assert_int_equal(mica_cuda_memset(cuda, empty, 0, -1, NULL), MICA_INVALID);
    assert_int_equal(mica_cuda_upload(cuda, empty, NULL, 0, NULL), MICA_OK);
    assert_int_equal(mica_cuda_download(cuda, NULL, empty, -7, NULL), MICA_INVALID);
    assert_int_equal(mica_cuda_malloc(cuda, (int64_t)1 << 50, &p), MICA_OUT_OF_DEVICE_MEMORY);
    assert_non_null(strstr(mica_error(), "1125899906842624 bytes were asked for"));
    assert_non_null(strstr(mica_error(), "are free"));
    assert_int_equal(mica_cuda_health(cuda), MICA_OK);
    mica_cuda_free(cuda, empty);
    mica_cuda_free(cuda, NULL);
    mica_cuda_close(cuda);
    assert_int_equal(help_books().allocations, 0);
}

static void tensor_maps_arrive_as_given(void **state)
{
    (void)state;
    mica_cuda *cuda;
    mica_tensor_map map;
    fake_map m;
    void *address = (void *)0x10000;
    assert_int_equal(mica_cuda_open("cuda:0", &cuda), MICA_OK);
    mica_tensor_map_spec tiled = {.dtype = MICA_BF16,
                                  .rank = 3,
                                  .dims = {64, 100, (int64_t)1 << 32},
                                  .stride_bytes = {2, 128, ((int64_t)1 << 40) - 16},
                                  .box = {64, 256, 1},
                                  .element_strides = {0, 2, 8},
                                  .swizzle_bytes = 128};
    assert_int_equal(mica_tensor_map_encode(cuda, &tiled, address, &map), MICA_OK);
    memcpy(&m, map.bytes, sizeof m);
    assert_int_equal(m.type, 9);
    assert_int_equal(m.im2col, 0);
    assert_int_equal(m.swizzle, 3);
    assert_int_equal(m.rank, 3);
    assert_int_equal(m.address, 0x10000);
    assert_memory_equal(m.last, ((uint32_t[]){63, 99, UINT32_MAX}), 12);
    assert_memory_equal(m.strides, ((uint64_t[]){128, ((uint64_t)1 << 40) - 16}), 16);
    assert_memory_equal(m.box, ((uint16_t[]){64, 256, 1}), 6);
    assert_memory_equal(m.steps, ((uint8_t[]){1, 2, 8}), 3);

    mica_tensor_map_spec im2col = {.dtype = MICA_F32,
                                   .rank = 4,
                                   .dims = {32, 56, 56, 8},
                                   .stride_bytes = {4, 128, 7168, 401408},
                                   .swizzle_bytes = 64,
                                   .im2col = true,
                                   .lower = {-128, -1},
                                   .upper = {127, -1},
                                   .channels_per_pixel = 16,
                                   .pixels_per_column = 1024};
    assert_int_equal(mica_tensor_map_encode(cuda, &im2col, address, &map), MICA_OK);
    memcpy(&m, map.bytes, sizeof m);
    assert_int_equal(m.im2col, 1);
    assert_int_equal(m.type, 7);
    assert_int_equal(m.lower[0], -128);
    assert_int_equal(m.upper[0], 127);
    assert_int_equal(m.lower[1], -1);
    assert_int_equal(m.channels, 16);
    assert_int_equal(m.pixels, 1024);
    mica_cuda_close(cuda);
}

static void refuse_map(mica_cuda *cuda, mica_tensor_map_spec spec, uintptr_t address,
                       const char *value)
{
    mica_tensor_map map;
    assert_int_equal(mica_tensor_map_encode(cuda, &spec, (void *)address, &map), MICA_UNSUPPORTED);
    if (!strstr(mica_error(), value)) fail_msg("'%s' is not in: %s", value, mica_error());
}

static void tensor_maps_beyond_the_limits_are_refused(void **state)
{
    (void)state;
    mica_cuda *cuda;
    const mica_tensor_map_spec sound = {.dtype = MICA_F16,
                                        .rank = 3,
                                        .dims = {64, 8, 8},
                                        .stride_bytes = {2, 128, 1024},
                                        .box = {64, 8, 8},
                                        .swizzle_bytes = 128,
                                        .channels_per_pixel = 64,
                                        .pixels_per_column = 64};
    mica_tensor_map_spec s;
    assert_int_equal(mica_cuda_open("cuda:0", &cuda), MICA_OK);
#define REFUSED(change, value)                                                                     \
    s = sound;                                                                                     \
    s.change;                                                                                      \
    refuse_map(cuda, s, 64, value)
    refuse_map(cuda, sound, 8, "0x8");
    REFUSED(rank = 0, "rank 0");
    REFUSED(rank = 6, "rank 6");
    REFUSED(dtype = MICA_C64, "c64");
    REFUSED(dtype = MICA_S4, "s4");
    REFUSED(dtype = (mica_dtype)99, "none");
    REFUSED(dims[1] = 0, "dimension 1 is 0");
    REFUSED(dims[2] = ((int64_t)1 << 32) + 1, "4294967297");
    REFUSED(stride_bytes[1] = 120, "120");
    REFUSED(stride_bytes[2] = -16, "-16");
    REFUSED(stride_bytes[2] = (int64_t)1 << 40, "1099511627776");
    REFUSED(element_strides[0] = 9, "9");
    REFUSED(box[1] = 0, "box is 0");
    REFUSED(box[1] = 257, "257");
    REFUSED(box[0] = 4, "8 bytes");
    REFUSED(box[0] = 72, "144 bytes");
    REFUSED(swizzle_bytes = 48, "48");
#undef REFUSED
    mica_tensor_map_spec i = sound;
    i.im2col = true;
    mica_tensor_map map;
    assert_int_equal(mica_tensor_map_encode(cuda, &i, (void *)64, &map), MICA_OK);
#define REFUSED(change, value)                                                                     \
    s = i;                                                                                         \
    s.change;                                                                                      \
    refuse_map(cuda, s, 64, value)
    REFUSED(rank = 2, "not 2");
    REFUSED(lower[0] = -32769, "-32769");
    REFUSED(upper[0] = 32768, "32768");
    REFUSED(channels_per_pixel = 0, "0 channels");
    REFUSED(channels_per_pixel = 257, "257 channels");
    REFUSED(pixels_per_column = 1025, "1025 pixels");
#undef REFUSED
    mica_cuda_close(cuda);
}

static void what_was_found_is_told(void **state)
{
    (void)state;
    const char *key, *value;
    bool driver = false, compiler = false, injection = false;
    int row = 0;
    for (; mica_info(row, &key, &value) == MICA_OK; row++) {
        driver |= !strcmp(key, "cuda driver") && strstr(value, "fake/libcuda.so.1");
        compiler |= !strcmp(key, "nvrtc version") && strstr(value, "13.0, build ") &&
                    strlen(value) == strlen("13.0, build ") + 40;
        injection |= !strcmp(key, "CUDA_INJECTION64_PATH") && !strcmp(value, "not set");
        assert_non_null(value);
    }
    assert_true(driver && compiler && injection);
    assert_int_equal(mica_info(-1, &key, &value), MICA_INVALID);
}

/* Kernels that nobody holds stay, for the next plan, up to 64 MiB; those held stay in any case. */
static void unused_kernels_are_unloaded_beyond_a_bound(void **state)
{
    (void)state;
    enum { N = 10, MEGABYTES = 10 };
    mica_cuda *cuda;
    mica_kernel *kernel[N], *again;
    mica_stats stats;
    char prologue[N][64];
    assert_int_equal(mica_cuda_open("cuda:0", &cuda), MICA_OK);
    for (int i = 0; i < N; i++) {
        mica_kernel_spec spec = {"test/one.cu", "one", prologue[i], 0};
        snprintf(prologue[i], sizeof prologue[i], "/* %d, PADDING = %d */", i, MEGABYTES << 20);
        assert_int_equal(mica_kernel_get(cuda, &spec, &kernel[i]), MICA_OK);
    }
    assert_int_equal(help_books().modules, N);
    mica_cuda_kernel_stats(cuda, &stats);
    assert_int_equal(stats.kernels, N);
    long compiles = help_compiles();
    for (int i = 0; i < N; i++) { /* against the order of loading */
        mica_kernel_put(kernel[N - 1 - i]);
        assert_int_equal(help_books().modules, i < 6 ? N : N - (i - 5));
    }
    mica_cuda_kernel_stats(cuda, &stats);
    assert_int_equal(stats.kernels, 6);
    for (int i = 0; i < N; i++) { /* those given back last are there */
        mica_kernel_spec spec = {"test/one.cu", "one", prologue[i], 0};
        assert_int_equal(mica_kernel_get(cuda, &spec, &again), MICA_OK);
        assert_int_equal(help_compiles() - compiles, i < 6 ? 0 : i - 5);
        mica_kernel_put(again);
    }
    /* a call that fails holds none of its kernels */
    const mica_kernel_spec mixed[] = {{"test/one.cu", "one", prologue[N - 1], 0},
                                      {"test/broken.cu", "broken", "", 0}};
    assert_int_equal(mica_kernel_get_all(cuda, mixed, 2, kernel), MICA_COMPILE_FAILED);
    for (int i = 0; i < N - 1; i++) {
        mica_kernel_spec spec = {"test/one.cu", "one", prologue[i], 0};
        assert_int_equal(mica_kernel_get(cuda, &spec, &again), MICA_OK);
        mica_kernel_put(again);
    }
    assert_int_equal(help_books().modules, 6);
    mica_cuda_close(cuda);
    assert_int_equal(help_books().modules, 0);
}

/* What no device holds any more is gone from the process: the next device reads it from disk. */
static void nothing_outlives_its_device(void **state)
{
    (void)state;
    enum { N = 4 };
    mica_kernel_spec specs[N];
    mica_kernel *kernels[N];
    mica_kernel_info info;
    mica_cuda *cuda;
    for (int i = 0; i < N; i++)
        specs[i] = (mica_kernel_spec){"test/one.cu", "one", "constexpr int OUTLIVES = 1;", 0};
    static const char *const origins[] = {"compiled", "disk", "disk"};
    for (int round = 0; round < 3; round++) {
        assert_int_equal(mica_cuda_open("cuda:0", &cuda), MICA_OK);
        assert_int_equal(mica_kernel_get_all(cuda, specs, N, kernels), MICA_OK);
        for (int i = 0; i < N; i++) {
            assert_ptr_equal(kernels[i], kernels[0]);
            mica_kernel_describe(kernels[i], &info);
            assert_string_equal(info.origin, origins[round]);
        }
        for (int i = 0; i < N; i++) mica_kernel_put(kernels[i]);
        mica_cuda_close(cuda);
    }
}

/* ---- threads ---- */

enum { THREADS = 8, ROUNDS = 40, VARIANTS = 5 };

static void *use_kernels(void *user)
{
    mica_cuda *cuda = user;
    char prologue[64];
    mica_kernel_spec spec = {"test/one.cu", "one", prologue, 0};
    mica_kernel *kernel;
    for (int i = 0; i < ROUNDS; i++) {
        snprintf(prologue, sizeof prologue, "constexpr int THREADED = %d;", i % VARIANTS);
        if (mica_kernel_get(cuda, &spec, &kernel) != MICA_OK) return "get";
        if (mica_kernel_launch(kernel, &(mica_grid){.block = {32}}, NULL, args) != MICA_OK)
            return "launch";
        mica_kernel_put(kernel);
    }
    return NULL;
}

static void threads_compile_each_kernel_once(void **state)
{
    (void)state;
    mica_cuda *cuda[2];
    pthread_t threads[THREADS];
    fake_compile_ms_fn *compile_ms;
    help_find(help_nvrtc, "fake_compile_ms", &compile_ms);
    compile_ms(5);
    long compiles = help_compiles();
    for (int i = 0; i < 2; i++) {
        char name[24];
        snprintf(name, sizeof name, "cuda:%d", i);
        assert_int_equal(mica_cuda_open(name, &cuda[i]), MICA_OK);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_kernels, cuda[i % 2]), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        if (failed) fail_msg("%s: %s", (char *)failed, mica_error());
    }
    compile_ms(0);
    assert_int_equal(help_compiles() - compiles, VARIANTS);
    assert_int_equal(help_books().modules, 2 * VARIANTS);
    for (int i = 0; i < 2; i++) mica_cuda_close(cuda[i]);
    assert_int_equal(help_books().modules, 0);
}

/* A failure reaches all who wait for it, and is forgotten. */
static void *want_broken(void *user)
{
    mica_kernel_spec spec = {"test/broken.cu", "broken", "", 0};
    mica_kernel *kernel;
    bool sound = mica_kernel_get(user, &spec, &kernel) == MICA_COMPILE_FAILED &&
                 strstr(mica_error(), "wrong_name");
    return sound ? NULL : "a wrong answer";
}

static void a_failed_compile_reaches_all_who_wait(void **state)
{
    (void)state;
    mica_cuda *cuda;
    pthread_t threads[THREADS];
    assert_int_equal(mica_cuda_open("cuda:0", &cuda), MICA_OK);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, want_broken, cuda), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(help_programs(), 0);
    mica_cuda_close(cuda);
}

int main(void)
{
    char path[512];
    help_begin(__FILE__);
    help_fakes();
    setenv("MICA_CACHE_BYTES", "1000000", 1);
    snprintf(path, sizeof path, "%s/src/test", help_directory);
    mkdir(path, 0700);
    help_kernel("test/one.cu", "extern \"C\" __global__ void one(long long a) {}\n");
    help_kernel("test/waits.cu",
                "extern \"C\" __global__ void waits(long long a) { overlap_wait(); }\n");
    help_kernel("test/broken.cu", "extern \"C\" __global__ void broken(wrong_name a) {}\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offline_devices_need_no_driver_and_run_nothing),
        cmocka_unit_test(a_device_tells_what_it_is),
        cmocka_unit_test(bad_names_are_refused),
        cmocka_unit_test(a_launch_arrives_as_given),
        cmocka_unit_test(contexts_are_left_as_they_were),
        cmocka_unit_test(large_shared_memory_is_asked_for),
        cmocka_unit_test(resources_are_read_from_the_log),
        cmocka_unit_test(sizes_of_memory_are_checked),
        cmocka_unit_test(tensor_maps_arrive_as_given),
        cmocka_unit_test(tensor_maps_beyond_the_limits_are_refused),
        cmocka_unit_test(what_was_found_is_told),
        cmocka_unit_test(unused_kernels_are_unloaded_beyond_a_bound),
        cmocka_unit_test(nothing_outlives_its_device),
        cmocka_unit_test(threads_compile_each_kernel_once),
        cmocka_unit_test(a_failed_compile_reaches_all_who_wait),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    help_end();
    return failed;
}
