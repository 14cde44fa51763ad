/* SPDX-License-Identifier: Apache-2.0
 * New keys and values into a cache: a thread has two runs of columns of a row of k or v, finds the
 * row's place while they are in flight, and takes them through a group of heads. Constants: ROTATES,
 * BLOCK, those of rope.cuh (VEC: of k), V_VEC (of v); types k_t, v_t (of the caches). */
#include "kernels/overlap.cuh"
#include "ops/rope/rope.cuh"
#include "ops/rope/kv_append.cuh"

static_assert(VEC * sizeof(k_t) <= 16 && V_VEC * sizeof(v_t) <= 16 && V_VEC * sizeof(from_t) <= 16,
              "one access per run");

struct cache_place {
    long long outer, row; /* batch item or page; outer -1: dropped */
};

__device__ __forceinline__ cache_place find_place(const kv_append_args &a, const row_place &row)
{
    cache_place p = {-1, 0};
    long long n = row.sequence;
    if (n < 0) return p;
    if (a.seq_q && row.index >= __ldg(a.seq_q + n * a.seq_q_n)) return p;
    long long j = __ldg((const int *)a.at.start + n * a.at.start_n) + row.index;
    if (j < 0 || j >= a.most) return p;
    if (!a.page) return {n, j};
    long long nth = (j | a.page) >> 32 ? j / a.page : (unsigned)j / (unsigned)a.page;
    int page = __ldg(a.pages + n * a.pages_n + nth * a.pages_p);
    if (page < 0 || page >= a.pool) return p;
    return {page, j - nth * a.page};
}

/* Item `item` of a side, whose runs have N columns; TURNS: some units rotate. */
template <bool TURNS, typename T, int N>
__device__ __forceinline__ void append(const kv_append_args &a, const rope_side &side, const kv_append_scale &scales,
                                       long long item, long long items, long long units, long long head)
{
    if (item >= items) return;
    long long line = items >> 32 ? item / units : (unsigned)item / (unsigned)units, u = item - line * units;
    row_place row = place_row(line, a.rows);
    long long last = head + a.group < a.heads ? head + a.group : a.heads;
    bool turned = TURNS && u < a.range.turned;
    unit n;
    if (!TURNS) n = find_copied<N>(0, units, u);
    else if (turned) n = find_turned(a.range, u);
    else n = find_copied<N>(2 * a.range.pairs, units - a.range.turned, u - a.range.turned);
    bool both = turned || n.b < side.columns;
    const from_t *from = (const from_t *)side.from + row.b * side.from_b + row.s * side.from_s + head * side.from_h;
    const from_t *first = from + n.a * side.from_d, *second = from + n.b * side.from_d;

    batch<N> in;
    load_batch<N>(in, first, second, side.from_h, last - head, both, side.from_aligned);
    find_sequence(a.at, row);
    cache_place place = find_place(a, row);
    if (place.outer < 0) return;
    T *to = (T *)side.to + place.outer * side.to_b + place.row * side.to_s + head * side.to_h;
    acc_t c[VEC] = {}, s[VEC] = {};
    if (turned) find_unit_turns(a.at, a.range, a.frequencies, a.frequencies_below, position_of(a.at, row), n, c, s);
    for (;;) {
#pragma unroll
        for (int i = 0; i < HEADS; i++) {
            if (head + i >= last) break;
            acc_t x[N], y[N] = {};
            unpack(in.first[i], x);
            if (both) unpack(in.second[i], y);
            if constexpr (TURNS)
                if (turned) turn_unit(x, y, c, s);
            acc_t scale = scales.data ? (acc_t)1 / (acc_t)__ldg(scales.data + (head + i) * scales.step) : (acc_t)1;
            quantise<T, N>(to + i * side.to_h + n.a * side.to_d, side.to_aligned, x, scale);
            if (both) quantise<T, N>(to + i * side.to_h + n.b * side.to_d, side.to_aligned, y, scale);
        }
        head += HEADS;
        if (head >= last) return;
        first += HEADS * side.from_h, second += HEADS * side.from_h, to += HEADS * side.to_h;
        load_batch<N>(in, first, second, side.from_h, last - head, both, side.from_aligned);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, 2) kv_append(const kv_append_args a)
{
    overlap_wait();
    bool is_v = blockIdx.x >= a.k_blocks * a.groups;
    unsigned block = is_v ? blockIdx.x - a.k_blocks * a.groups : blockIdx.x, blocks = is_v ? a.v_blocks : a.k_blocks;
    auto [group, nth] = place_block(block, blocks, a.groups, a.by_row);
    long long item = (long long)nth * BLOCK + threadIdx.x, head = (long long)group * a.group;
    if (is_v)
        append<false, v_t, V_VEC>(a, a.v, a.v_scale, item, a.v_items, a.v_units, head);
    else
        append<ROTATES, k_t, VEC>(a, a.k, a.k_scale, item, a.k_items, a.range.turned + a.range.copied, head);
}
