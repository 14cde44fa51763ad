/* SPDX-License-Identifier: Apache-2.0
 * The steps of a sequence, one after the other, forwards and backwards at once. FORWARD: a block has both
 * walks of a sequence, which meet in the middle, so that half of the steps wait for each other. Else a
 * block has one of them (blockIdx.y), over all steps, and leaves what it finds in the table; a third finds
 * which labels are the same. A thread keeps KEPT pairs of states, a blank and the label behind it; of
 * other pairs it needs the label before alone, which is passed on in shared memory, with one barrier a
 * step. What x says of the next DEPTH steps is on its way. Sequences of more than SLOTS pairs pass their
 * states through global memory. Backwards, all is mirrored: the last state is the first.
 * Constants: those of ctc_loss.cuh, FORWARD, THREADS
 * (of a walk), KEPT, DEPTH. Types also loss_t, dloss_t. Floor: the steps times a barrier, two reads of shared
 * memory and a dozen dependent operations. */
#include "ops/ctc_loss/ctc_loss.cuh"

constexpr int WALKS = FORWARD ? 2 : 1, BLOCK = THREADS * WALKS, SLOTS = THREADS * KEPT;

struct pair_of { number blank, label; };

struct walk {
    bool back;
    int thread;
    long long steps;        /* that it takes, from its end on */
    number *slots;          /* labels of even steps; SLOTS + 1 further on those of odd ones */
    number *table, *states; /* rows of all steps; of even and of odd ones */
};

/* ---- where things lie ---- */

/* Class of the label of pair k, in the walk's order; and whether it may follow the label before. */
CTC long long label_of(const mica_ctc_loss_args &a, const sequence &s, const walk &w, long long k, bool &bad)
{
    return label_at(a, s, w.back ? s.count - 1 - k : k, bad);
}
CTC bool may_skip(const mica_ctc_loss_args &a, const sequence &s, const walk &w, long long k, long long label)
{
    bool bad;
    return k > 0 && label_of(a, s, w, k - 1, bad) != label;
}

CTC long long step_at(const sequence &s, const walk &w, long long i) { return w.back ? s.steps - 1 - i : i; }

/* Blanks of a sequence lie together, then its labels. */
CTC number *blank_in(number *row, const sequence &s, const walk &w, long long k)
{
    return row + 2 * s.pair + (w.back ? s.count - k : k);
}
CTC number *label_in(number *row, const sequence &s, const walk &w, long long k)
{
    return row + 2 * s.pair + s.pairs + (w.back ? s.count - 1 - k : k);
}

CTC number *row_of(number *rows, const mica_ctc_loss_args &a, long long i) { return rows + 2 * a.pairs * i; }

CTC void keep(const sequence &s, const walk &w, number *row, long long k, const pair_of &p)
{
    *blank_in(row, s, w, k) = p.blank;
    if (k < s.count) *label_in(row, s, w, k) = p.label;
}

/* ---- a step of a pair ---- */

/* What leads to a pair, of itself and the label before it. */
CTC pair_of sum_of(const pair_of &p, const number &before, bool skip)
{
    const number third = skip ? before : zero();
    return pair_of{plus(p.blank, before), plus(p.label, p.blank, third)};
}

/* p becomes what it is a step on; what backward reads goes into the table: forwards with the step,
 * backwards without it. */
CTC void advance(const mica_ctc_loss_args &a, const sequence &s, const walk &w, long long t, long long k, pair_of &p,
                 const number &before, bool skip, acc_t log_blank, acc_t log_label)
{
    pair_of sum = sum_of(p, before, skip);
    p.blank = times(sum.blank, exponential(log_blank));
    p.label = k < s.count ? times(sum.label, exponential(log_label)) : zero();
    if constexpr (!FORWARD) keep(s, w, row_of(w.table, a, t), k, w.back ? sum : p);
}

/* ---- walks ---- */

struct kept {
    pair_of p[KEPT];
    long long label[KEPT];
    bool skip[KEPT], mine[KEPT];
};

CTC long long pair_at(const walk &w, int j) { return w.thread + (long long)j * THREADS; }

CTC void fetch_step(const mica_ctc_loss_args &a, const sequence &s, const walk &w, const kept &own, long long i,
                    acc_t &blank, acc_t (&labels)[KEPT])
{
    if (i >= w.steps) return;
    const long long t = step_at(s, w, i);
    blank = log_prob(a, s, t, a.blank);
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        if (own.mine[j]) labels[j] = log_prob(a, s, t, own.label[j]);
}

/* The labels before those of a thread, as they were `i` steps from the walk's end on. */
CTC number before_of(const walk &w, long long i, int j) { return w.slots[(i & 1) * (SLOTS + 1) + pair_at(w, j)]; }

CTC void pass_on(const walk &w, long long i, const kept &own)
{
#pragma unroll
    for (int j = 0; j < KEPT; j++) w.slots[(i & 1) * (SLOTS + 1) + pair_at(w, j) + 1] = own.p[j].label;
}

CTC void begin_kept(const mica_ctc_loss_args &a, const sequence &s, const walk &w, kept &own, bool &bad)
{
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        const long long k = pair_at(w, j);
        own.p[j] = pair_of{k == 0 ? one() : zero(), zero()};
        own.mine[j] = k < s.pairs;
        own.label[j] = k < s.count ? label_of(a, s, w, k, bad) : a.blank;
        own.skip[j] = k < s.count && may_skip(a, s, w, k, own.label[j]);
    }
    if (w.thread == 0) w.slots[0] = w.slots[SLOTS + 1] = zero();
    pass_on(w, 0, own);
}

/* All threads of the block pass `most` barriers. */
CTC void walk_kept(const mica_ctc_loss_args &a, const sequence &s, const walk &w, kept &own, long long most)
{
    acc_t blank[DEPTH], labels[DEPTH][KEPT];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) fetch_step(a, s, w, own, d, blank[d], labels[d]);
    for (long long first = 0; first < most; first += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const long long i = first + d;
            if (i >= most) break;
            __syncthreads();
            if (i >= w.steps) continue;
#pragma unroll
            for (int j = 0; j < KEPT; j++)
                if (own.mine[j])
                    advance(a, s, w, step_at(s, w, i), pair_at(w, j), own.p[j], before_of(w, i, j), own.skip[j], blank[d], labels[d][j]);
            pass_on(w, i + 1, own);
            fetch_step(a, s, w, own, i + DEPTH, blank[d], labels[d]);
        }
    }
    __syncthreads();
}

CTC pair_of pair_in(const mica_ctc_loss_args &a, const sequence &s, const walk &w, long long i, long long k)
{
    number *row = row_of(w.states, a, i & 1);
    return pair_of{*blank_in(row, s, w, k), k < s.count ? *label_in(row, s, w, k) : zero()};
}

CTC number label_before(const mica_ctc_loss_args &a, const sequence &s, const walk &w, long long i, long long k)
{
    return k > 0 ? *label_in(row_of(w.states, a, i & 1), s, w, k - 1) : zero();
}

CTC void walk_long(const mica_ctc_loss_args &a, const sequence &s, const walk &w, long long most, bool &bad)
{
    for (long long k = w.thread; k < s.pairs; k += THREADS)
        keep(s, w, w.states, k, pair_of{k == 0 ? one() : zero(), zero()});
    for (long long i = 0; i < most; i++) {
        __syncthreads();
        const long long t = step_at(s, w, i);
        for (long long k = w.thread; k < s.pairs && i < w.steps; k += THREADS) {
            pair_of p = pair_in(a, s, w, i, k);
            const long long label = k < s.count ? label_of(a, s, w, k, bad) : a.blank;
            const bool skip = k < s.count && may_skip(a, s, w, k, label);
            advance(a, s, w, t, k, p, label_before(a, s, w, i, k), skip, log_prob(a, s, t, a.blank), log_prob(a, s, t, label));
            keep(s, w, row_of(w.states, a, (i + 1) & 1), k, p);
        }
    }
    __syncthreads();
}

/* ---- the probability of a sequence ---- */

/* Of all threads; the sum is the first one's. */
CTC number sum_up(number mine, number *sums)
{
    sums[threadIdx.x] = mine;
    for (int n = BLOCK; n > 1;) {
        const int half = (n + 1) / 2;
        __syncthreads();
        if (threadIdx.x + half < n) sums[threadIdx.x] = plus(sums[threadIdx.x], sums[threadIdx.x + half]);
        n = half;
    }
    return sums[0];
}

/* What forwards has found, times what leads to the end from there. */
CTC number meet(const sequence &s, const walk &w, number *front, long long k, const pair_of &p, const number &before, bool skip)
{
    const pair_of sum = sum_of(p, before, skip);
    const number blank = times(*blank_in(front, s, w, k), sum.blank);
    return k < s.count ? plus(blank, times(*label_in(front, s, w, k), sum.label)) : blank;
}

CTC number meet_kept(const mica_ctc_loss_args &a, const sequence &s, const walk &w, number *front, long long most, bool &bad)
{
    kept own;
    number sum = zero();
    begin_kept(a, s, w, own, bad);
    walk_kept(a, s, w, own, most);
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        if (!w.back && own.mine[j]) keep(s, w, front, pair_at(w, j), own.p[j]);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        if (w.back && own.mine[j])
            sum = plus(sum, meet(s, w, front, pair_at(w, j), own.p[j], before_of(w, w.steps, j), own.skip[j]));
    return sum;
}

CTC number meet_long(const mica_ctc_loss_args &a, const sequence &s, const walk &w, number *front, long long most, bool &bad)
{
    number sum = zero();
    walk_long(a, s, w, most, bad);
    for (long long k = w.thread; k < s.pairs && w.back; k += THREADS) {
        const long long label = k < s.count ? label_of(a, s, w, k, bad) : a.blank;
        const bool skip = k < s.count && may_skip(a, s, w, k, label);
        sum = plus(sum, meet(s, w, front, k, pair_in(a, s, w, w.steps, k), label_before(a, s, w, w.steps, k), skip));
    }
    return sum;
}

CTC void write_loss(const mica_ctc_loss_args &a, const sequence &s, long long b, const number &p, bool bad)
{
    double loss = -(log((double)p.m) + (double)p.e * 0.693147180559945309);
    if (p.m == 0) loss = a.zero ? 0.0 : (double)INFINITY_F;
    if (bad) loss = (double)NAN_F;
    if (a.mean) loss /= (double)(s.count > 1 ? s.count : 1);
    if (a.losses)
        a.losses[b] = loss;
    else
        ((loss_t *)a.loss)[b * a.loss_by] = narrow<loss_t>(loss);
}

CTC void forward(const mica_ctc_loss_args &a, const sequence &s, walk w, long long b, number *sums, int &bad_labels)
{
    const long long half = (s.steps + 1) / 2;
    number *front = row_of((number *)a.states, a, half & 1);
    bool bad = s.bad;
    number sum = zero();
    w.steps = w.back ? s.steps - half : half;
    if (s.steps == 0) {
        if (threadIdx.x == 0 && s.count == 0) sum = one();
        for (long long k = threadIdx.x; k < s.count; k += BLOCK) label_at(a, s, k, bad);
    } else {
        sum = s.pairs <= SLOTS ? meet_kept(a, s, w, front, half, bad) : meet_long(a, s, w, front, half, bad);
    }
    if (bad) bad_labels = 1;
    const number p = sum_up(sum, sums);
    if (threadIdx.x == 0) write_loss(a, s, b, p, bad_labels);
    __syncthreads();
}

/* ---- backward ---- */

CTC acc_t gradient_of(const mica_ctc_loss_args &a, const sequence &s, long long b)
{
    const acc_t g = widen<acc_t>(((const dloss_t *)a.dloss)[b * a.dloss_by]);
    if (!a.mean) return g;
    return (acc_t)((double)g / (double)a.batch / (double)(s.count > 1 ? s.count : 1));
}

/* The last blank and the last label, of all steps. */
CTC void write_outcome(const mica_ctc_loss_args &a, const sequence &s, long long b, const walk &w, bool bad)
{
    number p = zero();
    if (s.steps == 0) {
        if (s.count == 0) p = one();
    } else {
        number *row = row_of(w.table, a, s.steps - 1);
        p = *blank_in(row, s, w, s.count);
        if (s.count > 0) p = plus(p, *label_in(row, s, w, s.count - 1));
    }
    const int kind = bad ? BAD : p.m == 0 ? NO_ALIGNMENT : p.m != p.m ? NOT_A_NUMBER : REACHED;
    ((outcome *)a.outcomes)[b] = outcome{number{(acc_t)1 / p.m, -p.e}, gradient_of(a, s, b), (acc_t)kind};
}

/* Labels that are the same are a list, from the first of them on. */
CTC void link_labels(const mica_ctc_loss_args &a, const sequence &s)
{
    bool bad;
    for (long long i = threadIdx.x; i < s.count; i += BLOCK) {
        const long long label = label_at(a, s, i, bad);
        long long next = -1, first = 1;
        for (long long j = 0; j < i && first; j++) first = label_at(a, s, j, bad) != label;
        for (long long j = i + 1; j < s.count && next < 0; j++)
            if (label_at(a, s, j, bad) == label) next = j;
        a.links[2 * (s.pair + i)] = next;
        a.links[2 * (s.pair + i) + 1] = first;
    }
}

CTC void backward(const mica_ctc_loss_args &a, const sequence &s, walk w, long long b, int &bad_labels)
{
    bool bad = s.bad;
    w.steps = s.steps;
    if (s.pairs <= SLOTS) {
        kept own;
        begin_kept(a, s, w, own, bad);
        walk_kept(a, s, w, own, s.steps);
    } else {
        for (long long k = w.thread; k < s.count; k += THREADS) label_at(a, s, k, bad);
        walk_long(a, s, w, s.steps, bad);
    }
    if (bad) bad_labels = 1;
    __syncthreads();
    if (threadIdx.x == 0 && !w.back) write_outcome(a, s, b, w, bad_labels);
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(BLOCK) ctc_loss_walk(const mica_ctc_loss_args a)
{
    overlap_wait();
    __shared__ number slots[WALKS * 2 * (SLOTS + 1)];
    __shared__ number sums[BLOCK];
    __shared__ int bad_labels;
    for (long long b = blockIdx.x; b < a.batch; b += gridDim.x) {
        const sequence s = find_sequence(a, b);
        if (threadIdx.x == 0) bad_labels = 0;
        __syncthreads();
        const int side = FORWARD ? threadIdx.x / THREADS : blockIdx.y;
        const walk w = {side == 1, (int)threadIdx.x % THREADS, 0, slots + (FORWARD ? side : 0) * 2 * (SLOTS + 1),
                        row_of((number *)a.table, a, side * a.steps), row_of((number *)a.states, a, 2 * side)};
        if constexpr (FORWARD) forward(a, s, w, b, sums, bad_labels);
        else if (side == 2) link_labels(a, s);
        else backward(a, s, w, b, bad_labels);
    }
}
