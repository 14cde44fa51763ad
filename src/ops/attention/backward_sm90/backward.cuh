/* SPDX-License-Identifier: Apache-2.0
 * What the parts of Hopper's attention gradients share: rings and barriers, a block's job, scores that
 * become weights. Constants: those of backward.cu. */
#pragma once
#include "kernels/mbarrier.cuh"
#include "ops/attention/backward_sm90/backward_args.h"

constexpr int ROWS = 64 * GROUPS; /* of a job */
constexpr int SCORES = LINES / 2; /* of a thread */
constexpr int PITCH = LINES + ATTENTION_SM90_SLACK; /* numbers of the queries of a tile */
constexpr float LOG2E = 1.44269504088896341f;

/* ---- rings and barriers ---- */

struct ring {
    int at;
    u32 parity;
    __device__ __forceinline__ void next()
    {
        if (++at < STAGES) return;
        at = 0;
        parity ^= 1;
    }
};

/* Addresses of 8 bytes each. */
struct barriers {
    u32 base;
    __device__ __forceinline__ u32 full(int i) const { return base + 8 * i; }
    __device__ __forceinline__ u32 empty(int i) const { return base + 8 * (STAGES + i); }
    __device__ __forceinline__ u32 own() const { return base + 8 * (2 * STAGES); }
    __device__ __forceinline__ u32 landed() const { return base + 8 * (2 * STAGES + 1); }
    /* Where scores are formed once: of the sums of dq that a warpgroup leaves for its adder, of jobs and own rows
     * of blocks that take one job after the other. */
    __device__ __forceinline__ u32 left(int group) const { return base + 8 * (2 * STAGES + 2 + group); }
    __device__ __forceinline__ u32 taken(int group) const { return base + 8 * (2 * STAGES + 2 + GROUPS + group); }
    __device__ __forceinline__ u32 known(int slot) const { return base + 8 * (2 * STAGES + 2 + 2 * GROUPS + slot); }
    __device__ __forceinline__ u32 done(int slot) const { return base + 8 * (2 * STAGES + 4 + 2 * GROUPS + slot); }
    __device__ __forceinline__ u32 own_empty() const { return base + 8 * (2 * STAGES + 6 + 2 * GROUPS); }
    __device__ __forceinline__ u32 loaded() const { return base + 8 * (2 * STAGES + 7 + 2 * GROUPS); }
};
constexpr int BARRIERS = 2 * STAGES + 2 + (ONCE ? 2 * GROUPS + 6 : 0);

/* By one thread. Warps of consumers release what they have read. */
__device__ __forceinline__ void barriers_init(const barriers &b)
{
    for (int i = 0; i < BARRIERS; i++) mbarrier_init(b.base + 8 * i, 1);
    for (int i = 0; i < STAGES; i++) mbarrier_init(b.empty(i), 4 * GROUPS);
    if constexpr (ONCE) {
        for (int i = 0; i < GROUPS; i++) mbarrier_init(b.left(i), 4);
        for (int i = 0; i < 2; i++) mbarrier_init(b.done(i), 5 * GROUPS); /* warps and adders */
        mbarrier_init(b.own_empty(), 4 * GROUPS);
    }
    mbarrier_fence_init();
}

/* ---- jobs ---- */

struct job {
    int n, head;          /* sequence, head of the own side; n is -1: there is none */
    int batch, row;       /* where the own rows begin */
    int first;            /* of them, in their sequence */
    int rows, valid;      /* rows of the tensor, those of them that belong to the sequence */
    int other_batch, other; /* where the others begin */
    int count, shift;     /* of the others; the diagonal's in own row 0 */
    int from, to;         /* tiles of the others */
};

struct range {
    int from, to;
};

/* Others that own row x of a sequence sees. */
__device__ __forceinline__ range seen_by(const attention_sm90_bwd_args &a, const job &j, int x)
{
    const int diagonal = x + j.shift;
    const int to = min(max(diagonal + a.high, 0), j.count);
    return range{min(max(diagonal - a.low + 1, 0), to), to};
}

__device__ __forceinline__ int number(const attention_sm90_list &list, int i, int most)
{
    return min(max(list.data[i * list.stride], 0), most);
}

__device__ __forceinline__ void find_others(const attention_sm90_bwd_args &a, job &j, int own)
{
    j.other = 0;
    j.other_batch = PACKED_OTHER ? 0 : j.n;
    j.count = a.other.rows;
    if constexpr (PACKED_OTHER) {
        j.other = number(a.other.cu, j.n, a.other.rows);
        j.count = max(number(a.other.cu, j.n + 1, a.other.rows) - j.other, 0);
    }
    if constexpr (COUNTED_OTHER) j.count = number(a.other.seq, j.n, a.other.rows);
    j.shift = BOTTOM_RIGHT ? j.count - own : 0;
    j.from = j.to = 0;
    if (j.valid <= 0) return;
    j.from = seen_by(a, j, j.first).from / LINES;
    j.to = (seen_by(a, j, j.first + j.valid - 1).to + LINES - 1) / LINES;
}

/* Tiles of a head side by side, so that they share the others in L2; those first that see most where
 * attention is causal. */
__device__ __forceinline__ void find_batched(const attention_sm90_bwd_args &a, int index, job &j)
{
    /* Blocks that wait for one another are further apart where the heads of a section alternate. */
    const int section = ONCE ? a.section : 1, from = index / (section * a.tiles) * section;
    const int width = min(section, a.sequences * a.heads - from), inside = index - from * a.tiles;
    const int tile = inside / width, line = from + inside - tile * width;
    j.n = line / a.heads;
    j.head = line - j.n * a.heads;
    j.batch = j.n;
    j.row = j.first = (KEYS ? tile : a.tiles - 1 - tile) * ROWS;
    j.rows = min(a.own.rows - j.row, ROWS);
    const int own = COUNTED_OWN ? number(a.own.seq, j.n, a.own.rows) : a.own.rows;
    j.valid = min(max(own - j.row, 0), j.rows);
    find_others(a, j, own);
}

/* Where packed sequence e - 1 begins: number 0 and the last one are the rows that belong to none. */
__device__ __forceinline__ int boundary(const attention_sm90_bwd_args &a, int e)
{
    if (e == 0) return 0;
    return e > a.sequences + 1 ? a.own.rows : number(a.own.cu, e - 1, a.own.rows);
}

/* By a whole warp: the sequence that holds tile `index` / heads of all. */
__device__ __forceinline__ void find_packed(const attention_sm90_bwd_args &a, int index, job &j)
{
    const int lane = (int)threadIdx.x % 32, spans = a.sequences + 2;
    int tile = index / a.heads;
    j.n = -1;
    for (int e = lane; e - lane < spans; e += 32) {
        const int begin = e < spans ? boundary(a, e) : 0;
        const int count = e < spans ? max(boundary(a, e + 1) - begin, 0) : 0, tiles = (count + ROWS - 1) / ROWS;
        int sum = tiles; /* up to this lane */
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
            const int before = __shfl_up_sync(0xffffffffu, sum, by);
            if (lane >= by) sum += before;
        }
        const u32 behind = __ballot_sync(0xffffffffu, sum > tile);
        if (behind) {
            const int at = __ffs((int)behind) - 1, nth = e - lane + at - 1;
            const int in_it = tile - __shfl_sync(0xffffffffu, sum - tiles, at);
            const int rows = __shfl_sync(0xffffffffu, count, at);
            j.n = min(max(nth, 0), a.sequences - 1);
            j.head = index % a.heads;
            j.batch = 0;
            j.first = in_it * ROWS;
            j.row = __shfl_sync(0xffffffffu, begin, at) + j.first;
            j.rows = min(rows - j.first, ROWS);
            j.valid = nth == j.n ? j.rows : 0;
            find_others(a, j, rows);
            return;
        }
        tile -= __shfl_sync(0xffffffffu, sum, 31);
    }
}

/* By a whole warp. */
__device__ __forceinline__ job find_job(const attention_sm90_bwd_args &a, int index)
{
    job j;
    if constexpr (PACKED_OWN)
        find_packed(a, index, j);
    else
        find_batched(a, index, j);
    return j;
}

/* Which of all tiles of sums of dq tile `tile` of sequence n is, whose queries begin at `begin` of `line`; packed
 * sequences may have a last tile each. */
__device__ __forceinline__ s64 sums_at(const attention_sm90_bwd_args &a, int n, int begin, s64 line, int tile)
{
    constexpr bool PACKED = KEYS ? PACKED_OTHER : PACKED_OWN;
    return line * a.sum_tiles + (PACKED ? begin / (KEYS ? LINES : ROWS) + n : 0) + tile;
}

/* ---- weights and gradients of scores, in accumulators ----
 * A thread has two own rows, `row` of the sequence and eight further on; of the others those numbered
 * 8 i + 2 (lane % 4) in their tile, and the next one. */

/* Of two own rows, or of two neighbours of the others. */
struct statistics {
    float lse[2], delta[2];
};

struct place {
    const job &j;
    int row;
    float slope; /* ALiBi's */
};

__device__ __forceinline__ float exp2_of(float v)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

/* The score of own row x and other y; `by`: the slope of the soft cap there. */
__device__ __forceinline__ float score_of(const attention_sm90_bwd_args &a, const place &p, float v, int x, int y,
                                          float &by)
{
    v *= a.scale;
    by = 1;
    if constexpr (CAP) {
        /* tanh x = 1 - 2 / (exp 2x + 1): the error is small beside the cap */
        const float tangent = 1 - __fdividef(2.0f, exp2_of(v * a.cap_inverse) + 1);
        v = a.cap * tangent;
        by = 1 - tangent * tangent;
    }
    if constexpr (ALIBI) v -= p.slope * (float)abs(y - x - p.j.shift);
    return v;
}

__device__ __forceinline__ u32 pack(float low, float high)
{
    const in_t l = narrow<in_t>(low), h = narrow<in_t>(high);
    return (u32)l.bits | (u32)h.bits << 16;
}

/* The accumulators of 16 columns are, in 16 bits, the operand of 16 terms: that is word i / 2 of it. */
typedef u32 operand_t[LINES / 16][4];

/* stats: lse of the others of this tile, PITCH further on delta; not looked at where queries stay. */
__device__ __forceinline__ float lse_of(const statistics &own, const float *stats, int i)
{
    return KEYS ? stats[i / 4 * 8 + i % 2] : own.lse[i / 2 % 2];
}
__device__ __forceinline__ float delta_of(const statistics &own, const float *stats, int i)
{
    return KEYS ? stats[PITCH + i / 4 * 8 + i % 2] : own.delta[i / 2 % 2];
}

__device__ __forceinline__ void pack_weights(const float (&t)[SCORES], operand_t &weights)
{
#pragma unroll
    for (int i = 0; i < SCORES; i += 2) weights[i / 8][i / 2 % 4] = pack(t[i], t[i + 1]);
}

/* Products become weights, in `weights` as an operand (ONCE: not yet) and in t times the slope of the soft cap. y: the first
 * other of this thread; border: some rows do not see all of them. Differences from lse are taken before they
 * are brought to units of log 2: of a row that sees one key it is 0. */
__device__ __forceinline__ void make_weights(const attention_sm90_bwd_args &a, const place &p, const statistics &own,
                                             const float *stats, float (&t)[SCORES], int y, bool border,
                                             operand_t &weights)
{
    int from[2] = {0, 0}, to[2] = {LINES, LINES}; /* numbers of others that are seen */
    if (border)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const range seen = seen_by(a, p.j, p.row + 8 * half);
            from[half] = seen.from - y;
            to[half] = ONCE && p.row + 8 * half >= p.j.first + p.j.valid ? from[half] : seen.to - y;
        }
    if constexpr (CAP) {
        /* Element by element: no registers for so many slopes. */
        float last = 0;
#pragma unroll
        for (int i = 0; i < SCORES; i++) {
            const int column = i / 4 * 8 + i % 2, half = i / 2 % 2;
            float slope;
            const float score = score_of(a, p, t[i], p.row + 8 * half, y + column, slope);
            const bool seen = column >= from[half] && column < to[half];
            const float weight = seen ? exp2_of((score - lse_of(own, stats, i)) * LOG2E) : 0;
            if (SUM_B && i % 2) weights[i / 8][i / 2 % 4] = pack(last, weight);
            last = weight;
            t[i] = weight * slope;
            /* In order: what else the compiler would begin early has no registers. */
            if (i % 4 == 3) asm volatile("" : "+f"(t[i]), "+r"(y)::"memory");
        }
    } else {
#pragma unroll
        for (int i = 0; i < SCORES; i++) {
            const float lse = lse_of(own, stats, i);
            float slope;
            if constexpr (PLAIN)
                t[i] = fmaf(t[i], a.scale, -lse);
            else
                t[i] = score_of(a, p, t[i], p.row + i / 2 % 2 * 8, y + i / 4 * 8 + i % 2, slope) - lse;
        }
        if (border)
#pragma unroll
            for (int i = 0; i < SCORES; i++) {
                const int column = i / 4 * 8 + i % 2, half = i / 2 % 2;
                if (column < from[half] || column >= to[half]) t[i] = -INFINITY_F;
            }
#pragma unroll
        for (int i = 0; i < SCORES; i++) t[i] = exp2_of(t[i] * LOG2E);
        if constexpr (SUM_B && !ONCE) pack_weights(t, weights);
    }
}

/* Weights and gradients of weights become gradients of products, but for the scale. */
__device__ __forceinline__ void make_gradients(const statistics &own, const float *stats, const float (&t)[SCORES],
                                               const float (&u)[SCORES], operand_t &gradients)
{
#pragma unroll
    for (int i = 0; i < SCORES; i += 2)
        gradients[i / 8][i / 2 % 4] = pack(t[i] * (u[i] - delta_of(own, stats, i)),
                                           t[i + 1] * (u[i + 1] - delta_of(own, stats, i + 1)));
}
