/* SPDX-License-Identifier: Apache-2.0
 * Processes that fork while other threads are inside the library. Locks with data behind them are
 * taken before a fork and given back on both sides, so that a child finds them free and the data
 * whole. Threads, and other libraries' locks, do not survive: see mica_forks. */
#ifndef MICA_BASE_SYSTEM_FORK_H
#define MICA_BASE_SYSTEM_FORK_H

#include <pthread.h>

/* A lock that a fork waits for; its owner keeps the struct where it is until mica_fork_unguard.
 * Locks that may be taken while another one is held are guarded after it. */
typedef struct mica_fork_guarded {
    pthread_mutex_t *mutex;
    struct mica_fork_guarded *before, *after;
} mica_fork_guarded;
void mica_fork_guard(mica_fork_guarded *guarded, pthread_mutex_t *mutex);
void mica_fork_unguard(mica_fork_guarded *guarded);

/* How many forks lie between this process and the one that first asked. What holds threads or locks
 * of others notes the number when it is made, and is dead where the number has changed. */
int mica_forks(void);

#endif
