/* SPDX-License-Identifier: Apache-2.0
 * Where people have NVRTC beside the places that the loader knows: CUDA toolkits, the packages of
 * pip and conda. docs/man/mica-env.7.scd tells users the same. */
#ifndef MICA_CUDA_COMPILE_NVRTC_SEARCH_H
#define MICA_CUDA_COMPILE_NVRTC_SEARCH_H

#include "base/text.h"

/* Sonames, the newest first; ends with NULL. */
extern const char *const mica_nvrtc_names[];
/* The first that can be opened, or NULL; appends to `looked` each pattern of folders and what is
 * wrong with those that have the file. local: "/usr/local", but in tests. */
void *mica_nvrtc_search(const char *local, mica_text *looked);

#endif
