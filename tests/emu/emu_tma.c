/* SPDX-License-Identifier: Apache-2.0
 * Copies that are asked for and happen later. cp.async and TMA's stores happen when
 * their thread waits for them, which shows what is read too early or overwritten too soon; TMA's
 * loads happen at once or, with EMU_LOADS=late, when somebody waits at their barrier; with
 * EMU_LOADS=shuffled, sooner or later after somebody waits, in any order. */
#define _GNU_SOURCE
#include "emu_run.h"
#include "../fake/fake.h"

#include <stdlib.h>
#include <string.h>

typedef struct emu_later {
    struct emu_later *next;
    int looks; /* at barriers, before it happens */
    /* cp.async */
    char *to;
    const char *from;
    int valid, bytes, group;
    /* TMA; each thread has its own copy of the parameters, and ends */
    fake_map map;
    emu_block *block;
    uint32_t address, barrier;
    int at[5], taps[3];
    bool store, adds;
} emu_later;

void emu_forget(emu_later **list)
{
    while (*list) {
        emu_later *gone = *list;
        *list = gone->next;
        free(gone);
    }
}

static void append(emu_later **list, const emu_later *l)
{
    while (*list) list = &(*list)->next;
    *list = malloc(sizeof *l);
    if (!*list) abort();
    **list = *l;
    (*list)->next = NULL;
}

/* ---- TMA ---- */

static const int type_bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};

/* One row of the innermost dimension at these coordinates; the rest of it zeros. */
static void copy_row(const emu_later *l, const int64_t *at, int elements, uint32_t offset)
{
    const fake_map *m = &l->map;
    int size = type_bytes[m->type];
    bool inside = true;
    int64_t place = (int64_t)m->address;
    for (int d = 1; d < m->rank; d++) {
        inside &= at[d] >= 0 && at[d] <= (int64_t)m->last[d];
        place += at[d] * (int64_t)m->strides[d - 1];
    }
    uint32_t mask = m->swizzle ? (16u << m->swizzle) / 16 - 1 : 0;
    for (int i = 0; i < elements; i++) {
        int64_t x = at[0] + i;
        uint32_t to = l->address + offset + (uint32_t)(i * size);
        to ^= (to >> 7 & mask) << 4;
        char *shared = emu_shared(l->block, to, (unsigned)size);
        char *global = (char *)(uintptr_t)(place + x * size);
        bool valid = inside && x >= 0 && x <= (int64_t)m->last[0];
        if (!l->store && valid)
            memcpy(shared, global, (size_t)size);
        else if (!l->store)
            memset(shared, 0, (size_t)size);
        else if (valid)
            memcpy(global, shared, (size_t)size);
    }
}

/* Of a box, so many are copied. */
static int box_count(const fake_map *m, int d)
{
    return (m->box[d] + (int)m->steps[d] - 1) / (int)m->steps[d];
}

static int copy_tile(const emu_later *l)
{
    const fake_map *m = &l->map;
    int rows = 1, width = m->box[0] * type_bytes[m->type];
    for (int d = 1; d < m->rank; d++) rows *= box_count(m, d);
    for (int r = 0; r < rows; r++) {
        int64_t at[5] = {l->at[0]};
        int rest = r;
        for (int d = 1; d < m->rank; d++) {
            at[d] = l->at[d] + rest % box_count(m, d) * (int64_t)m->steps[d];
            rest /= box_count(m, d);
        }
        copy_row(l, at, m->box[0], (uint32_t)(r * width));
    }
    return rows * width;
}

static int copy_pixels(const emu_later *l)
{
    const fake_map *m = &l->map;
    int spatial = m->rank - 2, width = m->channels * type_bytes[m->type];
    int64_t base[5];
    for (int d = 0; d < m->rank; d++) base[d] = l->at[d];
    for (int p = 0; p < m->pixels; p++) {
        int64_t at[5];
        memcpy(at, base, sizeof at);
        for (int d = 0; d < spatial; d++) at[1 + d] += l->taps[d];
        copy_row(l, at, m->channels, (uint32_t)(p * width));
        for (int d = 0; d <= spatial; d++) {
            base[1 + d] += d < spatial ? m->steps[1 + d] : 1;
            if (d == spatial || base[1 + d] < (int64_t)m->last[1 + d] + 1 + m->upper[d]) break;
            base[1 + d] = m->lower[d];
        }
    }
    return m->pixels * width;
}

static int copy(const emu_later *l)
{
    uint32_t rule = l->map.swizzle ? 128u : 16u;
    if (l->address % rule) emu_stop("the copy engine at %u of shared memory", l->address);
    return l->map.im2col ? copy_pixels(l) : copy_tile(l);
}

static void load(const emu_later *l)
{
    int bytes = copy(l);
    emu_mbarrier_bytes(l->block, l->barrier, bytes);
}

enum { AT_ONCE, LATE, SHUFFLED };

static int when_loads_happen(void)
{
    static int when = -1;
    if (when < 0) {
        const char *text = getenv("EMU_LOADS");
        when = AT_ONCE;
        if (text && !strcmp(text, "late")) when = LATE;
        if (text && !strcmp(text, "shuffled")) when = SHUFFLED;
    }
    return when;
}

/* Looks at barriers until a copy happens: few, or, one time in four, those of several warpgroups.
 * The same in each run. */
static int by_chance(void)
{
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return state >> 30 ? (int)(state >> 28 & 3) * 100 : 3000;
}

/* kind: rank, im2col; refs: to, map, barrier, coordinates, taps */
void emu_tma_load(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    const emu_ref *r = refs[0];
    emu_later l = {.map = *(const fake_map *)(uintptr_t)r[1].bits,
                   .block = block,
                   .address = (uint32_t)r[0].bits,
                   .barrier = (uint32_t)r[2].bits};
    for (int i = 0; i < what->kind[0]; i++) l.at[i] = (int)r[3 + i].bits;
    for (int i = 0; what->kind[1] && i < what->kind[0] - 2; i++)
        l.taps[i] = (int)(uint16_t)r[3 + what->kind[0] + i].bits;
    if (l.map.rank != what->kind[0] || l.map.im2col != what->kind[1])
        emu_stop("%s with a map of rank %d%s", what->text, l.map.rank,
                 l.map.im2col ? ", im2col" : "");
    int64_t first = (int64_t)l.at[0] * type_bytes[l.map.type];
    if (first % 16)
        emu_stop("%s begins %lld bytes into a row: an H200 takes multiples of 16, and stops",
                 what->text, (long long)first);
    l.looks = by_chance();
    if (when_loads_happen() != AT_ONCE)
        append(&block->loads, &l);
    else
        load(&l);
}

void emu_arrivals(emu_block *block, uint32_t barrier)
{
    for (emu_later **at = &block->loads; *at;) {
        emu_later *l = *at;
        if (when_loads_happen() == SHUFFLED ? l->looks-- > 0 : l->barrier != barrier) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        load(l);
        free(l);
    }
}

bool emu_all_arrive(emu_block *block)
{
    bool any = block->loads != NULL;
    while (block->loads) emu_arrivals(block, block->loads->barrier);
    return any;
}

/* refs: map, from, coordinates */
void emu_tma_store(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    const emu_ref *r = refs[0];
    emu_later l = {.map = *(const fake_map *)(uintptr_t)r[0].bits,
                   .block = block,
                   .address = (uint32_t)r[1].bits,
                   .group = emu_now->store_group,
                   .store = true};
    for (int i = 0; i < what->kind[0]; i++) l.at[i] = (int)r[2 + i].bits;
    if (l.map.rank != what->kind[0] || l.map.im2col != what->kind[1])
        emu_stop("%s with a map of rank %d%s", what->text, l.map.rank,
                 l.map.im2col ? ", im2col" : "");
    append(&emu_now->stores, &l);
}

static void finish(emu_later **list, int groups, int left)
{
    while (*list && (*list)->group < groups - left) {
        emu_later *l = *list;
        *list = l->next;
        if (l->map.rank) {
            copy(l);
        } else if (l->adds) {
            for (int i = 0; i < l->bytes / 4; i++)
                ((float *)l->to)[i] += ((const float *)l->from)[i];
        } else {
            memcpy(l->to, l->from, (size_t)l->valid);
            memset(l->to + l->valid, 0, (size_t)(l->bytes - l->valid));
        }
        free(l);
    }
}

void emu_copies_done(void)
{
    finish(&emu_now->copies, emu_now->copy_group + 1, 0);
}

/* refs: to, from, bytes; kind[0]: adds numbers of f32 */
void emu_bulk_store(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    const emu_ref *r = refs[0];
    uint64_t to = r[0].bits, from = r[1].bits, bytes = r[2].bits;
    if (to % 16 || from % 16 || bytes % 16)
        emu_stop("%s of %llu bytes from %#llx to %#llx, not multiples of 16", what->text,
                 (unsigned long long)bytes, (unsigned long long)from, (unsigned long long)to);
    append(&emu_now->stores,
           &(emu_later){.to = (char *)(uintptr_t)to,
                        .from = emu_shared(block, (uint32_t)from, (unsigned)bytes),
                        .valid = (int)bytes,
                        .bytes = (int)bytes,
                        .adds = what->kind[0],
                        .group = emu_now->store_group});
}

/* kind[0]: wait for all but the last n groups; else: a group ends */
void emu_tma_wait(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)block;
    if (!what->kind[0])
        emu_now->store_group++;
    else
        finish(&emu_now->stores, emu_now->store_group, (int)refs[0][0].bits);
}

/* ---- cp.async: to, from, [bytes,] valid ---- */

void emu_copy_async(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    const emu_ref *r = refs[0];
    int bytes = what->kind[0] ? what->kind[0] : (int)r[2].bits;
    int valid = (int)r[what->kind[0] ? 2 : 3].bits;
    uint32_t to = (uint32_t)r[0].bits;
    if (valid < 0 || valid > bytes) emu_stop("%s of %d bytes", what->text, valid);
    if (to % (uint32_t)bytes || (valid && r[1].bits % (uint64_t)bytes))
        emu_stop("%s from %#llx to %u, not multiples of %d", what->text,
                 (unsigned long long)r[1].bits, to, bytes);
    append(&emu_now->copies, &(emu_later){.to = emu_shared(block, to, (unsigned)bytes),
                                          .from = (const char *)(uintptr_t)r[1].bits,
                                          .valid = valid,
                                          .bytes = bytes,
                                          .group = emu_now->copy_group});
}

void emu_copy_wait(const emu_ptx *what, emu_block *block, const emu_ref *const *refs)
{
    (void)block;
    if (!what->kind[0])
        emu_now->copy_group++;
    else
        finish(&emu_now->copies, emu_now->copy_group, (int)refs[0][0].bits);
}

void emu_thread_ends(emu_thread *t)
{
    finish(&t->stores, t->store_group, 0);
    emu_forget(&t->stores); /* without a commit they may never happen */
    emu_forget(&t->copies);
}
