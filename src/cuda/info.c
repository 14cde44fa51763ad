/* SPDX-License-Identifier: Apache-2.0
 * Rows for `mica info`: what was looked for, found and loaded. */
#include "cuda/driver.h"
#include "cuda/cuda.h"
#include "cuda/compile/nvrtc.h"

#include <stdio.h>
#include <string.h>

typedef void (*row_fn)(mica_text *value);

static void driver_row(mica_text *value)
{
    if (mica_driver_load() == MICA_OK)
        mica_text_add(value, "%s", mica_driver_path());
    else
        mica_text_add(value, "none: %s", mica_error());
}

static void driver_version_row(mica_text *value)
{
    int version = mica_driver_version();
    if (version)
        mica_text_add(value, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    else
        mica_text_add(value, "-");
}

static void devices_row(mica_text *value)
{
    mica_text_add(value, "%d", mica_cuda_count());
}

static void nvrtc_row(mica_text *value)
{
    if (mica_nvrtc_load() == MICA_OK)
        mica_text_add(value, "%s", mica_nvrtc_path());
    else
        mica_text_add(value, "none: %s", mica_error());
}

static void nvrtc_version_row(mica_text *value)
{
    int version = mica_nvrtc_version();
    if (version)
        mica_text_add(value, "%d.%d, build %s", version / 1000, version % 1000 / 10,
                      mica_nvrtc_build_id());
    else
        mica_text_add(value, "-");
}

static void cache_row(mica_text *value)
{
    mica_disk_cache_info info;
    if (mica_cuda_cache_info(&info) != MICA_OK)
        mica_text_add(value, "none: %s", mica_error());
    else if (info.path[0])
        mica_text_add(value, "%s, %lld entries, %lld of %lld bytes", info.path,
                      (long long)info.entries, (long long)info.bytes, (long long)info.limit_bytes);
    else
        mica_text_add(value, "none: %s", info.reason);
}

static const struct {
    const char *key;
    row_fn value;
} rows[] = {
    {"cuda driver", driver_row},          {"cuda driver version", driver_version_row},
    {"cuda devices", devices_row},        {"nvrtc", nvrtc_row},
    {"nvrtc version", nvrtc_version_row}, {"kernel cache", cache_row},
};
enum { ROWS = sizeof rows / sizeof *rows };

int mica_cuda_info_rows(void)
{
    return ROWS;
}

void mica_cuda_info_row(int index, const char **key, const char **value)
{
    static _Thread_local char text[2048];
    mica_text out = {text, sizeof text, 0};
    *key = rows[index].key;
    text[0] = 0;
    rows[index].value(&out);
    *value = text;
}
