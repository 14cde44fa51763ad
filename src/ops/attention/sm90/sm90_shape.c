/* SPDX-License-Identifier: Apache-2.0
 * What both passes on Hopper ask of tensors, and how TMA is told of them. */
#include "ops/attention/sm90/sm90_shape.h"
#include "ops/access/access.h"

/* Of an element, in bytes. */
static int size_of(const mica_tensor *t)
{
    return mica_dtype_bits(t->dtype) / 8;
}

mica_status attention_sm90_check(const mica_tensor *t, const char *name, mica_why *why)
{
    int64_t columns = t->dims[3];
    if (columns < 1 || columns > ATTENTION_SM90_DIM)
        return mica_refuse(why, "%s has %lld columns, this engine takes 1 to %d", name,
                           (long long)columns, ATTENTION_SM90_DIM);
    if (t->strides[3] != 1 && columns > 1)
        return mica_refuse(why, "columns of %s are %lld elements apart, the rule is 1", name,
                           (long long)t->strides[3]);
    for (int i = 0; i < 3; i++) {
        int64_t bytes = t->strides[i] * size_of(t);
        if (t->dims[i] < 1)
            return mica_refuse(why, "dimension %d of %s is 0, there is nothing to do", i, name);
        if (t->dims[i] == 1) continue;
        if (bytes <= 0 || bytes % 16 || bytes >= 1LL << 40)
            return mica_refuse(why,
                               "dimension %d of %s has a stride of %lld bytes, the rule is a "
                               "positive multiple of 16 below 2^40",
                               i, name, (long long)bytes);
    }
    return MICA_OK;
}

int attention_sm90_chunks(int64_t bytes)
{
    return (int)ceiling(bytes, ATTENTION_SM90_ROW);
}

/* Strides of dimensions of size 1 mean nothing, but must be legal. What lies behind the last column
 * or row is read as 0. */
void attention_sm90_map(const mica_tensor *t, int rows, mica_tensor_map_spec *m)
{
    static const int from[] = {3, 2, 1, 0};
    int size = size_of(t);
    *m =
        (mica_tensor_map_spec){.dtype = t->dtype,
                               .rank = 4,
                               .box = {(uint32_t)(ATTENTION_SM90_ROW / size), (uint32_t)rows, 1, 1},
                               .swizzle_bytes = ATTENTION_SM90_ROW};
    for (int i = 0; i < 4; i++) {
        m->dims[i] = t->dims[from[i]];
        if (i > 0)
            m->stride_bytes[i] =
                m->dims[i] > 1 ? t->strides[from[i]] * size : ceiling(t->dims[3] * size, 16) * 16;
    }
}

void attention_sm90_fill_source(const mica_tensor *t, attention_sm90_source *s)
{
    for (int i = 0; i < 3; i++) s->stride[i] = t->strides[i];
    s->rows = (int)t->dims[2];
    s->columns = (int)t->dims[3];
}

int attention_sm90_vector_bytes(const mica_tensor *t)
{
    return mica_access_rows(mica_access_fit(8, t->dims[3]), t) == 8 ? 16 : 0;
}

int attention_sm90_far(int64_t window)
{
    return window == 0 || window > ATTENTION_SM90_FAR ? ATTENTION_SM90_FAR : (int)window;
}
