/* SPDX-License-Identifier: Apache-2.0
 * Contention for CPUs: seen by involuntary context switches, cured by waiting asleep. */
#define _GNU_SOURCE
#include "cpu/contention.h"

#include <omp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- the decision ---- */

/* A thread that shares its CPU loses it every time slice, 3 to 8 ms; daemons and the kernel's own
 * threads take one away some times a second. */
enum { WINDOW_MS = 12, LONGEST_WINDOW_MS = 48, LEAST_SWITCHES = 3, LEAST_PER_SECOND = 60 };
/* Where the end cannot be seen, threads spin for a window to find out, less and less often. */
enum { SHORTEST_HOLD_MS = 100, LONGEST_HOLD_MS = 3200, RELAPSE_MS = 400, CROWDED_MS = 40 };

static bool is_contended(int64_t elapsed, long switches)
{
    return elapsed >= WINDOW_MS && switches >= LEAST_SWITCHES &&
           switches * 1000 >= LEAST_PER_SECOND * elapsed;
}

static void count_from(mica_contention *c, int64_t now, long switches)
{
    c->since = now;
    c->switches = switches;
}

static void end_hold(mica_contention *c, int64_t now, long switches, bool crowded)
{
    c->started = true;
    c->contended = crowded;
    c->until = now + CROWDED_MS;
    c->free_since = now;
    count_from(c, now, switches);
}

static void begin_hold(mica_contention *c, int64_t now)
{
    bool relapse = c->hold > 0 && now - c->free_since < RELAPSE_MS;
    c->hold = relapse ? 2 * c->hold : SHORTEST_HOLD_MS;
    if (c->hold > LONGEST_HOLD_MS) c->hold = LONGEST_HOLD_MS;
    c->contended = true;
    c->until = now + c->hold;
}

bool mica_contention_look(mica_contention *c, int64_t now, long switches, bool crowded,
                          int64_t *wait)
{
    if (!c->started || (c->contended && now >= c->until))
        end_hold(c, now, switches, crowded);
    else if (!c->contended && is_contended(now - c->since, switches - c->switches))
        begin_hold(c, now);
    else if (!c->contended && now - c->since >= LONGEST_WINDOW_MS)
        count_from(c, now, switches);
    *wait = c->contended ? c->until - now : WINDOW_MS;
    return c->contended;
}

/* ---- how OpenMP's threads wait ---- */

/* clang's runtime (and Intel's) has a call for it, of the calling thread's teams. */
extern void kmp_set_blocktime(int milliseconds) __attribute__((weak));
extern int kmp_get_blocktime(void) __attribute__((weak));

static void set_blocktime(bool sleep)
{
    static _Thread_local bool asleep;
    static _Thread_local int before;
    if (sleep == asleep) return;
    if (sleep) before = kmp_get_blocktime();
    kmp_set_blocktime(sleep ? 0 : before);
    asleep = sleep;
}

/* libgomp has none, but its threads spin only some microseconds while it manages more of them than
 * there are CPUs. So a team of another thread makes up the number. It does nothing but sleep. */
static sem_t end_of_team;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int members;

static void make_semaphore(void)
{
    sem_init(&end_of_team, 0, 0);
}

static void *be_there(void *unused)
{
    return unused;
}

/* libgomp ends the process where it cannot start a thread. */
static bool can_start_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, be_there, NULL) != 0) return false;
    return pthread_join(thread, NULL) == 0;
}

static void *sleep_in_team(void *size)
{
    int threads = (int)(intptr_t)size;
    if (!can_start_thread()) threads = 1;
#pragma omp parallel num_threads(threads)
    atomic_fetch_add_explicit(&members, 1, memory_order_relaxed);
    while (sem_wait(&end_of_team) != 0) continue;
    return NULL;
}

/* Signals are the caller's business: our threads take none. */
static bool start_team(int threads)
{
    int procs = omp_get_num_procs(), size = procs > threads ? procs - threads + 2 : 2;
    sigset_t all, old;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    bool started = pthread_create(&thread, NULL, sleep_in_team, (void *)(intptr_t)size) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (started) pthread_detach(thread);
    return started;
}

void mica_contention_sleep(bool sleep, int threads)
{
    static bool team;
    if (kmp_set_blocktime) {
        set_blocktime(sleep);
        return;
    }
    if (sleep == team) return;
    pthread_once(&once, make_semaphore);
    if (sleep)
        team = start_team(threads);
    else
        team = sem_post(&end_of_team) != 0;
}

/* ---- watching ---- */

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Whether this process's threads and the runnable ones of others are more than the CPUs. Of its own
 * only the one that asks runs: the rest have not begun. */
static bool are_too_many(int threads)
{
    FILE *f = fopen("/proc/loadavg", "re");
    int runnable = 0;
    if (f && fscanf(f, "%*s %*s %*s %d", &runnable) != 1) runnable = 0;
    if (f) fclose(f);
    return runnable - 1 + threads > sysconf(_SC_NPROCESSORS_ONLN);
}

/* Whether the calling thread has waited for a CPU for a fifth of the time since it last asked. */
static bool has_waited(int64_t now)
{
    static int64_t asked;
    static unsigned long long before;
    static pthread_t who;
    unsigned long long waited = 0; /* ns */
    FILE *f = fopen("/proc/thread-self/schedstat", "re");
    if (f && fscanf(f, "%*s %llu", &waited) != 1) waited = 0;
    if (f) fclose(f);
    bool result = asked && pthread_equal(who, pthread_self()) && waited > before &&
                  waited - before > (unsigned long long)(now - asked) * 200000;
    who = pthread_self(), before = waited, asked = now;
    return result;
}

static mica_contention state;
static bool fixed; /* set before the first look */
static atomic_flag looking = ATOMIC_FLAG_INIT;
static atomic_bool contended;
static _Atomic int64_t next_look;

static void look(int64_t now, int threads)
{
    struct rusage usage;
    int64_t wait;
    getrusage(RUSAGE_SELF, &usage);
    bool waited = has_waited(now), crowded = state.started ? waited : are_too_many(threads);
    bool result = mica_contention_look(&state, now, usage.ru_nivcsw, crowded, &wait);
    if (fixed) result = mica_contention_seen(), wait = INT64_MAX / 2;
    if (!kmp_set_blocktime) mica_contention_sleep(result, threads);
    atomic_store_explicit(&next_look, now + wait, memory_order_relaxed);
    atomic_store_explicit(&contended, result, memory_order_relaxed);
}

bool mica_contention_seen(void)
{
    return atomic_load_explicit(&contended, memory_order_relaxed);
}

void mica_contention_fix(bool to)
{
    fixed = true;
    atomic_store_explicit(&contended, to, memory_order_relaxed);
}

void mica_contention_watch(int threads)
{
    if (threads <= 1) return;
    int64_t now = now_ms();
    if (now >= atomic_load_explicit(&next_look, memory_order_relaxed) &&
        !atomic_flag_test_and_set_explicit(&looking, memory_order_acquire)) {
        look(now, threads);
        atomic_flag_clear_explicit(&looking, memory_order_release);
    }
    if (kmp_set_blocktime) set_blocktime(mica_contention_seen());
}
