/* SPDX-License-Identifier: Apache-2.0
 * Rotary position embedding (Su and others 2021), and the append of new keys and values to a cache.
 *
 * A row of D columns at position p has rotary_dim / 2 pairs. Pair i turns by the angle p * f[i]:
 *
 *     a' = c a - s b      c = factor cos(p f[i]),  s = factor sin(p f[i])
 *     b' = c b + s a      (backward: s = -factor sin(p f[i]))
 *
 *   half           columns i and i + rotary_dim / 2 are a pair (NeoX, Llama)
 *   interleaved    columns 2 i and 2 i + 1 are (GPT-J)
 *
 * Columns from rotary_dim on are copied. Where the angles come from:
 *
 *   theta          f[i] = theta^(-2 i / rotary_dim), rounded to f64; this is the default
 *   inv_freq       f[i], f32: linear, NTK, YaRN and Llama-3 scaling are such lists, their attention
 *                  factor is `factor`
 *   cos, sin       tables, positions x rotary_dim / 2; a position outside takes the nearest row
 *
 * Angles of f32 and shorter types are as good at position 2^40 as at 1: the product p * f[i] is not
 * rounded before it is reduced. Positions count up to 2^53 in magnitude, they may be negative.
 *
 * Row s of batch item n is at position positions[n, s] or positions[s]; without positions at
 * start[n] + s, and without start at s. Packed sequences (q is 1 x H x T x D): cu holds N + 1
 * offsets that do not decrease, rows are counted from the start of their sequence, and start has N
 * elements; rows of no sequence are at position 0.
 *
 * Any strides: layout bshd in text is B x S x H x D. Zero sizes: nothing to do. */
#ifndef MICA_ROPE_H
#define MICA_ROPE_H

#include "mica/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- rope: q, and k if its tensor is given, in one go ---------------------------------------
 * fwd: q_out and k_out are q and k, rotated. bwd: q and k are the gradients of the results, q_out
 * and k_out those of the inputs. Types: f64 f32 f16 bf16, results may be of another one; k is as q
 * but for the number of its heads. In place: q_out may lie exactly on q, and k_out on k, if strides
 * and type are the same; both may be parts of one buffer (packed QKV). */
typedef enum mica_rope_pass { MICA_ROPE_FWD, MICA_ROPE_BWD } mica_rope_pass;

typedef enum mica_rope_pairing { MICA_ROPE_HALF, MICA_ROPE_INTERLEAVED } mica_rope_pairing;

enum {
    MICA_ROPE_Q,
    MICA_ROPE_K,
    MICA_ROPE_Q_OUT,
    MICA_ROPE_K_OUT,
    MICA_ROPE_POSITIONS,
    MICA_ROPE_START,
    MICA_ROPE_CU,
    MICA_ROPE_INV_FREQ,
    MICA_ROPE_COS,
    MICA_ROPE_SIN
};

typedef struct mica_rope_desc {
    mica_rope_pass pass;       /* 0 means fwd */
    mica_tensor q;             /* B x H x S x D; needed */
    mica_tensor k;             /* B x Hk x S x D; 0 means none */
    mica_tensor q_out;         /* 0 means inferred: as q; of a type alone: in its memory order */
    mica_tensor k_out;         /* 0 means inferred with k, likewise */
    mica_rope_pairing pairing; /* 0 means half */
    int64_t rotary_dim;        /* even, 2 to D; 0 means all */
    double theta;              /* 0 means 10000 */
    double factor;             /* of cos and sin; 0 means 1 */
    mica_tensor positions;     /* s32 or s64, B x S or S; 0 means none */
    mica_tensor start;         /* s32 or s64, one per sequence; 0 means none */
    mica_tensor cu;            /* s32, N + 1; 0 means none */
    mica_tensor inv_freq;      /* f32, rotary_dim / 2; 0 means none */
    mica_tensor cos, sin; /* positions x rotary_dim / 2, f32 or as q (f64 for f64); 0 means none */
} mica_rope_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_rope_plan(mica_context *context, const mica_rope_desc *desc,
                                         const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "rope", desc, sizeof *desc, options, plan);
}

/* ---- kv_append: new keys and values into a cache that attention reads ------------------------
 * Row s of sequence n becomes key seq_k[n] + s of the cache, and so does its value: seq_k is what
 * the cache holds before. It is not changed, and seq_k plus the new rows is what attention then
 * gets.
 *
 * k and v are B x Hk x S x D and B x Hk x S x Dv; with cu_q they are packed, 1 x Hk x T x D. v may
 * be left out (caches of one tensor). With seq_q so many rows of each batch item count.
 *
 * k_cache and v_cache are N x Hk x Smax x D; with pages they are a pool, P x Hk x page x D, and key
 * j of sequence n is row j % page of page pages[n, j / page].
 *
 * rope: k is rotated on the way. Its position is its place in the cache unless positions (B x S or
 * S) says otherwise.
 *
 * scale_k and scale_v are those of 8-bit caches: f32, one element or one per head, positive normal
 * numbers. What is stored is k / scale_k, to nearest even, saturated (e5m2 to 57344).
 *
 * Dropped, and never written elsewhere: rows whose place is before the cache or behind its end,
 * whose page is none of the pool, that belong to no sequence. Two rows with one place (a page that
 * stands twice) leave either of them there, perhaps mixed. The rest of the cache is not touched.
 * The two caches may lie between each other (keys and values by turns in one buffer).
 *
 * Types: k and v f64 f32 f16 bf16, caches these or e4m3 e5m2 s8 (f64 for f64 only). */
typedef enum mica_kv_append_rope {
    MICA_KV_APPEND_ROPE_NONE,
    MICA_KV_APPEND_ROPE_HALF,
    MICA_KV_APPEND_ROPE_INTERLEAVED
} mica_kv_append_rope;

enum {
    MICA_KV_APPEND_K,
    MICA_KV_APPEND_V,
    MICA_KV_APPEND_K_CACHE,
    MICA_KV_APPEND_V_CACHE,
    MICA_KV_APPEND_SEQ_K,
    MICA_KV_APPEND_SEQ_Q,
    MICA_KV_APPEND_CU_Q,
    MICA_KV_APPEND_PAGES,
    MICA_KV_APPEND_SCALE_K,
    MICA_KV_APPEND_SCALE_V,
    MICA_KV_APPEND_POSITIONS,
    MICA_KV_APPEND_INV_FREQ,
    MICA_KV_APPEND_COS,
    MICA_KV_APPEND_SIN
};

typedef struct mica_kv_append_desc {
    mica_tensor k;       /* needed */
    mica_tensor v;       /* a type alone: as k; 0 means none */
    mica_tensor k_cache; /* needed */
    mica_tensor v_cache; /* 0 means inferred with v: as k_cache, with Dv of v; a type is enough */
    mica_tensor seq_k;   /* s32, N; 0 means inferred */
    mica_tensor seq_q;   /* s32, N; not with cu_q; 0 means none */
    mica_tensor cu_q;    /* s32, N + 1; 0 means none */
    mica_tensor pages;   /* s32, N x pages of a sequence; 0 means none */
    mica_tensor scale_k, scale_v;              /* 0 means none, as if they were 1 */
    mica_kv_append_rope rope;                  /* 0 means none; with it as in mica_rope_desc: */
    int64_t rotary_dim;                        /* 0 means all */
    double theta;                              /* 0 means 10000 */
    double factor;                             /* 0 means 1 */
    mica_tensor positions, inv_freq, cos, sin; /* 0 means none */
} mica_kv_append_desc;

/* Makes a plan; see mica_plan_create. */
static inline mica_status mica_kv_append_plan(mica_context *context,
                                              const mica_kv_append_desc *desc,
                                              const mica_options *options, mica_plan **plan)
{
    return mica_plan_create(context, "kv_append", desc, sizeof *desc, options, plan);
}

#ifdef __cplusplus
}
#endif
#endif
