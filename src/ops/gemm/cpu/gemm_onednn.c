/* SPDX-License-Identifier: Apache-2.0
 * gemm by oneDNN: the fast engine of the CPU for f32 and 8-bit integers in layouts with a unit
 * stride. (bf16 is for the engine "bf16", which takes any strides.) Two ways:
 *
 *     via=0   f32: the matmul primitive, which packs b and applies the epilogue as it stores. 2MNK
 *             at the full rate, for half a microsecond; packing costs as much as reading b three
 *             times, which shows with few rows. The workspace is oneDNN's own.
 *     via=1   oneDNN's BLAS: sgemm into c, integer gemm into c if that is s32, else into workspace;
 *             then scales and epilogue in a second pass, in double. No packing for few rows.
 *
 * A packed a or b lies in the layout of the matmul primitive, which then packs nothing in runs; the
 * workspace has room for a plain copy, for runs that are not the primitive's.
 *
 * The matmul primitive has no alpha and beta at run time, and a fixed number of threads: its plans
 * then call sgemm where the layout allows it. What is left (a residual that is c's memory, which
 * the primitive takes with AVX-512 only, beta with an s32 c, odd strides) runs through the loops of
 * engine "cpu", several times slower. */
#include "ops/gemm/cpu/gemm_cpu.h"
#include "ops/convert/cpu/convert.h"
#include "ops/onednn/onednn.h"
#include "cpu/cpu.h"

enum { VIA_MATMUL, VIA_BLAS };
static const char *const knobs[] = {"via", NULL};

/* How a product maps to a call of BLAS. Results are stored by rows; if c lies by columns, its
 * transpose is computed. */
typedef struct blas {
    bool fits;
    bool apart; /* the sums go to the workspace */
    bool swap, a_t, b_t;
    int64_t a_ld, b_ld, c_ld;
} blas;

typedef struct state {
    gemm_loops loops; /* for what oneDNN cannot do at run time */
    mica_onednn *matmul;
    size_t workspace;
    int step_args[MICA_MAX_STEPS]; /* of the primitive's steps, as MICA_GEMM_ numbers */
    blas blas;
} state;

/* ---- BLAS ---- */

/* A matrix of `slow` lines of `fast` elements: whether it has a leading dimension, and which. */
static bool leading(long long fast_stride, long long fast, long long slow_stride, long long slow,
                    int64_t *ld)
{
    if (fast != 1 && fast_stride != 1) return false;
    if (slow != 1 && slow_stride < fast) return false;
    *ld = slow == 1 ? fast : slow_stride;
    return true;
}

static bool place_result(const mica_gemm_desc *d, const gemm_shape *s, blas *g)
{
    bool integers = mica_dtype_is_integer(d->a.dtype);
    g->apart = integers && d->c.dtype != MICA_S32;
    g->c_ld = s->n;
    if (g->apart) return true;
    if (leading(s->c_n, s->n, s->c_m, s->m, &g->c_ld)) return true;
    g->swap = true;
    return d->a.dtype != MICA_U8 && leading(s->c_m, s->m, s->c_n, s->n, &g->c_ld);
}

static mica_status blas_layout(const mica_gemm_desc *d, const gemm_shape *s, blas *g, mica_why *why)
{
    *g = (blas){0};
    bool f32 = d->a.dtype == MICA_F32 && d->b.dtype == MICA_F32 && d->c.dtype == MICA_F32;
    bool integers = mica_dtype_is_integer(d->a.dtype);
    if (!f32 && !integers)
        return mica_refuse(why, "a is %s, b %s, c %s; taken are f32 and 8-bit integers",
                           mica_dtype_name(d->a.dtype), mica_dtype_name(d->b.dtype),
                           mica_dtype_name(d->c.dtype));
    if (s->k == 0 || s->batches == 0) return mica_refuse(why, "the product is empty");
    if (integers && !mica_onednn_exact_int8())
        return mica_refuse(why, "without VNNI oneDNN's 8-bit products saturate at 16 bits");
    if (integers && s->k > 65536)
        return mica_refuse(why, "K is %lld, sums of 65536 products fit 32 bits", s->k);
    if (!place_result(d, s, g)) return mica_refuse(why, "no dimension of c has stride 1");
    g->a_t = !leading(s->a_k, s->k, s->a_m, s->m, &g->a_ld);
    if (g->a_t && !leading(s->a_m, s->m, s->a_k, s->k, &g->a_ld))
        return mica_refuse(why, "the strides of a, %lld and %lld, have no leading dimension",
                           s->a_m, s->a_k);
    g->b_t = !leading(s->b_n, s->n, s->b_k, s->k, &g->b_ld);
    if (g->b_t && !leading(s->b_k, s->k, s->b_n, s->n, &g->b_ld))
        return mica_refuse(why, "the strides of b, %lld and %lld, have no leading dimension",
                           s->b_k, s->b_n);
    g->fits = true;
    return MICA_OK;
}

typedef struct call {
    const state *s;
    const mica_gemm_desc *d;
    const mica_run *r;
    double alpha, beta;
    void *sums; /* c, or in the workspace */
} call;

static mica_status blas_item(const call *x, int64_t item)
{
    const gemm_shape *s = &x->s->loops.shape;
    const blas *g = &x->s->blas;
    gemm_offsets at = gemm_shape_offsets(s, item);
    int64_t in = mica_dtype_bits(x->d->a.dtype) / 8;
    const char *a = (const char *)x->r->args[MICA_GEMM_A] + at.a * in;
    const char *b = (const char *)x->r->args[MICA_GEMM_B] + at.b * in;
    bool f32 = x->d->a.dtype == MICA_F32;
    mica_onednn_gemm_args args = {.type = x->d->a.dtype,
                                  .a_t = g->a_t,
                                  .b_t = g->b_t,
                                  .m = s->m,
                                  .n = s->n,
                                  .k = s->k,
                                  .a_ld = g->a_ld,
                                  .b_ld = g->b_ld,
                                  .c_ld = g->c_ld,
                                  .alpha = f32 ? (float)x->alpha : 1,
                                  .beta = f32 ? (float)x->beta : 0,
                                  .a = a,
                                  .b = b,
                                  .c =
                                      (char *)x->sums + 4 * (g->apart ? item * s->m * s->n : at.c)};
    if (g->swap) {
        args.a_t = !g->b_t, args.b_t = !g->a_t;
        args.m = s->n, args.n = s->m;
        args.a_ld = g->b_ld, args.b_ld = g->a_ld;
        args.a = b, args.b = a;
    }
    return mica_onednn_gemm(&args);
}

/* One piece of a row of sums through the rest of the formula. */
static void finish_piece(const call *x, const gemm_cpu_epilogue *f, int64_t piece,
                         int64_t pieces_per_row)
{
    const gemm_shape *s = f->shape;
    double v[GEMM_EPILOGUE_RUN];
    int64_t line = piece / pieces_per_row, col = piece % pieces_per_row * GEMM_EPILOGUE_RUN;
    int64_t item = line / s->m, row = line % s->m;
    gemm_offsets at = gemm_shape_offsets(s, item);
    bool apart = x->s->blas.apart;
    int64_t from = apart ? line * s->n + col : at.c + row * s->c_m + col * s->c_n;
    int64_t step = apart ? 1 : s->c_n;
    int count = s->n - col < GEMM_EPILOGUE_RUN ? (int)(s->n - col) : GEMM_EPILOGUE_RUN;
    if (x->d->a.dtype == MICA_F32)
        for (int j = 0; j < count; j++) v[j] = (double)((const float *)x->sums)[from + j * step];
    else
        for (int j = 0; j < count; j++) v[j] = ((const int32_t *)x->sums)[from + j * step];
    gemm_cpu_epilogue_row(f, &at, row, col, count, v, NULL);
}

static void finish_all(const call *x)
{
    const gemm_shape *s = &x->s->loops.shape;
    bool f32 = x->d->a.dtype == MICA_F32; /* sgemm took alpha and beta */
    gemm_cpu_epilogue f = {.desc = x->d,
                           .shape = s,
                           .args = x->r->args,
                           .alpha = f32 ? 1 : x->alpha,
                           .beta = f32 ? 0 : x->beta};
    int64_t per_row = (s->n + GEMM_EPILOGUE_RUN - 1) / GEMM_EPILOGUE_RUN;
    int64_t pieces = s->batches * s->m * per_row;
    int threads = mica_cpu_threads_for(8.0 * (double)pieces * GEMM_EPILOGUE_RUN);
    if (threads == 1) {
        for (int64_t i = 0; i < pieces; i++) finish_piece(x, &f, i, per_row);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < pieces; i++) finish_piece(x, &f, i, per_row);
}

/* Many small items go one to a thread, large ones one after the other on all threads. */
static mica_status blas_items(const call *x)
{
    const gemm_shape *s = &x->s->loops.shape;
    bool small = 2.0 * (double)s->m * (double)s->n * (double)s->k < 1e7;
    int threads = small && s->batches > 1 ? x->s->loops.threads : 1, failed = 0;
    if (threads > mica_cpu_threads()) threads = mica_cpu_threads();
    if (threads == 1) {
        for (int64_t i = 0; i < s->batches; i++) MICA_TRY(blas_item(x, i));
        return MICA_OK;
    }
#pragma omp parallel for num_threads(threads) schedule(static) reduction(| : failed)
    for (int64_t i = 0; i < s->batches; i++) failed |= blas_item(x, i) != MICA_OK;
    return failed ? mica_fail(MICA_INTERNAL, "oneDNN's gemm failed") : MICA_OK;
}

static mica_status run_blas(const call *x)
{
    const mica_gemm_desc *d = x->d;
    MICA_TRY(blas_items(x));
    bool integers = d->a.dtype != MICA_F32;
    bool scaled = mica_tensor_given(&d->scale_a) || mica_tensor_given(&d->scale_b);
    bool rest = x->s->blas.apart || d->epilogue[0] || (integers && (scaled || x->alpha != 1));
    if (rest) finish_all(x);
    return MICA_OK;
}

/* ---- matmul ---- */

static const int operands[] = {[MICA_ONEDNN_SRC] = MICA_GEMM_A, [MICA_ONEDNN_WEI] = MICA_GEMM_B};

/* A tensor over the merged batch; a broadcast dimension has size 1. */
static mica_tensor batched(mica_dtype dtype, const gemm_shape *s, const long long *batch,
                           int64_t rows, int64_t row_stride, int64_t cols, int64_t col_stride)
{
    mica_tensor t = {.dtype = dtype, .rank = s->batch_rank + 2};
    for (int i = 0; i < s->batch_rank; i++) {
        t.dims[i] = batch && batch[i] ? s->batch[i] : 1;
        t.strides[i] = batch ? batch[i] : 0;
    }
    t.dims[t.rank - 2] = rows, t.strides[t.rank - 2] = row_stride;
    t.dims[t.rank - 1] = cols, t.strides[t.rank - 1] = col_stride;
    /* The stride of a single element means nothing, but must be positive. */
    for (int i = t.rank - 1; i >= 0; i--)
        if (t.dims[i] == 1) t.strides[i] = i == t.rank - 1 ? 1 : t.strides[i + 1] * t.dims[i + 1];
    return t;
}

static mica_tensor along_n(const mica_tensor *v, const gemm_shape *s)
{
    return batched(v->dtype, s, NULL, 1, 0, s->n, v->strides[0]);
}

static void add_tensor(mica_onednn_spec *spec, state *st, mica_onednn_step_kind kind, int arg,
                       mica_tensor t)
{
    st->step_args[spec->step_count] = arg;
    spec->steps[spec->step_count++] = (mica_onednn_step){.kind = kind, .t = t};
}

static mica_status add_step(const mica_gemm_desc *d, int step, mica_onednn_spec *spec, state *st,
                            mica_why *why)
{
    const gemm_shape *s = &st->loops.shape;
    mica_act act = (mica_act)(step - MICA_STEP_ACT);
    switch (step) {
    case MICA_STEP_BIAS:
        add_tensor(spec, st, MICA_ONEDNN_ADD, MICA_GEMM_BIAS, along_n(&d->bias, s));
        return MICA_OK;
    case MICA_STEP_SCALE:
        add_tensor(spec, st, MICA_ONEDNN_MUL, MICA_GEMM_SCALE, along_n(&d->scale, s));
        return MICA_OK;
    case MICA_STEP_SHIFT:
        add_tensor(spec, st, MICA_ONEDNN_ADD, MICA_GEMM_SHIFT, along_n(&d->shift, s));
        return MICA_OK;
    case MICA_STEP_RESIDUAL:
        add_tensor(spec, st, MICA_ONEDNN_ADD, MICA_GEMM_RESIDUAL,
                   batched(d->residual.dtype, s, s->r_batch, s->m, s->r_m, s->n, s->r_n));
        return MICA_OK;
    default:
        if (act == MICA_ACT_IDENTITY) return MICA_OK;
        if (!mica_onednn_has_act(act))
            return mica_refuse(why,
                               "activation %s: oneDNN approximates it, or gives a number for NaN",
                               mica_act_spellings[act]);
        spec->steps[spec->step_count++] =
            (mica_onednn_step){.kind = MICA_ONEDNN_ACT, .act = act, .a = (float)d->act_a};
        return MICA_OK;
    }
}

static mica_status make_matmul(const mica_gemm_desc *d, uint64_t packed, state *st, mica_why *why)
{
    const gemm_shape *s = &st->loops.shape;
    if (s->k == 0 || s->batches == 0) return mica_refuse(why, "the product is empty");
    if (d->a.dtype != MICA_F32 || d->b.dtype != MICA_F32 || d->c.dtype != MICA_F32)
        return mica_refuse(why, "a is %s, b %s, c %s; oneDNN's matmul is used for f32",
                           mica_dtype_name(d->a.dtype), mica_dtype_name(d->b.dtype),
                           mica_dtype_name(d->c.dtype));
    mica_onednn_spec spec = {.kind = MICA_ONEDNN_MATMUL};
    spec.tensor[MICA_ONEDNN_SRC] = batched(MICA_F32, s, s->a_batch, s->m, s->a_m, s->k, s->a_k);
    spec.tensor[MICA_ONEDNN_WEI] = batched(MICA_F32, s, s->b_batch, s->k, s->b_k, s->n, s->b_n);
    spec.tensor[MICA_ONEDNN_DST] = batched(MICA_F32, s, s->c_batch, s->m, s->c_m, s->n, s->c_n);
    for (int i = 0; i < 2; i++) spec.any[i] = spec.packed[i] = packed >> operands[i] & 1;
    const int32_t *step = d->epilogue;
    /* A leading bias is cheaper as the primitive's own. */
    if (*step == MICA_STEP_BIAS && d->bias.dtype == MICA_F32 &&
        (s->n == 1 || d->bias.strides[0] == 1)) {
        spec.bias = along_n(&d->bias, s);
        step++;
    }
    for (; step < d->epilogue + MICA_MAX_STEPS && *step; step++)
        MICA_TRY(add_step(d, *step, &spec, st, why));
    return mica_onednn_create(&spec, &st->matmul, why);
}

static mica_onednn_args matmul_args(const state *s, const mica_run *r)
{
    mica_onednn_args args = {
        .tensor = {r->args[MICA_GEMM_A], r->args[MICA_GEMM_B], r->args[MICA_GEMM_C]},
        .bias = r->args[MICA_GEMM_BIAS]};
    for (int i = 0; i < MICA_MAX_STEPS; i++) args.steps[i] = r->args[s->step_args[i]];
    return args;
}

static mica_status run_matmul(const state *s, const mica_run *r)
{
    mica_onednn_args args = matmul_args(s, r);
    return mica_onednn_run(s->matmul, &args, mica_at(r, s->workspace));
}

/* ---- the engine ---- */

static mica_status via_blas(const mica_gemm_desc *d, mica_why *why)
{
    gemm_shape shape;
    blas g;
    gemm_shape_make(d, &shape);
    return blas_layout(d, &shape, &g, why);
}

/* Whether the primitive exists is oneDNN's to say, so it is made, and dropped. */
static mica_status via_matmul(const mica_gemm_desc *d, mica_why *why)
{
    state trial = {0};
    gemm_shape_make(d, &trial.loops.shape);
    mica_status status = make_matmul(d, 0, &trial, why);
    mica_onednn_destroy(trial.matmul);
    return status;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)device;
    mica_why ignored;
    MICA_TRY(gemm_refuse_full_epilogue(desc, why));
    if (via_blas(desc, why) == MICA_OK) return MICA_OK;
    return via_matmul(desc, &ignored);
}

static int configs(const void *desc, const mica_device_info *device, mica_config *list)
{
    (void)device;
    mica_why ignored;
    int count = 0;
    if (via_matmul(desc, &ignored) == MICA_OK) list[count++] = (mica_config){{VIA_MATMUL}};
    if (via_blas(desc, &ignored) == MICA_OK) list[count++] = (mica_config){{VIA_BLAS}};
    return count;
}

static double predict_packed(const void *desc, const mica_device_info *device,
                             const mica_config *config, uint64_t packed)
{
    const double call_ms = 5e-4, item_ms = 3e-4;
    const mica_gemm_desc *d = desc;
    gemm_shape s;
    gemm_shape_make(d, &s);
    bool matmul = config->knob[0] == VIA_MATMUL, integers = d->a.dtype != MICA_F32;
    double compute = gemm_flops(&s) / ((matmul ? 0.57 : 0.52) * device->f32_tflops * 1e9);
    if (integers) compute /= 3;
    double bytes = mica_op_bytes(&mica_op_gemm, d), extra_bytes = 0, calls = call_ms;
    if (matmul) {
        bool plain = !(packed >> MICA_GEMM_B & 1);
        if (plain) extra_bytes = 8.0 * (double)s.k * (double)s.n;
        if (plain && (s.m < 16 || s.n < 16))
            extra_bytes += 2 * bytes; /* its kernels are not made for it */
    } else {
        calls += item_ms * (double)(s.batches - 1);
        if (integers || d->epilogue[0]) /* the second pass: conversions more than traffic */
            extra_bytes = 32.0 * (double)s.m * (double)s.n * (double)s.batches;
    }
    double memory = bytes / (device->copy_gbps * 1e6);
    double extra = extra_bytes / (device->copy_gbps * 1e6);
    return calls + extra + (compute > memory ? compute : memory);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    return predict_packed(desc, device, config, 0);
}

static mica_status build(mica_plan *plan)
{
    const mica_gemm_desc *d = plan->desc;
    state *s;
    mica_why why = {""};
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    gemm_loops_make(d, &s->loops);
    const gemm_shape *shape = &s->loops.shape;
    mica_status fits = blas_layout(d, shape, &s->blas, &why);
    if (plan->config.knob[0] == VIA_MATMUL) {
        mica_status status = make_matmul(d, plan->packed, s, &why);
        if (status == MICA_UNSUPPORTED) return mica_fail(status, "%s", why.text);
        MICA_TRY(status);
        mica_plan_holds(plan, mica_onednn_bytes(s->matmul));
        return mica_book(plan, "onednn", mica_onednn_workspace(s->matmul), &s->workspace);
    }
    if (fits != MICA_OK) return mica_fail(fits, "%s", why.text);
    if (!s->blas.apart) return MICA_OK;
    return mica_book(plan, "sums", 4 * (size_t)(shape->batches * shape->m * shape->n),
                     &s->workspace);
}

static bool reads_c(const mica_gemm_desc *d, const mica_run *r)
{
    return mica_tensor_given(&d->residual) && r->args[MICA_GEMM_RESIDUAL] == r->args[MICA_GEMM_C];
}

/* What the primitive cannot do, on plain operands. */
static mica_status run_rest(const mica_plan *plan, const mica_run *r, double alpha, double beta)
{
    const state *s = plan->state;
    call x = {.s = s, .d = plan->desc, .r = r, .alpha = alpha, .beta = beta};
    x.sums = s->blas.apart ? mica_at(r, s->workspace) : r->args[MICA_GEMM_C];
    bool c_is_read = reads_c(x.d, r);
    bool c_is_kept = x.d->a.dtype != MICA_F32 && x.beta != 0;
    bool blas = s->blas.fits && mica_onednn_usable();
    if (blas && (s->blas.apart || (!c_is_read && !c_is_kept))) return run_blas(&x);
    gemm_cpu_epilogue finish = {
        .desc = x.d, .shape = &s->loops.shape, .args = r->args, .alpha = x.alpha, .beta = x.beta};
    gemm_loops_run(&s->loops, &finish);
    return MICA_OK;
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    double alpha = mica_run_scalar(plan, r, MICA_GEMM_ALPHA);
    double beta = mica_run_scalar(plan, r, MICA_GEMM_BETA);
    if (!s->matmul) return run_rest(plan, r, alpha, beta);
    bool late = mica_onednn_adds_late() && reads_c(plan->desc, r);
    if (alpha == 1 && beta == 0 && !late && mica_onednn_ready(s->matmul)) return run_matmul(s, r);
    mica_onednn_args args = matmul_args(s, r);
    mica_run plain = *r;
    MICA_TRY(mica_onednn_unpack(s->matmul, &args, mica_at(r, s->workspace)));
    for (int i = 0; i < 2; i++) plain.args[operands[i]] = args.tensor[i];
    return run_rest(plan, &plain, alpha, beta);
}

/* ---- packed arguments ---- */

static int tensor_of(int arg)
{
    return arg == operands[MICA_ONEDNN_SRC]   ? MICA_ONEDNN_SRC
           : arg == operands[MICA_ONEDNN_WEI] ? MICA_ONEDNN_WEI
                                              : -1;
}

static size_t packed_bytes(const mica_plan *plan, int arg)
{
    const state *s = plan->state;
    int i = tensor_of(arg);
    return s->matmul && i >= 0 ? mica_onednn_packed_bytes(s->matmul, i) : 0;
}

static mica_status pack(const mica_plan *plan, int arg, const void *from, void *to, void *stream)
{
    (void)stream;
    const state *s = plan->state;
    return mica_onednn_pack(s->matmul, tensor_of(arg), from, to);
}

static const mica_packing packing = {packed_bytes, pack, predict_packed};

static void destroy(mica_plan *plan)
{
    state *s = plan->state;
    if (s) mica_onednn_destroy(s->matmul);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    const mica_gemm_desc *d = desc;
    c->hides_nan = mica_onednn_hides_nan(d->epilogue, d->act_a);
}

const mica_engine gemm_onednn = {.name = "onednn",
                                 .knobs = knobs,
                                 .packing = &packing,
                                 .available = mica_onednn_load,
                                 .accepts = accepts,
                                 .configs = configs,
                                 .contract = contract,
                                 .predict = predict,
                                 .build = build,
                                 .run = run,
                                 .destroy = destroy};
