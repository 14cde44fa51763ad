/* SPDX-License-Identifier: Apache-2.0
 * How many CPUs this process may use: its quota (control groups of version 1 and 2, as containers
 * set it) and the calling thread's affinity. */
#ifndef MICA_CPU_QUOTA_H
#define MICA_CPU_QUOTA_H

/* CPUs' worth of time that the groups of this process allow, HUGE_VAL without a bound. root: put
 * before /proc and /sys, "" but in tests. */
double mica_cpu_quota(const char *root);
/* At least 1. Part of a CPU counts as one. */
int mica_cpu_usable(const char *root);

#endif
