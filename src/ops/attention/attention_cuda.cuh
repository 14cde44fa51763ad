/* SPDX-License-Identifier: Apache-2.0
 * Sequences, scores and tiles of attention's engine "cuda".
 *
 * A block keeps OWN lines (rows of queries, or keys) in shared memory, whole; OTHER lines at a time
 * travel past it, in chunks of 64 columns. THREADS are TY x TX: a thread has ROWS neighbouring own
 * lines, and of the others the COLS neighbours tx COLS, ...; of a chunk of sums the LANES columns
 * tx LANES, ... Products are plain multiply-adds in acc_t, in a fixed order.
 *
 * Rows of queries are those of all heads of a key head, query by query: row r is query r / group of
 * head r % group.
 *
 * Prologue: TX TY ROWS OTHER, CHUNKS (of 64 columns that sums are kept for), CAP ALIBI BIAS MASK
 * DROPOUT (whether scores have them), types acc_t, bias_t. */
#pragma once
#include "cuda/device/types.cuh"
#include "cuda/device/math.cuh"
#include "ops/attention/attention_cuda_args.h"

constexpr int CHUNK = 64, THREADS = TX * TY, OWN = TY * ROWS, COLS = OTHER / TX, LANES = CHUNK / TX;
constexpr int GROUP = 4; /* neighbours read at once */
constexpr int PAD = 16 / (int)sizeof(acc_t);
constexpr int PITCH = CHUNK + PAD, WEIGHTS = OTHER + PAD;
constexpr s64 ABSENT = (s64)1 << 63;

static_assert(OTHER % TX == 0 && OTHER % GROUP == 0 && OWN % GROUP == 0, "whole tiles");
static_assert((TX & (TX - 1)) == 0 && TX <= 32 && THREADS % 32 == 0, "a row's threads lie in a warp");
static_assert(OTHER <= THREADS && OWN <= THREADS, "a thread prepares one line");

template <int N> struct alignas(N * sizeof(acc_t) < 16 ? N * sizeof(acc_t) : 16) pack {
    acc_t v[N];
};

typedef acc_t tile_t[ROWS][COLS];
typedef acc_t sums_t[CHUNKS][ROWS][LANES];

__device__ __forceinline__ int tx() { return (int)threadIdx.x % TX; }
__device__ __forceinline__ int ty() { return (int)threadIdx.x / TX; }

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
    sequence s = {n, 0, find_span(args.cu_q, args.seq_q, args.rows, n),
                  find_span(args.cu_k, args.seq_k, args.keys, n)};
    if (args.bottom_right) s.shift = s.k.count - s.q.count;
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

__device__ __forceinline__ s64 key_line(const attention_cuda_args &args, const attention_operand &o,
                                        const sequence &s, s64 head, s64 j)
{
    if (j >= s.k.count) return ABSENT;
    if (!args.pages.data) return line_of(o, s.k, head, j);
    const s64 size = o.dim[2], number = j / size;
    const s64 page = ((const int *)args.pages.data)[s.n * args.pages.stride[0] + number * args.pages.stride[1]];
    if (page < 0 || page >= o.dim[0]) return ABSENT;
    return page * o.stride[0] + head * o.stride[1] + (j - number * size) * o.stride[2];
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

/* Row r of a key head; one that does not exist sees nothing, and its line is ABSENT. */
__device__ __forceinline__ query find_query(const attention_cuda_args &args, const sequence &s, s64 kv_head, s64 r)
{
    query x = {};
    x.line = ABSENT;
    if (r >= s.q.count * args.group) return x;
    x.i = r / args.group;
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
__device__ __forceinline__ query find_query_back(const attention_cuda_args &args, const sequence &s, s64 kv_head, s64 r)
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

/* ---- scores ---- */

__device__ __forceinline__ acc_t scale_of(const attention_operand &o, s64 head)
{
    return o.data ? (acc_t)((const float *)o.data)[head * o.stride[0]] : (acc_t)1;
}

__device__ __forceinline__ acc_t score_scale(const attention_cuda_args &args, s64 kv_head)
{
    return (acc_t)args.scale * scale_of(args.scale_q, kv_head) * scale_of(args.scale_k, kv_head);
}

/* Some keys in a row, and which of them a query may see. */
struct keys {
    s64 first;
    int from, to;
};

__device__ __forceinline__ keys find_keys(const query &x, s64 first)
{
    return {first, (int)clamp_of(x.from - first, 0, OTHER), (int)clamp_of(x.to - first, 0, OTHER)};
}

/* Whether the query sees key number c of them. */
__device__ __forceinline__ bool sees(const attention_cuda_args &args, const query &x, const keys &k, int c)
{
    if (c < k.from || c >= k.to) return false;
    if constexpr (MASK) return ((const u8 *)args.mask.data)[x.mask + (k.first + c) * args.mask.stride[3]] != 0;
    return true;
}

/* s: scale q k. slope: that of the cap there. */
__device__ __forceinline__ acc_t finish_score(const attention_cuda_args &args, const query &x, s64 j, acc_t s, acc_t &slope)
{
    slope = 1;
    if constexpr (CAP) {
        const acc_t cap = (acc_t)args.soft_cap, t = tanh_of(s / cap);
        s = cap * t;
        slope = 1 - t * t;
    }
    if constexpr (ALIBI) s -= x.slope * abs_of((acc_t)(j - x.diagonal));
    if constexpr (BIAS) s += widen<acc_t>(((const bias_t *)args.bias.data)[x.bias + j * args.bias.stride[3]]);
    return s;
}

/* ---- dropout: Philox4x32-10 (Salmon and others 2011) ---- */

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

/* Of keys j / 4 * 4 to + 3. */
__device__ __forceinline__ words find_words(const attention_cuda_args &args, const dropout &drop, s64 n, const query &x, s64 j)
{
    u32 w0 = (u32)(j / 4), w1 = (u32)x.i, w2 = (u32)(n * args.heads + x.head), w3 = drop.offset;
    u32 key0 = drop.key[0], key1 = drop.key[1];
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 a = (u64)w0 * 0xD2511F53u, b = (u64)w2 * 0xCD9E8D57u;
        w0 = (u32)(b >> 32) ^ w1 ^ key0;
        w1 = (u32)b;
        w2 = (u32)(a >> 32) ^ w3 ^ key1;
        w3 = (u32)a;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return {{w0, w1, w2, w3}};
}

/* What becomes of the weight of key j: 0, or the factor of those that stay. */
__device__ __forceinline__ acc_t kept(const attention_cuda_args &args, const words &w, s64 j)
{
    const u32 low = j & 1 ? w.w[1] : w.w[0], high = j & 1 ? w.w[3] : w.w[2];
    return (j & 2 ? high : low) < args.threshold ? (acc_t)0 : (acc_t)args.keep_scale;
}

/* ---- tiles ---- */

__device__ __forceinline__ int pitch_of(s64 columns) { return ((int)columns + GROUP - 1) / GROUP * GROUP + PAD; }

/* Whole own lines; line(r) is the offset of line r. Columns are padded with zeros. */
template <typename F>
__device__ __forceinline__ void load_own(acc_t *to, const attention_operand &o, s64 columns, const F &line)
{
    const int pitch = pitch_of(columns), width = pitch - PAD;
#pragma unroll 1
    for (int e = (int)threadIdx.x; e < OWN * width; e += THREADS) {
        const int r = e / width, c = e % width;
        const s64 at = line(r);
        to[r * pitch + c] = at != ABSENT && c < columns ? load_any(o, at + c * o.stride[3]) : (acc_t)0;
    }
}

/* Where the other line r lies in a stage that is used by products: a thread's COLS are neighbours. */
__device__ __forceinline__ int slot_of(int r) { return r % COLS * TX + r / COLS; }

/* `width` columns of LINES other lines, from column `first` on; those past the tensor's are zero.
 * across: neighbouring threads read neighbouring lines. */
template <int LINES, int WIDTH, bool SLOTS, typename T>
__device__ __forceinline__ void load_stage(acc_t *stage, const attention_operand &o, const s64 *lines, int first,
                                           s64 columns, int width, bool across)
{
    constexpr int WIDE = WIDTH + PAD;
    const int count = (int)min(columns - first, (s64)width), thread = (int)threadIdx.x;
    const s64 step = o.stride[3];
    const T *from = (const T *)o.data + first * step;
    if (across) {
        const int r = thread % LINES;
        const s64 line = lines[r];
        stage += (SLOTS ? slot_of(r) : r) * WIDE;
#pragma unroll 4
        for (int c = thread / LINES; c < width; c += THREADS / LINES)
            stage[c] = line != ABSENT && c < count ? widen<acc_t>(from[line + c * step]) : (acc_t)0;
        return;
    }
    constexpr int ALONG = WIDTH < THREADS ? WIDTH : THREADS;
    for (int c = thread % ALONG; c < width; c += ALONG) {
        const T *at = from + c * step;
#pragma unroll 4
        for (int r = thread / ALONG; r < LINES; r += THREADS / ALONG) {
            const s64 line = lines[r];
            stage[(SLOTS ? slot_of(r) : r) * WIDE + c] = line != ABSENT && c < count ? widen<acc_t>(at[line]) : (acc_t)0;
        }
    }
}

/* s[own][other] += own other^T over `width` columns, a multiple of GROUP. */
__device__ __forceinline__ void multiply(tile_t &s, const acc_t *own, int pitch, const acc_t *stage, int width)
{
    own += ty() * ROWS * pitch;
    stage += tx() * PITCH;
#pragma unroll 2
    for (int d = 0; d < width; d += GROUP) {
        pack<GROUP> x[ROWS], y[COLS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) x[r] = *(const pack<GROUP> *)&own[r * pitch + d];
#pragma unroll
        for (int c = 0; c < COLS; c++) y[c] = *(const pack<GROUP> *)&stage[c * TX * PITCH + d];
#pragma unroll
        for (int k = 0; k < GROUP; k++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < COLS; c++) s[r][c] += x[r].v[k] * y[c].v[k];
    }
}

/* All chunks of that, through the stage. A barrier has made the lines visible. */
template <typename T>
__device__ __forceinline__ void multiply_lines(tile_t &s, const acc_t *own, acc_t *stage, const attention_operand &o,
                                               const s64 *lines, s64 columns, bool across)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) s[r][c] = 0;
    const int pitch = pitch_of(columns);
    for (int first = 0; first < columns; first += CHUNK) {
        const int width = min(pitch - PAD - first, CHUNK);
        __syncthreads();
        load_stage<OTHER, CHUNK, true, T>(stage, o, lines, first, columns, width, across);
        __syncthreads();
        multiply(s, own + first, pitch, stage, width);
    }
}

/* Where the others' products with weights are formed: [own line][other line]. */
__device__ __forceinline__ void store_weights(acc_t *weights, const tile_t &s)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLS; c++) weights[(ty() * ROWS + r) * WEIGHTS + tx() * COLS + c] = s[r][c];
}

/* sum[own][column] += weights other, all columns of some lines at a time. */
template <typename T>
__device__ __forceinline__ void add_lines(sums_t &sum, const acc_t *weights, acc_t *stage, const attention_operand &o,
                                          const s64 *lines, s64 columns, bool across)
{
    constexpr int LINES = OTHER / CHUNKS, STEP = CHUNKS > 4 ? 1 : GROUP, WIDE = CHUNKS * CHUNK + PAD;
    if (columns == 0) return;
    weights += ty() * ROWS * WEIGHTS;
#pragma unroll 1
    for (int first = 0; first < OTHER; first += LINES) {
        __syncthreads();
        load_stage<LINES, CHUNKS * CHUNK, false, T>(stage, o, lines + first, 0, columns, pitch_of(columns) - PAD, across);
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < LINES; k += STEP) {
            pack<STEP> w[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) w[r] = *(const pack<STEP> *)&weights[r * WEIGHTS + first + k];
#pragma unroll
            for (int g = 0; g < STEP; g++)
#pragma unroll
                for (int i = 0; i < CHUNKS; i++) {
                    const pack<LANES> y = *(const pack<LANES> *)&stage[(k + g) * WIDE + i * CHUNK + tx() * LANES];
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
#pragma unroll
                        for (int l = 0; l < LANES; l++) sum[i][r][l] += w[r].v[g] * y.v[l];
                }
        }
    }
}

/* Sums as lines of `memory`, a barrier before and behind. */
__device__ __forceinline__ void store_sums(acc_t *memory, const sums_t &sum)
{
    constexpr int WIDE = CHUNKS * CHUNK + PAD;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            pack<LANES> v;
#pragma unroll
            for (int l = 0; l < LANES; l++) v.v[l] = sum[i][r][l];
            *(pack<LANES> *)&memory[(ty() * ROWS + r) * WIDE + i * CHUNK + tx() * LANES] = v;
        }
    __syncthreads();
}
/* put(line, column, value) for the first `count` of them. */
template <typename F>
__device__ __forceinline__ void each_sum(const acc_t *memory, int count, s64 columns, const F &put)
{
    const int width = (int)columns;
#pragma unroll 1
    for (int e = (int)threadIdx.x; e < count * width; e += THREADS) {
        const int r = e / width, c = e % width;
        put(r, c, memory[r * (CHUNKS * CHUNK + PAD) + c]);
    }
}

__device__ __forceinline__ acc_t row_max(acc_t v)
{
#pragma unroll
    for (int by = TX / 2; by > 0; by /= 2) v = max_of(v, __shfl_xor_sync(0xffffffffu, v, by));
    return v;
}
__device__ __forceinline__ acc_t row_sum(acc_t v)
{
#pragma unroll
    for (int by = TX / 2; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
    return v;
}
