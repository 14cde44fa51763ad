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
    double peak_rate; /* of learning, after the first epoch */
    uint64_t seed;
    const char *command;        /* which repeats it */
    const float *probabilities; /* held_out x 10, after the last epoch */
} report;

/* Class with the largest probability. */
int report_best(const float *probabilities);
/* Returns false after saying why the file could not be written. */
bool report_write(const report *r, const char *path);

/* ---- for the parts of the report (report_charts.c) ---- */
void report_escaped(FILE *f, const char *text);
/* The network and its optimiser as a picture; loss and accuracy by epoch; the time of each step. */
void report_network(FILE *f, const report *r);
void report_learning(FILE *f, const report *r);
void report_times(FILE *f, const report *r);
/* "51 GFLOP/s", or "12 GB/s" of steps that memory limits: those of few operations for each byte. */
void report_rate(char *text, size_t size, const report *r, const net_step *s);

#endif
