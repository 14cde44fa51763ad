/* SPDX-License-Identifier: Apache-2.0
 * Quotas of control groups, and affinity. */
#define _GNU_SOURCE
#include "cpu/quota.h"

#include <limits.h>
#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Groups with longer names are passed over: this runs on stacks of any size. */
enum { LONGEST = 1024 };

static FILE *open_at(const char *root, const char *folder, const char *name)
{
    char path[3 * LONGEST];
    snprintf(path, sizeof path, "%s%s%s", root, folder, name);
    return fopen(path, "re");
}

/* The quota of one group: "max 100000" or "50000 100000" in version 2, a file for each number in
 * version 1, where -1 is no bound. */
static double quota_of(const char *root, const char *folder, bool v1)
{
    long long quota = -1, period = 0;
    FILE *f = open_at(root, folder, v1 ? "/cpu.cfs_quota_us" : "/cpu.max");
    if (!f) return HUGE_VAL;
    if (fscanf(f, v1 ? "%lld" : "%lld %lld", &quota, &period) < (v1 ? 1 : 2)) quota = -1;
    fclose(f);
    f = v1 ? open_at(root, folder, "/cpu.cfs_period_us") : NULL;
    if (f && fscanf(f, "%lld", &period) != 1) period = 0;
    if (f) fclose(f);
    return quota > 0 && period > 0 ? (double)quota / (double)period : HUGE_VAL;
}

/* Where the groups are mounted, and which of them stands at the mount: in a container often its
 * own.
 */
typedef struct mount {
    char at[LONGEST], group[LONGEST];
} mount;

static bool has_option(const char *options, const char *option)
{
    size_t n = strlen(option);
    for (const char *o = options; *o; o += strcspn(o, ","), o += *o == ',')
        if (!strncmp(o, option, n) && (o[n] == ',' || !o[n] || o[n] == '\n')) return true;
    return false;
}

static bool find_mount(const char *root, bool v1, mount *m)
{
    FILE *f = open_at(root, "/proc/self", "/mountinfo");
    char *line = NULL;
    size_t size = 0;
    bool found = false;
    while (f && !found && getline(&line, &size, f) > 0) {
        char type[64] = "", options[1024] = "";
        const char *rest = strstr(line, " - ");
        if (!rest || sscanf(line, "%*s %*s %*s %1023s %1023s", m->group, m->at) != 2) continue;
        if (sscanf(rest, " - %63s %*s %1023s", type, options) < 1) continue;
        found =
            v1 ? !strcmp(type, "cgroup") && has_option(options, "cpu") : !strcmp(type, "cgroup2");
    }
    free(line);
    if (f) fclose(f);
    return found;
}

/* The least quota of a group and of those above it. */
static double quota_up(const char *root, const mount *m, const char *group, bool v1)
{
    char folder[2 * LONGEST];
    size_t skip = strlen(m->group), least = strlen(m->at);
    if (!strcmp(m->group, "/") || strncmp(group, m->group, skip) != 0) skip = 0;
    bool elsewhere = !strncmp(group, "/..", 3); /* outside of what this process sees */
    snprintf(folder, sizeof folder, "%s%s", m->at, elsewhere ? "" : group + skip);
    double quota = quota_of(root, folder, v1);
    for (char *slash; (slash = strrchr(folder, '/')) && slash >= folder + least;) {
        *slash = 0;
        double above = quota_of(root, folder, v1);
        if (above < quota) quota = above;
    }
    return quota;
}

static double group_quota(const char *root, char *line)
{
    char *controllers = strchr(line, ':'),
         *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) return HUGE_VAL;
    *group++ = 0;
    group[strcspn(group, "\n")] = 0;
    bool v1 = controllers[1] != 0;
    mount m;
    if (v1 && !has_option(controllers + 1, "cpu")) return HUGE_VAL;
    return find_mount(root, v1, &m) ? quota_up(root, &m, group, v1) : HUGE_VAL;
}

double mica_cpu_quota(const char *root)
{
    double quota = HUGE_VAL;
    FILE *f = open_at(root, "/proc/self", "/cgroup");
    char *line = NULL;
    size_t size = 0;
    while (f && getline(&line, &size, f) > 0) {
        double one = group_quota(root, line);
        if (one < quota) quota = one;
    }
    free(line);
    if (f) fclose(f);
    return quota;
}

/* Of the calling thread, which OpenMP's threads inherit; not where OpenMP itself binds them. */
static int affine(void)
{
    cpu_set_t set;
    if (omp_get_proc_bind() != omp_proc_bind_false || sched_getaffinity(0, sizeof set, &set) != 0)
        return INT_MAX;
    return CPU_COUNT(&set);
}

int mica_cpu_usable(const char *root)
{
    double quota = ceil(mica_cpu_quota(root));
    int cpus = affine();
    if (quota < cpus) cpus = (int)quota;
    return cpus > 0 ? cpus : 1;
}
