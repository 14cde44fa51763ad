/* SPDX-License-Identifier: Apache-2.0
 * The environment, read once per process. */
#define _GNU_SOURCE
#include "base/env.h"
#include "mica/plan.h"
#include "base/why.h"

#include <pthread.h>
#include <stdlib.h>

static const struct {
    const char *name, *doc;
} variables[] = {
#define MICA_X(name, doc) {"MICA_" #name, doc},
    MICA_ENVIRONMENT(MICA_X)
#undef MICA_X
};

static const char *const foreign[] = {"CUDA_VISIBLE_DEVICES",  "CUDA_INJECTION64_PATH",
                                      "NVTX_INJECTION64_PATH", "LD_PRELOAD",
                                      "CUDA_LAUNCH_BLOCKING",  "NVRTC_APPEND_FLAGS"};
enum { FOREIGN = sizeof foreign / sizeof *foreign };

static const char *values[MICA_ENV_COUNT], *home, *cache_home, *foreign_values[FOREIGN];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_all(void)
{
    for (int i = 0; i < MICA_ENV_COUNT; i++) {
        values[i] = secure_getenv(variables[i].name);
        if (values[i] && !*values[i]) values[i] = NULL;
    }
    home = secure_getenv("HOME");
    cache_home = secure_getenv("XDG_CACHE_HOME");
    for (int i = 0; i < FOREIGN; i++) foreign_values[i] = secure_getenv(foreign[i]);
}

const char *mica_env(mica_env_name name)
{
    pthread_once(&once, read_all);
    return values[name];
}

const char *mica_env_home(void)
{
    pthread_once(&once, read_all);
    return home;
}

const char *mica_env_cache_home(void)
{
    pthread_once(&once, read_all);
    return cache_home;
}

bool mica_env_foreign(int index, const char **name, const char **value)
{
    pthread_once(&once, read_all);
    if (index < 0 || index >= FOREIGN) return false;
    *name = foreign[index];
    *value = foreign_values[index];
    return true;
}

mica_status mica_env_info(int index, const char **name, const char **value, const char **doc)
{
    if (index < 0 || index >= MICA_ENV_COUNT)
        return mica_fail(MICA_INVALID, "variable %d: there are %d", index, MICA_ENV_COUNT);
    *name = variables[index].name;
    *value = mica_env((mica_env_name)index);
    *doc = variables[index].doc;
    return MICA_OK;
}
