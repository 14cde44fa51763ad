/* SPDX-License-Identifier: Apache-2.0
 * What a context holds, and how the parts of the planner see each other. */
#ifndef MICA_PLAN_CONTEXT_H
#define MICA_PLAN_CONTEXT_H

#include "base/system/fork.h"
#include "ops/op.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- plans, whole ---- */

/* What a run checks of one pointer. */
typedef struct mica_rule {
    int arg;
    bool output, optional;
    int alias;           /* argument it may coincide with, or -1 */
    int64_t first, span; /* bytes */
    uintptr_t align_mask;
    bool own;        /* packed: the engine's layout, not a copy of the tensor */
    int64_t element; /* packed copies: bytes from their begin to element 0 */
} mica_rule;

/* How far the making of a plan goes, and of its children. */
typedef enum mica_effort {
    MICA_EFFORT_FULL,    /* kernels are compiled, its children's at the same time */
    MICA_EFFORT_CHILD,   /* kernels are compiled; most are there, its parent saw to that */
    MICA_EFFORT_AT_HAND, /* NOT_FOUND if one would have to be */
    MICA_EFFORT_SIZE,    /* it has no kernels: only its workspace and contract are asked for */
    MICA_EFFORT_PROMPT,  /* see mica_options.prompt */
    MICA_EFFORT_DRY      /* the same without kernels where they would have to be waited for */
} mica_effort;

typedef struct mica_wanted mica_wanted;
typedef struct mica_full_plan {
    mica_plan plan; /* first: a mica_plan * is a mica_full_plan * */
    atomic_int references;
    bool empty;       /* no output has an element: a run does nothing */
    bool inside;      /* a packed copy does not begin with element 0 */
    mica_rule *rules; /* behind the plan, as its descriptor */
    int rule_count;
    size_t bytes; /* host memory, for the cache's bound */
    mica_effort effort;
    char config_text[128];
    mica_wanted *wanted; /* kernels, while the plan is built, and where it has none */
    int wanted_count;
    double measured_ms;  /* of the record or measurement that chose it, or 0 */
    char disturbed[128]; /* why no measurement did, though one was made */
} mica_full_plan;

static inline mica_full_plan *mica_plan_full(const mica_plan *plan)
{
    return (mica_full_plan *)(uintptr_t)plan;
}

/* Host memory of a plan with its children, which it keeps although a cache may have let go of them.
 */
size_t mica_plan_held(const mica_plan *plan);

/* ---- plan cache: options and descriptor as the caller gave them, to plan ---- */

#define MICA_KEY_NAME 64
typedef struct mica_plan_key {
    const mica_op *op;
    int64_t workspace_limit;
    int32_t mode, nondeterministic;
    uint64_t packed;
    int64_t prompt;
    char engine[MICA_KEY_NAME], config[2 * MICA_KEY_NAME];
    _Alignas(16) char desc[MICA_MAX_DESC]; /* op->desc_size bytes count */
} mica_plan_key;

/* What is kept: counted, with the bytes that it holds. */
typedef struct mica_cached {
    void (*retain)(void *value);
    void (*release)(void *value);
    size_t (*bytes)(const void *value);
} mica_cached;

typedef struct mica_cache_entry {
    struct mica_cache_entry *next_in_bucket, *newer, *older;
    uint64_t hash;
    const mica_cached *kind;
    void *value, *key;
    int64_t bytes; /* of all of it */
    size_t key_bytes;
} mica_cache_entry;

#define MICA_CACHE_BUCKETS 1024
#define MICA_CACHE_LIMIT   (64 << 20) /* bytes, of a new context's */
typedef struct mica_plan_cache {
    pthread_mutex_t mutex;
    mica_cache_entry *buckets[MICA_CACHE_BUCKETS];
    mica_cache_entry *newest, *oldest;
    int64_t bytes, count, hits, misses;
    _Atomic int64_t limit; /* bytes */
} mica_plan_cache;

uint64_t mica_plan_key_hash(const void *key, size_t bytes);
/* What was added with that key, retained, or NULL. */
void *mica_plan_cache_find(mica_plan_cache *cache, const void *key, size_t bytes, uint64_t hash);
/* Keeps it if there is room and memory; never fails, at worst it does not remember. */
void mica_plan_cache_add(mica_plan_cache *cache, const void *key, size_t bytes, uint64_t hash,
                         const mica_cached *kind, void *value);
void mica_plan_cache_limit(mica_plan_cache *cache, int64_t bytes);
/* What it holds leaves; the bound stays. */
void mica_plan_cache_empty(mica_plan_cache *cache);

/* ---- records ---- */

typedef struct mica_record {
    char *problem, *device, *engine, *config;
    double ms;
    bool fresh;   /* measured here, not yet saved */
    bool shipped; /* part of the library */
    int before;   /* the last one before it whose key falls into the same slot; -1: none */
} mica_record;

typedef struct mica_records {
    pthread_mutex_t mutex;
    mica_record *list;
    int count, capacity; /* a power of 2 */
    int *slots;          /* as many as the capacity: the last record of each; -1: none */
} mica_records;

mica_status mica_records_load(mica_records *records, const char *path);
/* What data/records.txt, which is part of the library, holds for this device. */
mica_status mica_records_ship(mica_records *records, const char *device);
mica_status mica_records_save(mica_records *records, const char *path);
mica_status mica_records_add(mica_records *records, const char *problem, const char *device,
                             const char *engine, const char *config, double ms, bool fresh);
/* What a record chooses. */
typedef struct mica_choice {
    char engine[MICA_KEY_NAME], config[2 * MICA_KEY_NAME];
    double ms;
} mica_choice;
/* Copies the last matching record; false without one. */
bool mica_records_find(mica_records *records, const char *problem, const char *device, bool shipped,
                       mica_choice *choice);
void mica_records_free(mica_records *records);

/* Constants of the cost model are a record of this problem and engine, its config being their text.
 */
#define MICA_FIT_PROBLEM "constants"
#define MICA_FIT_ENGINE  "fit"
/* INVALID unless the text has the three constants, each positive. */
mica_status mica_fit_parse(const char *text, mica_device_info *constants);
/* Takes the constants of this device over, if there are any on record. */
void mica_fit_apply(mica_context *context);

/* ---- contexts ---- */

struct mica_context {
    mica_device_info device;
    mica_cuda *cuda;       /* NULL on the CPU */
    atomic_int references; /* the caller's and each plan's */
    bool keep_disturbed;
    mica_plan_cache graphs; /* plans of graphs, which hold plans */
    mica_plan_cache cache;
    mica_records records;
    mica_fork_guarded guarded[3]; /* the locks of these */
};
void mica_context_release(mica_context *context);

/* ---- packed arguments ---- */

/* INVALID unless each argument of the mask is an input that is there. */
mica_status mica_packed_check(const mica_op *op, const void *desc, uint64_t packed);
/* Their names, "a,b". */
void mica_packed_names(const mica_op *op, uint64_t packed, mica_text *text);
/* Makes the rule of a plain argument that of a packed one. */
void mica_packed_rule(const mica_plan *plan, mica_rule *rule);

/* ---- making plans ---- */

/* An engine with one of its configs. */
typedef struct mica_candidate {
    const mica_engine *engine;
    mica_config config;
    double predicted_ms;
} mica_candidate;
#define MICA_MAX_CANDIDATES 64

void mica_config_text(const mica_engine *engine, const mica_config *config, char *buffer,
                      size_t size);
/* Candidates in the order of the model, best first; refusals, if not NULL, receives every reason.
 */
int mica_candidates(const mica_context *context, const mica_op *op, const void *desc,
                    const mica_options *options, mica_candidate *list, mica_text *refusals);
/* Whether it, or a child of it, was made without kernels that it needs to run. */
bool mica_plan_lacks(const mica_plan *plan);
/* Builds one; UNSUPPORTED if its workspace exceeds the options' limit. */
mica_status mica_plan_build(mica_context *context, const mica_op *op, const void *desc,
                            const mica_candidate *candidate, const mica_options *options,
                            mica_plan **plan);
/* Whether its workspace keeps to the limit; a plan's own kernels are not compiled for that. */
mica_status mica_plan_fits(mica_context *context, const mica_op *op, const void *desc,
                           const mica_candidate *candidate, const mica_options *options);
/* The same with another effort than MICA_EFFORT_FULL. */
mica_status mica_plan_build_with(mica_context *context, const mica_op *op, const void *desc,
                                 const mica_candidate *candidate, const mica_options *options,
                                 mica_effort effort, mica_plan **plan);
/* The caller's options, shorter ones filled up, or INVALID. */
mica_status mica_options_read(const mica_options *given, mica_options *options);
/* Why the options rule an engine out, or NULL; named: those only taken by name count as named. */
const char *mica_engine_excluded(const mica_engine *engine, const mica_context *context,
                                 const mica_options *options, bool named);
/* Times candidates and moves the best to the front; leaves the order where timing fails. DISTURBED:
 * something else ran beside every attempt within the time. */
mica_status mica_measure(mica_context *context, const mica_op *op, const void *desc,
                         const mica_options *options, mica_candidate *list, int count,
                         double *best_ms);
/* The whole way for a resolved key: cache, records, choice, build. */
mica_status mica_plan_find_or_build(mica_context *context, mica_plan_key *key,
                                    const mica_options *options, mica_effort effort,
                                    mica_plan **plan);
/* mica_plan_create without looking into the options. */
mica_status mica_plan_make(mica_context *context, const mica_op *op, const void *desc,
                           size_t desc_size, const mica_options *options, mica_effort effort,
                           mica_plan **plan);

/* ---- prompt plans (prompt.c) ---- */

/* effort: PROMPT or DRY. A plan of the best candidate that can be built, at once: itself, or
 * another that stands in for it. measured_ms: what a record says of list[0], or 0. UNSUPPORTED:
 * none, and refusals has why. */
mica_status mica_prompt_plan(mica_context *context, const mica_op *op, const void *desc,
                             const mica_candidate *list, int count, const mica_options *options,
                             mica_effort effort, double measured_ms, mica_text *refusals,
                             mica_plan **plan);
/* The engine's plan that a run would take: the plan itself unless it is prompt. */
const mica_plan *mica_prompt_now(const mica_plan *plan);
/* Of a prompt plan: false for others. */
bool mica_prompt_contract(const mica_plan *plan, mica_contract *contract);

struct mica_problem {
    const mica_op *op;
    double scalars[MICA_MAX_SCALARS];
    void *desc; /* resolved */
};

#endif
