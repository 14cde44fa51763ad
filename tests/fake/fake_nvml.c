/* SPDX-License-Identifier: Apache-2.0
 * A management library for the fake driver's devices: each reading of the clock is 15 MHz below the
 * one before. */
#include <stddef.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, CLOCK_SM = 1 };

static int users, device;
static unsigned mhz = 1995;

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle);
EXPORT int nvmlDeviceGetClockInfo(void *handle, int type, unsigned *clock);

EXPORT int nvmlInit_v2(void)
{
    users++;
    return OK;
}

EXPORT int nvmlShutdown(void)
{
    if (users == 0) return UNINITIALIZED;
    users--;
    return OK;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle)
{
    if (users == 0) return UNINITIALIZED;
    if (strcmp(bus, "0000:17:00.0") != 0) return NOT_FOUND;
    *handle = &device;
    return OK;
}

EXPORT int nvmlDeviceGetClockInfo(void *handle, int type, unsigned *clock)
{
    if (users == 0) return UNINITIALIZED;
    if (handle != &device || type != CLOCK_SM || !clock) return INVALID_ARGUMENT;
    *clock = mhz -= 15;
    return OK;
}
