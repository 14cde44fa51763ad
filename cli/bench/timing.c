/* SPDX-License-Identifier: Apache-2.0
 * Timing of plans. On a GPU the host must stay ahead of the device, or a short kernel is charged
 * the host's launch time: runs are enqueued in batches behind a long memset. Short ones are timed
 * as chains, back to back as in a network or a replayed graph, since two events around a kernel
 * cost as much as a small one; a sample is a chain's time over its runs. */
#include "bench/bench.h"
#include "bench/table.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 32, MOST_CLEARS = 200, MAX_SETS = 4096, MAX_SAMPLES = 20000, TILE = 1 << 22 };
static const int64_t blocker_bytes = 256 << 20;
static const double blocker_ms = 0.05; /* what clearing them takes a GPU, at least */
static const double chain_ms = 0.1;    /* what shorter runs are made up to */

typedef struct timing {
    mica_context *context;
    const mica_device_info *device;
    const mica_problem *problem;
    int args, sets, next;
    mica_arg_info info[MICA_MAX_ARGS];
    int64_t span[MICA_MAX_ARGS], first[MICA_MAX_ARGS];
    int64_t step[MICA_MAX_ARGS]; /* span, rounded up: from one set's argument to the next one's */
    void *memory[MICA_MAX_ARGS]; /* all sets of an argument */
    void *scratch; /* overwritten to empty the cache, and to keep a GPU busy meanwhile */
    int64_t scratch_bytes;
    bool flush; /* too small for rotation alone: empty the cache before each run */
    mica_event *from[BATCH], *to[BATCH];
} timing;

/* ---- data ---- */

static double normal(uint64_t *state)
{
    /* Sum of uniforms (Irwin-Hall): near enough to normal for data whose values do not matter. */
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(*state >> 11) * 0x1p-53 - 0.5;
    }
    return 1.7 * sum;
}

/* Made once: a tool's lines are timed one after the other. */
static const double *random_block(void)
{
    static double *values;
    if (values) return values;
    values = cli_alloc(TILE * sizeof *values);
    uint64_t state = 1;
    for (int64_t i = 0; i < TILE; i++) values[i] = normal(&state);
    return values;
}

/* Large floating-point tensors are tiled with a block of random values: filling them one by one
 * would take longer than the measurement. */
static mica_status tile(const mica_tensor *t, int64_t span, unsigned char *image)
{
    const int64_t count = TILE;
    mica_tensor block = mica_tensor_packed(t->dtype, 1, &count);
    mica_status status = mica_tensor_store(&block, random_block(), image);
    for (int64_t done = count * mica_dtype_bits(t->dtype) / 8, n; done < span; done += n) {
        n = done < span - done ? done : span - done;
        memcpy(image + done, image, (size_t)n);
    }
    return status;
}

static bool is_real(mica_dtype d)
{
    return d == MICA_F64 || d == MICA_F32 || d == MICA_F16 || d == MICA_BF16 || d == MICA_E4M3 ||
           d == MICA_E5M2;
}

static mica_status make_image(const timing *t, int arg, unsigned char *image)
{
    const mica_tensor *tensor = &t->info[arg].tensor;
    int64_t count = mica_tensor_count(tensor);
    if (count > TILE && is_real(tensor->dtype)) return tile(tensor, t->span[arg], image);
    memset(image, 0, (size_t)t->span[arg]);
    double *values = calloc((size_t)count + 1, sizeof *values);
    if (!values) return MICA_OUT_OF_MEMORY;
    mica_status status = mica_problem_fill(t->problem, arg, MICA_FILL_RANDOM, 1, values);
    if (status == MICA_OK) status = mica_tensor_store(tensor, values, image - t->first[arg]);
    free(values);
    return status;
}

static mica_status upload(timing *t, int a)
{
    unsigned char *image = malloc((size_t)t->span[a] + 1);
    if (!image) return MICA_OUT_OF_MEMORY;
    mica_status status = make_image(t, a, image);
    for (int s = 0; s < t->sets && status == MICA_OK; s++)
        status =
            mica_upload(t->context, (char *)t->memory[a] + s * t->step[a], image, t->span[a], NULL);
    free(image);
    return status;
}

static mica_status fill_sets(timing *t)
{
    mica_status status = MICA_OK;
    for (int a = 0; a < t->args && status == MICA_OK; a++) {
        int64_t bytes = t->step[a] * t->sets;
        if (t->info[a].dir == MICA_UNUSED) continue;
        status = mica_malloc(t->context, bytes, &t->memory[a]);
        if (status != MICA_OK) break;
        status = t->info[a].dir == MICA_OUT ? mica_memset(t->context, t->memory[a], 0, bytes, NULL)
                                            : upload(t, a);
    }
    return status;
}

static void choose_sets(timing *t, bool hot)
{
    int64_t bytes = 0, cache = 2 * t->device->cache_bytes;
    for (int a = 0; a < t->args; a++) bytes += t->step[a];
    int64_t sets = hot || bytes == 0 ? 1 : cache / bytes + 2, room = t->device->memory_bytes / 4;
    if (sets > MAX_SETS) {
        t->flush = true;
        sets = MAX_SETS;
    }
    while (sets > 1 && bytes > 0 && sets > room / bytes) sets--;
    t->sets = (int)sets;
    t->scratch_bytes = t->flush ? cache : 0;
    if (t->device->cuda && t->scratch_bytes < blocker_bytes) t->scratch_bytes = blocker_bytes;
}

static mica_status begin(timing *t, bool hot)
{
    mica_status status = MICA_OK;
    for (; t->args < MICA_MAX_ARGS; t->args++) {
        int a = t->args;
        if (mica_problem_arg(t->problem, a, &t->info[a]) != MICA_OK) break;
        if (t->info[a].dir != MICA_UNUSED)
            t->span[a] = mica_tensor_span(&t->info[a].tensor, &t->first[a]);
        t->step[a] = (t->span[a] + 255) / 256 * 256;
    }
    choose_sets(t, hot);
    if (t->scratch_bytes) status = mica_malloc(t->context, t->scratch_bytes, &t->scratch);
    for (int i = 0; i < BATCH && status == MICA_OK; i++) {
        status = mica_event_create(t->context, &t->from[i]);
        if (status == MICA_OK) status = mica_event_create(t->context, &t->to[i]);
    }
    return status == MICA_OK ? fill_sets(t) : status;
}

static void end(timing *t)
{
    for (int i = 0; i < BATCH; i++) {
        mica_event_destroy(t->context, t->from[i]);
        mica_event_destroy(t->context, t->to[i]);
    }
    for (int a = 0; a < t->args; a++) mica_free(t->context, t->memory[a]);
    mica_free(t->context, t->scratch);
}

/* ---- runs ---- */

static void *element(const timing *t, int arg, int set)
{
    return (char *)t->memory[arg] + set * t->step[arg] - t->first[arg];
}

static mica_status pack(const timing *t, bench_entry *e, int a)
{
    int64_t bytes = (int64_t)mica_plan_packed_bytes(e->plan, a);
    if (bytes == 0) return MICA_OK;
    e->packed_step[a] = (bytes + 255) / 256 * 256;
    mica_status status = mica_malloc(t->context, e->packed_step[a] * t->sets, &e->packed[a]);
    for (int s = 0; s < t->sets && status == MICA_OK; s++)
        status = mica_plan_pack(e->plan, a, element(t, a, s),
                                (char *)e->packed[a] + s * e->packed_step[a], NULL);
    return status;
}

static mica_status enqueue(timing *t, const bench_entry *e)
{
    int set = t->next++ % t->sets;
    mica_run run = {.scalars = mica_problem_scalars(t->problem), .workspace = e->workspace};
    for (int a = 0; a < t->args; a++)
        if (t->info[a].dir != MICA_UNUSED)
            run.args[a] =
                e->packed[a] ? (char *)e->packed[a] + set * e->packed_step[a] : element(t, a, set);
    return mica_plan_run(e->plan, &run);
}

static mica_status enqueue_timed(timing *t, const bench_entry *e, int slot, int chain)
{
    mica_status status = MICA_OK;
    if (t->flush) status = mica_memset(t->context, t->scratch, 0, t->scratch_bytes, NULL);
    if (status == MICA_OK) status = mica_event_record(t->context, t->from[slot], NULL);
    for (int i = 0; i < chain && status == MICA_OK; i++) status = enqueue(t, e);
    if (status == MICA_OK) status = mica_event_record(t->context, t->to[slot], NULL);
    return status;
}

static void add_sample(bench_entry *e, double ms)
{
    if (e->count == e->capacity) {
        e->capacity = e->capacity ? 2 * e->capacity : 64;
        e->samples = cli_grow(e->samples, e->capacity * sizeof *e->samples);
    }
    e->samples[e->count++] = ms;
    e->total_ms += ms;
}

/* The quotient as a whole number from 1 to `most`. */
static int times(double whole, double part, int most)
{
    return part <= 0 || whole >= most * part ? most : whole < part ? 1 : (int)(whole / part);
}

/* A data set that is too small to rotate is cleared from the cache between runs. */
static int chain_of(const timing *t, const bench_entry *e)
{
    return t->device->cuda && !t->flush ? times(chain_ms, e->guess_ms, BATCH) : 1;
}

static mica_status run_batch(timing *t, bench_entry *e)
{
    int chain = chain_of(t, e), n = times(50, chain * e->guess_ms, BATCH);
    mica_status status = MICA_OK;
    if (t->device->cuda && n * chain > 1) {
        n = times(MOST_CLEARS * blocker_ms, chain * e->host_ms, n);
        int clears = 1 + (int)(n * chain * e->host_ms / blocker_ms);
        for (int i = 0; i < clears && i < MOST_CLEARS && status == MICA_OK; i++)
            status = mica_memset(t->context, t->scratch, 0, t->scratch_bytes, NULL);
        if (status == MICA_OK) status = enqueue(t, e);
    }
    for (int i = 0; i < n && status == MICA_OK; i++) status = enqueue_timed(t, e, i, chain);
    for (int i = 0; i < n && status == MICA_OK; i++) {
        double ms;
        status = mica_event_elapsed(t->context, t->from[i], t->to[i], &ms);
        if (status == MICA_OK) add_sample(e, ms / chain);
    }
    return status;
}

static mica_status warm_up(timing *t, bench_entry *e)
{
    size_t bytes = mica_plan_workspace(e->plan);
    mica_status status = MICA_OK;
    if (bytes) status = mica_malloc(t->context, (int64_t)bytes, &e->workspace);
    for (int a = 0; a < t->args && status == MICA_OK; a++) status = pack(t, e, a);
    if (status == MICA_OK) status = enqueue_timed(t, e, 0, 1); /* first touch, lazy loading */
    double start = cli_seconds();
    if (status == MICA_OK) status = enqueue_timed(t, e, 0, 1);
    e->host_ms = 1e3 * (cli_seconds() - start);
    if (status == MICA_OK)
        status = mica_event_elapsed(t->context, t->from[0], t->to[0], &e->guess_ms);
    return status;
}

static void note(bench_entry *e, mica_status status)
{
    if (status == MICA_OK || e->status != MICA_OK) return;
    e->status = status;
    snprintf(e->error, sizeof e->error, "%s: %s", mica_status_name(status), mica_error());
}

static bool wants_more(const bench_entry *e, const bench_limits *l, double started)
{
    if (e->status != MICA_OK || e->count >= MAX_SAMPLES) return false;
    if (e->count >= 3 && cli_seconds() - started > 10 * l->seconds) return false;
    return e->total_ms < 1e3 * l->seconds || e->count < l->least;
}

mica_status bench_time(mica_context *context, const mica_device_info *device,
                       const mica_problem *problem, bench_entry *entries, int count,
                       const bench_limits *limits)
{
    timing *t = cli_alloc(sizeof *t);
    *t = (timing){.context = context, .device = device, .problem = problem};
    mica_status status = begin(t, limits->hot);
    if (status == MICA_OK)
        for (int i = 0; i < count; i++)
            if (entries[i].status == MICA_OK) note(&entries[i], warm_up(t, &entries[i]));
    mica_load from, to;
    mica_load_read(&from);
    double started = cli_seconds();
    for (bool more = status == MICA_OK; more && !cli_stopped();) {
        more = false;
        for (int i = 0; i < count; i++) {
            if (!wants_more(&entries[i], limits, started)) continue;
            note(&entries[i], run_batch(t, &entries[i]));
            more = true;
        }
    }
    mica_load_read(&to);
    for (int i = 0; i < count; i++) {
        mica_load_disturbed(&from, &to, device->cuda, entries[i].samples, entries[i].count,
                            entries[i].disturbed, sizeof entries[i].disturbed);
        mica_free(context, entries[i].workspace);
        entries[i].workspace = NULL;
        for (int a = 0; a < MICA_MAX_ARGS; a++) {
            mica_free(context, entries[i].packed[a]);
            entries[i].packed[a] = NULL;
        }
    }
    end(t);
    free(t);
    return status;
}
