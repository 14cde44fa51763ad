/* SPDX-License-Identifier: Apache-2.0
 * The assembly of mica's kernels, instruction by instruction, as the PTX manual describes it; that
 * of the tensor cores is in emu_mma.c. */
#define _GNU_SOURCE
#include "emu_numbers.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- single threads ---- */

static void convert(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)block;
    const emu_ref *r = refs[0];
    uint32_t bits = word_of(&r[1]);
    switch (what->kind[0]) {
    case 0: /* f32 <- f16 */
        put_float(&r[0], (float)half_value(bits));
        break;
    case 1: /* f16 <- f32 */
        put(&r[0], half_bits((double)float_of(&r[1])));
        break;
    case 2: /* bf16 <- f32, nearest even */
        put(&r[0], bf16_bits(&r[1]));
        break;
    case 3: /* tf32 <- f32, nearest, ties away from zero */
        put(&r[0], (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & ~0x1fffu);
        break;
    case 6: /* two of 8 bits <- f32, f32: the first goes high */
    case 7: {
        int format = what->kind[0] == 6 ? E4M3 : E5M2;
        put(&r[0], eight_bits(format, float_of(&r[1])) << 8 | eight_bits(format, float_of(&r[2])));
        break;
    }
    case 8: /* f16x2, bf16x2 <- f32, f32: the first goes high */
        put(&r[0], half_bits((double)float_of(&r[1])) << 16 | half_bits((double)float_of(&r[2])));
        break;
    case 9:
        put(&r[0], bf16_bits(&r[1]) << 16 | bf16_bits(&r[2]));
        break;
    default: { /* f16x2 <- two of 8 bits */
        int format = what->kind[0] == 4 ? E4M3 : E5M2;
        unsigned char b[2] = {(unsigned char)bits, (unsigned char)(bits >> 8)};
        put(&r[0], half_bits(value_of(format, b)) | half_bits(value_of(format, b + 1)) << 16);
    }
    }
}

static void exp2_approx(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    float v = exp2f(float_of(&refs[0][1]));
    put_float(&refs[0][0], fabsf(v) < 0x1p-126f ? 0.0f : v);
}

static void recip_approx(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    float v = float_of(&refs[0][1]);
    v = 1 / (fabsf(v) < 0x1p-126f ? copysignf(0, v) : v);
    put_float(&refs[0][0], fabsf(v) < 0x1p-126f ? copysignf(0, v) : v);
}

static void log2_approx(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    float v = float_of(&refs[0][1]);
    put_float(&refs[0][0], log2f(fabsf(v) < 0x1p-126f ? 0.0f : v));
}

/* kind: whether the bytes of a, of b have signs; the sum is the first operand, before and after */
static void dot_bytes(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)block;
    uint32_t sum = word_of(&refs[0][0]);
    for (int i = 0; i < 4; i++) {
        uint8_t a = (uint8_t)(word_of(&refs[0][1]) >> 8 * i);
        uint8_t b = (uint8_t)(word_of(&refs[0][2]) >> 8 * i);
        sum += (uint32_t)((what->kind[0] ? (int8_t)a : a) * (what->kind[1] ? (int8_t)b : b));
    }
    put(&refs[0][0], sum);
}

static void max_nan(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    float a = float_of(&refs[0][1]), b = float_of(&refs[0][2]);
    put_float(&refs[0][0], a != a || b != b ? NAN : a > b ? a : b);
}

static void load_global(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)block;
    const emu_ref *r = refs[0];
    const uint32_t *from = (const uint32_t *)(uintptr_t)r[what->kind[0]].bits;
    if ((uintptr_t)from % (uintptr_t)(4 * what->kind[0]))
        emu_stop("%s at %p", what->text, (const void *)from);
    for (int i = 0; i < what->kind[0]; i++) put(&r[i], from[i]);
}

static void acquire_global(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    emu_poll((const volatile unsigned *)(uintptr_t)refs[0][1].bits);
    load_global(what, block, refs);
}

static void add_global(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    *(uint32_t *)(uintptr_t)refs[0][0].bits += word_of(&refs[0][1]);
}

static void store_global(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    *(uint32_t *)(uintptr_t)refs[0][0].bits = word_of(&refs[0][1]);
}

/* kind[0] words; kind[1]: from another block of the cluster */
static void load_shared(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    const emu_ref *r = refs[0];
    int words = what->kind[0];
    uint32_t at = word_of(&r[words]);
    if (what->kind[1]) block = emu_block_of((int)word_of(&r[words + 1]));
    if (at % 4) emu_stop("%s at %u", what->text, at);
    const char *from = emu_shared(block, at, 4 * (unsigned)words);
    for (int i = 0; i < words; i++) {
        uint32_t v;
        memcpy(&v, from + 4 * i, 4);
        put(&r[i], v);
    }
}

static void store_shared(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    const emu_ref *r = refs[0];
    uint32_t at = word_of(&r[0]);
    if (at % (4u * (unsigned)what->kind[0])) emu_stop("%s at %u", what->text, at);
    char *to = emu_shared(block, at, 4 * (unsigned)what->kind[0]);
    for (int i = 0; i < what->kind[0]; i++) {
        uint32_t v = word_of(&r[1 + i]);
        memcpy(to + 4 * i, &v, 4);
    }
}

static void wait_for_kernel(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block, (void)refs;
    emu_wait_for_kernel();
}

static void nothing(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block, (void)refs;
}

/* The warps of a block divide what it got at its start: at most 65536 registers, equal for all
 * threads and a multiple of 8. One that asks for more than is left waits forever. */
static void set_registers(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what;
    int asked = 0, warps = block->threads / EMU_LANES, n = (int)word_of(&refs[0][0]);
    if (n < 24 || n > 256 || n % 8) emu_stop("setmaxnreg of %d", n);
    block->registers[emu_now->index / EMU_LANES] = n;
    for (int i = 0; i < warps; i++) {
        if (!block->registers[i]) return;
        asked += block->registers[i];
    }
    int each = 65536 / block->threads / 8 * 8;
    if (asked > warps * each)
        emu_stop("setmaxnreg: %d registers by %d warps, the block has %d", asked * EMU_LANES, warps,
                 warps * each * EMU_LANES);
}

static void cluster_rank(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what;
    put(&refs[0][0], (uint32_t)block->rank);
}

static void cluster_barrier(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block, (void)refs;
    emu_cluster_barrier();
}

/* kind: whether the thread waits */
static void named_barrier(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)block;
    int id = (int)word_of(&refs[0][0]), threads = (int)word_of(&refs[0][1]);
    if (what->kind[0])
        emu_barrier(id, threads);
    else
        emu_barrier_arrive(id, threads);
}

/* ---- barriers in shared memory: phase and counts in the first word, bytes in the second ---- */

typedef struct mbarrier {
    unsigned phase : 12, expected : 10, pending : 10;
    int bytes;
} mbarrier;

static mbarrier *barrier_at(emu_block *block, uint32_t at)
{
    if (at % 8) emu_stop("a barrier at %u", at);
    return emu_shared(block, at, sizeof(mbarrier));
}

static void settle(mbarrier *b)
{
    if (b->pending || b->bytes) return;
    b->pending = b->expected;
    b->phase++;
}

void emu_mbarrier_bytes(emu_block *block, uint32_t at, int bytes)
{
    mbarrier *b = barrier_at(block, at);
    b->bytes -= bytes;
    settle(b);
}

static void barrier_init(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what;
    uint32_t count = word_of(&refs[0][1]);
    if (count < 1 || count > 1023) emu_stop("a barrier of %u arrivals", count);
    *barrier_at(block, word_of(&refs[0][0])) =
        (mbarrier){.expected = count & 1023, .pending = count & 1023};
}

static void barrier_arrive(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    mbarrier *b = barrier_at(block, word_of(&refs[0][0]));
    if (b->pending == 0) emu_stop("more arrivals than the barrier expects");
    if (what->kind[0]) b->bytes += (int)word_of(&refs[0][1]);
    b->pending--;
    settle(b);
}

/* All of the thread's copies are done before it arrives. */
static void copied_arrive(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    emu_copies_done();
    barrier_arrive(what, block, refs);
}

static void barrier_wait(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what;
    uint32_t at = word_of(&refs[0][1]), parity = word_of(&refs[0][2]);
    mbarrier *b = barrier_at(block, at);
    emu_arrivals(block, at);
    if ((b->phase & 1) == parity) emu_wait((const volatile unsigned *)(const void *)b);
    put(&refs[0][0], (b->phase & 1) != parity);
}

/* ---- warps ---- */

/* Row i % 8 of matrix i / 8 is where lane i says. kind[0]: transposed, kind[1]: a store */
static void move_matrices(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    bool store = what->kind[1];
    for (int m = 0; m < 4; m++) {
        uint16_t *rows[8];
        for (int i = 0; i < 8; i++) {
            uint32_t at = word_of(&refs[8 * m + i][store ? 0 : 4]);
            if (at % 16) emu_stop("%s at %u", what->text, at);
            rows[i] = emu_shared(block, at, 16);
        }
        for (int lane = 0; lane < EMU_LANES; lane++) {
            const emu_ref *r = &refs[lane][store ? 1 + m : m];
            uint16_t pair[2], *place[2];
            for (int e = 0; e < 2; e++)
                place[e] = what->kind[0] ? &rows[2 * (lane % 4) + e][lane / 4]
                                         : &rows[lane / 4][2 * (lane % 4) + e];
            uint32_t v = store ? word_of(r) : 0;
            memcpy(pair, &v, 4);
            for (int e = 0; e < 2; e++) {
                if (store) *place[e] = pair[e];
                pair[e] = *place[e];
            }
            memcpy(&v, pair, 4);
            if (!store) put(r, v);
        }
    }
}

static void shuffle(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    for (int lane = 0; lane < EMU_LANES; lane++) {
        if (!refs[lane]) continue;
        const emu_ref *from = refs[word_of(&refs[lane][2]) % EMU_LANES];
        /* the value of a lane that is not there is not defined */
        uint64_t v = from ? from[1].bits : 0x7ff7fff7fff7fff7u;
        memcpy(refs[lane][0].at, &v, 8);
    }
}

static void vote(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)what, (void)block;
    uint32_t votes = 0;
    for (int lane = 0; lane < EMU_LANES; lane++)
        if (refs[lane] && word_of(&refs[lane][1])) votes |= 1u << lane;
    for (int lane = 0; lane < EMU_LANES; lane++)
        if (refs[lane]) put(&refs[lane][0], votes);
}

static const emu_ptx shuffle_code = {"shfl.sync", shuffle, EMU_WARP, {0}};
static const emu_ptx vote_code = {"vote.sync", vote, EMU_WARP, {0}};

uint64_t emu_exchange(unsigned mask, uint64_t bits, int from)
{
    uint64_t result = 0;
    emu_ref refs[3] = {{.at = &result, .bytes = 8, .out = true},
                       {.bits = bits, .bytes = 8},
                       {.bits = (uint64_t)(unsigned)from, .bytes = 4}};
    emu_meet(&shuffle_code, refs, mask);
    return result;
}

unsigned emu_ballot(unsigned mask, bool yes)
{
    unsigned result = 0;
    emu_ref refs[2] = {{.at = &result, .bytes = 4, .out = true}, {.bits = yes, .bytes = 4}};
    emu_meet(&vote_code, refs, mask);
    return result;
}

/* ---- which instruction a text is ---- */

/* Longest first where one is part of another. */
static const emu_ptx codes[] = {
    {"cvt.f32.f16 ", convert, EMU_LANE, {0}},
    {"cvt.rn.f16.f32 ", convert, EMU_LANE, {1}},
    {"cvt.rn.bf16.f32 ", convert, EMU_LANE, {2}},
    {"cvt.rn.f16x2.f32 ", convert, EMU_LANE, {8}},
    {"cvt.rn.bf16x2.f32 ", convert, EMU_LANE, {9}},
    {"cvt.rna.tf32.f32 ", convert, EMU_LANE, {3}},
    {"cvt.rn.satfinite.e4m3x2.f32 ", convert, EMU_LANE, {6}},
    {"cvt.rn.satfinite.e5m2x2.f32 ", convert, EMU_LANE, {7}},
    {"cvt.rn.f16x2.e4m3x2 ", convert, EMU_LANE, {4}},
    {"cvt.rn.f16x2.e5m2x2 ", convert, EMU_LANE, {5}},
    {"dp4a.s32.s32 ", dot_bytes, EMU_LANE, {1, 1}},
    {"dp4a.s32.u32 ", dot_bytes, EMU_LANE, {1, 0}},
    {"dp4a.u32.s32 ", dot_bytes, EMU_LANE, {0, 1}},
    {"dp4a.u32.u32 ", dot_bytes, EMU_LANE, {0, 0}},
    {"ex2.approx.ftz.f32 ", exp2_approx, EMU_LANE, {0}},
    {"lg2.approx.ftz.f32 ", log2_approx, EMU_LANE, {0}},
    {"rcp.approx.ftz.f32 ", recip_approx, EMU_LANE, {0}},
    {"max.NaN.f32 ", max_nan, EMU_LANE, {0}},
    {"ld.global.nc.L1::no_allocate.v4.u32 ", load_global, EMU_LANE, {4}},
    {"ld.acquire.gpu.global.s32 ", acquire_global, EMU_LANE, {1}},
    {"red.release.gpu.global.add.s32 ", add_global, EMU_LANE, {0}},
    {"st.release.gpu.global.s32 ", store_global, EMU_LANE, {0}},
    {"ld.shared.b32 ", load_shared, EMU_LANE, {1}},
    {"ld.shared.v4.u32 ", load_shared, EMU_LANE, {4}},
    {"ld.shared::cluster.v4.f32 ", load_shared, EMU_LANE, {4, 1}},
    {"ld.shared::cluster.u32 ", load_shared, EMU_LANE, {1, 1}},
    {"st.shared.v4.f32 ", store_shared, EMU_LANE, {4}},
    {"st.shared.v2.f32 ", store_shared, EMU_LANE, {2}},
    {"ldmatrix.sync.aligned.m8n8.x4.trans", move_matrices, EMU_WARP, {1, 0}},
    {"ldmatrix.sync.aligned.m8n8.x4", move_matrices, EMU_WARP, {0, 0}},
    {"stmatrix.sync.aligned.m8n8.x4.trans", move_matrices, EMU_WARP, {1, 1}},
    {"stmatrix.sync.aligned.m8n8.x4", move_matrices, EMU_WARP, {0, 1}},
    {"cp.async.cg.shared", emu_copy_async, EMU_LANE, {16}},
    {"cp.async.ca.shared", emu_copy_async, EMU_LANE, {0}},
    {"cp.async.mbarrier.arrive.noinc.", copied_arrive, EMU_LANE, {0}},
    {"cp.async.commit_group", emu_copy_wait, EMU_LANE, {0}},
    {"cp.async.wait_group ", emu_copy_wait, EMU_LANE, {1}},
    {"cp.async.bulk.global.shared::cta.bulk_group ", emu_bulk_store, EMU_LANE, {0}},
    {"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 ", emu_bulk_store, EMU_LANE, {1}},
    {"cp.async.bulk.commit_group", emu_tma_wait, EMU_LANE, {0}},
    {"cp.async.bulk.wait_group", emu_tma_wait, EMU_LANE, {1}},
    {"mbarrier.init.", barrier_init, EMU_LANE, {0}},
    {"mbarrier.arrive.expect_tx.", barrier_arrive, EMU_LANE, {1}},
    {"mbarrier.arrive.", barrier_arrive, EMU_LANE, {0}},
    {"mbarrier.try_wait.parity.", barrier_wait, EMU_LANE, {0}},
    {"bar.sync ", named_barrier, EMU_LANE, {1}},
    {"bar.arrive ", named_barrier, EMU_LANE, {0}},
    {"barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;",
     cluster_barrier,
     EMU_LANE,
     {0}},
    {"%%cluster_ctarank;", cluster_rank, EMU_LANE, {0}},
    {"griddepcontrol.wait", wait_for_kernel, EMU_LANE, {0}},
    {"griddepcontrol.launch_dependents", nothing, EMU_LANE, {0}},
    {"fence.mbarrier_init.", nothing, EMU_LANE, {0}},
    {"fence.proxy.async", nothing, EMU_LANE, {0}},
    {"prefetch.tensormap ", nothing, EMU_LANE, {0}},
    {"prefetch.global.L2 ", nothing, EMU_LANE, {0}},
    {"cp.async.bulk.prefetch.tensor.", nothing, EMU_LANE, {0}},
    {"setmaxnreg.", set_registers, EMU_LANE, {0}},
    {"wgmma.fence.", nothing, EMU_LANE, {0}},
    {"wgmma.commit_group.", nothing, EMU_LANE, {0}},
    {"wgmma.wait_group.", nothing, EMU_LANE, {0}},
};

static bool read_tma(emu_ptx *code)
{
    const char *at = strstr(code->text, "cp.async.bulk.tensor.");
    if (!at) return false;
    code->kind[0] = atoi(at + strlen("cp.async.bulk.tensor."));
    code->kind[1] = strstr(at, ".im2col") != NULL;
    code->run = strstr(at, ".global.shared::cta") ? emu_tma_store : emu_tma_load;
    return true;
}

static bool read_code(emu_ptx *code)
{
    if (read_tma(code) || emu_read_mma(code)) return true;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (!strstr(code->text, codes[i].text)) continue;
        const char *text = code->text;
        *code = codes[i];
        code->text = text;
        return true;
    }
    return false;
}

/* Equal texts are one code: lanes that meet compare its address. */
const emu_ptx *emu_ptx_find(const char *text)
{
    static struct known {
        struct known *next;
        emu_ptx code;
        char text[];
    } * known;
    for (struct known *k = known; k; k = k->next)
        if (!strcmp(k->text, text)) return &k->code;
    struct known *k = calloc(1, sizeof *k + strlen(text) + 1);
    if (!k) abort();
    strcpy(k->text, text);
    k->code.text = k->text;
    if (!read_code(&k->code)) emu_stop("no such instruction: %s", text);
    k->code.kind[EMU_GLOBAL] = strstr(text, "global") != NULL;
    k->next = known;
    known = k;
    return &k->code;
}

void emu_ptx_run(const emu_ptx *what, const emu_ref *refs, int count)
{
    (void)count;
    if (what->kind[EMU_GLOBAL]) emu_reach_memory(what->text);
    if (what->scope == EMU_LANE)
        what->run(what, emu_now->block, &refs);
    else
        emu_meet(what, refs, 0xffffffffu);
}
