/* SPDX-License-Identifier: Apache-2.0
 * Rotation of q and k: a thread has two runs of a row's columns, forms their angles once, and takes
 * them through a group of heads. Constants: BLOCK, those of rope.cuh; type to_t. */
#include "kernels/overlap.cuh"
#include "ops/rope/rope.cuh"

static_assert(VEC * sizeof(to_t) <= 16, "one access per run");

extern "C" __global__ void __launch_bounds__(BLOCK, 2) rope(const rope_args a)
{
    overlap_wait();
    auto [group, nth] = place_block(blockIdx.x, gridDim.x / a.groups, a.groups, a.by_row);
    long long item = (long long)nth * BLOCK + threadIdx.x;
    if (item >= a.items) return;
    long long units = a.range.turned + a.range.copied;
    long long line = a.items >> 32 ? item / units : (unsigned)item / (unsigned)units, u = item - line * units;
    row_place row = place_row(line, a.rows);

    bool is_k = group >= a.q_groups;
    const rope_side &side = is_k ? a.k : a.q;
    long long head = (long long)(is_k ? group - a.q_groups : group) * a.heads, heads = is_k ? a.k_heads : a.q_heads;
    long long last = head + a.heads < heads ? head + a.heads : heads;
    bool turned = u < a.range.turned;
    unit n = turned ? find_turned(a.range, u) : find_copied<VEC>(2 * a.range.pairs, a.range.copied, u - a.range.turned);
    bool both = turned || n.b < side.columns;
    const from_t *from = (const from_t *)side.from + row.b * side.from_b + row.s * side.from_s + head * side.from_h;
    const from_t *first = from + n.a * side.from_d, *second = from + n.b * side.from_d;
    to_t *to = (to_t *)side.to + row.b * side.to_b + row.s * side.to_s + head * side.to_h;

    batch<VEC> in;
    load_batch<VEC>(in, first, second, side.from_h, last - head, both, side.from_aligned);
    acc_t c[VEC] = {}, s[VEC] = {};
    if (turned) {
        find_sequence(a.at, row);
        find_unit_turns(a.at, a.range, a.frequencies, a.frequencies_below, position_of(a.at, row), n, c, s);
    }
    for (;;) {
#pragma unroll
        for (int i = 0; i < HEADS; i++) {
            if (head + i >= last) break;
            acc_t x[VEC], y[VEC] = {};
            unpack(in.first[i], x);
            if (both) unpack(in.second[i], y);
            if (turned) turn_unit(x, y, c, s);
            store_elements<to_t, VEC>(to + i * side.to_h + n.a * side.to_d, side.to_aligned, x);
            if (both) store_elements<to_t, VEC>(to + i * side.to_h + n.b * side.to_d, side.to_aligned, y);
        }
        head += HEADS;
        if (head >= last) return;
        first += HEADS * side.from_h, second += HEADS * side.from_h, to += HEADS * side.to_h;
        load_batch<VEC>(in, first, second, side.from_h, last - head, both, side.from_aligned);
    }
}
