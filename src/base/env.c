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

static const char *const places[] = {
#define MICA_X(name, doc) #name,
    MICA_ENVIRONMENT_PLACES(MICA_X)
#undef MICA_X
};

static const char *const foreign[] = {"CUDA_VISIBLE_DEVICES",  "CUDA_INJECTION64_PATH",
                                      "NVTX_INJECTION64_PATH", "LD_PRELOAD",
                                      "CUDA_LAUNCH_BLOCKING",  "NVRTC_APPEND_FLAGS"};
enum { FOREIGN = sizeof foreign / sizeof *foreign };

static const char *values[MICA_ENV_COUNT], *place_values[MICA_ENV_PLACE_COUNT];
static const char *foreign_values[FOREIGN];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_all(void)
{
    for (int i = 0; i < MICA_ENV_COUNT; i++) {
        values[i] = secure_getenv(variables[i].name);
        if (values[i] && !*values[i]) values[i] = NULL;
    }
    for (int i = 0; i < MICA_ENV_PLACE_COUNT; i++) place_values[i] = secure_getenv(places[i]);
    for (int i = 0; i < FOREIGN; i++) foreign_values[i] = secure_getenv(foreign[i]);
}

const char *mica_env(mica_env_name name)
{
    pthread_once(&once, read_all);
    return values[name];
}

const char *mica_env_place(mica_env_place_name name)
{
    pthread_once(&once, read_all);
    return place_values[name];
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
