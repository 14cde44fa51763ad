/* SPDX-License-Identifier: Apache-2.0
 * Threads of the library's own, and the room on the stack of the caller's. */
#define _GNU_SOURCE
#include "base/system/thread.h"
#include "base/memory.h"
#include "base/why.h"

#include <omp.h>
#include <signal.h>
#include <stdint.h>

/* The calling thread's stack, once asked for: of a process's first thread that is reading a file.
 */
static _Thread_local struct {
    uintptr_t low, high;
} stack;

static void find_stack(void)
{
    pthread_attr_t attr;
    void *low = NULL;
    size_t bytes = 0, guard = 0;
    if (pthread_getattr_np(pthread_self(), &attr) != 0) return;
    if (pthread_attr_getstack(&attr, &low, &bytes) == 0 && low) {
        (void)pthread_attr_getguardsize(&attr,
                                        &guard); /* part of it, or not: glibc's versions differ */
        stack.low = (uintptr_t)low + guard;
        stack.high = (uintptr_t)low + bytes;
    }
    pthread_attr_destroy(&attr);
}

bool mica_stack_has(size_t bytes)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    if (!stack.high) find_stack();
    return here > stack.low && here <= stack.high && here - stack.low >= bytes;
}

bool mica_thread_start(pthread_t *thread, size_t stack_bytes, void *(*work)(void *), void *user)
{
    sigset_t all, old;
    pthread_attr_t attr;
    sigfillset(&all);
    if (pthread_attr_init(&attr) != 0) return false;
    bool started = pthread_attr_setstacksize(&attr, stack_bytes) == 0;
    pthread_sigmask(SIG_SETMASK, &all, &old);
    started = started && pthread_create(thread, &attr, work, user) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return started;
}

typedef struct deep {
    mica_deep_fn work;
    void *user;
    int threads; /* of the caller's parallel loops */
    mica_status status;
    char *error;
} deep;

static void *call(void *user)
{
    deep *d = user;
    omp_set_num_threads(d->threads);
    d->status = d->work(d->user);
    if (d->status != MICA_OK) d->error = mica_copy_text(mica_error());
    return NULL;
}

mica_status mica_deep_call(mica_deep_fn work, void *user)
{
    if (mica_stack_has(MICA_DEEP / 2)) return work(user);
    deep d = {.work = work, .user = user, .threads = omp_get_max_threads()};
    pthread_t thread;
    if (!mica_thread_start(&thread, MICA_DEEP, call, &d))
        return mica_fail(MICA_OUT_OF_MEMORY,
                         "this thread's stack has less than %zu bytes left, and "
                         "one with more could not be started",
                         MICA_DEEP / 2);
    pthread_join(thread, NULL);
    if (d.status != MICA_OK && d.error) (void)mica_fail(d.status, "%s", d.error);
    mica_release(d.error);
    return d.status;
}
