/* SPDX-License-Identifier: Apache-2.0
 * Work that nobody waits for. */
#define _GNU_SOURCE
#include "base/system/background.h"
#include "base/memory.h"
#include "base/system/fork.h"
#include "base/system/thread.h"

#include <sched.h>
#include <stdlib.h>

enum { STACK = 16 << 20, MAX_WORKERS = 4, MAX_HANDLERS = 16 };
enum { IDLE, QUEUED, RUNNING, DONE, DROPPED };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static mica_fork_guarded guarded;
static mica_job *first, *running;
static int workers, handlers, forks;
static bool closed;

/* ---- lists and forks; the mutex is held ---- */

static void append(mica_job **list, mica_job *job)
{
    while (*list) list = &(*list)->next;
    job->next = NULL;
    *list = job;
}

static void take_out(mica_job **list, const mica_job *job)
{
    while (*list && *list != job) list = &(*list)->next;
    if (*list) *list = job->next;
}

static void guard(void)
{
    mica_fork_guard(&guarded, &mutex);
}

/* A child has none of the threads, so that nothing of its parent's ever ends. */
static void enter(void)
{
    pthread_once(&once, guard);
    pthread_mutex_lock(&mutex);
    if (forks == mica_forks()) return;
    forks = mica_forks();
    for (mica_job *j = first; j; j = j->next) j->state = DROPPED;
    for (mica_job *j = running; j; j = j->next) j->state = DROPPED;
    first = running = NULL;
    workers = 0;
    changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER; /* waiters of the parent never leave it */
}

/* ---- threads ---- */

static void end_locked(mica_job *job)
{
    if (!job->heir) {
        job->done(job);
        job->state = DONE;
        take_out(&running, job);
        return;
    }
    pthread_mutex_unlock(&mutex);
    job->discard(job);
    pthread_mutex_lock(&mutex);
    take_out(&running, job);
    mica_release(job);
}

static void *serve(void *unused)
{
    (void)unused;
    enter();
    while (first) {
        mica_job *job = first;
        first = job->next;
        job->state = RUNNING;
        append(&running, job);
        pthread_mutex_unlock(&mutex);
        job->work(job);
        pthread_mutex_lock(&mutex);
        end_locked(job);
        pthread_cond_broadcast(&changed);
    }
    workers--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* Half of the CPUs: the others are the caller's. */
static int most_workers(void)
{
    cpu_set_t set;
    const int half = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) / 2 : 1;
    return half < 1 ? 1 : half > MAX_WORKERS ? MAX_WORKERS : half;
}

/* ---- the process's end ---- */

/* What other libraries keep for their work is gone once their handlers have run. */
static void close_all(void)
{
    enter();
    closed = true;
    for (mica_job *j = first; j; j = j->next) j->state = DROPPED;
    first = NULL;
    pthread_cond_broadcast(&changed);
    while (workers) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

/* Handlers run in reverse order, so this one is to come after those that a library had set when it
 * was loaded, and when it first worked. */
static void watch_exit_locked(void)
{
    if (handlers < MAX_HANDLERS && atexit(close_all) == 0) handlers++;
}

/* ---- the calls ---- */

bool mica_job_start(mica_job *job)
{
    pthread_t thread;
    enter();
    bool served = !closed && workers > 0;
    if (!closed) watch_exit_locked();
    if (!closed && workers < most_workers() && !mica_fault_due(MICA_FAULT_ALLOC) &&
        mica_thread_start(&thread, STACK, serve, NULL)) {
        pthread_detach(thread);
        workers++;
        served = true;
    }
    if (served) {
        job->heir = NULL;
        job->state = QUEUED;
        append(&first, job);
    }
    pthread_mutex_unlock(&mutex);
    return served;
}

bool mica_job_leave(mica_job *job, const void *heir)
{
    enter();
    const bool runs = job->state == RUNNING;
    if (job->state == QUEUED) take_out(&first, job);
    if (runs) job->heir = heir;
    pthread_mutex_unlock(&mutex);
    return !runs;
}

bool mica_job_wait(mica_job *job)
{
    enter();
    while (job->state == QUEUED || job->state == RUNNING) pthread_cond_wait(&changed, &mutex);
    const bool done = job->state == DONE;
    pthread_mutex_unlock(&mutex);
    return done;
}

static bool has_heir(const void *heir)
{
    for (const mica_job *j = running; j; j = j->next)
        if (j->heir == heir) return true;
    return false;
}

void mica_jobs_wait(const void *heir)
{
    enter();
    while (has_heir(heir)) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}
