/* SPDX-License-Identifier: Apache-2.0
 * Devices: the driver's, by number, and offline ones for planning and compiling without a GPU. */
#include "cuda/device.h"
#include "base/env.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What attributes do not tell. copy_gbps and bf16_tflops of the H200 are measured (sustained, under
 * its power limit), of the H100 copy_gbps, and products take there what they take on an H200; the
 * others are 90 % of the memory's rate and the data sheet's dense figure. */
static const struct model {
    const char *offline; /* its name as an offline device, or NULL */
    const char *model;   /* as the driver spells it, or the beginning of that */
    int arch, units;
    int64_t memory_bytes, cache_bytes, shared_bytes;
    double copy_gbps, f32_tflops, bf16_tflops;
} models[] = {
    {"sm_80", "NVIDIA A100-SXM4-80GB", 80, 108, 85899345920, 41943040, 166912, 1835, 19.5, 312},
    {"sm_89", "NVIDIA GeForce RTX 4090", 89, 128, 25769803776, 75497472, 101376, 907, 82.6, 165},
    {NULL, "NVIDIA H100 80GB HBM3", 90, 132, 85899345920, 52428800, 232448, 3020, 59.0, 840},
    {"sm_90a", "NVIDIA H200", 90, 132, 150754820096, 62914560, 232448, 4270, 59.0, 840},
};

static const struct model *find_model(const char *offline, const char *model)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct model *m = &models[i];
        if (offline && m->offline && !strcmp(m->offline, offline)) return m;
        if (model && !strncmp(m->model, model, strlen(m->model))) return m;
    }
    return NULL;
}

/* f32 lanes and dense bf16 flop with f32 sums, per multiprocessor and clock. */
static const struct {
    int arch, lanes, bf16;
} rates[] = {{80, 64, 2048},  {86, 128, 512},   {87, 128, 1024},  {89, 128, 512},
             {90, 128, 4096}, {100, 128, 8192}, {103, 128, 8192}, {120, 128, 512}};

static void model_speed(mica_device_info *info, double clock_ghz, double memory_gbps)
{
    int lanes = 128, bf16 = 512;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        if (rates[i].arch > info->arch) break;
        lanes = rates[i].lanes;
        bf16 = rates[i].bf16;
    }
    info->copy_gbps = 0.9 * memory_gbps;
    info->f32_tflops = 2e-3 * lanes * info->units * clock_ghz;
    info->bf16_tflops = 1e-3 * bf16 * info->units * clock_ghz;
}

static mica_cuda *new_device(const char *name)
{
    mica_cuda *cuda = mica_alloc(sizeof *cuda);
    if (!cuda) return NULL;
    pthread_mutex_init(&cuda->mutex, NULL);
    const char *sync = mica_env(MICA_ENV_SYNC);
    cuda->sync = sync && !strcmp(sync, "1");
    cuda->ordinal = -1;
    cuda->info.cuda = true;
    snprintf(cuda->info.name, sizeof cuda->info.name, "%s", name);
    return cuda;
}

static void delete_device(mica_cuda *cuda)
{
    pthread_mutex_destroy(&cuda->mutex);
    mica_release(cuda);
}

static mica_status open_offline(const struct model *m, mica_cuda **out)
{
    mica_cuda *cuda = new_device(m->offline);
    if (!cuda) return mica_fail_memory(sizeof *cuda);
    mica_device_info *info = &cuda->info;
    snprintf(info->model, sizeof info->model, "%s (offline)", m->model);
    snprintf(cuda->target, sizeof cuda->target, "%s", m->offline);
    info->offline = true;
    info->arch = m->arch;
    info->units = m->units;
    info->memory_bytes = m->memory_bytes;
    info->cache_bytes = m->cache_bytes;
    info->shared_bytes = m->shared_bytes;
    info->copy_gbps = m->copy_gbps;
    info->f32_tflops = m->f32_tflops;
    info->bf16_tflops = m->bf16_tflops;
    *out = cuda;
    return MICA_OK;
}

/* Numbers of CUdevice_attribute. */
enum attribute {
    CLOCK_KHZ = 13,
    UNITS = 16,
    PCI_BUS = 33,
    PCI_DEVICE = 34,
    MEMORY_CLOCK_KHZ = 36,
    MEMORY_BUS_BITS = 37,
    L2_BYTES = 38,
    PCI_DOMAIN = 50,
    CAPABILITY_MAJOR = 75,
    CAPABILITY_MINOR = 76,
    SHARED_BYTES_OPTIN = 97
};

static mica_status query(mica_cuda *cuda)
{
    static const enum attribute wanted[] = {CLOCK_KHZ,        UNITS,
                                            MEMORY_CLOCK_KHZ, MEMORY_BUS_BITS,
                                            L2_BYTES,         CAPABILITY_MAJOR,
                                            CAPABILITY_MINOR, SHARED_BYTES_OPTIN,
                                            PCI_BUS,          PCI_DEVICE,
                                            PCI_DOMAIN};
    int value[128] = {0};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        MICA_TRY(
            MICA_CU(cuda, cuDeviceGetAttribute, &value[wanted[i]], (int)wanted[i], cuda->device));
    size_t memory = 0;
    mica_device_info *info = &cuda->info;
    MICA_TRY(MICA_CU(cuda, cuDeviceTotalMem, &memory, cuda->device));
    MICA_TRY(MICA_CU(cuda, cuDeviceGetName, info->model, (int)sizeof info->model, cuda->device));
    info->arch = 10 * value[CAPABILITY_MAJOR] + value[CAPABILITY_MINOR];
    info->units = value[UNITS];
    info->memory_bytes = (int64_t)memory;
    info->cache_bytes = value[L2_BYTES];
    info->shared_bytes = value[SHARED_BYTES_OPTIN];
    snprintf(info->bus, sizeof info->bus, "%04x:%02x:%02x.0", value[PCI_DOMAIN] & 0xffff,
             value[PCI_BUS] & 0xff, value[PCI_DEVICE] & 0xff);
    /* Both edges of the memory clock carry data. */
    model_speed(info, 1e-6 * value[CLOCK_KHZ],
                2e-6 * value[MEMORY_CLOCK_KHZ] * value[MEMORY_BUS_BITS] / 8);
    const struct model *known = find_model(NULL, info->model);
    if (known && known->units == info->units) {
        info->copy_gbps = known->copy_gbps;
        info->f32_tflops = known->f32_tflops;
        info->bf16_tflops = known->bf16_tflops;
    }
    /* sm_90a has wgmma and setmaxnreg, which plain sm_90 lacks; Blackwell likewise. */
    const char *variant = info->arch >= 90 ? "a" : "";
    snprintf(cuda->target, sizeof cuda->target, "sm_%d%s", info->arch, variant);
    return MICA_OK;
}

static mica_status open_real(mica_cuda *cuda)
{
    int count = 0, ordinal = cuda->ordinal;
    MICA_TRY(MICA_CU(NULL, cuDeviceGetCount, &count));
    if (ordinal >= count || ordinal >= MICA_MAX_DEVICES)
        return mica_fail(MICA_NO_DEVICE, "cuda:%d: the driver shows %d device%s", ordinal, count,
                         count == 1 ? "" : "s");
    MICA_TRY(mica_device_lost_check(ordinal));
    MICA_TRY(MICA_CU(NULL, cuDeviceGet, &cuda->device, ordinal));
    MICA_TRY(query(cuda));
    if (cuda->info.arch < 80)
        return mica_fail(MICA_NO_DEVICE, "%s is sm_%d: the kernels need sm_80 or newer",
                         cuda->info.model, cuda->info.arch);
    MICA_TRY(MICA_CU(cuda, cuDevicePrimaryCtxRetain, &cuda->context, cuda->device));
    mica_log(MICA_LOG_INFO, "%s is %s, %s, %d multiprocessors", cuda->info.name, cuda->info.model,
             cuda->target, cuda->info.units);
    return MICA_OK;
}

mica_status mica_cuda_open(const char *name, mica_cuda **out)
{
    *out = NULL;
    MICA_TRY(mica_fork_check());
    mica_fork_watch();
    const struct model *offline = find_model(name, NULL);
    if (offline) return open_offline(offline, out);
    char *end = NULL;
    long ordinal = strncmp(name, "cuda:", 5) ? -1 : strtol(name + 5, &end, 10);
    if (ordinal < 0 || ordinal > 999 || end == name + 5 || *end)
        return mica_fail(MICA_NO_DEVICE,
                         "device '%s': known are auto, cpu, cuda:0, cuda:1, ... and, for planning "
                         "without a GPU, sm_80, sm_89, sm_90a",
                         name);
    MICA_TRY(mica_driver_load());
    mica_cuda *cuda = new_device(name);
    if (!cuda) return mica_fail_memory(sizeof *cuda);
    cuda->ordinal = (int)ordinal;
    snprintf(cuda->info.name, sizeof cuda->info.name, "cuda:%ld", ordinal);
    mica_status status = open_real(cuda);
    if (status != MICA_OK)
        delete_device(cuda);
    else
        *out = cuda;
    return status;
}

void mica_cuda_close(mica_cuda *cuda)
{
    /* In a forked child the lock may be held by a thread that does not exist there. */
    if (!cuda || mica_forked()) return;
    mica_kernels_unload(cuda);
    if (cuda->context && !mica_device_lost(cuda->ordinal))
        MICA_CU_RELEASE(cuda, cuDevicePrimaryCtxRelease, cuda->device);
    delete_device(cuda);
}

int mica_cuda_count(void)
{
    int count = 0;
    if (mica_driver_load() != MICA_OK || MICA_CU(NULL, cuDeviceGetCount, &count) != MICA_OK)
        return 0;
    return count < MICA_MAX_DEVICES ? count : MICA_MAX_DEVICES;
}

void mica_cuda_device_info(const mica_cuda *cuda, mica_device_info *info)
{
    *info = cuda->info;
}

mica_status mica_cuda_health(const mica_cuda *cuda)
{
    MICA_TRY(mica_fork_check());
    return mica_device_lost_check(cuda->ordinal);
}

mica_status mica_cuda_usable(const mica_cuda *cuda)
{
    if (mica_forked()) return mica_fork_check();
    if (cuda->ordinal < 0)
        return mica_fail(MICA_NO_DEVICE,
                         "%s is an offline device: plans and kernels are made for it, nothing "
                         "runs; open cuda:0 to run",
                         cuda->info.name);
    return mica_device_lost_check(cuda->ordinal);
}

mica_status mica_cuda_enter(const mica_cuda *cuda, bool *pushed)
{
    *pushed = false;
    MICA_TRY(mica_cuda_usable(cuda));
    void *current = NULL;
    MICA_TRY(MICA_CU(cuda, cuCtxGetCurrent, &current));
    if (current == cuda->context) return MICA_OK;
    MICA_TRY(MICA_CU(cuda, cuCtxPushCurrent, cuda->context));
    *pushed = true;
    return MICA_OK;
}

enum { CAPTURE_RELAXED = 2 };

int mica_capture_aside(void)
{
    int mode = CAPTURE_RELAXED; /* then what it was before */
    const bool changed = mica_driver.cuThreadExchangeStreamCaptureMode &&
                         mica_driver.cuThreadExchangeStreamCaptureMode(&mode) == 0;
    return changed ? mode : -1;
}

void mica_capture_back(int mode)
{
    if (mode >= 0) mica_driver.cuThreadExchangeStreamCaptureMode(&mode);
}

bool mica_cuda_enter_quietly(const mica_cuda *cuda, bool *pushed)
{
    *pushed = false;
    if (mica_forked() || cuda->ordinal < 0 || mica_device_lost(cuda->ordinal)) return false;
    void *current = NULL;
    if (mica_driver.cuCtxGetCurrent(&current) != 0) return false;
    if (current == cuda->context) return true;
    *pushed = mica_driver.cuCtxPushCurrent(cuda->context) == 0;
    return *pushed;
}

void mica_cuda_leave(const mica_cuda *cuda, bool pushed)
{
    void *popped;
    if (pushed) MICA_CU_RELEASE(cuda, cuCtxPopCurrent, &popped);
}
