/* SPDX-License-Identifier: Apache-2.0
 * gemm on any NVIDIA GPU from sm_80 on: every type, any strides, no workspace, IEEE arithmetic.
 * Good for f32 and f64 where tensor cores are not faster in full precision, and for whatever the
 * engines on them refuse. Cost: 2MNK at up to 0.7 of the plain multiply-add rate of the sum's type;
 * skinny products are bound by the latency of their slices. */
#include "ops/gemm/cuda/gemm_cuda.h"

#include <stdlib.h>

const char *const gemm_cuda_knobs[] = {"tile_m", "tile_n", "tile_k", "micro_m", "micro_n", NULL};

static const struct {
    mica_config config;
    double efficiency; /* of the multiply-add rate, tiles full and K long */
} choices[] = {
    {{{128, 128, 16, 8, 8}}, 0.70},
    {{{64, 64, 16, 4, 4}}, 0.45},
    {{{16, 64, 64, 1, 4}}, 0.15}, /* few rows */
    {{{64, 16, 64, 4, 1}}, 0.15}, /* few columns */
};
enum { CHOICES = sizeof choices / sizeof *choices };

typedef struct state {
    gemm_full_args args; /* all but pointers and scalars; a plain kernel gets its first member */
    bool extra;
    mica_kernel *kernel;
    mica_grid grid;
} state;

static bool is_integer(const mica_gemm_desc *d)
{
    return mica_dtype_is_integer(d->a.dtype);
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    (void)desc;
    if (device->arch >= 80) return MICA_OK;
    return mica_refuse(why, "the device is sm_%d, kernels start at sm_80", device->arch);
}

/* Tiles more than half of which would always be empty are left out. */
int gemm_cuda_configs(int64_t rows, int64_t cols, mica_config *out)
{
    int count = 0;
    for (int i = 0; i < CHOICES; i++) {
        int64_t m = choices[i].config.knob[KNOB_TILE_M], n = choices[i].config.knob[KNOB_TILE_N];
        bool small = m == 64 && n == 64, skinny = m == 16 || n == 16;
        bool full = 2 * rows > m && 2 * cols > n, narrow = m == 16 ? rows <= 32 : cols <= 32;
        if (small || (skinny ? narrow : full)) out[count++] = choices[i].config;
    }
    return count;
}

static int configs(const void *desc, const mica_device_info *device, mica_config *out)
{
    (void)device;
    gemm_shape s;
    gemm_shape_make(desc, &s);
    int all = gemm_cuda_configs(s.m, s.n, out), count = 0;
    if (!((const mica_gemm_desc *)desc)->gate) return all;
    /* Two sums of 8 x 8 pieces have no room in registers. */
    for (int i = 0; i < all; i++)
        if (out[i].knob[KNOB_MICRO_M] < 8) out[count++] = out[i];
    return count;
}

static int64_t tiles_of(const gemm_shape *s, const mica_config *c)
{
    int64_t m = c->knob[KNOB_TILE_M], n = c->knob[KNOB_TILE_N];
    return (s->m + m - 1) / m * ((s->n + n - 1) / n) * s->batches;
}

static double efficiency_of(const mica_config *c)
{
    for (int i = 0; i < CHOICES; i++)
        if (choices[i].config.knob[KNOB_TILE_M] == c->knob[KNOB_TILE_M] &&
            choices[i].config.knob[KNOB_TILE_N] == c->knob[KNOB_TILE_N])
            return choices[i].efficiency;
    return choices[0].efficiency;
}

/* Tiles are dealt to the multiprocessors in rounds; a slice takes its arithmetic or, with nothing
 * else to do on the multiprocessor, the latency of its loads. A thread ends its results one after
 * the other (fitted to random sizes on an H200). */
double gemm_cuda_predict(const mica_gemm_desc *d, double tiles, double k, double bytes,
                         const mica_device_info *device, const mica_config *c)
{
    const double latency_ms = 0.8e-3, launch_ms = 3e-3, result_ms = 0.05e-3;
    const int32_t *knob = c->knob;
    double units = device->units;
    double rate = device->f32_tflops * 1e9 / units * efficiency_of(c);
    if (d->a.dtype == MICA_F64 || is_integer(d)) rate /= 2;
    double slice = 2.0 * knob[KNOB_TILE_M] * knob[KNOB_TILE_N] * knob[KNOB_TILE_K] / rate;
    double slices = (double)(int64_t)((k + knob[KNOB_TILE_K] - 1) / knob[KNOB_TILE_K]);
    double rounds = (double)(int64_t)((tiles + units - 1) / units);
    double resident = rounds < 4 ? rounds : 4;
    double hidden = latency_ms / resident;
    double compute = rounds * slices * (slice > hidden ? slice : hidden);
    compute += rounds / resident * result_ms * knob[KNOB_MICRO_M] * knob[KNOB_MICRO_N];
    double memory = bytes / (device->copy_gbps * 1e6);
    return launch_ms + (compute > memory ? compute : memory);
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *c)
{
    gemm_shape s;
    gemm_shape_make(desc, &s);
    if (s.batches == 0) return 0;
    double passes = ((const mica_gemm_desc *)desc)->gate ? 2 : 1;
    return gemm_cuda_predict(desc, passes * (double)tiles_of(&s, c), (double)s.k,
                             mica_op_bytes(&mica_op_gemm, desc), device, c);
}

/* Whether neighbouring elements lie closer along x than along y. */
static bool is_faster(long long x_stride, long long x, long long y_stride, long long y)
{
    return y == 1 || (x != 1 && llabs(x_stride) <= llabs(y_stride));
}

/* 2^16 products of 8-bit integers stay inside 31 bits. */
static mica_dtype sum_type(const mica_gemm_desc *d, int64_t k)
{
    if (d->a.dtype == MICA_F64) return MICA_F64;
    if (!is_integer(d)) return MICA_F32;
    return k <= 65536 ? MICA_S32 : MICA_S64;
}

void gemm_cuda_prologue(const mica_gemm_desc *d, const gemm_shape *s, const mica_config *c,
                        mica_text *p)
{
    mica_prologue_int(p, "TILE_M", c->knob[KNOB_TILE_M]);
    mica_prologue_int(p, "TILE_N", c->knob[KNOB_TILE_N]);
    mica_prologue_int(p, "TILE_K", c->knob[KNOB_TILE_K]);
    mica_prologue_int(p, "MICRO_M", c->knob[KNOB_MICRO_M]);
    mica_prologue_int(p, "MICRO_N", c->knob[KNOB_MICRO_N]);
    mica_prologue_int(p, "A_K_FAST", is_faster(s->a_k, s->k, s->a_m, s->m));
    mica_prologue_int(p, "B_N_FAST", is_faster(s->b_n, s->n, s->b_k, s->k));
    mica_prologue_int(p, "C_N_FAST", is_faster(s->c_n, s->n, s->c_m, s->m));
    bool blocks = gemm_has_blocks(d);
    mica_prologue_int(p, "HAS_SCALE_A", !blocks && mica_tensor_given(&d->scale_a));
    mica_prologue_int(p, "HAS_SCALE_B", !blocks && mica_tensor_given(&d->scale_b));
    mica_prologue_int(p, "BLOCKS", blocks);
    mica_dtype sum = sum_type(d, s->k);
    mica_prologue_type(p, "a_t", d->a.dtype);
    mica_prologue_type(p, "b_t", d->b.dtype);
    mica_prologue_type(p, "c_t", d->c.dtype);
    mica_prologue_type(p, "sum_t", sum);
    mica_prologue_type(p, "held_t", sum == MICA_S64 ? MICA_S32 : sum);
    mica_prologue_type(p, "out_t", sum == MICA_F32 ? MICA_F32 : MICA_F64);
    mica_epilogue e = gemm_epilogue(d);
    mica_prologue_epilogue(p, &e);
}

mica_grid gemm_cuda_grid(int64_t tiles, const mica_config *c)
{
    const int32_t *knob = c->knob;
    int threads = knob[KNOB_TILE_M] / knob[KNOB_MICRO_M] * (knob[KNOB_TILE_N] / knob[KNOB_MICRO_N]);
    return (mica_grid){.grid = {tiles < INT32_MAX ? (unsigned)tiles : INT32_MAX},
                       .block = {(unsigned)threads}};
}

static mica_status build(mica_plan *plan)
{
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    gemm_full_fill(plan->desc, &s->args);
    s->extra = gemm_has_full_epilogue(plan->desc);
    const gemm_shape *shape = &s->args.gemm.shape;
    int64_t tiles = tiles_of(shape, &plan->config);
    if (tiles == 0) return MICA_OK;
    s->grid = gemm_cuda_grid(tiles, &plan->config);
    char text[4096];
    mica_text prologue = {text, sizeof text, 0};
    gemm_cuda_prologue(plan->desc, shape, &plan->config, &prologue);
    mica_kernel_spec spec = {
        .file = "ops/gemm/cuda/gemm_cuda.cu", .entry = "gemm_cuda", .prologue = text};
    if (s->extra) {
        gemm_full_prologue(plan->desc, &prologue);
        spec.file = "ops/gemm/cuda/gemm_cuda_full.cu";
        spec.entry = "gemm_cuda_full";
    }
    return mica_plan_add_kernel(plan, &spec, &s->kernel);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const state *s = plan->state;
    gemm_full_args a = s->args;
    if (s->extra) MICA_TRY(gemm_full_begin(plan, r));
    if (!s->kernel) return MICA_OK;
    gemm_full_bind(plan, r, &a);
    return mica_kernel_launch(s->kernel, &s->grid, r->stream, s->extra ? (void *)&a : &a.gemm);
}

const mica_engine gemm_cuda = {.name = "cuda",
                               .cuda = true,
                               .knobs = gemm_cuda_knobs,
                               .accepts = accepts,
                               .configs = configs,
                               .predict = predict,
                               .build = build,
                               .run = run};
