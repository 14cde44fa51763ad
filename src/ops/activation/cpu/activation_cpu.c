/* SPDX-License-Identifier: Apache-2.0
 * Activations of blocks: a vector loop per function; relu of 16-bit floats, whose results need no
 * rounding, on the bits. */
#include "ops/activation/activation.h"
#include "ops/epilogue/cpu/activation_runs.h"
#include "cpu/cpu.h"

MICA_CLONES
static void multiply(float *v, const float *by, int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] *= by[i];
}

static void multiply_f64(double *v, const double *by, int64_t n)
{
    for (int64_t i = 0; i < n; i++) v[i] *= by[i];
}

static void block_f32(const void *desc, int variant, void *const *v, const void *numbers, int64_t n)
{
    const mica_act act = ((const mica_activation_desc *)desc)->act;
    const float *k = numbers, a = k[ACTIVATION_A], b = k[ACTIVATION_B];
    float *out = v[ACTIVATION_OUT], *out_gate = v[ACTIVATION_OUT_GATE];
    if (!(variant & ACTIVATION_BACKWARD)) {
        mica_act_values_f32(act, v[ACTIVATION_X], out, n, a, b);
    } else {
        mica_act_slopes_f32(act, v[ACTIVATION_X], out, n, a, b);
        multiply(out, v[ACTIVATION_DY], n);
    }
    if (!(variant & ACTIVATION_GATED)) return;
    multiply(out, v[ACTIVATION_GATE], n);
    if (!(variant & ACTIVATION_BACKWARD)) return;
    mica_act_values_f32(act, v[ACTIVATION_X], out_gate, n, a, b);
    multiply(out_gate, v[ACTIVATION_DY], n);
}

static void block_f64(const void *desc, int variant, void *const *v, const void *numbers, int64_t n)
{
    const mica_act act = ((const mica_activation_desc *)desc)->act;
    const double *k = numbers, a = k[ACTIVATION_A], b = k[ACTIVATION_B];
    const double *x = v[ACTIVATION_X], *gate = v[ACTIVATION_GATE], *dy = v[ACTIVATION_DY];
    double *out = v[ACTIVATION_OUT], *out_gate = v[ACTIVATION_OUT_GATE];
    if (!(variant & ACTIVATION_BACKWARD)) {
        mica_act_values_f64(act, x, out, n, a, b);
        if (gate) multiply_f64(out, gate, n);
        return;
    }
    mica_act_slopes_f64(act, x, out, n, a, b);
    if (!gate) {
        multiply_f64(out, dy, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) out[i] = dy[i] * gate[i] * out[i];
    mica_act_values_f64(act, x, out_gate, n, a, b);
    multiply_f64(out_gate, dy, n);
}

/* Negative numbers become zero; numbers, for NaN has a sign, too: up to infinity's bits. */
MICA_CLONES
static void clip_negative(const uint16_t *restrict x, uint16_t *restrict y, int64_t n,
                          uint16_t infinity)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t v = x[i];
        y[i] = v > 0x8000 && v <= (0x8000 | infinity) ? 0 : v;
    }
}

static void relu_bits(const void *desc, int variant, void *const *v, const void *numbers, int64_t n)
{
    const mica_activation_desc *d = desc;
    (void)variant, (void)numbers;
    clip_negative(v[ACTIVATION_X], v[ACTIVATION_OUT], n, d->x.dtype == MICA_BF16 ? 0x7f80 : 0x7c00);
}

static mica_pointwise_block raw(const void *desc)
{
    const mica_activation_desc *d = desc;
    bool fits = d->pass == MICA_ACTIVATION_FWD && !d->gated && d->act == MICA_ACT_RELU &&
                (d->x.dtype == MICA_BF16 || d->x.dtype == MICA_F16);
    return fits ? relu_bits : NULL;
}

const mica_pointwise mica_activation_pointwise = {.kernel = "ops/activation/activation.cu",
                                                  .entry = "activation",
                                                  .operands = mica_activation_operands,
                                                  .numbers = mica_activation_numbers,
                                                  .number_count = ACTIVATION_NUMBERS,
                                                  .prologue = mica_activation_prologue,
                                                  .f32 = block_f32,
                                                  .f64 = block_f64,
                                                  .raw = raw,
                                                  .truth = mica_activation_truth};
