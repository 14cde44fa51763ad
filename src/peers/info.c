/* SPDX-License-Identifier: Apache-2.0
 * Rows for `mica info`: which peers were opened. */
#include "peers/peers.h"
#include "peers/cublaslt.h"
#include "peers/cudnn.h"

#include <stdio.h>

static const struct {
    const char *key;
    size_t (*version)(void);
    const char *(*path)(void);
} rows[] = {
    {"cublaslt", mica_cublaslt_version, mica_cublaslt_path},
    {"cudnn", mica_cudnn_version, mica_cudnn_path},
};

int mica_peers_info_rows(void)
{
    return sizeof rows / sizeof *rows;
}

void mica_peers_info_row(int index, const char **key, const char **value)
{
    static _Thread_local char text[2048];
    size_t version = rows[index].version();
    *key = rows[index].key;
    *value = "not opened";
    if (!version) return;
    snprintf(text, sizeof text, "%zu.%zu.%zu, %s", version / 10000, version / 100 % 100,
             version % 100, rows[index].path());
    *value = text;
}
