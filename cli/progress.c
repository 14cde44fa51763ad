/* SPDX-License-Identifier: Apache-2.0
 * The progress bar. */
#define _GNU_SOURCE
#include "bench/table.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

double cli_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void cli_progress_begin(cli_progress *p, size_t total, bool quiet)
{
    double now = cli_seconds();
    *p = (cli_progress){!quiet && isatty(STDERR_FILENO), total, now, now};
}

void cli_progress_step(cli_progress *p, size_t done, const char *what)
{
    static const char bar[] = "####################", gap[] = "....................";
    double now = cli_seconds();
    if (!p->on || now - p->last < 0.1) return;
    p->last = now;
    double part = p->total ? (double)done / (double)p->total : 0;
    int filled = (int)(part * 20);
    int left = done ? (int)((now - p->start) * (1 - part) / part + 0.5) : 0;
    fprintf(stderr, "\r\033[K[%.*s%.*s] %zu/%zu", filled, bar, 20 - filled, gap, done, p->total);
    if (done) fprintf(stderr, " %d:%02d left", left / 60, left % 60);
    fprintf(stderr, " %.50s", what);
    fflush(stderr);
}

void cli_progress_clear(cli_progress *p)
{
    if (p->on) fputs("\r\033[K", stderr);
}
