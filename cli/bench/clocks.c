/* SPDX-License-Identifier: Apache-2.0
 * NVML, opened at run time. */
#include "bench/clocks.h"
#include "cli.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { CLOCK_SM = 1 }; /* nvmlClockType_t */

struct cli_clocks {
    void *library, *device;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_bus)(const char *, void **);
    int (*clock)(void *, int, unsigned *);
};

static bool resolve(cli_clocks *c)
{
    const struct {
        const char *name;
        void *to;
    } symbols[] = {{"nvmlInit_v2", &c->init},
                   {"nvmlShutdown", &c->shutdown},
                   {"nvmlDeviceGetHandleByPciBusId_v2", &c->by_bus},
                   {"nvmlDeviceGetClockInfo", &c->clock}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(c->library, symbols[i].name);
        if (!symbol) return false;
        memcpy(symbols[i].to, &symbol, sizeof symbol);
    }
    return true;
}

cli_clocks *cli_clocks_open(const mica_device_info *device)
{
    if (!device->cuda || !*device->bus) return NULL;
    cli_clocks *c = cli_alloc(sizeof *c);
    *c = (cli_clocks){.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    bool ready = c->library && resolve(c) && c->init() == 0;
    if (ready && c->by_bus(device->bus, &c->device) == 0) return c;
    if (ready) c->shutdown();
    if (c->library) dlclose(c->library);
    free(c);
    return NULL;
}

void cli_clocks_close(cli_clocks *c)
{
    if (!c) return;
    c->shutdown();
    dlclose(c->library);
    free(c);
}

int cli_clocks_sm(const cli_clocks *c)
{
    unsigned mhz = 0;
    return c && c->clock(c->device, CLOCK_SM, &mhz) == 0 ? (int)mhz : 0;
}
