/* SPDX-License-Identifier: Apache-2.0
 * Processes that fork while other threads are inside the library. */
#include "base/system/fork.h"

#include <stdatomic.h>
#include <stddef.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of the list, and taken first */
static mica_fork_guarded *first, *last;
static atomic_int forks;

static void before_fork(void)
{
    pthread_mutex_lock(&mutex);
    for (mica_fork_guarded *g = first; g; g = g->after) pthread_mutex_lock(g->mutex);
}

static void in_parent(void)
{
    for (mica_fork_guarded *g = last; g; g = g->before) pthread_mutex_unlock(g->mutex);
    pthread_mutex_unlock(&mutex);
}

static void in_child(void)
{
    atomic_fetch_add(&forks, 1);
    in_parent();
}

static void watch(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

int mica_forks(void)
{
    pthread_once(&once, watch);
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

void mica_fork_guard(mica_fork_guarded *g, pthread_mutex_t *guarded)
{
    pthread_once(&once, watch);
    pthread_mutex_lock(&mutex);
    *g = (mica_fork_guarded){.mutex = guarded, .before = last};
    *(last ? &last->after : &first) = g;
    last = g;
    pthread_mutex_unlock(&mutex);
}

void mica_fork_unguard(mica_fork_guarded *g)
{
    pthread_mutex_lock(&mutex);
    *(g->before ? &g->before->after : &first) = g->after;
    *(g->after ? &g->after->before : &last) = g->before;
    pthread_mutex_unlock(&mutex);
}
