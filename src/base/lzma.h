/* SPDX-License-Identifier: Apache-2.0
 * Unpacks what `xz --format=lzma --lzma1=lc=3,lp=0,pb=0` packed: the text of kernels travels so. */
#ifndef MICA_BASE_LZMA_H
#define MICA_BASE_LZMA_H

#include <stdbool.h>
#include <stddef.h>

/* True when `packed` is whole and unpacks to `size` bytes exactly. Any other input, damaged on
 * purpose or not, gives false: nothing outside of both blocks is touched, and time is bounded by
 * `size`. LZMA has no checksum: damage may also give other bytes of the same size. Allocates
 * nothing; 16 KiB of stack. */
bool mica_lzma_unpack(const void *packed, size_t packed_size, void *out, size_t size);

#endif
