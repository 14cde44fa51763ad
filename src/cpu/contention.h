/* SPDX-License-Identifier: Apache-2.0
 * Whether others want the CPUs that our threads run on, and how our threads wait then.
 *
 * OpenMP's threads spin while they wait for each other: libgomp's for up to ten milliseconds. On
 * CPUs of their own that is the fastest; where another process, or another runtime of this one,
 * has more threads than CPUs are left, each barrier burns the time slice of the very thread that it
 * waits for, and runs take hundreds of times as long. The kernel counts how often it takes a CPU
 * away from a thread that wants to go on, and that number tells the two apart: next to none, or
 * some hundreds a second. While CPUs are contended, threads sleep where they would spin, and runs
 * for which waking a thread does not pay stay on the caller's. Threads that sleep lose CPUs to each
 * other, so that number cannot tell when it is over; the time that a thread waits for a CPU can
 * where it is long, else a try. */
#ifndef MICA_CPU_CONTENTION_H
#define MICA_CPU_CONTENTION_H

#include <stdbool.h>
#include <stdint.h>

/* The decision, apart from clocks: milliseconds, and involuntary context switches so far. */
typedef struct mica_contention {
    bool started, contended;
    int64_t until;      /* contended: when to try again */
    int64_t hold;       /* how long it was contended the last time */
    int64_t free_since; /* not contended: since then, */
    int64_t since;      /* counting since then, */
    long switches;      /* from that number on */
} mica_contention;

/* Takes one more look; true: contended. `crowded`: the thread waits for CPUs, or before it can
 * know, there are more runnable threads than CPUs. Look again after *wait milliseconds. */
bool mica_contention_look(mica_contention *c, int64_t now, long switches, bool crowded,
                          int64_t *wait);

/* Looks when it is time to, and lets OpenMP's threads sleep or spin; some nanoseconds when it is
 * not. `threads` are those of a run. */
void mica_contention_watch(int threads);
/* What the last look said. */
bool mica_contention_seen(void);
/* One answer from now on, where the user wants one. */
void mica_contention_fix(bool contended);
/* How OpenMP's threads wait from now on; for mica_contention_watch and tests. */
void mica_contention_sleep(bool sleep, int threads);

#endif
