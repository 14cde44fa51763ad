/* SPDX-License-Identifier: Apache-2.0
 * Did something else disturb a measurement? What the kernel counts of CPU time, waiting and other
 * programs between two moments, and the spread of the times themselves. */
#define _GNU_SOURCE
#include "mica/plan.h"
#include "base/format.h"
#include "base/log.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Quiet machines stay below a third of each; one busy program per CPU, or one beside two threads
 * of ours on two CPUs, is far above. */
static const double MOST_WAITING = 0.1; /* of the time that our threads wanted a CPU */
static const double MOST_STOLEN = 0.1;  /* by a hypervisor, of that time */
static const double MOST_OTHERS = 0.4;  /* of the CPUs that we may use, taken by others */
/* 90th over 10th percentile: caches, clocks and placement of threads vary the times of a CPU. */
static const double MOST_SPREAD = 3, MOST_SPREAD_CUDA = 2;
/* Only where the kernel does not count waiting: what a CPU that is shared has in a second. */
static const double MOST_SWITCHES = 100;
/* CPU seconds that must have passed before shares of them say anything. */
static const double LEAST_SECONDS = 0.02, LEAST_OTHERS = 0.2;

/* ---- reading ---- */

/* Nanoseconds that the threads which are there have waited for a CPU; < 0: not known. */
static double read_waited(void)
{
    DIR *tasks = opendir("/proc/self/task");
    double sum = 0;
    bool known = tasks != NULL;
    for (struct dirent *d; known && (d = readdir(tasks));) {
        char path[300];
        unsigned long long ran, waited;
        if (*d->d_name == '.') continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", d->d_name);
        FILE *f = fopen(path, "re");
        if (!f) { /* a thread that ended meanwhile, or a kernel without the counters */
            known = access("/proc/self/schedstat", R_OK) == 0;
            continue;
        }
        if (fscanf(f, "%llu %llu", &ran, &waited) == 2) sum += (double)waited;
        fclose(f);
    }
    if (tasks) closedir(tasks);
    return known ? sum : -1;
}

/* Of the CPUs that this process may use. */
static void read_cpus(mica_load *load)
{
    cpu_set_t allowed;
    FILE *f =
        sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? fopen("/proc/stat", "re") : NULL;
    load->busy = -1;
    if (!f) return;
    char line[512];
    double busy = 0, stolen = 0, tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    while (fgets(line, sizeof line, f)) {
        unsigned cpu;
        unsigned long long t[8]; /* user nice system idle iowait irq softirq steal */
        if (sscanf(line, "cpu%u %llu %llu %llu %llu %llu %llu %llu %llu", &cpu, &t[0], &t[1], &t[2],
                   &t[3], &t[4], &t[5], &t[6], &t[7]) != 9 ||
            cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &allowed))
            continue;
        busy += (double)(t[0] + t[1] + t[2] + t[5] + t[6]) * tick;
        stolen += (double)t[7] * tick;
        load->cpus++;
    }
    fclose(f);
    if (load->cpus == 0) return;
    load->busy = busy;
    load->stolen = stolen;
}

void mica_load_read(mica_load *load)
{
    struct rusage r = {0};
    if (!load) return;
    *load = (mica_load){.seconds = mica_seconds()};
    read_cpus(load);
    double waited = read_waited();
    load->waited = waited < 0 ? -1 : 1e-9 * waited;
    getrusage(RUSAGE_SELF, &r);
    load->ran = (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
                1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
    load->switches = (double)r.ru_nivcsw;
}

/* ---- the verdict ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* p90 over p10; 1 where there are too few times for either. */
static double spread(const double *ms, size_t count)
{
    double *sorted = count >= 5 ? malloc(count * sizeof *sorted) : NULL;
    if (!sorted) return 1;
    memcpy(sorted, ms, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, ascending);
    double low = sorted[count / 10], high = sorted[count - 1 - count / 10];
    free(sorted);
    return low > 0 ? high / low : 1;
}

static bool cpus_disturbed(const mica_load *from, const mica_load *to, char *why, size_t size)
{
    double ran = to->ran - from->ran, waited = to->waited - from->waited;
    double stolen = to->stolen - from->stolen, others = to->busy - from->busy - ran;
    double room = to->cpus * (to->seconds - from->seconds);
    bool counts = from->waited >= 0 && to->waited >= 0, known = from->busy >= 0 && to->busy >= 0;
    if (ran + (counts && waited > 0 ? waited : 0) < LEAST_SECONDS) return false;
    if (counts && waited > MOST_WAITING * (ran + waited)) {
        mica_format(why, size,
                    "its threads waited for a CPU in %.0f %% of their time, more than %.0f",
                    100 * waited / (ran + waited), 100 * MOST_WAITING);
        return true;
    }
    if (!counts && to->switches - from->switches > MOST_SWITCHES * ran) {
        mica_format(why, size, "its threads lost their CPU %.0f times a second, more than %.0f",
                    (to->switches - from->switches) / ran, MOST_SWITCHES);
        return true;
    }
    if (known && room >= LEAST_OTHERS && stolen > MOST_STOLEN * (ran + stolen)) {
        mica_format(why, size, "the hypervisor took %.0f %% of the CPU time, more than %.0f",
                    100 * stolen / (ran + stolen), 100 * MOST_STOLEN);
        return true;
    }
    if (known && room >= LEAST_OTHERS && others > MOST_OTHERS * room) {
        mica_format(why, size, "other programs had %.0f %% of the CPUs, more than %.0f",
                    100 * others / room, 100 * MOST_OTHERS);
        return true;
    }
    return false;
}

bool mica_load_disturbed(const mica_load *from, const mica_load *to, bool cuda, const double *ms,
                         size_t count, char *why, size_t size)
{
    double limit = cuda ? MOST_SPREAD_CUDA : MOST_SPREAD;
    if (!why) size = 0;
    if (size) *why = 0;
    if (!from || !to || (!ms && count)) return false;
    if (!cuda && cpus_disturbed(from, to, why, size)) return true;
    double times = spread(ms, count);
    if (times <= limit) return false;
    mica_format(why, size, "the 90th percentile is %.3g times the 10th, more than %g", times,
                limit);
    return true;
}
