/* SPDX-License-Identifier: Apache-2.0
 * Attention backward on Hopper: a block keeps rows of one side (KEYS: keys and values, else queries and
 * gradients of out), rows of the other side travel past them tile by tile in a ring that one warp lets TMA
 * fill. Of both sides a is what scores are made of (q, k), b the rest (dout, v). For each
 * tile a warpgroup, which has 64 own rows, multiplies
 *
 *     t = own_a other_a^T, u = own_b other_b^T        64 x LINES
 *     weights = exp(scale t - lse), gradients = weights (u - delta)
 *     sum_b += weights other_b,  sum_a += gradients other_a
 *
 * the latter with weights and gradients as 16-bit operands out of the registers that t and u were in. The
 * products of a tile are issued before those of the last one are waited for, and sum_b's run while
 * gradients are made. Where keys stay sum_a is dk, sum_b dv, and all query heads of the group go by;
 * where queries stay sum_a is dq. Nothing is added up by more than one block: bits do not vary.
 *
 * Prologue: KEYS, SUM_A, SUM_B (which sums), GROUPS (warpgroups that multiply), LINES (others of a tile),
 * STAGES; D_STEPS and V_STEPS (of 16 columns of a and b), D_CHUNKS and V_CHUNKS (of 64), HELD_A and
 * HELD_B (half the columns of the sums, padded); PACKED_OWN PACKED_OTHER COUNTED_OWN COUNTED_OTHER,
 * BOTTOM_RIGHT, PLAIN (scores are scaled products), CAP ALIBI; types in_t a_t b_t (of results);
 * multiply(t, own, other, add), add_a(sum, gradients, other, add), add_b(sum, weights, other, add). */
#include "kernels/overlap.cuh"
#include "ops/attention/backward_sm90/backward_tiles.cuh"

/* ---- a job ---- */

/* Of this thread's own rows, which are queries. */
__device__ __forceinline__ statistics own_statistics(const attention_sm90_bwd_args &a, const job &j, int line)
{
    statistics s = {};
    if constexpr (KEYS) return s;
    const float *from = a.stats + 2 * a.pitch * (j.batch * a.heads + j.head) + j.row + line;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (line + 8 * half < j.valid) {
            s.lse[half] = from[8 * half];
            s.delta[half] = from[a.pitch + 8 * half];
        }
    return s;
}

/* All tiles of a job. */
__device__ __forceinline__ void add_tiles(const attention_sm90_bwd_args &a, const memory &m, const job &j, int group,
                                          int line, const statistics &own, sums &sum)
{
    const range whole = whole_tiles(a, j, j.first + 64 * group);
    const u32 own_a = m.a + group * 64 * ROW, own_b = m.b + group * 64 * ROW;
    const int column = (int)threadIdx.x % 4 * 2;
    ring r = {0, 0};
    int last = -1; /* stage whose products may still run */
    float t[SCORES], u[SCORES];
    operand_t weights, gradients;
    mbarrier_wait(m.bar.own(), 0);
#pragma unroll 1
    for (int g = 0; g < (KEYS ? a.group : 1); g++) {
        const int query_head = KEYS ? j.head * a.group + g : j.head;
        const place p = {j, j.first + line, ALIBI ? a.slopes[query_head * a.slopes_stride] : 0};
#pragma unroll 1
        for (int tile = j.from; tile < j.to; tile++) {
            const float *stats = m.stats_of(j, r.at) + column;
            mbarrier_wait(m.bar.full(r.at), r.parity);
            issue_products<D_STEPS>(t, own_a, m.other_a(r.at));
            /* Here the last tile's products end, so that u finds the registers of the gradients free. */
            wgmma_wait<1>();
            if (last >= 0) release(m.bar.empty(last));
            if constexpr (USES_B) issue_products<V_STEPS>(u, own_b, m.other_b(r.at));
            wgmma_wait<USES_B ? 1 : 0>();
            wgmma_hold(t);
            make_weights(a, p, own, stats, t, tile * LINES + column, tile < whole.from || tile >= whole.to, weights);
            if constexpr (SUM_B) issue_b(sum.b, weights, m.other_b(r.at));
            if constexpr (USES_B) {
                wgmma_wait<SUM_B ? 1 : 0>();
                wgmma_hold(u);
                make_gradients(own, stats, t, u, gradients);
                issue_a(sum.a, gradients, m.other_a(r.at));
            }
            last = r.at;
            r.next();
        }
    }
    wgmma_wait<0>();
    if constexpr (SUM_A) wgmma_hold(sum.a);
    if constexpr (SUM_B) wgmma_hold(sum.b);
}

__device__ __forceinline__ void consume(const attention_sm90_bwd_args &a, const memory &m, const job &j, int group)
{
    const int line = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + (int)threadIdx.x % 32 / 4;
    const statistics own = own_statistics(a, j, line);
    sums sum;
    clear(sum);
    if (j.from < j.to) add_tiles(a, m, j, group, line, own, sum);
    store(a, j, line, own, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_sm90_bwd(const __grid_constant__ attention_sm90_bwd_args a)
{
    overlap_wait();
    extern __shared__ unsigned char dynamic[];
    __shared__ __align__(8) u64 words[BARRIERS];
    __shared__ job slot;
    const u32 base = shared_address(dynamic), first = (base + 1023) & ~1023u; /* the swizzle is one of addresses */
    const u32 others = first + OWN_A + OWN_B;
    float *stats = (float *)(dynamic + (others + STAGES * STAGE - base));
    const memory m = {dynamic + (first - base), first, first + OWN_A, others, stats, barriers{shared_address(words)}};
    if (threadIdx.x < 32) {
        const job j = find_job(a, (int)blockIdx.x);
        if (threadIdx.x == 0) {
            slot = j;
            barriers_init(m.bar);
        }
    }
    __syncthreads();
    const job &j = slot; /* there, not in registers */
    if (j.n < 0) return;
    const int group = uniform((int)threadIdx.x / 128);
    if (group == GROUPS) {
        if constexpr (GROUPS > 1) registers_give<GIVEN>();
        ring r = {0, 1};
        u32 landed = 0;
        if (uniform((int)threadIdx.x / 32) == 4 * GROUPS && j.from < j.to)
            produce(a, m, j, r, landed, (int)threadIdx.x % 32);
    } else {
        if constexpr (GROUPS > 1) registers_take<TAKEN>();
        consume(a, m, j, group);
    }
}
