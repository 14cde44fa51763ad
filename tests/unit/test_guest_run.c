/* SPDX-License-Identifier: Apache-2.0
 * What plan.h says of runs on the CPU: neither allocation nor lock, by every operation and engine
 * but the reference, and without oneDNN; a thread that has neither planned nor run maps its scratch
 * memory, once. */
#define _GNU_SOURCE
#include "guest.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the C library's functions, with a count of all threads' calls ---- */

static atomic_bool watched;
static atomic_long allocations, mappings, locks;

static void note(atomic_long *calls)
{
    if (atomic_load_explicit(&watched, memory_order_relaxed)) atomic_fetch_add(calls, 1);
}

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes)
{
    note(&allocations);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    note(&allocations);
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    note(&allocations);
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    note(&allocations);
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    note(&allocations);
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : 12;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    note(&mappings);
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

typedef int lock_fn(pthread_mutex_t *mutex);
static lock_fn *real_lock;

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (!real_lock) *(void **)(void *)&real_lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    note(&locks);
    return real_lock(mutex);
}

static void watch(void)
{
    atomic_store(&allocations, 0);
    atomic_store(&mappings, 0);
    atomic_store(&locks, 0);
    atomic_store(&watched, true);
}

static void unwatch(void)
{
    atomic_store(&watched, false);
}

/* ---- runs ---- */

static long long plans;

static mica_plan *open_run(mica_context *context, const guest_case *c, mica_run *run)
{
    mica_plan *plan;
    if (guest_plan(context, c, &plan) != MICA_OK)
        fail_msg("%s ; engine=%s: %s", c->line, c->engine, mica_error());
    *run = (mica_run){.scalars = mica_problem_scalars(c->problem)};
    memcpy(run->args, c->data, sizeof run->args);
    size_t workspace = (mica_plan_workspace(plan) + 255) / 256 * 256;
    if (workspace) run->workspace = aligned_alloc(256, workspace);
    return plan;
}

static void close_run(mica_plan *plan, mica_run *run)
{
    free(run->workspace);
    mica_plan_destroy(plan);
}

static bool is_reference(mica_context *context, const guest_case *c)
{
    mica_verdict v;
    for (int i = 0; mica_problem_verdict(context, c->problem, i, &v) == MICA_OK; i++)
        if (!strcmp(v.engine, c->engine)) return v.reference;
    return false;
}

static void watch_a_run(mica_context *context, guest_case *c)
{
    mica_run run;
    if (is_reference(context, c)) return;
    mica_plan *plan = open_run(context, c, &run);
    watch();
    mica_status status = mica_plan_run(plan, &run);
    unwatch();
    if (status != MICA_OK) fail_msg("%s ; engine=%s: %s", c->line, c->engine, mica_error());
    if (allocations || mappings || locks)
        fail_msg("%s ; engine=%s: a run allocates %ld times, maps %ld, locks %ld", c->line,
                 c->engine, allocations, mappings, locks);
    close_run(plan, &run);
    plans++;
}

static void runs_neither_allocate_nor_lock(void **state)
{
    (void)state;
    mica_context *context = guest_context("cpu");
    guest_each(context, 20, 1e6, NULL, watch_a_run);
    mica_context_destroy(context);
    print_message("%lld plans\n", plans);
    assert_true(plans > 300);
}

/* ---- a thread's first run ---- */

typedef struct first {
    const mica_plan *plan;
    const mica_run *run;
    long mapped, mapped_again;
    mica_status status;
} first;

static void *run_twice(void *user)
{
    first *f = user;
    watch();
    f->status = mica_plan_run(f->plan, f->run);
    f->mapped = mappings;
    if (f->status == MICA_OK) f->status = mica_plan_run(f->plan, f->run);
    unwatch();
    f->mapped_again = mappings;
    return NULL;
}

static bool seen;

static void run_on_a_new_thread(mica_context *context, guest_case *c)
{
    mica_run run;
    pthread_t thread;
    if (seen) return;
    seen = true;
    mica_plan *plan = open_run(context, c, &run);
    first f = {.plan = plan, .run = &run};
    assert_int_equal(pthread_create(&thread, NULL, run_twice, &f), 0);
    pthread_join(thread, NULL);
    assert_int_equal(f.status, MICA_OK);
    assert_true(f.mapped > 0);
    assert_int_equal(f.mapped_again, f.mapped);
    close_run(plan, &run);
}

static void the_first_run_of_a_thread_maps_scratch_memory(void **state)
{
    (void)state;
    mica_context *context = guest_context("cpu");
    guest_each(context, 1, 1e6, NULL, run_on_a_new_thread);
    mica_context_destroy(context);
    assert_true(seen);
}

int main(void)
{
    setenv("MICA_ONEDNN", "none", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_neither_allocate_nor_lock),
        cmocka_unit_test(the_first_run_of_a_thread_maps_scratch_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
