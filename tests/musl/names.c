/* SPDX-License-Identifier: Apache-2.0
 * Two functions that Debian's archive of libgomp asks for, which musl has not or calls otherwise.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

long __sysconf(int name);
int pthread_attr_setaffinity_np(pthread_attr_t *attr, size_t bytes, const cpu_set_t *set);

long __sysconf(int name)
{
    return sysconf(name);
}

int pthread_attr_setaffinity_np(pthread_attr_t *attr, size_t bytes, const cpu_set_t *set)
{
    (void)attr, (void)bytes, (void)set;
    return 0;
}
