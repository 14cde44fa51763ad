/* SPDX-License-Identifier: Apache-2.0
 * Tokens of a mixture of experts in the order of the experts that they go to, and back. T tokens
 * have k choices each (mica/moe_route.h); choice c = t k + j is slot j of token t.
 *
 * moe_permute sorts the choices by expert, equal ones by their number, and copies rows:
 *
 *     offsets[e]   where expert e's rows begin: it has those to before offsets[e + 1]. E + 1
 *                  elements, all multiples of align; those from the second on are the groups of a
 *                  grouped_gemm
 *     rows[r]      the choice in row r, whose token is rows[r] / k; -1 where there is none:
 *                  in rows that fill an expert up to a multiple of align, and past the last
 *     places[t,j]  the row of slot j of token t; -1 if it was dropped
 *     y[r,:]       x[rows[r] / k,:], or zeros
 *
 * Dropped are choices outside of 0 to E - 1, and with a capacity those of an expert past so many,
 * the last ones. There are as many rows as the worst case needs: T k + E (align - 1), and no more
 * than E capacity of full multiples of align, rounded up to a multiple of align. The gradient of x
 * is moe_unpermute of that of y, without weights.
 *
 * moe_unpermute adds up what experts made of a token's rows:
 *
 *     fwd   y[t,:] = sum_j weights[t,j] x[places[t,j],:], in f32 (f64 for f64 x), slot after slot
 *     bwd   dx[r,:] = weights[rows[r]] dy[rows[r] / k,:], zeros where rows[r] is -1;
 *           dweights[t,j] = sum_d x[places[t,j],d] dy[t,d], zero where it was dropped
 *
 * Places and rows outside of the tensors count as -1. Sums have the same bits in each run. */
#ifndef MICA_MOE_PERMUTE_H
#define MICA_MOE_PERMUTE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MICA_MOE_PERMUTE_INDICES,
    MICA_MOE_PERMUTE_X,
    MICA_MOE_PERMUTE_OFFSETS,
    MICA_MOE_PERMUTE_ROWS,
    MICA_MOE_PERMUTE_PLACES,
    MICA_MOE_PERMUTE_Y
};

typedef struct mica_moe_permute_desc {
    mica_tensor indices; /* T x k, s32; needed */
    mica_tensor x;       /* T x D, a type of a byte or more; 0 means none: only the maps are made */
    mica_tensor offsets; /* E + 1, s32 or s64; 0 means inferred: s32 */
    mica_tensor rows;    /* s32 or s64; 0 means inferred: s32 */
    mica_tensor places;  /* T x k, s32 or s64; 0 means inferred: s32 */
    mica_tensor y;       /* rows x D; 0 means inferred with x: of its type */
    int64_t experts;     /* E, 1 to 4096; 0 means 1 */
    int64_t align;       /* 1 to 1024; 0 means 1 */
    int64_t capacity;    /* most choices of an expert; 0 means no limit */
} mica_moe_permute_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_moe_permute_plan(mica_context *context,
                                                const mica_moe_permute_desc *desc,
                                                const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "moe_permute", desc, sizeof *desc, options, plan);
}

enum {
    MICA_MOE_UNPERMUTE_X,
    MICA_MOE_UNPERMUTE_PLACES,
    MICA_MOE_UNPERMUTE_WEIGHTS,
    MICA_MOE_UNPERMUTE_Y,
    MICA_MOE_UNPERMUTE_ROWS,
    MICA_MOE_UNPERMUTE_DY,
    MICA_MOE_UNPERMUTE_DX,
    MICA_MOE_UNPERMUTE_DWEIGHTS
};

typedef enum mica_moe_unpermute_pass {
    MICA_MOE_UNPERMUTE_FWD,
    MICA_MOE_UNPERMUTE_BWD
} mica_moe_unpermute_pass;

typedef struct mica_moe_unpermute_desc {
    mica_moe_unpermute_pass pass; /* 0 means fwd */
    mica_tensor x;                /* rows x D, f64 f32 f16 bf16; needed */
    mica_tensor places;           /* T x k, s32 or s64; needed */
    mica_tensor weights;  /* T x k, f32 f16 bf16 (f64 with f64 x); 0 means none, as if all were 1 */
    mica_tensor y;        /* fwd: T x D; 0 means inferred: of x's type */
    mica_tensor rows;     /* bwd: s32 or s64; 0 means inferred: of places' type */
    mica_tensor dy;       /* bwd: T x D; 0 means inferred: of x's type */
    mica_tensor dx;       /* bwd; 0 means inferred: as x */
    mica_tensor dweights; /* bwd: T x k; 0 means not wanted */
} mica_moe_unpermute_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_moe_unpermute_plan(mica_context *context,
                                                  const mica_moe_unpermute_desc *desc,
                                                  const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "moe_unpermute", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
