/* SPDX-License-Identifier: Apache-2.0
 * Sequences, lines of tensors, rows of queries, dropout: what the kernels of attention's engines "cuda"
 * and "sm80" share.
 *
 * Rows of queries are those of all heads of a key head, query by query: row r is query r / group of
 * head r % group. A block keeps OWN lines (rows of queries, or keys), OTHER ones travel past it in tiles.
 *
 * Prologue or file: OWN OTHER; ALIBI BIAS MASK DROPOUT (whether scores have them), type acc_t. */
#pragma once
#include "kernels/types.cuh"
#include "kernels/math.cuh"
#include "kernels/philox.h"
#include "ops/attention/cuda/attention_cuda_args.h"

constexpr s64 ABSENT = (s64)1 << 63;

/* The score of what is not seen. */
__device__ __forceinline__ acc_t nothing() { return (acc_t)-INFINITY_F; }

/* ---- elements whose type is known at run time ---- */

__device__ __forceinline__ acc_t load_any(const attention_operand &o, s64 at)
{
    if constexpr (sizeof(acc_t) == 8) {
        return ((const double *)o.data)[at];
    } else {
        if (o.type == ATTENTION_F32) return ((const float *)o.data)[at];
        if (o.type == ATTENTION_BF16) return to_float(((const bf16 *)o.data)[at]);
        if (o.type == ATTENTION_F16) return to_float(((const f16 *)o.data)[at]);
        if (o.type == ATTENTION_E4M3) return to_float(((const e4m3 *)o.data)[at]);
        return to_float(((const e5m2 *)o.data)[at]);
    }
}

__device__ __forceinline__ void store_any(const attention_operand &o, s64 at, acc_t v)
{
    if constexpr (sizeof(acc_t) == 8) {
        ((double *)o.data)[at] = v;
    } else {
        if (o.type == ATTENTION_F32) ((float *)o.data)[at] = v;
        if (o.type == ATTENTION_BF16) ((bf16 *)o.data)[at] = to_bf16(v);
        if (o.type == ATTENTION_F16) ((f16 *)o.data)[at] = to_f16(v);
    }
}

/* ---- sequences ---- */

__device__ __forceinline__ s64 clamp_of(s64 v, s64 low, s64 high) { return v < low ? low : v > high ? high : v; }

struct span {
    s64 batch, first, count;
};

__device__ __forceinline__ span find_span(const attention_operand &cu, const attention_operand &seq, s64 rows, s64 n)
{
    if (cu.data) {
        const int *offsets = (const int *)cu.data + n * cu.stride[0];
        const s64 from = clamp_of(offsets[0], 0, rows);
        return {0, from, clamp_of(offsets[cu.stride[0]], from, rows) - from};
    }
    return {n, 0, seq.data ? clamp_of(((const int *)seq.data)[n * seq.stride[0]], 0, rows) : rows};
}

struct sequence {
    s64 n, shift;
    span q, k;
};

__device__ __forceinline__ sequence find_sequence(const attention_cuda_args &args, s64 n)
{
    sequence s = {n, args.diagonal, find_span(args.cu_q, args.seq_q, args.rows, n),
                  find_span(args.cu_k, args.seq_k, args.keys, n)};
    if (args.bottom_right) s.shift += s.k.count - s.q.count;
    return s;
}

__device__ __forceinline__ s64 line_of(const attention_operand &o, const span &s, s64 head, s64 i)
{
    return s.batch * o.stride[0] + head * o.stride[1] + (s.first + i) * o.stride[2];
}

/* Row of q in the tensors of the workspace. */
__device__ __forceinline__ s64 place_of(const attention_cuda_args &args, const span &s, s64 head, s64 i)
{
    return (s.batch * args.heads + head) * args.q.dim[2] + s.first + i;
}

/* Where key j is in k and v: of which batch item or page which row; absent: batch -1. Positions are of type I. */
struct key_place {
    s64 batch, row;
};

template <typename I>
__device__ __forceinline__ key_place find_key(const attention_cuda_args &args, const sequence &s, I j)
{
    if (j >= s.k.count) return {-1, 0};
    if (!args.pages.data) return {s.k.batch, s.k.first + j};
    const I size = (I)args.k.dim[2], number = j / size;
    const s64 page = ((const int *)args.pages.data)[s.n * args.pages.stride[0] + number * args.pages.stride[1]];
    return {page < args.k.dim[0] ? page : -1, j - number * size};
}

__device__ __forceinline__ s64 key_line(const attention_operand &o, const key_place &at, s64 head)
{
    return at.batch < 0 ? ABSENT : at.batch * o.stride[0] + head * o.stride[1] + at.row * o.stride[2];
}

/* ---- a block's share ---- */

/* Tile `tile` of OWN lines of a sequence in a key head, and a part of its keys. */
struct share {
    s64 n, head, tile, split;
};

/* The sequence that tile `slot` of packed sequences belongs to; for whole warps. */
__device__ __forceinline__ bool find_slot(const attention_operand &cu, s64 rows, s64 group, s64 sequences, s64 slot, share &w)
{
    const int lane = (int)threadIdx.x % 32;
    s64 before = 0;
    for (s64 base = 0; base < sequences; base += 32) {
        const s64 n = base + lane;
        const s64 own = n < sequences ? (find_span(cu, cu, rows, n).count * group + OWN - 1) / OWN : 0;
        s64 sum = own;
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
            const s64 other = __shfl_up_sync(0xffffffffu, sum, by);
            if (lane >= by) sum += other;
        }
        const u32 past = __ballot_sync(0xffffffffu, before + sum > slot);
        if (past) {
            const int first = __ffs((int)past) - 1;
            w.n = base + first;
            w.tile = slot - before - __shfl_sync(0xffffffffu, sum - own, first);
            return true;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    return false;
}

/* Share number `index`; false past the last. cu: offsets of what is tiled. */
__device__ __forceinline__ bool find_share(const attention_cuda_args &args, const attention_operand &cu, s64 rows,
                                           s64 group, s64 splits, s64 index, share &w)
{
    if (cu.data) {
        w.head = index % args.kv_heads;
        index /= args.kv_heads;
        w.split = index % splits;
        return find_slot(cu, rows, group, args.sequences, index / splits, w);
    }
    /* The last rows of causal attention have the most to do: they begin. */
    w.tile = args.tiles - 1 - index % args.tiles;
    index /= args.tiles;
    w.head = index % args.kv_heads;
    index /= args.kv_heads;
    w.split = index % splits;
    w.n = index / splits;
    return w.n < args.sequences;
}
__device__ __forceinline__ bool find_queries(const attention_cuda_args &args, s64 splits, s64 index, share &w)
{
    return find_share(args, args.cu_q, args.rows, args.group, splits, index, w);
}

/* ---- queries ---- */

struct query {
    s64 i, from, to; /* sees keys [from, to) */
    s64 diagonal, head, line;
    s64 bias, mask; /* offsets of its rows there */
    acc_t slope, lse, delta;
};

/* Row r, of type I, of a key head; one that does not exist sees nothing, and its line is ABSENT. */
template <typename I>
__device__ __forceinline__ query find_query(const attention_cuda_args &args, const sequence &s, s64 kv_head, I r)
{
    query x = {};
    x.line = ABSENT;
    if (r >= s.q.count * args.group) return x;
    x.i = r / (I)args.group;
    x.head = kv_head * args.group + (r - x.i * args.group);
    x.diagonal = x.i + s.shift;
    x.to = clamp_of(x.diagonal + args.right, 0, s.k.count);
    x.from = clamp_of(x.diagonal - args.left + 1, 0, x.to);
    x.line = line_of(args.q, s.q, x.head, x.i);
    if constexpr (ALIBI) x.slope = load_any(args.slopes, x.head * args.slopes.stride[0]);
    if constexpr (BIAS)
        x.bias = s.n * args.bias.stride[0] + x.head * args.bias.stride[1] + x.i * args.bias.stride[2];
    if constexpr (MASK)
        x.mask = s.n * args.mask.stride[0] + x.head * args.mask.stride[1] + x.i * args.mask.stride[2];
    return x;
}

/* The sum of dout out of a row: from the workspace if there is one. */
__device__ __forceinline__ acc_t find_delta(const attention_cuda_args &args, const span &s, s64 head, s64 i)
{
    if (args.delta) return ((const acc_t *)args.delta)[place_of(args, s, head, i)];
    const s64 out = line_of(args.out, s, head, i), dout = line_of(args.dout, s, head, i);
    acc_t sum = 0;
#pragma unroll 1
    for (s64 c = 0; c < args.dv; c++)
        sum += load_any(args.out, out + c * args.out.stride[3]) * load_any(args.dout, dout + c * args.dout.stride[3]);
    return sum;
}

/* The same for gradients. A query that attends to no key has no part in any. */
template <typename I>
__device__ __forceinline__ query find_query_back(const attention_cuda_args &args, const sequence &s, s64 kv_head, I r)
{
    query x = find_query(args, s, kv_head, r);
    if (x.line == ABSENT) return x;
    x.lse = load_any(args.lse, line_of(args.lse, s.q, x.head, x.i));
    x.delta = find_delta(args, s.q, x.head, x.i);
    if (x.lse == nothing()) {
        x.line = ABSENT;
        x.from = x.to = 0;
    }
    return x;
}

/* Tiles of keys [from, to) that the rows [first, last] see and that belong to this split. */
__device__ __forceinline__ void find_tiles(const attention_cuda_args &args, const sequence &s, const share &w, s64 first,
                                           s64 last, s64 &from, s64 &to)
{
    const s64 high = clamp_of(last / args.group + s.shift + args.right, 0, s.k.count);
    const s64 low = clamp_of(first / args.group + s.shift - args.left + 1, 0, high);
    from = low / OTHER, to = (high + OTHER - 1) / OTHER;
    const s64 part = (to - from + args.splits - 1) / args.splits;
    from = min(from + w.split * part, to);
    to = min(from + part, to);
}

__device__ __forceinline__ acc_t scale_of(const attention_operand &o, s64 head)
{
    return o.data ? (acc_t)((const float *)o.data)[head * o.stride[0]] : (acc_t)1;
}

__device__ __forceinline__ acc_t score_scale(const attention_cuda_args &args, s64 kv_head)
{
    return (acc_t)args.scale * scale_of(args.scale_q, kv_head) * scale_of(args.scale_k, kv_head);
}

/* ---- dropout ---- */

struct dropout {
    u32 key[2], offset;
};

__device__ __forceinline__ dropout find_dropout(const attention_cuda_args &args)
{
    dropout r = {};
    if constexpr (DROPOUT) {
        const u64 *numbers = (const u64 *)args.rng.data;
        r = {{(u32)numbers[0], (u32)(numbers[0] >> 32)}, (u32)numbers[args.rng.stride[0]]};
    }
    return r;
}

struct words {
    u32 w[4];
};

/* Of keys j / 4 * 4 to + 3 and query i; line: n H + head. */
__device__ __forceinline__ words make_words(const dropout &drop, s64 line, s64 i, s64 j)
{
    words r = {{(u32)(j / 4), (u32)i, (u32)line, drop.offset}};
    mica_philox(drop.key, r.w);
    return r;
}

/* What becomes of the weight of key j: 0, or the factor of those that stay. */
__device__ __forceinline__ acc_t kept(const attention_cuda_args &args, const words &w, s64 j)
{
    const u32 low = j & 1 ? w.w[1] : w.w[0], high = j & 1 ? w.w[3] : w.w[2];
    return (j & 2 ? high : low) < args.threshold ? (acc_t)0 : (acc_t)args.keep_scale;
}
