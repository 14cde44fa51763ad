/* SPDX-License-Identifier: Apache-2.0
 * Permutations by experts inside the library: what their engines share. */
#ifndef MICA_OPS_MOE_PERMUTE_MOE_PERMUTE_H
#define MICA_OPS_MOE_PERMUTE_MOE_PERMUTE_H

#include "mica/moe_permute.h"
#include "ops/op.h"

enum { MOE_PERMUTE_EXPERTS = 4096, MOE_PERMUTE_ALIGN = 1024 };

/* An element of a map of s32 or s64. */
static inline int64_t moe_map_get(const mica_tensor *t, const void *data, int64_t offset)
{
    return t->dtype == MICA_S32 ? ((const int32_t *)data)[offset] : ((const int64_t *)data)[offset];
}
static inline void moe_map_put(const mica_tensor *t, void *data, int64_t offset, int64_t value)
{
    if (t->dtype == MICA_S32)
        ((int32_t *)data)[offset] = (int32_t)value;
    else
        ((int64_t *)data)[offset] = value;
}
/* The same of choice c of a map T x k. */
static inline int64_t moe_choice_offset(const mica_tensor *t, int64_t c)
{
    return c / t->dims[1] * t->strides[0] + c % t->dims[1] * t->strides[1];
}

/* The maps of a permutation; count: E elements that are overwritten. What of them is data. */
typedef struct moe_maps {
    const int32_t *indices;
    void *offsets, *rows, *places;
    int64_t *count;
} moe_maps;
void moe_permute_sort(const mica_moe_permute_desc *d, const moe_maps *m);

void moe_permute_reference(const void *desc, const mica_view *args, const double *scalars);
void moe_unpermute_reference(const void *desc, const mica_view *args, const double *scalars);
extern const mica_op mica_op_moe_permute, mica_op_moe_unpermute;
extern const mica_engine moe_permute_cpu, moe_permute_cuda, moe_unpermute_cpu, moe_unpermute_cuda;

#endif
