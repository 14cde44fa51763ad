/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of nms share. Constants: WIDE (f64), CHUNK (positions that are decided together), BLOCK,
 * CENTER, OFFSET, CLASSES; types box_t, class_t, real, selected_t, count_t. */
#pragma once
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "ops/nms/nms_args.h"

#define INLINE __device__ __forceinline__
#define NMS INLINE
INLINE float mul_of(float a, float b) { return __fmul_rn(a, b); }
INLINE double mul_of(double a, double b) { return __dmul_rn(a, b); }
#include "ops/nms/nms_body.h"

typedef mica_nms_args arguments;

constexpr int WORDS = CHUNK / 64; /* of the boxes of a chunk that one suppresses */

/* ---- what is sorted: all items differ, those that are left out come last ---- */

struct wide_item {
    u64 key, index;
};
template <bool B> struct item_of {
    typedef u64 type; /* key and index */
};
template <> struct item_of<true> {
    typedef wide_item type;
};
typedef item_of<WIDE>::type item_t;

INLINE bool before(u64 a, u64 b) { return a < b; }
INLINE bool before(wide_item a, wide_item b) { return a.key < b.key || (a.key == b.key && a.index < b.index); }
INLINE u64 index_of(u64 item) { return item & 0xffffffffu; }
INLINE u64 index_of(wide_item item) { return item.index; }
INLINE bool is_left_out(u64 item) { return item >> 32 == 0xffffffffu; }
INLINE bool is_left_out(wide_item item) { return item.key == ~(u64)0; }

INLINE u64 make_item(float score, bool there, u64 index)
{
    const u32 bits = score == 0 ? 0 : __float_as_uint(score);
    const u32 key = bits >> 31 ? bits : ~(bits | 0x80000000u);
    return (u64)(there ? key : 0xffffffffu) << 32 | index;
}
INLINE wide_item make_item(double score, bool there, u64 index)
{
    const u64 bits = score == 0 ? 0 : (u64)__double_as_longlong(score), sign = (u64)1 << 63;
    const u64 key = bits & sign ? bits : ~(bits | sign);
    return wide_item{there ? key : ~(u64)0, index};
}

/* ---- boxes by position ---- */

INLINE nms_box box_at(const arguments &a, s64 list, s64 position)
{
    const real *p = (const real *)a.sorted + list * 5 * a.n + position;
    return nms_box{{p[0], p[a.n]}, {p[2 * a.n], p[3 * a.n]}, p[4 * a.n]};
}

INLINE s64 class_at(const arguments &a, s64 list, s64 position)
{
    return CLASSES ? a.ids[list * a.n + position] : 0;
}
