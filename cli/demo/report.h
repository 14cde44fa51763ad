/* SPDX-License-Identifier: Apache-2.0
 * The demonstration's report: one HTML file with its pictures inside. */
#ifndef MICA_CLI_DEMO_REPORT_H
#define MICA_CLI_DEMO_REPORT_H

#include "demo/digits.h"
#include "demo/net.h"

enum { REPORT_EPOCHS = 1000 };

typedef struct report {
    const net *network;
    const digits *data;
    mica_device_info device;
    int epochs;
    double loss[REPORT_EPOCHS], accuracy[REPORT_EPOCHS]; /* training loss, held-out accuracy */
    double seconds, setup_seconds;
    const float *probabilities; /* held_out x 10, after the last epoch */
} report;

/* Class with the largest probability. */
int report_best(const float *probabilities);
/* Returns false after saying why the file could not be written. */
bool report_write(const report *r, const char *path);

#endif
