/* SPDX-License-Identifier: Apache-2.0
 * Quotas of control groups as containers, services and batch systems lay them out. */
#define _GNU_SOURCE
#include "cpu/quota.h"

#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char root[] = "/tmp/mica-quota-XXXXXX";

static void write_file(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *slash = strchr(whole + sizeof root, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(whole, 0755);
        *slash = '/';
    }
    FILE *f = fopen(whole, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(root + sizeof root - 7, "XXXXXX");
    return mkdtemp(root) == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

#define MOUNT_2 "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

static void version_2(void **state)
{
    (void)state;
    write_file("/proc/self/mountinfo", "20 1 8:1 / / rw - ext4 /dev/root rw\n" MOUNT_2);
    write_file("/proc/self/cgroup", "0::/user.slice/job.scope\n");
    assert_true(isinf(mica_cpu_quota(root)));
    write_file("/sys/fs/cgroup/user.slice/job.scope/cpu.max", "max 100000\n");
    assert_true(isinf(mica_cpu_quota(root)));
    write_file("/sys/fs/cgroup/user.slice/job.scope/cpu.max", "50000 100000\n");
    assert_true(mica_cpu_quota(root) == 0.5);
    assert_int_equal(mica_cpu_usable(root), 1);
    write_file("/sys/fs/cgroup/user.slice/cpu.max", "20000 100000\n"); /* above it */
    assert_true(mica_cpu_quota(root) == 0.2);
    write_file("/sys/fs/cgroup/user.slice/cpu.max", "200000 100000\n");
    assert_true(mica_cpu_quota(root) == 0.5);
}

/* A container sees its own group as the root of what is mounted. */
static void version_2_in_a_container(void **state)
{
    (void)state;
    write_file("/proc/self/mountinfo", MOUNT_2);
    write_file("/proc/self/cgroup", "0::/\n");
    write_file("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    assert_true(mica_cpu_quota(root) == 1.5);
    write_file("/proc/self/cgroup", "0::/../other\n");
    assert_true(mica_cpu_quota(root) == 1.5);
}

static void version_1(void **state)
{
    (void)state;
    write_file("/proc/self/mountinfo",
               "31 20 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
               "32 20 0:28 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup "
               "rw,cpu,cpuacct\n");
    write_file("/proc/self/cgroup", "5:cpuset:/docker/abc\n4:cpu,cpuacct:/docker/abc/in\n"
                                    "1:name=systemd:/docker/abc\n");
    write_file("/sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "1\n"); /* not this one */
    write_file("/sys/fs/cgroup/cpuset/cpu.cfs_period_us", "100000\n");
    assert_true(isinf(mica_cpu_quota(root)));
    write_file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n");
    write_file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_true(mica_cpu_quota(root) == 3);
    write_file("/sys/fs/cgroup/cpu,cpuacct/in/cpu.cfs_quota_us", "-1\n");
    write_file("/sys/fs/cgroup/cpu,cpuacct/in/cpu.cfs_period_us", "100000\n");
    assert_true(mica_cpu_quota(root) == 3);
    write_file("/sys/fs/cgroup/cpu,cpuacct/in/cpu.cfs_quota_us", "50000\n");
    assert_true(mica_cpu_quota(root) == 0.5);
}

static void nothing_to_read(void **state)
{
    (void)state;
    assert_true(isinf(mica_cpu_quota(root)));
    write_file("/proc/self/cgroup", "nonsense\n::\n0::");
    write_file("/proc/self/mountinfo", "- - -\n30 20 0:26 / - cgroup2\n");
    assert_true(isinf(mica_cpu_quota(root)));
    write_file("/proc/self/mountinfo", MOUNT_2);
    write_file("/proc/self/cgroup", "0::/a\n");
    write_file("/sys/fs/cgroup/a/cpu.max", "0 0\n");
    assert_true(isinf(mica_cpu_quota(root)));
    write_file("/sys/fs/cgroup/a/cpu.max", "");
    assert_true(isinf(mica_cpu_quota(root)));
}

static void affinity(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    assert_int_equal(mica_cpu_usable(root), CPU_COUNT(&before));
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(mica_cpu_usable(root), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* libgomp binds the thread that loads it to one CPU; the places that it has stay all. */
static void bound_by_openmp(void **state)
{
    (void)state;
    cpu_set_t all;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    FILE *f = popen("OMP_PROC_BIND=true /proc/$PPID/exe usable", "r");
    assert_non_null(f);
    int usable = 0;
    assert_int_equal(fscanf(f, "%d", &usable), 1);
    assert_int_equal(pclose(f), 0);
    assert_true(usable >= CPU_COUNT(&all));
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "usable")) {
        printf("%d\n", mica_cpu_usable("/nowhere"));
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(version_2, set_up, tear_down),
        cmocka_unit_test_setup_teardown(version_2_in_a_container, set_up, tear_down),
        cmocka_unit_test_setup_teardown(version_1, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_to_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(affinity, set_up, tear_down),
        cmocka_unit_test(bound_by_openmp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
