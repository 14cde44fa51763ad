/* SPDX-License-Identifier: Apache-2.0
 * Host memory through one door, so that tests can make the n-th allocation fail. */
#ifndef MICA_BASE_MEMORY_H
#define MICA_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Zeroed memory, or NULL. */
void *mica_alloc(size_t bytes);
/* As realloc; new bytes are not zeroed. On failure the old block stays. */
void *mica_grow(void *memory, size_t bytes);
void mica_release(void *memory);
char *mica_copy_text(const char *text);

/* Fault injection for tests: the n-th event of that kind from now on fails (n = 1 is the next), and
 * with `persistent` all that follow it. n = 0 turns it off. mica_fault_count says how many events
 * were seen since it was set. */
typedef enum mica_fault {
    MICA_FAULT_ALLOC,
    MICA_FAULT_DRIVER,
    MICA_FAULT_FILE,
    MICA_FAULT_KINDS
} mica_fault;
void mica_fault_set(mica_fault kind, long n, bool persistent);
long mica_fault_count(mica_fault kind);
/* Asked by the code under test: true when this event has to fail. */
bool mica_fault_due(mica_fault kind);

#endif
