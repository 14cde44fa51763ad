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

static const char *values[MICA_ENV_COUNT], *home, *cache_home;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_all(void)
{
    for (int i = 0; i < MICA_ENV_COUNT; i++) {
        values[i] = secure_getenv(variables[i].name);
        if (values[i] && !*values[i]) values[i] = NULL;
    }
    home = secure_getenv("HOME");
    cache_home = secure_getenv("XDG_CACHE_HOME");
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

mica_status mica_env_info(int index, const char **name, const char **value, const char **doc)
{
    if (index < 0 || index >= MICA_ENV_COUNT)
        return mica_fail(MICA_INVALID, "variable %d: there are %d", index, MICA_ENV_COUNT);
    *name = variables[index].name;
    *value = mica_env((mica_env_name)index);
    *doc = variables[index].doc;
    return MICA_OK;
}
