/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as packed data: the first two say how many bytes are expected. Whatever comes, the
 * decoder stays within both blocks and ends; when it says that the data is whole, it says so again
 * and gives the same bytes. */
#include "base/lzma.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    size_t expected = (size_t)data[0] << 8 | data[1], packed_size = size - 2;
    /* Blocks of exactly these sizes: AddressSanitizer sees a byte beyond. */
    void *packed = malloc(packed_size), *first = malloc(expected), *second = malloc(expected);
    if ((!packed && packed_size) || (!first && expected) || (!second && expected)) abort();
    if (packed_size) memcpy(packed, data + 2, packed_size);
    bool whole = mica_lzma_unpack(packed, packed_size, first, expected);
    if (whole != mica_lzma_unpack(packed, packed_size, second, expected)) abort();
    if (whole && expected && memcmp(first, second, expected) != 0) abort();
    free(packed);
    free(first);
    free(second);
    return 0;
}
