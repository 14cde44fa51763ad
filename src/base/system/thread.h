/* SPDX-License-Identifier: Apache-2.0
 * Threads of the library's own, and the room on the stack of the caller's. */
#ifndef MICA_BASE_SYSTEM_THREAD_H
#define MICA_BASE_SYSTEM_THREAD_H

#include "mica/types.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* Whether so many bytes of the calling thread's stack are free; false also on a stack that is not
 * the thread's own (a coroutine's), whose end nobody knows. */
bool mica_stack_has(size_t bytes);

/* Starts a thread that takes no signals, those being the caller's business. */
bool mica_thread_start(pthread_t *thread, size_t stack, void *(*work)(void *), void *user);

/* work(user), on a thread with a stack of MICA_DEEP bytes if the caller's has not half of that
 * free: its status, and its error text for the caller. The caller waits. */
#define MICA_DEEP ((size_t)1 << 20)
typedef mica_status (*mica_deep_fn)(void *user);
mica_status mica_deep_call(mica_deep_fn work, void *user);

#endif
