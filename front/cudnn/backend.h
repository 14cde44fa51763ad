/* SPDX-License-Identifier: Apache-2.0
 * The graph interface: descriptors of one kind of object, whose attributes a table checks;
 * operation graphs, lowered to the text of a mica graph; plans of these, shared by all that have
 * the same text.
 *
 *     backend_attribute.c    what clients call on descriptors; backend_descriptor.c their values
 *     backend_finalize.c     what each type checks; backend_operation.c the shapes of operations
 *     backend_graph.c        an operation graph as nodes and tensors; backend_tensor.c their text
 *     backend_lower.c        the lines of each operation; _pointwise.c, _shape.c, _norm.c,
 *                            _serving.c
 *     backend_attention.c    attention in parts; _attention_bwd.c; _attention_line.c its line
 *     backend_ragged.c       sequences that lie one behind another, padded for a run
 *     backend_cache.c        lowered graphs, and plans of them that all share
 *     backend_plan.c         engines, configurations, plans, plans as JSON
 *     backend_execute.c      variant packs and runs
 *
 * Lifetime: a descriptor holds references to those that were set as its attributes, so that a
 * client may destroy parts before the whole. Threads: a finalized descriptor is read only; one that
 * is not belongs to one thread. */
#ifndef FRONT_CUDNN_BACKEND_H
#define FRONT_CUDNN_BACKEND_H

#include "backend_abi.h"
#include "front.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- descriptors ------------------------------------------------------------------------------
 */

typedef enum backend_attribute {
#define A(owner, name, number, type, child, most, access) AT_##owner##_##name = number,
#include "backend_attributes.def"
#undef A
} backend_attribute;

typedef enum backend_access { BA_NEED, BA_MAY, BA_READ, BA_BOTH } backend_access;

typedef struct backend_row {
    backend_type owner;
    unsigned number;
    int type; /* backend_wire */
    backend_type child;
    int64_t most;
    backend_access access;
    const char *name;
} backend_row;

typedef struct backend_value {
    bool given;
    int type; /* backend_wire of its elements */
    int64_t count;
    void *data; /* of its own where it is longer than `room` */
    int64_t room[8];
} backend_value;

typedef struct backend_lowered backend_lowered;
typedef struct backend_built backend_built;

typedef struct backend {
    front_kind kind;
    backend_type type;
    atomic_int references;
    bool finalized;
    bool destroyed; /* by the client; others still refer to it */
    const backend_row *rows;
    int row_count;
    backend_value *values;    /* of each row */
    backend_lowered *lowered; /* GRAPH, and a PLAN from JSON */
    backend_built *built;     /* PLAN */
} backend;

const char *backend_type_words(int type);
const char *backend_wire_name(int type);
size_t backend_wire_bytes(int type);
/* The place of an attribute's row and value in `b`; -1: it has no such one. */
int backend_row_of(const backend *b, unsigned attribute);
/* The row of an attribute of any descriptor; NULL: none is served. */
const backend_row *backend_row_anywhere(unsigned attribute);
/* As though it was just created. */
void backend_clear(backend *b);
bool backend_is_operation(int type);
/* NULL where it is not set. Elements are of the type that was set. */
const backend_value *backend_get(const backend *b, backend_attribute attribute);
backend *backend_child(const backend *b, backend_attribute attribute);
int64_t backend_integer(const backend *b, backend_attribute attribute, int64_t otherwise);
double backend_real(const backend *b, backend_attribute attribute, double otherwise);
/* Up to 8 integers; returns how many. */
int backend_integers(const backend *b, backend_attribute attribute, int64_t *integers);
cudnnHandle_t backend_handle(const backend *b, backend_attribute attribute);
/* Sets one value, as the client would; for descriptors that the library makes. */
cudnnStatus_t backend_put(backend *b, backend_attribute attribute, int type, int64_t count,
                          const void *elements);
cudnnStatus_t backend_make(backend_type type, backend **made);
void backend_retain(backend *b);
void backend_release(backend *b);
/* Makes of `to`, which the client created, a finalized equal of `from`. */
cudnnStatus_t backend_fill(backend *to, const backend *from);
/* The checks of its type; it is not marked here. */
cudnnStatus_t backend_check(backend *b);

/* ---- lowered graphs --------------------------------------------------------------------------
 * Text in three kinds of lines: "#port UID NAME" (a tensor of the variant pack), "#value UID TYPE
 * NAME DEFAULT CHECK" (a number in host memory), "#copy UID UID TYPE COUNT" (what is copied to
 * where a run changes it), and those of a mica graph. In these "$NAME$"
 * stands for the number of that name where it has to be known when a plan is made, "$TF32$" for
 * compute=tf32. */

typedef struct backend_port {
    int64_t uid;
    char name[28];
} backend_port;

typedef enum backend_use {
    USE_SCALAR, /* a run-time scalar of the graph */
    USE_BAKED,  /* part of the plan */
    USE_EQUAL,  /* the plan holds for this value, to 1e-5 of it */
    USE_LOWEST  /* the plan holds for what hides a score: at most -1e4 */
} backend_use;

typedef struct backend_number {
    int64_t uid;
    mica_dtype type;
    char name[28];
    double value; /* the default; of USE_EQUAL the only one */
    backend_use use;
} backend_number;

/* Of numbers in one piece, before a run, where the two are not one. */
typedef struct backend_copy {
    int64_t from, to; /* unique ids */
    mica_tensor tensor;
} backend_copy;

/* A tensor whose sequences lie where offsets say; the plan has it padded. */
typedef struct backend_ragged {
    int64_t uid, offsets, lengths; /* unique ids */
    mica_dtype index;              /* of offsets */
    int64_t multiplier;            /* elements to a unit of them */
    bool summed;                   /* lengths are their sums, from 0 */
    mica_tensor tensor;            /* B x S x H x D; the first stride says nothing */
} backend_ragged;

enum { BACKEND_RAGGED = 12 };

struct backend_lowered {
    char *text;
    char refusal[400]; /* why there is none */
    backend_port *ports;
    int port_count;
    backend_number *numbers;
    int number_count;
    backend_copy copies[4];
    int copy_count;
    backend_ragged ragged[BACKEND_RAGGED];
    int ragged_count;
    int engines; /* 2 with TF32 in front of IEEE arithmetic, else 1; 0: refused */
    bool narrow; /* it has products of 8 or 16 bits, which tensor cores form */
    /* Of the graph's handle, or else of the device properties that it first meets. */
    _Atomic(mica_context *) context;
};

/* MICA_NONE: no type has that name. */
mica_dtype backend_dtype_named(const char *name);
/* The line of one; false: it is not sound. */
bool backend_ragged_read(backend_lowered *l, const char *line);

/* Lowers the operations of a GRAPH. What mica cannot do is no error here: `refusal` says it. */
cudnnStatus_t backend_lower(const backend *graph, backend_lowered **lowered);
/* The same from its text. */
cudnnStatus_t backend_lowered_read(const char *text, mica_context *context,
                                   backend_lowered **lowered);
void backend_lowered_free(backend_lowered *lowered);

/* ---- plans ------------------------------------------------------------------------------------
 */

/* A plan of the cache, for an engine and its baked numbers. */
typedef struct backend_entry backend_entry;

/* Where a tensor of a plan lies: bytes from the pointer given to the lowest, how many, and whether
 * it is a result. */
typedef struct backend_extent {
    int64_t first, bytes;
    bool result;
} backend_extent;

struct backend_built {
    const backend_lowered *lowered; /* of the graph, which the plan refers to */
    int engine;
    backend_entry *entry;    /* with the default numbers */
    int *port_of;            /* of each tensor of the plan its place in `ports` */
    backend_extent *extents; /* likewise */
    int *number_of;          /* of each run-time scalar its place in `numbers` */
    int port_count, scalar_count;
    pthread_mutex_t lock;
    backend_entry *recent; /* with other numbers, the last ones that were asked for */
    double *recent_numbers;
    void *original; /* the plan of the library compared with (compare.h), and its workspace */
    int64_t original_bytes;
    bool original_tried;
};

/* Where a run has the padded tensors. */
typedef struct backend_moves {
    void *index[BACKEND_RAGGED], *padded[BACKEND_RAGGED], *client[BACKEND_RAGGED];
    mica_tensor form[BACKEND_RAGGED]; /* of padded, as B x S x H x D */
    bool result[BACKEND_RAGGED];
} backend_moves;
/* Kernels and memory for the runs of a plan on a handle and its stream: a first run, which a client
 * may capture, then allocates nothing. */
cudnnStatus_t backend_ragged_prepare(cudnnHandle_t handle, const backend_lowered *l);
/* Pads what is ragged, for which `tensors` then holds the padded ones; and the other way for
 * results, of which nothing but the rows of sequences is written. */
cudnnStatus_t backend_ragged_begin(cudnnHandle_t handle, const backend_built *built,
                                   const backend *pack, void **tensors, backend_moves *moves);
cudnnStatus_t backend_ragged_end(cudnnHandle_t handle, const backend_built *built,
                                 const backend_moves *moves);
/* The pointer that a variant pack has for a unique id, or NULL. */
void *backend_pointer(const backend *pack, int64_t uid);

/* numbers: by their place, those of `lowered` if NULL. */
cudnnStatus_t backend_entry_get(const backend_lowered *lowered, int engine, const double *numbers,
                                backend_entry **entry);
void backend_entry_retain(backend_entry *entry);
void backend_entry_put(backend_entry *entry);
mica_graph_plan *backend_entry_plan(const backend_entry *entry);
/* What clients are told: with room to align it. */
int64_t backend_entry_workspace(const backend_entry *entry);
cudnnStatus_t backend_build(backend *plan);
/* Gives a graph without a handle the device of these properties; NULL: it has to have one. */
cudnnStatus_t backend_place(backend *graph, const backend *device);
/* Of device properties: their device, checked and set. */
cudnnStatus_t backend_device_check(backend *device);
/* Whether a configuration may have these choices. */
cudnnStatus_t backend_choices_check(const backend *config);
void backend_built_free(backend_built *built);
/* What is read only, and computed: CONFIG, PLAN, ENGINE, HEURISTICS, GRAPH. */
cudnnStatus_t backend_compute(backend *b, const backend_row *row, int64_t requested, int64_t *count,
                              void *elements);
#endif
