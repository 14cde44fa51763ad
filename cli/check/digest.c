/* SPDX-License-Identifier: Apache-2.0
 * Digests of results: FNV-1a over the bits of the elements. */
#include "check/digest.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static const uint64_t START = 0xcbf29ce484222325, PRIME = 0x100000001b3;

static uint64_t add_byte(uint64_t digest, unsigned char byte)
{
    return (digest ^ byte) * PRIME;
}

uint64_t cli_digest_buffer(const cli_buffer *b, uint64_t digest)
{
    const mica_tensor *t = &b->tensor;
    const unsigned char *data = cli_buffer_after(b);
    const int64_t count = mica_tensor_count(t), bytes = mica_dtype_bits(t->dtype) / 8;
    double *values = cli_alloc((size_t)count * sizeof *values + 1);
    mica_tensor_load(t, data, values);
    for (int64_t i = 0; i < count; i++) {
        int64_t offset = 0, rest = i;
        for (int d = t->rank - 1; d >= 0; d--) {
            offset += rest % t->dims[d] * t->strides[d];
            rest /= t->dims[d];
        }
        if (!bytes) digest = add_byte(digest, data[offset >> 1] >> (offset & 1 ? 4 : 0) & 15);
        for (int64_t k = 0; k < bytes; k++)
            digest = add_byte(digest, isnan(values[i]) ? 0xff : data[offset * bytes + k]);
    }
    free(values);
    return digest;
}

void cli_digest_add(cli_digest *d, const cli_case *c)
{
    uint64_t digest = START;
    for (int i = 0; i < c->args; i++)
        if (cli_is_output(&c->info[i])) digest = cli_digest_buffer(&c->buffers[i], digest);
    for (int i = 0; i < d->count; i++)
        if (d->found[i] == digest) return;
    if (d->count < CLI_DIGESTS) d->found[d->count++] = digest;
}

void cli_digest_text(const cli_digest *d, char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < d->count && used < size; i++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%016" PRIx64, i ? "+" : "", d->found[i]);
}
