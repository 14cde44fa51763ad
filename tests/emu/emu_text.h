/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MICA_TESTS_EMU_EMU_TEXT_H
#define MICA_TESTS_EMU_EMU_TEXT_H

#include <stdbool.h>
#include <stdio.h>

/* Writes CUDA C as C++ that follows emu_kernel.hpp. */
void emu_translate(FILE *out, const char *source);
/* The next kernel's name, and where to look for the one after it; NULL: there is none. */
const char *emu_next_kernel(const char *at, char name[128]);

#endif
