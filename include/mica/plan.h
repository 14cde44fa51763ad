/* SPDX-License-Identifier: Apache-2.0
 * Contexts, plans and runs: everything that is the same for every operation.
 *
 *     context   a device and what was learnt of it: plan cache, tuning records, kernel cache
 *     problem   an operation and its descriptor, readable from and written as one line of text
 *     plan      a problem with an engine chosen and compiled; immutable; shared by threads
 *     run       a plan applied to pointers; only enqueues, so a CUDA graph can capture it
 *
 * Threads: every function may be called from any thread; one context may be shared. */
#ifndef MICA_PLAN_H
#define MICA_PLAN_H

#include "mica/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mica_context mica_context;
typedef struct mica_problem mica_problem;
typedef struct mica_plan mica_plan;

/* ---- contexts ------------------------------------------------------------------------------
 * device: "cpu"; "cuda:0"; "auto" or NULL, what MICA_DEVICE names, else the first GPU if there is
 * one that works, else the CPU; or "sm_80", "sm_89", "sm_90a", an offline device: plans are made,
 * kernels compiled, nothing runs. A CUDA context retains the device's primary context, so pointers
 * and streams of the CUDA runtime, PyTorch or CuPy work as they are. */
MICA_API mica_status mica_context_create(const char *device, mica_context **context);
/* Plans made from the context must have been destroyed. NULL is allowed. */
MICA_API void mica_context_destroy(mica_context *context);

typedef struct mica_device_info {
    char name[64];        /* "cpu" or "cuda:0" or "sm_90a" */
    char model[96];       /* "AMD EPYC, AVX2", "NVIDIA H200" */
    bool cuda;            /* false: the CPU backend */
    bool offline;         /* plans only */
    int arch;             /* compute capability times ten, 90; 0 on the CPU */
    int units;            /* multiprocessors, or threads on the CPU */
    int64_t memory_bytes; /* device memory, or host memory */
    int64_t cache_bytes;  /* L2 on a GPU, last level on the CPU */
    int64_t shared_bytes; /* shared memory a block may have; 0 on the CPU */
    double copy_gbps;     /* bytes read plus written per second of a large copy, in 1e9; a model */
    double f32_tflops;    /* of plain f32 arithmetic; a model */
    double bf16_tflops;   /* of the matrix units, or of f32 where there are none; a model */
    char bus[16];         /* a GPU's PCI address, "0000:17:00.0"; "" on the CPU and offline */
} mica_device_info;
MICA_API mica_status mica_context_info(const mica_context *context, mica_device_info *info);

/* Counters since the context was created. */
typedef struct mica_stats {
    int64_t plan_hits, plan_misses, plan_bytes, plans; /* plan cache */
    int64_t kernels, kernel_hits, kernel_compiles;     /* kernels loaded; from disk; compiled */
} mica_stats;
MICA_API mica_status mica_context_stats(const mica_context *context, mica_stats *stats);
/* Bound of the plan cache in bytes of host memory (default 64 MiB); 0 empties and disables it, and
 * empties the cache of plans of graphs, which hold plans. */
MICA_API mica_status mica_context_cache_limit(mica_context *context, int64_t bytes);
/* Adds the tuning records of a file; later files win. One line each:
 * problem | device | engine | config | milliseconds | versions.
 * Lines of other devices are kept and never used; bad ones are passed over, MICA_INVALID names the
 * last of them. Constants of the cost model that it holds for this device are taken over at once:
 * load before other threads plan. */
MICA_API mica_status mica_context_load_records(mica_context *context, const char *path);
/* Appends to the file what this context measured since the last call. */
MICA_API mica_status mica_context_save_records(mica_context *context, const char *path);
/* Measures the constants of the cost model (copy_gbps, f32_tflops, bf16_tflops: what a large copy
 * and large products reach), which takes a few seconds. They hold from now on, and are saved with
 * the records. Not while other threads plan. MICA_DISTURBED: something else ran beside them, so
 * nothing changed. */
MICA_API mica_status mica_context_fit(mica_context *context);
/* Measurements that mica_load_disturbed() finds fault with decide nothing and are not recorded,
 * unless this is set: for machines that are never quiet. Not while other threads plan. */
MICA_API mica_status mica_context_keep_disturbed(mica_context *context, bool keep);

/* ---- memory, streams, time -----------------------------------------------------------------
 * Conveniences for programs that have no other allocator; plans take any pointers. A stream is
 * a CUstream (cudaStream_t) on a GPU and ignored on the CPU, where everything is synchronous.
 *
 * mica_malloc gives memory of at least 256-byte alignment, which is enough for workspace, packed
 * arguments and every engine's vectors; of 0 bytes too it gives a pointer that mica_free takes. */
MICA_API mica_status mica_malloc(mica_context *context, int64_t bytes, void **memory);
MICA_API void mica_free(mica_context *context, void *memory);
MICA_API mica_status mica_memset(mica_context *context, void *memory, int byte, int64_t bytes,
                                 void *stream);
/* Copies in either direction, between host and the context's device (or within it), in stream
 * order; returns when the host side may be reused. */
MICA_API mica_status mica_upload(mica_context *context, void *to, const void *from, int64_t bytes,
                                 void *stream);
MICA_API mica_status mica_download(mica_context *context, void *to, const void *from, int64_t bytes,
                                   void *stream);
MICA_API mica_status mica_stream_create(mica_context *context, void **stream);
MICA_API void mica_stream_destroy(mica_context *context, void *stream);
MICA_API mica_status mica_synchronize(mica_context *context, void *stream);

typedef struct mica_event mica_event;
MICA_API mica_status mica_event_create(mica_context *context, mica_event **event);
MICA_API void mica_event_destroy(mica_context *context, mica_event *event);
MICA_API mica_status mica_event_record(mica_context *context, mica_event *event, void *stream);
/* Waits for `to`, then gives the time from `from` to `to` in milliseconds. */
MICA_API mica_status mica_event_elapsed(mica_context *context, mica_event *from, mica_event *to,
                                        double *ms);

/* Counters of this process and of the CPUs it may use, at one moment: who times runs reads them
 * before and after, and knows whether something else ran meanwhile. */
typedef struct mica_load {
    double seconds;  /* of a monotonic clock */
    double ran;      /* CPU time of this process, in seconds as all that follow */
    double waited;   /* its threads for a CPU; -1: the kernel does not count that */
    double switches; /* how often one of them lost its CPU to another thread */
    double busy;     /* CPU time of everybody; -1: not known */
    double stolen;   /* CPU time that a hypervisor gave to other machines */
    int cpus;
} mica_load;
MICA_API void mica_load_read(mica_load *load);
/* Whether something else disturbed what ran between the readings: threads of this process waited
 * for CPUs, others used most of them, or the times (in any order; at least five say something) lie
 * too far apart. cuda: they are a GPU's, for which CPUs do not count. why receives the value and
 * the rule, "" if nothing did. */
MICA_API bool mica_load_disturbed(const mica_load *from, const mica_load *to, bool cuda,
                                  const double *ms, size_t count, char *why, size_t size);

/* ---- plans --------------------------------------------------------------------------------- */

#define MICA_MAX_ARGS    64 /* of this version's mica_run; more later, at its end */
#define MICA_MAX_SCALARS 12

/* A record of the problem, if there is one, comes first but for MICA_MODE_MODEL. */
typedef enum mica_mode {
    MICA_MODE_ESTIMATE, /* a cost model orders the engines; nothing is timed; deterministic */
    MICA_MODE_MEASURE,  /* the best few of the model are timed, within measure_ms; as ESTIMATE where
                           something else disturbed that, and measured again when asked again */
    MICA_MODE_RECORDED, /* only what a record says; MICA_NOT_FOUND without one */
    MICA_MODE_MODEL     /* as ESTIMATE, whatever records say */
} mica_mode;

#define MICA_NO_WORKSPACE (-1)

/* How to choose; all zero is the default, and so is NULL in place of the struct. */
typedef struct mica_options {
    size_t size;             /* sizeof(mica_options); 0 means the fields of version 0.1 */
    mica_mode mode;          /* 0 means MICA_MODE_ESTIMATE */
    int64_t workspace_limit; /* bytes; MICA_NO_WORKSPACE: none at all; 0 means no limit */
    const char *engine;      /* only this engine, by name; 0 means any that asks for no name */
    const char *config;      /* only this config of it, in its text form; 0 means any */
    bool nondeterministic;   /* engines whose bits vary between runs are allowed too; 0 means no */
    int measure_ms;          /* budget of MICA_MODE_MEASURE; 0 means 2000 */
    uint64_t packed; /* bit i: runs get argument i packed, see mica_plan_pack; 0 means none */
    bool prompt;     /* a GPU's plan does not wait for the compiler, see mica_plan_await; needs
                        nondeterministic; 0 means no */
} mica_options;

/* Makes a plan, or finds it in the context's cache. The families' functions (mica_conv_plan and
 * so on) are this with the names filled in; a caller that was compiled against an older, shorter
 * descriptor keeps working, the rest is taken as zero.
 * Errors: MICA_INVALID, MICA_UNSUPPORTED with every engine's reason, and those of compiling. */
MICA_API mica_status mica_plan_create(mica_context *context, const char *op, const void *desc,
                                      size_t desc_size, const mica_options *options,
                                      mica_plan **plan);
/* The same from a problem line, "conv pass=fwd x=f32:1x3x8x8 w=f32:4x3x3x3 pad=1x1". */
MICA_API mica_status mica_plan_from_text(mica_context *context, const char *line,
                                         const mica_options *options, mica_plan **plan);
/* Gives the plan back; it must not be running. NULL is allowed. */
MICA_API void mica_plan_destroy(mica_plan *plan);

/* Bytes of workspace that a run needs, exactly; 256-byte alignment. */
MICA_API size_t mica_plan_workspace(const mica_plan *plan);
MICA_API const char *mica_plan_engine(const mica_plan *plan);
/* The chosen config in text, "tile=64x64 stages=3"; "" for an engine that has only one. */
MICA_API const char *mica_plan_config(const mica_plan *plan);
/* Predicted time in milliseconds. */
MICA_API double mica_plan_predicted(const mica_plan *plan);
/* Milliseconds that its record says, or the measurement that chose it; 0: none did. */
MICA_API double mica_plan_measured(const mica_plan *plan);
/* Why a measurement that was asked for did not choose it: what disturbed that; else "". */
MICA_API const char *mica_plan_disturbed(const mica_plan *plan);
/* The canonical problem line of the plan, defaults left out. Returns its length as snprintf. */
MICA_API int mica_plan_describe(const mica_plan *plan, char *buffer, size_t size);

typedef enum mica_dir { MICA_UNUSED, MICA_IN, MICA_OUT, MICA_INOUT } mica_dir;

typedef enum mica_need {
    MICA_IF_GIVEN, /* there if it is given, or as its field's words say */
    MICA_NEEDED,   /* refused without it */
    MICA_INFERRED  /* made where it is left out */
} mica_need;

/* An argument of a plan or problem. */
typedef struct mica_arg_info {
    const char *name;   /* "x" */
    mica_dir dir;       /* MICA_UNUSED: leave the pointer NULL */
    bool optional;      /* may be NULL at run time */
    mica_tensor tensor; /* as inferred; the pointer is that of element 0 */
    int alias;          /* argument whose memory it may share, if the tensors are equal; or -1 */
    uint32_t types;     /* bit d: may be of mica_dtype d; 0: other arguments decide */
    mica_need need;     /* of its tensor */
    const char *like;   /* argument whose dimensions it has, or words for them; or NULL */
    const char *with;   /* argument without which there is none; or NULL */
    bool refused;       /* given where dir is MICA_UNUSED it is refused; else left out */
} mica_arg_info;
/* index counts as the family's enumerators do (MICA_CONV_X); MICA_INVALID past the last. */
MICA_API mica_status mica_plan_arg(const mica_plan *plan, int index, mica_arg_info *info);

/* One execution. Zero what is not used.
 *
 * Alignment: an argument's element 0 lies at a multiple of its type's size (f32: 4, bf16: 2, types
 * of less than a byte: 1), workspace and packed arguments at multiples of 256 bytes; a
 * run with other pointers is MICA_INVALID. More is never asked for, but is faster on GPUs: 16 bytes
 * allow vectors and the copy engine, which each run looks for in its pointers. */
typedef struct mica_run {
    /* sizeof(mica_run), or less: nothing is read from there on, the arguments there are absent.
     * 0 means the struct of version 0.1, with 64 arguments. */
    size_t size;
    /* By the family's enumerators (MICA_CONV_ALPHA); 0 means all as their defaults. */
    const double *scalars;
    void *workspace; /* mica_plan_workspace() bytes; 0 means none, where those are none */
    void *stream;    /* CUstream; 0 means the default stream */
    /* Pointers to element 0, by the family's enumerators; 0 means absent. */
    void *args[MICA_MAX_ARGS];
} mica_run;

/* Enqueues the work: no allocation, lock, text, compilation or synchronisation; on a CPU, does it.
 * What does not keep to that: the reference ("ref") and oneDNN allocate, and oneDNN locks,
 * whichever engine runs it; a thread that has neither planned nor run on the CPU before maps a
 * megabyte of addresses for itself and for each of its OpenMP threads, or the run is
 * MICA_OUT_OF_MEMORY.
 *
 * Inputs and outputs must not overlap unless the family's header says so. From sm_90 and CUDA 12.3
 * on kernels are launched with programmatic stream serialisation (captured graphs have such edges):
 * one is there as the one before it in the stream ends, and waits for it before it reads or writes
 * memory. Errors: MICA_INVALID (a pointer is missing, misaligned or overlaps), MICA_DEVICE_LOST,
 * ... */
MICA_API mica_status mica_plan_run(const mica_plan *plan, const mica_run *run);

/* ---- prompt plans ---------------------------------------------------------------------------
 * Compiling the kernels of a GPU's plan takes from 0.2 to 2 seconds, once: then they are in the
 * kernel cache on disk. Who cannot wait sets mica_options.prompt. Where the kernels of the engine
 * that is chosen have to be compiled first, a thread of the library's does that, and meanwhile runs
 * take the best engine whose kernels are in memory or in the cache; where there is none, one whose
 * kernels are compiled in less than half the time. If no such engine takes the problem, or a run of
 * it would last longer than that, the plan is made as ever.
 *
 * The first run after the kernels are there takes them, unless its stream is being captured: a
 * captured run stays what it was, so wait with mica_plan_await before a capture. Both engines stay
 * until the plan is destroyed. The workspace is that of the larger of the two from the start, and
 * within the limit; the contract covers both. Engine, config, kernels and times that are asked for
 * are those of the engine that would run now.
 *
 * Results differ in their rounding before and after, so MICA_INVALID without `nondeterministic`;
 * also with `packed`, whose layout is one engine's, and with MICA_MODE_MEASURE, which waits for
 * more than one compilation. Graphs refuse it.
 *
 * Destroying the plan does not wait; destroying the context, and exit(), do so for what is being
 * compiled at the moment. A child process has no such thread: its plans stay as they are. */

/* Why the plan does not have the engine that was chosen: it is still being compiled, or that
 * failed and how; "" where nothing is pending, as for every plan that is not prompt. The text is
 * good until the plan is destroyed. */
MICA_API const char *mica_plan_pending(const mica_plan *plan);
/* Waits until nothing is being compiled for the plan: MICA_OK, and the next run that is not
 * captured has the engine that was chosen; else the plan stays with the other one, and this is why.
 */
MICA_API mica_status mica_plan_await(const mica_plan *plan);

/* ---- packed arguments -----------------------------------------------------------------------
 * Operands that stay the same from run to run (weights) need not be rearranged in each of them.
 * Name them in mica_options.packed, pack each once, and give runs the packed memory instead:
 *
 *     mica_options o = {.packed = UINT64_C(1) << MICA_GEMM_B};
 *     mica_gemm_plan(ctx, &d, &o, &plan);
 *     packed = aligned_alloc(256, (mica_plan_packed_bytes(plan, MICA_GEMM_B) + 255) / 256 * 256);
 *     mica_plan_pack(plan, MICA_GEMM_B, b, packed, NULL);
 *     mica_plan_run(plan, &(mica_run){.args = {[MICA_GEMM_B] = packed, ...}});
 *
 * Inputs only. The layout is the chosen engine's own and belongs to this plan: another plan, even
 * of the same problem, may have another. An engine that has none keeps the tensor as it is, then
 * packing is a copy. */

/* Bytes that the packed argument takes; 0 if it has no elements or is not one that is packed. */
MICA_API size_t mica_plan_packed_bytes(const mica_plan *plan, int arg);
/* Packs: from points to element 0 of the tensor, to to mica_plan_packed_bytes() bytes with 256-byte
 * alignment; both on the plan's device, not overlapping. Enqueued as a run is; may allocate.
 * Errors: MICA_INVALID, also if the argument is not one that the plan gets packed. */
MICA_API mica_status mica_plan_pack(const mica_plan *plan, int arg, const void *from, void *to,
                                    void *stream);

/* ---- problems and engines: what tools look at ----------------------------------------------- */

/* Names of the operations, in the order of the library; NULL past the last. */
MICA_API const char *mica_op_name(int index);

/* A field of an operation's descriptor, for tools and bindings. */
typedef struct mica_field_info {
    const char *name;
    const char *type; /* "tensor", "enum", "int", "float", "axes", "flag", "list", "text" */
    size_t offset;    /* in the descriptor struct */
    const char *const *spellings; /* of an enum or list, NULL-terminated; else NULL */
    const char *doc;
} mica_field_info;
MICA_API mica_status mica_op_field(const char *op, int index, mica_field_info *info);
/* What field `index` is if it is left zero: a value ("1", "fwd"), "none", or words ("inferred as
 * x", "needed"). A 0 that is given where this is not 0 is MICA_ZERO or MICA_ZERO_INT, "field=0" in
 * a line. Returns its length as snprintf does, 0 for no such field. */
MICA_API int mica_op_default(const char *op, int index, char *buffer, size_t size);
MICA_API size_t mica_op_desc_size(const char *op);
/* Run-time scalars: name and default. */
MICA_API mica_status mica_op_scalar(const char *op, int index, const char **name, double *value);
/* An argument for pass number `pass` (of the spellings of the first field, if that is called
 * "pass"; else 0): name, direction, whether it is optional and its alias; the tensor is left out.
 */
MICA_API mica_status mica_op_arg(const char *op, int index, int pass, mica_arg_info *info);
MICA_API const char *mica_op_doc(const char *op);
/* "cpu" or "cuda" engines of an operation in the library's order, a name that both have once; NULL
 * past the last. */
MICA_API const char *mica_op_engine(const char *op, int index);
/* Those of one backend, of GPUs if cuda, else of the CPU. */
MICA_API const char *mica_op_backend_engine(const char *op, bool cuda, int index);

/* A checked and inferred problem. In a line, run-time scalars stand as fields too ("alpha=2"):
 * they belong to the problem, not to its plan. */
MICA_API mica_status mica_problem_from_text(const char *line, mica_problem **problem);
MICA_API mica_status mica_problem_create(const char *op, const void *desc, size_t desc_size,
                                         mica_problem **problem);
MICA_API void mica_problem_destroy(mica_problem *problem);
MICA_API int mica_problem_text(const mica_problem *problem, char *buffer, size_t size);
MICA_API const char *mica_problem_op(const mica_problem *problem);
MICA_API const void *mica_problem_desc(const mica_problem *problem);
MICA_API const double *mica_problem_scalars(const mica_problem *problem);
MICA_API mica_status mica_problem_arg(const mica_problem *problem, int index, mica_arg_info *info);
/* Arithmetic and least memory traffic: each input read once, each output written once. */
MICA_API void mica_problem_cost(const mica_problem *problem, double *flops, double *bytes);
/* The least time the device could take by that cost, in milliseconds: of traffic or arithmetic,
 * whichever is longer. */
MICA_API double mica_problem_roofline(const mica_context *context, const mica_problem *problem);
MICA_API mica_status mica_plan_problem(mica_context *context, const mica_problem *problem,
                                       const mica_options *options, mica_plan **plan);

/* An engine's answer to a problem on a device, without building anything. */
typedef struct mica_verdict {
    const char *engine; /* its name */
    mica_status status; /* MICA_OK, or MICA_UNSUPPORTED */
    char reason[512];   /* the value and the rule, if it refuses */
    char config[128];   /* its best config by the model */
    double predicted_ms;
    bool deterministic;
    bool reference; /* the plain loops that define the truth */
    bool peer;      /* another library, to measure against: only taken when asked for by name */
    bool by_name;   /* its errors are larger than others': only taken when asked for by name */
} mica_verdict;
/* Whether it is only taken when asked for by name. */
static inline bool mica_verdict_needs_name(const mica_verdict *verdict)
{
    return verdict->peer || verdict->by_name;
}
/* Engines that do not belong to the context's backend are left out. MICA_INVALID past the last. */
MICA_API mica_status mica_problem_verdict(mica_context *context, const mica_problem *problem,
                                          int index, mica_verdict *verdict);
/* The same under options: an engine that they rule out refuses with their rule ("workspace of 512
 * bytes > limit of 0"). Those that are only taken by name are judged as though they were named,
 * unless another one is. Under a workspace limit engines are built, since only then their workspace
 * is known; the first config that keeps to it counts. Errors: MICA_INVALID past the last engine or
 * for options that are wrong. */
MICA_API mica_status mica_problem_verdict_with(mica_context *context, const mica_problem *problem,
                                               const mica_options *options, int index,
                                               mica_verdict *verdict);
/* Config i of an engine that accepts the problem, as text, best first by the model; "" for an
 * engine that has only one. MICA_INVALID past the last. */
MICA_API mica_status mica_problem_config(mica_context *context, const mica_problem *problem,
                                         const char *engine, int index, char *config, size_t size,
                                         double *predicted_ms);

/* Numeric contract of a plan's engine: what its rounding may do (docs/numerics in the tour).
 * phi is the factor by which the magnitude sum S of an element enters its tolerance. */
typedef struct mica_contract {
    double unit;     /* unit roundoff of the accumulator */
    bool truncates;  /* rounds toward zero instead of to nearest */
    bool flushes;    /* subnormal inputs and products count as zero */
    int64_t k_inst;  /* products summed by one instruction; 1 without matrix units */
    int64_t n_seq;   /* sequential additions of a partial sum */
    int64_t n_outer; /* additions that merge partial sums */
    double ulps;     /* units in the last place that functions such as exp may add */
    /* Not 0: results are formed together, so that each has errors of the others' terms (Winograd),
     * and one infinity or NaN may reach all of them. An element's tolerance is then phi times this
     * factor times the largest magnitude sum that inputs of this size could have anywhere. */
    double amplify;
    bool fractions; /* integers are multiplied by fractions that are rounded: no result is exact */
    /* One infinity or NaN may also reach results that do not depend on it: of other channels, or
     * beside their taps, where matrix units multiply it by zero. */
    bool spreads;
    bool hides_nan; /* relu makes 0 of NaN, as the maximum of another library does */
} mica_contract;
MICA_API mica_status mica_plan_contract(const mica_plan *plan, mica_contract *contract,
                                        double *phi);

/* Kernel i of the plan: its file, source prologue and resources; MICA_INVALID past the last. */
typedef struct mica_kernel_info {
    const char *file, *entry, *prologue;
    int registers, spill_bytes, local_bytes;
    int64_t shared_bytes, cubin_bytes;
    const char *origin; /* "memory", "disk" or "compiled" */
    double compile_ms;
} mica_kernel_info;
MICA_API mica_status mica_plan_kernel(const mica_plan *plan, int index, mica_kernel_info *info);
/* Booking i of the plan's workspace. */
MICA_API mica_status mica_plan_booking(const mica_plan *plan, int index, const char **name,
                                       size_t *offset, size_t *bytes);

/* ---- truth and data for checks ----------------------------------------------------------------
 * Evaluates the problem on the host in double precision. args: host pointers in the problem's
 * own types (inputs; outputs only where their old content enters). For each output argument i,
 * results[i] receives the values and magnitudes[i] the sums of absolute values that bound the
 * rounding of each, both packed in logical order; NULL entries are skipped. */
MICA_API mica_status mica_problem_reference(const mica_problem *problem, void *const *args,
                                            double *const *results, double *const *magnitudes);

typedef enum mica_fill {
    MICA_FILL_EXACT,     /* small integers whose every partial sum is exact */
    MICA_FILL_RANDOM,    /* zero-mean, about unit size */
    MICA_FILL_SAME_SIGN, /* positive: biases of truncation show */
    MICA_FILL_RANGE,     /* magnitudes over a wide range, cancelling pairs */
    MICA_FILL_EXTREME,   /* -120 / +120, zeros of both signs, subnormals, equal runs */
    MICA_FILL_EDGES      /* one floating-point input at the edges of its type; the seed says which,
                            and how: a NaN or an infinity, the type's ends, equal large numbers */
} mica_fill;
/* Fills an input argument with values that are representable in its type and legal for the
 * operation (labels in range, variances positive). values: packed, logical order. */
MICA_API mica_status mica_problem_fill(const mica_problem *problem, int arg, mica_fill fill,
                                       uint64_t seed, double *values);
/* Whether fill EXACT makes every result exact: then engines must agree with tolerance zero. */
MICA_API bool mica_problem_exact(const mica_problem *problem);

/* ---- log and state ---------------------------------------------------------------------------
 * Nothing is printed unless MICA_LOG asks for it or a callback is set. One line per event. */
typedef enum mica_log_level {
    MICA_LOG_ERROR,
    MICA_LOG_WARN,
    MICA_LOG_INFO,
    MICA_LOG_DEBUG
} mica_log_level;
typedef void (*mica_log_fn)(void *user, mica_log_level level, const char *line);
MICA_API void mica_log_set(mica_log_fn callback, void *user, mica_log_level level);

/* Environment variable i: name, value (NULL: unset), where it comes from, what it does. */
MICA_API mica_status mica_env_info(int index, const char **name, const char **value,
                                   const char **doc);
/* What is wrong with the value of variable i, as "MICA_LOG=loud: known are ..."; NULL: nothing, as
 * far as can be said without opening a device. Also goes to the log, once. */
MICA_API const char *mica_env_problem(int index);

/* What was looked for, found and loaded, for `mica info`: key, value; MICA_INVALID past the last.
 */
MICA_API mica_status mica_info(int index, const char **key, const char **value);

/* Health for load balancers: MICA_OK, MICA_DEVICE_LOST or MICA_FORKED_PROCESS. */
MICA_API mica_status mica_health(const mica_context *context);

/* Disk cache of compiled kernels. */
typedef struct mica_disk_cache_info {
    char path[512];   /* "" if there is none */
    char reason[160]; /* why there is none */
    int64_t entries, bytes, limit_bytes;
} mica_disk_cache_info;
MICA_API mica_status mica_disk_cache(mica_disk_cache_info *info);
/* Bound in bytes for this process, in place of MICA_CACHE_BYTES; 0 neither reads nor writes. */
MICA_API mica_status mica_disk_cache_limit(int64_t bytes);
/* Removes the least recently used entries until at most `keep_bytes` remain; 0 empties it. */
MICA_API mica_status mica_disk_cache_prune(int64_t keep_bytes);
/* Writes all entries into one file, or takes those of such a file over, so that a program can ship
 * with its kernels compiled; *entries receives how many. Entries hold for one kind of device, one
 * library and one version of NVRTC; others find nothing in them and compile. Unpacking checks every
 * digest first and stores all or nothing; but an archive is code that will run, so unpack only what
 * you trust as you would trust a program.
 * Errors: MICA_IO with what is wrong; MICA_NOT_FOUND, nothing to pack; MICA_UNSUPPORTED, more bytes
 * than the cache may hold. */
MICA_API mica_status mica_disk_cache_pack(const char *path, int64_t *entries);
MICA_API mica_status mica_disk_cache_unpack(const char *path, int64_t *entries);

#ifdef __cplusplus
}
#endif
#endif
