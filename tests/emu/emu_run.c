/* SPDX-License-Identifier: Apache-2.0
 * Runs a kernel: the blocks of a cluster at a time, of a cooperative launch all of them, their
 * threads as coroutines of one thread of the CPU, which changes to another coroutine where one has
 * to wait. EMU_ORDER=n starts them in
 * another order (1: backwards; more: shuffled). */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include "emu_run.h"
#include "../fake/fake.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK = 256 << 10, MAX_THREADS = EMU_THREADS * 32 };

typedef struct emu_gang {
    const char *name;
    void (*entry)(const void *);
    const void *args;
    int count, cluster; /* threads and blocks that run at once */
    bool cooperative;
    bool overlaps; /* on the device the kernel before it may still run */
    bool closed;   /* and memory stays closed until all threads have waited for that */
    emu_meeting waiting;
    emu_block *blocks; /* of one cluster */
    emu_meeting meeting;
    jmp_buf home, made;
} emu_gang;

__thread emu_thread *emu_now;
static __thread emu_gang *gang;
static emu_thread *threads[MAX_THREADS]; /* in the order of turns; launches come one at a time */
static emu_block blocks[EMU_TOGETHER];
static int made;
static char message[512];

/* ---- coroutines ---- */

static void turn_to_next(void);

static void set_memory(bool open)
{
    gang->closed = !open;
    fake_open_memory(open);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (gang && gang->closed && fake_owns_memory(info->si_addr))
        emu_stop("memory at %p before griddepcontrol.wait", info->si_addr);
    signal(number, SIG_DFL);
}

static void catch_faults(void)
{
    static bool caught;
    if (caught) return;
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    caught = sigaction(SIGSEGV, &action, NULL) == 0;
}

void emu_reach_memory(const char *what)
{
    if (gang->closed) emu_stop("%s before griddepcontrol.wait", what);
}

static void leave_block(emu_thread *t)
{
    emu_block *b = t->block;
    int warp = t->index / EMU_LANES;
    emu_reach_memory("the end");
    emu_thread_ends(t);
    t->done = true;
    b->alive--;
    b->lanes[warp] &= ~(1u << t->index % EMU_LANES);
    emu_meeting *all = &b->barriers[0];
    if (all->arrived && all->expected > b->alive && all->arrived == b->alive) {
        all->arrived = 0;
        all->round++;
    }
}

static void live(void)
{
    emu_thread *self = emu_now;
    volatile bool fresh = true;
    for (;;) {
        if (!_setjmp(self->at)) {
            if (fresh) _longjmp(gang->made, 1);
            turn_to_next();
        }
        fresh = false;
        gang->entry(gang->args);
        leave_block(self);
    }
}

static void make_thread(int i)
{
    ucontext_t context;
    void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) abort();
    threads[i] = calloc(1, sizeof *threads[i]);
    if (!threads[i]) abort();
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK;
    context.uc_link = NULL;
    makecontext(&context, live, 0);
    emu_now = threads[i];
    if (!_setjmp(gang->made)) setcontext(&context);
}

/* Only where live() waits is kept. */
static void rewind_thread(int i)
{
    emu_thread *t = threads[i];
    jmp_buf at;
    memcpy(&at, &t->at, sizeof at);
    *t = (emu_thread){0};
    memcpy(&t->at, &at, sizeof at);
}

static bool can_run(const emu_thread *t)
{
    return !t->done && (!t->wait || *t->wait != t->seen);
}

static void say_who_waits(char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, "nothing can go on; waiting:");
    for (int i = 0, shown = 0; i < gang->count && shown < 8; i++) {
        const emu_thread *t = threads[i];
        if (t->done || n + 40 > size) continue;
        if (t->index % EMU_LANES == 0) {
            n += (size_t)snprintf(text + n, size - n, " %d.%d", t->block->rank, t->index);
            shown++;
        }
    }
}

static __thread int turn;

/* Goes on with the next coroutine that can run, if there is one. */
static void try_next(void)
{
    int at = turn;
    for (int i = 0; i < gang->count; i++) {
        if (++at >= gang->count) at = 0;
        if (!can_run(threads[at])) continue;
        turn = at;
        threads[at]->wait = NULL;
        emu_now = threads[at];
        _longjmp(threads[at]->at, 1);
    }
}

static void turn_to_next(void)
{
    try_next();
    bool late = false;
    for (int i = 0; i < gang->cluster; i++) late |= emu_all_arrive(&gang->blocks[i]);
    if (late) try_next();
    for (int i = 0; i < gang->count; i++)
        if (!threads[i]->done) {
            char text[256];
            say_who_waits(text, sizeof text);
            emu_stop("%s", text);
        }
    _longjmp(gang->home, 1);
}

void emu_wait(const volatile unsigned *word)
{
    emu_thread *self = emu_now;
    self->wait = word;
    self->seen = *word;
    if (!_setjmp(self->at)) turn_to_next();
}

void emu_stop(const char *format, ...)
{
    va_list list;
    const emu_thread *t = emu_now;
    int n =
        snprintf(message, sizeof message, "emu: kernel %s block %u,%u,%u thread %d: ", gang->name,
                 t->block_index.x, t->block_index.y, t->block_index.z, t->index);
    va_start(list, format);
    vsnprintf(message + n, sizeof message - (size_t)n, format, list);
    va_end(list);
    fprintf(stderr, "%s\n", message);
    _longjmp(gang->home, 2);
}

void emu_trap(const char *why)
{
    emu_stop("%s", why);
}

/* ---- meetings ---- */

static void arrive(emu_meeting *m, int expected, emu_block *block, bool waits)
{
    if (++m->arrived < expected) {
        m->expected = expected;
        if (waits) emu_wait(&m->round);
        return;
    }
    if (m->what) m->what->run(m->what, block, m->refs);
    m->arrived = 0;
    m->what = NULL;
    memset(m->refs, 0, sizeof m->refs);
    m->round++;
}

void emu_meet(const emu_ptx *what, const emu_ref *refs, uint32_t mask)
{
    emu_thread *t = emu_now;
    emu_block *b = t->block;
    int size = what->scope == EMU_WARP ? EMU_LANES : EMU_GROUP, at = t->index / size, expected = 0;
    emu_meeting *m = what->scope == EMU_WARP ? &b->warps[at] : &b->groups[at];
    if (m->arrived && m->what != what)
        emu_stop("'%s' where others of the warp are at '%s'", what->text, m->what->text);
    m->what = what;
    m->refs[t->index % size] = refs;
    for (int w = at * size / EMU_LANES; w < (at + 1) * size / EMU_LANES; w++)
        expected += __builtin_popcount(b->lanes[w] & mask);
    arrive(m, expected, b, true);
}

static void meet_at(int id, int count, bool waits)
{
    emu_block *b = emu_now->block;
    if (id < 0 || id >= EMU_BARRIERS) emu_stop("barrier %d", id);
    if (count % EMU_LANES) emu_stop("a barrier of %d threads", count);
    arrive(&b->barriers[id], count && count < b->threads ? count : b->alive, b, waits);
}

void emu_barrier(int id, int count)
{
    meet_at(id, count, true);
}

void emu_barrier_arrive(int id, int count)
{
    meet_at(id, count, false);
}

/* A thread that reads a number for the second time, of a launch whose other blocks run, waits for
 * another value. */
void emu_poll(const volatile unsigned *word)
{
    emu_thread *t = emu_now;
    if (!gang->cooperative) return;
    if (t->polled == word && t->polled_value == *word) emu_wait(word);
    t->polled = word;
    t->polled_value = *word;
}

static int alive_of_cluster(void)
{
    int alive = 0;
    for (int i = 0; i < gang->cluster; i++) alive += gang->blocks[i].alive;
    return alive;
}

void emu_cluster_barrier(void)
{
    arrive(&gang->meeting, alive_of_cluster(), NULL, true);
}

/* None goes on before all are here, so that memory is closed to each until it has come. */
void emu_wait_for_kernel(void)
{
    int alive = alive_of_cluster();
    if (!gang->overlaps) return;
    if (gang->waiting.arrived + 1 == alive) set_memory(true);
    arrive(&gang->waiting, alive, NULL, true);
}

emu_block *emu_block_of(int rank)
{
    if (rank < 0 || rank >= gang->cluster)
        emu_stop("block %d of a cluster of %d", rank, gang->cluster);
    return &gang->blocks[rank];
}

/* ---- shared memory ---- */

void *emu_dynamic(void)
{
    return emu_now->block->shared;
}

void *emu_static(int id, int bytes, int alignment)
{
    emu_block *b = emu_now->block;
    for (int i = 0; i < b->static_count; i++)
        if (b->statics[i].id == id && b->statics[i].bytes == bytes)
            return b->shared + b->statics[i].at;
    if (b->static_count == 64) emu_stop("too many shared variables");
    unsigned a = (unsigned)alignment;
    unsigned at = (b->dynamic_bytes + b->static_bytes + a - 1) / a * a;
    if (at + (unsigned)bytes > 227 << 10)
        emu_stop("%u bytes of shared memory", at + (unsigned)bytes);
    b->static_bytes = at + (unsigned)bytes - b->dynamic_bytes;
    b->statics[b->static_count].id = id;
    b->statics[b->static_count].bytes = bytes;
    b->statics[b->static_count++].at = at;
    return b->shared + at;
}

uint32_t emu_shared_address(const void *p)
{
    const emu_block *b = emu_now->block;
    ptrdiff_t at = (const char *)p - b->shared;
    if (at < 0 || at >= EMU_SHARED) emu_stop("%p is not in shared memory", p);
    return (uint32_t)at;
}

void *emu_shared(emu_block *b, uint32_t address, unsigned bytes)
{
    if ((uint64_t)address + bytes > b->dynamic_bytes + b->static_bytes)
        emu_stop("shared address %u, %u bytes, of %u", address, bytes,
                 b->dynamic_bytes + b->static_bytes);
    return b->shared + address;
}

/* ---- launches ---- */

static void clear_meeting(emu_meeting *m)
{
    m->round = 0;
    m->arrived = m->expected = 0;
    m->what = NULL;
    memset(m->refs, 0, sizeof m->refs);
}

static void begin_block(emu_block *b, int rank, unsigned dynamic, int count)
{
    if (!b->shared) {
        b->shared =
            mmap(NULL, EMU_SHARED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (b->shared == MAP_FAILED) abort();
    }
    b->rank = rank;
    b->gang = gang;
    memset(b->shared, 0xff, dynamic + b->static_bytes); /* NaN, and no small number */
    b->dynamic_bytes = dynamic;
    b->static_bytes = 0;
    b->static_count = 0;
    b->threads = b->alive = count;
    emu_forget(&b->loads);
    memset(b->lanes, 0, sizeof b->lanes);
    memset(b->registers, 0, sizeof b->registers);
    for (int i = 0; i < count; i++) b->lanes[i / EMU_LANES] |= 1u << i % EMU_LANES;
    for (int i = 0; i < EMU_BARRIERS; i++) clear_meeting(&b->barriers[i]);
    for (int i = 0; i < EMU_THREADS / EMU_LANES; i++) clear_meeting(&b->warps[i]);
    for (int i = 0; i < EMU_THREADS / EMU_GROUP; i++) clear_meeting(&b->groups[i]);
}

static void begin_thread(emu_thread *t, emu_block *b, int i, const unsigned *at,
                         const unsigned *grid, const unsigned *block)
{
    unsigned u = (unsigned)i;
    t->thread = (emu_dim3){u % block[0], u / block[0] % block[1], u / block[0] / block[1]};
    t->block_index = (emu_dim3){at[0], at[1], at[2]};
    t->block_dim = (emu_dim3){block[0], block[1], block[2]};
    t->grid_dim = (emu_dim3){grid[0], grid[1], grid[2]};
    t->index = i;
    t->block = b;
}

static void shuffle(int count)
{
    const char *text = getenv("EMU_ORDER");
    unsigned seed = text ? (unsigned)atoi(text) : 0;
    for (int i = 0; seed == 1 && i < count / 2; i++) {
        emu_thread *t = threads[i];
        threads[i] = threads[count - 1 - i];
        threads[count - 1 - i] = t;
    }
    for (int i = count - 1; seed > 1 && i > 0; i--) {
        seed = seed * 1664525 + 1013904223;
        int other = (int)((seed >> 8) % (unsigned)(i + 1));
        emu_thread *t = threads[i];
        threads[i] = threads[other];
        threads[other] = t;
    }
}

/* The blocks of one cluster, from `at` on. 0, or 719 after emu_stop. */
static int run_cluster(const unsigned *at, const unsigned *grid, const unsigned *block,
                       unsigned shared)
{
    int count = (int)(block[0] * block[1] * block[2]);
    gang->count = 0;
    clear_meeting(&gang->meeting);
    clear_meeting(&gang->waiting);
    for (int rank = 0; rank < gang->cluster; rank++) {
        const unsigned own[3] = {at[0] + (unsigned)rank, at[1], at[2]};
        begin_block(&blocks[rank], rank, shared, count);
        for (int i = 0; i < count; i++, gang->count++) {
            rewind_thread(gang->count);
            begin_thread(threads[gang->count], &blocks[rank], i, own, grid, block);
        }
    }
    shuffle(gang->count);
    if (gang->overlaps) set_memory(false);
    int result = _setjmp(gang->home);
    if (result == 0) {
        turn = gang->count - 1;
        turn_to_next();
    }
    if (gang->closed) set_memory(true);
    return result == 1 ? 0 : 719;
}

int emu_launch(const fake_kernel *kernel, const unsigned *grid, const unsigned *block,
               unsigned shared, unsigned cluster, const void *args)
{
    emu_gang own = {.name = kernel->name,
                    .args = args,
                    .cluster = cluster ? (int)cluster : 1,
                    .overlaps = kernel->overlaps};
    int code = 0;
    memcpy(&own.entry, &kernel->entry, sizeof own.entry);
    own.blocks = blocks;
    if (own.cluster > EMU_CLUSTER) return 1;
    if (kernel->cooperative) {
        if (own.cluster > 1 || grid[1] * grid[2] != 1 || grid[0] > EMU_TOGETHER) return 1;
        own.cooperative = true;
        own.cluster = (int)grid[0];
    }
    int count = (int)(block[0] * block[1] * block[2]) * own.cluster;
    if (count > MAX_THREADS) return 1;
    gang = &own;
    if (own.overlaps) catch_faults();
    for (; made < count; made++) make_thread(made);
    unsigned at[3];
    for (at[2] = 0; at[2] < grid[2]; at[2]++)
        for (at[1] = 0; at[1] < grid[1]; at[1]++)
            for (at[0] = 0; at[0] < grid[0] && !code; at[0] += (unsigned)own.cluster)
                code = run_cluster(at, grid, block, shared);
    if (code) made = 0; /* coroutines that were stopped in the middle cannot be used again */
    gang = NULL;
    return code;
}

void *emu_open(const void *code, size_t bytes)
{
    char path[] = "/tmp/mica-emu-XXXXXX";
    Dl_info self;
    /* The kernels find the runtime's functions in this library. */
    if (!dladdr((void *)(uintptr_t)&emu_dynamic, &self) ||
        !dlopen(self.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD))
        return NULL;
    int fd = mkstemp(path);
    if (fd < 0) return NULL;
    ssize_t written = write(fd, code, bytes);
    close(fd);
    void *library = written == (ssize_t)bytes ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!library) fprintf(stderr, "emu: %s\n", dlerror());
    unlink(path);
    return library;
}

void *emu_entry(void *library, const char *name)
{
    char symbol[160];
    snprintf(symbol, sizeof symbol, "emu_entry_%s", name);
    return dlsym(library, symbol);
}

size_t emu_bytes(void *library, const char *name)
{
    char symbol[160];
    unsigned long (*bytes)(void);
    snprintf(symbol, sizeof symbol, "emu_bytes_%s", name);
    *(void **)&bytes = dlsym(library, symbol);
    return bytes ? bytes() : 0;
}

void emu_close(void *library)
{
    dlclose(library);
}
