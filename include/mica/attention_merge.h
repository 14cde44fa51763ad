/* SPDX-License-Identifier: Apache-2.0
 * Attention in parts: what each of P sets of keys gave (mica/attention.h) becomes what attention
 * over all of them gives. A prefix that many sequences share is attended to once for all of them
 * and merged with each one's own keys; so are parts of a long cache on several devices.
 *
 *     lse[i]   = log(sum_p exp(lses[p,i]))
 *     out[i,c] = sum_p exp(lses[p,i] - lse[i]) outs[p,i,c]
 *
 * outs is P x ... x D, lses P x ..., out ... x D, lse ...; the dimensions between, the rows, are
 * any (of attention: B x H x S), ranks go to 8. Strides are any: parts that several plans write may
 * lie wherever the distance from one to the next is the same, in rows of one buffer too.
 *
 * A part with lse -inf saw no key: its out is not used, it may be NaN. Where all are so, out is 0
 * and lse -inf. Every other part takes part, however little it weighs: NaN or infinity in its out
 * makes out NaN or infinite, and lses of NaN or +inf make lse and the whole row of out NaN. Sinks
 * and dropout belong to parts: a sink may take part in one of them only.
 *
 * Types: outs f64, f32, f16 or bf16; out likewise, inferred as outs, f64 for f64 only; lses and lse
 * f32 (f64 for f64). Zero sizes: no parts, out 0 and lse -inf; else nothing to do. */
#ifndef MICA_ATTENTION_MERGE_H
#define MICA_ATTENTION_MERGE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MICA_ATTENTION_MERGE_OUTS,
    MICA_ATTENTION_MERGE_LSES,
    MICA_ATTENTION_MERGE_OUT,
    MICA_ATTENTION_MERGE_LSE
};

typedef struct mica_attention_merge_desc {
    mica_tensor outs; /* needed */
    mica_tensor lses; /* 0 means inferred: packed */
    mica_tensor out;  /* 0 means inferred: in the memory order of a part; a type alone is enough */
    mica_tensor lse;  /* a type is enough; 0 means none */
} mica_attention_merge_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_attention_merge_plan(mica_context *context,
                                                    const mica_attention_merge_desc *desc,
                                                    const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "attention_merge", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
