/* SPDX-License-Identifier: Apache-2.0
 * Who compiles a kernel when several processes want it at once: one, while the others wait for its
 * entry of the disk cache. Only saves work: whoever cannot claim compiles all the same. */
#ifndef MICA_CUDA_COMPILE_CLAIM_H
#define MICA_CUDA_COMPILE_CLAIM_H

#include "cuda/compile/cache.h"

#include <stdbool.h>

typedef struct mica_claim {
    int fd; /* -1: nothing is held */
    int64_t at;
} mica_claim;

/* Waits until nobody else holds the key, then holds it: true, and what another process stored
 * meanwhile can be read. False: there is nowhere to hold it, or that took too long. `what` is for
 * the log. */
bool mica_claim_take(const mica_cache_key *key, const char *what, mica_claim *claim);
void mica_claim_end(mica_claim *claim);
/* The longest wait, a minute unless a test is less patient. */
void mica_claim_patience(int ms);

#endif
