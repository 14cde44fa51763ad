/* SPDX-License-Identifier: Apache-2.0
 * From the name of a kernel's file to the one text that is compiled and hashed. */
#ifndef MICA_CUDA_COMPILE_PROGRAM_H
#define MICA_CUDA_COMPILE_PROGRAM_H

#include "base/why.h"
#include "base/blake2b.h"

/* device/types.cuh, the prologue and the file, every #include "..." of the library's own sources
 * replaced by the text, once each. #line keeps the compiler's messages true. mica_release it. */
mica_status mica_program_text(const char *file, const char *prologue, char **text);
/* Of the same text without a prologue. Formed once per file and process, unless the sources are
 * read from MICA_KERNEL_DIR, where they may change. */
mica_status mica_program_digest(const char *file, unsigned char digest[MICA_DIGEST_BYTES]);

#endif
