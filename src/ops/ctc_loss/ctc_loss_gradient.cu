/* SPDX-License-Identifier: Apache-2.0
 * Gradients from both tables: a warp for each step of a sequence. It writes what all classes have, then
 * again those that are said: their shares are added up along the list of a label's repetitions, by one
 * thread in their order, and those of the blank by the warp; no sum is atomic. Constants: those of
 * ctc_loss.cuh, BY_LOGITS, WARPS, VECTOR (neighbouring classes of an access). Types also dx_t. Floor: the bytes of both tables, x and dx. */
#include "ops/ctc_loss/ctc_loss.cuh"

struct row {
    long long t;
    const x_t *x;
    dx_t *dx;
    acc_t lse;
    const number *before, *behind; /* blanks of the tables, then labels */
    outcome own;
};

/* What of all alignments passes a state. */
CTC acc_t share_of(const row &r, long long state)
{
    const number p = r.before[state], q = r.behind[state];
    if (p.m == 0 || q.m == 0) return (acc_t)0;
    const acc_t e = p.e + q.e + r.own.inverse.e, m = p.m * q.m * r.own.inverse.m;
    if (m - m != 0) return m;
    /* In two steps: the share may be below the least normal number. */
    constexpr acc_t STEP = same_type<acc_t, double> ? (acc_t)-1000 : (acc_t)-120;
    const acc_t first = e > 2 ? (acc_t)2 : higher(e, STEP);
    return m * power(first) * power(higher(e, 2 * STEP) - first);
}

CTC acc_t probability(const row &r, acc_t x) { return BY_LOGITS ? exp_of(LOGITS ? x - r.lse : x) : (acc_t)0; }

/* Accesses in flight. */
constexpr int BATCH = 4;

/* What all classes have. */
CTC void write_all(const mica_ctc_loss_args &a, const row &r)
{
    const long long lane = threadIdx.x % 32 * VECTOR;
    for (long long first = lane; first < a.classes; first += 32 * VECTOR * BATCH) {
        lanes<x_t, VECTOR> raw[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const long long c = first + 32 * VECTOR * j;
            if (BY_LOGITS && c < a.classes) raw[j] = fetch<VECTOR>(r.x + c * a.x_by[2], a.whole & 1);
        }
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            const long long c = first + 32 * VECTOR * j;
            acc_t v[VECTOR];
            if (c >= a.classes) break;
            if constexpr (BY_LOGITS) unpack(raw[j], v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[k] = r.own.gradient * (BY_LOGITS ? probability(r, v[k]) : (acc_t)0);
            store_elements<dx_t, VECTOR>(r.dx + c * a.dx_by[2], a.whole >> 1 & 1, v);
        }
    }
}

/* One number for all, NaN or 0. */
CTC void write_same(const mica_ctc_loss_args &a, const row &r, acc_t same)
{
    acc_t v[VECTOR];
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] = same;
    for (long long c = threadIdx.x % 32 * VECTOR; c < a.classes; c += 32 * VECTOR)
        store_elements<dx_t, VECTOR>(r.dx + c * a.dx_by[2], a.whole >> 1 & 1, v);
}

CTC void write_class(const mica_ctc_loss_args &a, const row &r, long long c, acc_t share)
{
    const acc_t p = probability(r, widen<acc_t>(r.x[c * a.x_by[2]]));
    r.dx[c * a.dx_by[2]] = narrow<dx_t>(r.own.gradient * (p - share));
}

CTC void write_said(const mica_ctc_loss_args &a, const sequence &s, const row &r)
{
    const int lane = threadIdx.x % 32;
    acc_t blank = 0;
    bool bad;
    for (long long i = lane; i < s.pairs; i += 32) blank += share_of(r, i);
#pragma unroll
    for (int by = 1; by < 32; by *= 2) blank += __shfl_xor_sync(0xffffffffu, blank, by);
    if (lane == 0) write_class(a, r, a.blank, blank);
    const long long *links = a.links + 2 * s.pair;
    for (long long i = lane; i < s.count; i += 32) {
        if (!links[2 * i + 1]) continue;
        acc_t share = 0;
        for (long long k = i; k >= 0; k = links[2 * k]) share += share_of(r, s.pairs + k);
        write_class(a, r, label_at(a, s, i, bad), share);
    }
}

CTC void do_row(const mica_ctc_loss_args &a, const sequence &s, const row &r)
{
    const int kind = (int)r.own.kind;
    const bool inside = r.t < s.steps;
    if (kind == BAD || !inside || kind != REACHED) {
        const bool none = kind == BAD ? false : !inside || (kind == NO_ALIGNMENT && a.zero);
        write_same(a, r, none ? (acc_t)0 : (acc_t)NAN_F);
        return;
    }
    write_all(a, r);
    __syncwarp();
    write_said(a, s, r);
}

CTC void do_steps(const mica_ctc_loss_args &a, const sequence &s, long long b, long long from)
{
    const long long to = from + a.rows < a.steps ? from + a.rows : a.steps;
    row r;
    r.own = ((const outcome *)a.outcomes)[b];
    for (r.t = from + threadIdx.x / 32; r.t < to; r.t += WARPS) {
        r.x = s.x + r.t * a.x_by[0];
        r.dx = (dx_t *)a.dx + b * a.dx_by[1] + r.t * a.dx_by[0];
        r.lse = LOGITS && BY_LOGITS ? s.lse[r.t * a.batch] : (acc_t)0;
        r.before = (const number *)a.table + 2 * (a.pairs * r.t + s.pair);
        r.behind = r.before + 2 * a.pairs * a.steps;
        do_row(a, s, r);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) ctc_loss_gradient(const mica_ctc_loss_args a)
{
    overlap_wait();
    for (long long b = blockIdx.y; b < a.batch; b += gridDim.y) {
        const sequence s = find_sequence(a, b);
        for (long long from = (long long)blockIdx.x * a.rows; from < a.steps; from += (long long)gridDim.x * a.rows)
            do_steps(a, s, b, from);
    }
}
