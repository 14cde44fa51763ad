/* SPDX-License-Identifier: Apache-2.0
 * Scratch memory of threads: one mapping each, taken from like a stack. */
#include "cpu/scratch.h"
#include "base/why.h"
#include "cpu/floating.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define WATCHED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WATCHED 1
#endif
#endif
#ifdef WATCHED /* between what is taken lie a few bytes that nobody may touch */
#include <sanitizer/asan_interface.h>
enum { GAP = 64 };
#define FORBID(at, bytes) __asan_poison_memory_region(at, bytes)
#define ALLOW(at, bytes)  __asan_unpoison_memory_region(at, bytes)
#else
enum { GAP = 9 * 64 }; /* else large arrays would lie pages apart, and loads wait for stores */
#define FORBID(at, bytes) (void)0
#define ALLOW(at, bytes)  (void)0
#endif

/* More than any nest of functions takes, and nobody reaches what lies behind. Pages that nobody
 * touches cost nothing. */
enum { SIZE = 1 << 20, GUARD = 1 << 16, LINE = 64 };

/* Not of the model initial-exec, which would save a call: it would put all that the library has of
 * threads (9 KiB, texts of errors above all) into the 1.6 KiB that glibc keeps for what is opened
 * at run time, and Python could not open it. */
static _Thread_local struct {
    char *memory, *top;
    int team; /* threads that had theirs mapped when this one opened a region with them */
} mine;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* its destructor ends a thread's mapping */
static bool keyed;

static void unmap(void *memory)
{
    ALLOW(memory, SIZE);
    munmap(memory, SIZE + GUARD);
    mine.memory = mine.top = NULL;
}

static void make_key(void)
{
    keyed = pthread_key_create(&key, unmap) == 0;
}

static bool map(void)
{
    if (mine.memory) return true;
    pthread_once(&once, make_key);
    void *memory =
        mmap(NULL, SIZE + GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    if (mprotect(memory, SIZE, PROT_READ | PROT_WRITE) != 0 || !keyed ||
        pthread_setspecific(key, memory) != 0) {
        munmap(memory, SIZE + GUARD);
        return false;
    }
    FORBID(memory, SIZE);
    mine.memory = mine.top = memory;
    return true;
}

mica_scratch mica_scratch_open(void)
{
    /* Plans were refused where there was no room. A thread that OpenMP started since waits for
     * some, as it would for a page of its stack. */
    while (!mine.memory && !map()) sched_yield();
    return (mica_scratch){mine.top};
}

void mica_scratch_close(mica_scratch *scope)
{
    FORBID(scope->top, (size_t)(mine.top - scope->top));
    mine.top = scope->top;
}

void *mica_scratch_take(size_t bytes)
{
    char *taken = mine.top;
    mine.top += (bytes + LINE - 1) / LINE * LINE + GAP;
    ALLOW(taken, bytes);
    return taken;
}

void *mica_scratch_zeroed(size_t bytes)
{
    return memset(mica_scratch_take(bytes), 0, bytes);
}

bool mica_scratch_ready(void)
{
    return mine.team > 0;
}

mica_status mica_scratch_prepare(int threads)
{
    if (!map()) return mica_fail_memory(SIZE);
    if (threads <= mine.team) return MICA_OK;
    bool all = true, odd = false;
    if (threads > 1) {
#pragma omp parallel num_threads(threads) reduction(&& : all) reduction(|| : odd)
        {
            all = map();
            odd = mica_floating_is_odd();
        }
    }
    if (!all) return mica_fail_memory(SIZE);
    mica_floating_team(odd);
    mine.team = threads;
    return MICA_OK;
}
