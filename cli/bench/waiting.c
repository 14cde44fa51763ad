/* SPDX-License-Identifier: Apache-2.0
 * Time spent waiting for a core, from Linux's schedstat files. */
#include "bench/waiting.h"

#include <dirent.h>
#include <stdio.h>

/* Its second number are nanoseconds on a run queue. */
static double waited_ns(const char *task)
{
    char path[300];
    double ns = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", task);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (fscanf(f, "%*f %lf", &ns) != 1) ns = 0;
    fclose(f);
    return ns;
}

double cli_waited_ms(void)
{
    double ns = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) return 0;
    for (const struct dirent *d; (d = readdir(tasks));)
        if (d->d_name[0] != '.') ns += waited_ns(d->d_name);
    closedir(tasks);
    return 1e-6 * ns;
}

bool cli_disturbed(double ms, double waited_ms)
{
    return waited_ms > 0.005 + 0.02 * ms;
}
