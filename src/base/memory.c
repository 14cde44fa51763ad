/* SPDX-License-Identifier: Apache-2.0
 * Host memory and fault injection. */
#include "base/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct {
    atomic_long countdown; /* 0: off; 1: the next event fails; -1: all fail */
    atomic_long count;
    atomic_bool persistent;
} faults[MICA_FAULT_KINDS];

void mica_fault_set(mica_fault kind, long n, bool persistent)
{
    atomic_store(&faults[kind].persistent, persistent);
    atomic_store(&faults[kind].count, 0);
    atomic_store(&faults[kind].countdown, n);
}

long mica_fault_count(mica_fault kind)
{
    return atomic_load(&faults[kind].count);
}

bool mica_fault_due(mica_fault kind)
{
    long left = atomic_load_explicit(&faults[kind].countdown, memory_order_relaxed);
    if (left == 0) return false;
    atomic_fetch_add(&faults[kind].count, 1);
    /* Exchanged, not decremented: two threads must not both step from 1, to 0 and past it. */
    while (left > 0) {
        long next = left > 1 ? left - 1 : atomic_load(&faults[kind].persistent) ? -1 : 0;
        if (atomic_compare_exchange_weak(&faults[kind].countdown, &left, next)) return left == 1;
    }
    return left < 0;
}

void *mica_alloc(size_t bytes)
{
    if (mica_fault_due(MICA_FAULT_ALLOC)) return NULL;
    return calloc(1, bytes ? bytes : 1);
}

void *mica_grow(void *memory, size_t bytes)
{
    if (mica_fault_due(MICA_FAULT_ALLOC)) return NULL;
    return realloc(memory, bytes ? bytes : 1);
}

void mica_release(void *memory)
{
    free(memory);
}

char *mica_copy_text(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = mica_alloc(bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}
