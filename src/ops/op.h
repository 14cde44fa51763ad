/* SPDX-License-Identifier: Apache-2.0
 * What an operation and an engine are. Everything that handles operations in general (text, plans,
 * checks, tools) reads these tables and names no operation. docs/adding-an-op.md walks through. */
#ifndef MICA_OPS_OP_H
#define MICA_OPS_OP_H

#include "mica/plan.h"
#include "base/fields.h"
#include "base/tensor.h"
#include "cuda/cuda.h"
#include "ops/services.h"

/* ---- configs ---- */
#define MICA_MAX_KNOBS   8
#define MICA_MAX_CONFIGS 64
typedef struct mica_config {
    int32_t knob[MICA_MAX_KNOBS]; /* named by the engine's knobs */
} mica_config;

/* ---- arguments ---- */
typedef struct mica_arg {
    const char *name;
    size_t tensor;   /* offset of its mica_tensor in the descriptor; present if that has a dtype */
    mica_dir dir[3]; /* by the value of the first field if that is called "pass"; else dir[0] */
    bool optional;   /* the pointer may be NULL */
    const char *alias; /* argument it may coincide with, if the tensors are equal; or NULL */
    /* What follows is refused, inferred and left out by mica_op_resolve (args.c), and shown by
     * `mica list`; what a row does not say, the operation's infer and check do. */
    uint32_t types;    /* MICA_TYPE() or MICA_FLOATS and so on; 0: the operation judges */
    mica_need need[3]; /* as dir by the pass */
    /* The argument that it is as, if it is inferred or has a type only, and whose dimensions it
     * must have: an argument before it in the table, or words for what `shape` makes. */
    const char *like;
    mica_tensor (*shape)(const void *desc); /* NULL: the argument called `like` */
    /* Or its dimensions, each a product of numbers that the operation's `dim` has under a letter:
     * "BxSxHD"; or "1", of any rank. Type and, where ranks agree, order in memory are as `like`. */
    const char *dims;
    const char *words; /* for what `shape` makes where it is not that argument; NULL: `like` */
    bool state;        /* inferred of the type of sums over its model's: f64 for f64, else f32 */
    bool sums;         /* the same, and it must be that */
    const char *same;  /* argument whose type it must have */
    const char *with;  /* argument without which there is none: given alone it is refused */
    /* Field whose value it takes: bits of enum values or of steps of a list; of a flag, 1. Else it
     * is left out. */
    const char *when;
    uint64_t values;
    bool refused; /* given in a pass that does not use it, it is refused; else left out */
} mica_arg;

#define MICA_TYPE(NAME) (UINT32_C(1) << MICA_##NAME)
#define MICA_FLOATS     (MICA_TYPE(F64) | MICA_TYPE(F32) | MICA_TYPE(F16) | MICA_TYPE(BF16))
#define MICA_REALS      /* of a byte or more */                                                    \
    (MICA_FLOATS | MICA_INDICES | MICA_TYPE(E4M3) | MICA_TYPE(E5M2) | MICA_TYPE(S8) |              \
     MICA_TYPE(U8) | MICA_TYPE(U32) | MICA_TYPE(BOOL))
#define MICA_INDICES (MICA_TYPE(S32) | MICA_TYPE(S64))
/* "f64, f32, f16 or bf16" */
void mica_types_text(uint32_t types, mica_text *text);

typedef struct mica_scalar {
    const char *name;
    double def;
} mica_scalar;

/* An argument as the reference sees it. mag, if not NULL, receives magnitude sums at the same
 * offsets as data (then the tensor is a packed f64 one). data NULL: the argument is absent. */
typedef struct mica_view {
    mica_tensor t;
    void *data;
    double *mag;
    mica_load_fn load;
    mica_store_fn store;
} mica_view;
static inline double mica_get(const mica_view *v, int64_t offset)
{
    return v->load(v->data, offset);
}
static inline void mica_put(const mica_view *v, int64_t offset, double value, double magnitude)
{
    v->store(v->data, offset, value);
    if (v->mag) v->mag[offset] = magnitude;
}
/* Offset of the element with linear logical index i. */
int64_t mica_offset(const mica_tensor *t, int64_t i);

/* ---- engines ---- */

/* How an engine keeps constant inputs in a layout of its own. build finds in plan->packed which
 * arguments runs get packed. */
typedef struct mica_packing {
    /* Bytes of the engine's layout of an argument in plan->packed; 0: it is taken as it is. */
    size_t (*bytes)(const mica_plan *plan, int arg);
    /* Only for arguments of which bytes is not 0. */
    mica_status (*pack)(const mica_plan *plan, int arg, const void *from, void *to, void *stream);
    /* Instead of the engine's predict where arguments are packed; NULL: the same time. */
    double (*predict)(const void *desc, const mica_device_info *device, const mica_config *config,
                      uint64_t packed);
} mica_packing;

struct mica_compose;
typedef struct mica_engine {
    const char *name;      /* persists in records and logs: never reused */
    bool cuda;             /* else the CPU */
    bool reference;        /* the plain loops that define the truth */
    bool nondeterministic; /* bits may vary between runs */
    bool peer;    /* somebody else's library, to measure against: only when asked for by name */
    bool by_name; /* its contract is looser than the operation's: only when asked for by name */
    const char *const *knobs; /* names of a config's numbers, NULL-terminated; NULL: no configs */
    /* Whether the library that it calls is on this machine, else where it was looked for; NULL: it
     * calls none, or its `accepts` asks. */
    mica_status (*available)(mica_why *why);
    /* MICA_OK, or mica_refuse(why, ...) with the value and the rule. The descriptor is sound. NULL:
     * it takes everything. Ask mica_engine_accepts. */
    mica_status (*accepts)(const void *desc, const mica_device_info *device, mica_why *why);
    /* Fills at most MICA_MAX_CONFIGS configs and returns how many; NULL: one, all zero. */
    int (*configs)(const void *desc, const mica_device_info *device, mica_config *configs);
    /* Milliseconds; NULL: start_ms and the time at the roofline (mica_roofline_ms) divided by the
     * share of it that is reached. */
    double (*predict)(const void *desc, const mica_device_info *device, const mica_config *config);
    double reached, start_ms; /* 0: a tenth, and hardly anything */
    double compile_ms;        /* of its kernels; 0: that of most, which is fine below 800 */
    /* Lists the steps of an engine that is other operations (MICA_COMPOSED); its `predict` may be
     * NULL: the sum of theirs. */
    void (*steps)(const void *desc, struct mica_compose *list);
    /* NULL: packed arguments are copies, and taken as they are. */
    const mica_packing *packing;
    /* Changes the operation's contract where this engine's arithmetic differs; NULL: it does not.
     */
    void (*contract)(const void *desc, const mica_config *config, mica_contract *contract);
    /* Prepares plan->state, workspace and kernels. Everything slow happens here. */
    mica_status (*build)(mica_plan *plan);
    mica_status (*run)(const mica_plan *plan, const mica_run *run);
    /* Releases what build made outside mica_plan_state; NULL: nothing. Also called after a failed
     * build. */
    void (*destroy)(mica_plan *plan);
} mica_engine;

static inline mica_status mica_engine_accepts(const mica_engine *engine, const void *desc,
                                              const mica_device_info *device, mica_why *why)
{
    if (engine->available) MICA_TRY(engine->available(why));
    return engine->accepts ? engine->accepts(desc, device, why) : MICA_OK;
}

/* Whether it is only taken when asked for by name. */
static inline bool mica_engine_needs_name(const mica_engine *engine)
{
    return engine->peer || engine->by_name;
}

/* ---- operations ---- */
struct mica_random_set;
typedef struct mica_op {
    const char *name, *doc;
    size_t desc_size;
    const mica_field *fields;
    int field_count;
    const mica_arg *args;
    int arg_count;
    const mica_scalar
        *scalars; /* those named alpha and beta scale the result and its old content */
    int scalar_count;
    /* Fills what the caller left zero (defaults of the table are already in) and rows of `args` do
     * not: those come behind it. May fail only where nothing can be inferred. NULL: nothing. */
    mica_status (*infer)(void *desc, mica_why *why);
    /* Numbers by the letters of mica_arg.dims; NULL where there are none. */
    int64_t (*dim)(const void *desc, char letter);
    /* INVALID with the value and the rule if the inferred descriptor contradicts itself. Types,
     * ranks, spans and overlap of each tensor are checked already, and what rows of `args` say.
     * NULL: nothing. */
    mica_status (*check)(const void *desc, mica_why *why);
    /* Arithmetic. Bytes are the sum over the arguments unless set here (NULL: no arithmetic). */
    void (*cost)(const void *desc, double *flops, double *bytes);
    /* Terms of the longest sum behind a result: the n of the tolerance and of exact fills. */
    int64_t (*terms)(const void *desc);
    /* With small integers every result is exact (convolution, pooling, ...). NULL: never. */
    bool (*exact)(const void *desc);
    /* Units in the last place of the accumulator that functions such as exp may add; 0: none. */
    double ulps;
    /* Fills an input in its own way; returns false to leave it to the general fill. NULL: never. */
    bool (*fill)(const void *desc, const double *scalars, int arg, mica_fill fill, uint64_t seed,
                 double *values);
    /* The truth: plain loops, double accumulators, any strides, any types. NULL: the mechanism's.
     * Ask mica_op_reference. */
    void (*reference)(const void *desc, const mica_view *args, const double *scalars);
    /* What is done to an element, of operations on the mechanism of ops/pointwise; else NULL. */
    const struct mica_pointwise *pointwise;
    /* Where elements go, of operations on the mechanism of ops/index; else NULL. */
    const struct mica_index *index;
    /* Fills (zeroed) what is drawn for which element, of operations on the mechanism of ops/random;
     * else NULL. */
    void (*random)(const void *desc, struct mica_random_set *set);
    const mica_engine *const *engines; /* best first, NULL-terminated; both backends */
} mica_op;

/* ---- what follows from the tables (ops.c, predict.c, fill.c, ref.c) ---- */

/* The operations, in the order of ops.def. */
extern const mica_op *const mica_ops[];
extern const int mica_op_count;
const mica_op *mica_op_find(const char *name);
/* Which column of mica_arg.dir holds for this descriptor. */
int mica_op_pass(const mica_op *op, const void *desc);
/* Direction of argument i, MICA_UNUSED if its tensor is absent. */
mica_dir mica_op_dir(const mica_op *op, const void *desc, int i);
static inline const mica_tensor *mica_op_tensor(const mica_op *op, const void *desc, int i)
{
    return (const mica_tensor *)((const char *)desc + op->args[i].tensor);
}
/* What the table says of argument `index` in a pass; direction and tensor are left out. */
void mica_arg_describe(const mica_op *op, int index, int pass, mica_arg_info *info);
/* Index of the argument of that name, -1 for none or NULL. */
int mica_op_arg_index(const mica_op *op, const char *name);
/* The same of a run-time scalar. */
int mica_op_scalar_index(const mica_op *op, const char *name);
/* Least bytes moved. */
double mica_op_bytes(const mica_op *op, const void *desc);
/* Those of one argument. */
double mica_op_arg_bytes(const mica_op *op, const void *desc, int arg);
/* Time at full bandwidth or full arithmetic rate, whichever is longer, in milliseconds. */
double mica_roofline_ms(const mica_op *op, const void *desc, const mica_device_info *device);

/* Steps of mica_op_resolve: what is needed, goes together, or is refused where it is given; what
 * is inferred or left out; types and dimensions. */
mica_status mica_args_given(const mica_op *op, const void *desc, mica_why *why);
void mica_args_infer(const mica_op *op, void *desc);
mica_status mica_args_check(const mica_op *op, const void *desc, mica_why *why);

/* Copies, defaults, infers and checks a caller's descriptor into `out` (op->desc_size bytes,
 * zeroed). */
mica_status mica_op_resolve(const mica_op *op, const void *desc, size_t desc_size, void *out,
                            mica_why *why);
/* Of a child, whose tensors an engine made: strides are as they stand, also where all are 0. The
 * second resolves a whole descriptor of the operation so, into as many bytes. */
void mica_op_strided(const mica_op *op, void *desc);
mica_status mica_op_resolve_child(const char *op, const void *desc, void *out, mica_why *why);
/* The shortest line that resolves to this resolved descriptor: what inference finds is left out. */
void mica_op_text(const mica_op *op, const void *desc, mica_text *text);
/* Reads "op name=value ..." into a zeroed descriptor; scalars of the line go to scalars (which the
 * caller filled with defaults). */
mica_status mica_op_parse(const char *line, const mica_op **op, void *desc, size_t desc_size,
                          double *scalars, mica_why *why);
/* Reads one "name=value" of it, which is written to; seen: which fields stood before. */
#define MICA_MAX_FIELDS 64
mica_status mica_op_parse_pair(const mica_op *op, char *pair, void *desc, double *scalars,
                               bool *seen, mica_why *why);
void mica_op_default_scalars(const mica_op *op, double *scalars);
/* Runs the truth: the operation's own, or that of the mechanism that it stands on. */
void mica_op_reference(const mica_op *op, const void *desc, const mica_view *args,
                       const double *scalars);
/* The numeric contract before an engine changes it, and phi of a contract. */
void mica_op_contract(const mica_op *op, const void *desc, mica_contract *contract);
double mica_contract_phi(const mica_contract *contract);
/* Milliseconds that a problem is expected to take on the engine that the model prefers; 0 if none
 * takes it. desc: resolved. */
double mica_op_predict(const mica_op *op, const void *desc, const mica_device_info *device,
                       bool cuda);
/* The same of one engine that takes it, by the best of its configs. */
double mica_engine_predict(const mica_engine *engine, const mica_op *op, const void *desc,
                           const mica_device_info *device);
/* The same of one config, of runs that get these arguments packed. */
double mica_config_predict(const mica_engine *engine, const mica_op *op, const void *desc,
                           const mica_device_info *device, const mica_config *config,
                           uint64_t packed);
/* For an engine's configs: keeps the `most` that cost least of those offered one by one, best
 * first, of equals the earlier. ms: their costs. Returns how many there are. */
int mica_config_keep(mica_config *list, double *ms, int count, int most, const mica_config *config,
                     double cost);
/* Fills of arguments that the operation does not fill itself. */
void mica_fill_general(const mica_op *op, const void *desc, int arg, mica_fill fill, uint64_t seed,
                       double *values);
/* Numbers whose products, in any order, neither overflow nor vanish; a few zeros. */
void mica_fill_factors(mica_dtype type, mica_fill fill, uint64_t seed, int64_t count,
                       double *values);
/* The edges of a floating-point type: NaN and infinities, its end and half of it, numbers whose
 * squares overflow, arguments of deep tails; a third are ordinary. */
double mica_fill_edge(mica_dtype d, uint64_t seed, uint64_t i);
/* As the type holds it. */
double mica_fill_rounded(mica_dtype d, double v);
/* An f32 with more digits than tf32 has, so small that its last ones lie below the smallest normal
 * number; and the largest f32, which no shorter format can round up. For EXTREME, each in problems
 * of its own: what a subnormal may be off grows with the largest element. */
#define MICA_FILL_SMALL   0x1.0028f6p-124
#define MICA_FILL_LARGEST 0x1.fffffep127
/* Largest descriptor of any operation, for buffers on the stack. */
#define MICA_MAX_DESC 6144

/* The engine "ref", last of the CPU engines of every operation: runs mica_op_reference. */
extern const mica_engine mica_engine_ref;

/* ---- plans, as engines see them ---- */
typedef struct mica_booking {
    const char *name;
    size_t offset, bytes;
} mica_booking;

struct mica_plan {
    const mica_op *op;
    const mica_engine *engine;
    mica_config config;
    mica_device_info device;
    mica_cuda *cuda; /* NULL on the CPU */
    void *desc;      /* checked and inferred; cast to the family's struct */
    void *state;     /* of mica_plan_state */
    size_t workspace;
    mica_kernel **kernels;
    int kernel_count;
    mica_booking *bookings;
    int booking_count;
    mica_plan **children;
    int child_count;
    mica_context *context;
    double predicted_ms;
    uint64_t packed; /* bit i: runs get argument i packed */
};

/* Where a booking begins. */
static inline void *mica_at(const mica_run *run, size_t offset)
{
    return (char *)run->workspace + offset;
}
/* Runs it without the checks of the public call. */
static inline mica_status mica_plan_child_run(const mica_plan *child, const mica_run *run)
{
    return child->engine->run(child, run);
}
/* Run-time scalar i, or its default. */
static inline double mica_run_scalar(const mica_plan *plan, const mica_run *run, int i)
{
    return run->scalars ? run->scalars[i] : plan->op->scalars[i].def;
}

#endif
