/* SPDX-License-Identifier: Apache-2.0
 * Epilogues of conv and gemm. */
#include "ops/epilogue/epilogue.h"

#include <math.h>
#include <string.h>

const char *const mica_step_spellings[] = {[MICA_STEP_END] = "",
                                           [MICA_STEP_BIAS] = "bias",
                                           [MICA_STEP_SCALE] = "scale",
                                           [MICA_STEP_SHIFT] = "shift",
                                           [MICA_STEP_RESIDUAL] = "residual",
#define MICA_X(name, text, formula) [MICA_STEP_ACT + MICA_ACT_##name] = text,
                                           MICA_ACTIVATIONS(MICA_X)
#undef MICA_X
                                               [MICA_STEP_ACT + MICA_ACT_COUNT] = NULL};

bool mica_epilogue_has(const int32_t *steps, mica_step step)
{
    for (int i = 0; i < MICA_MAX_STEPS && steps[i]; i++)
        if (steps[i] == (int32_t)step) return true;
    return false;
}

mica_tensor mica_epilogue_vector(const mica_tensor *out, int64_t channels)
{
    return mica_tensor_packed(out->dtype == MICA_F64 ? MICA_F64 : MICA_F32, 1, &channels);
}

void mica_epilogue_infer(const mica_epilogue *e, const mica_tensor *out)
{
    if (mica_epilogue_has(e->steps, MICA_STEP_RESIDUAL) && !mica_tensor_given(e->residual))
        *e->residual = *out;
    for (int i = 0; i < MICA_MAX_STEPS && e->steps[i]; i++)
        if (e->steps[i] >= MICA_STEP_ACT)
            mica_act_defaults((mica_act)(e->steps[i] - MICA_STEP_ACT), e->act_a, e->act_b);
}

mica_status mica_epilogue_check(const mica_epilogue *e, mica_why *why)
{
    int seen[MICA_STEP_ACT + 1] = {0};
    for (int i = 0; i < MICA_MAX_STEPS && e->steps[i]; i++) {
        int kind = e->steps[i] < MICA_STEP_ACT ? e->steps[i] : MICA_STEP_ACT;
        if (seen[kind]++)
            return mica_invalid(why, "epilogue: step %d is a second %s; one of each is allowed",
                                i + 1,
                                kind == MICA_STEP_ACT ? "activation" : mica_step_spellings[kind]);
    }
    return MICA_OK;
}

bool mica_epilogue_is_packed(const mica_epilogue *e)
{
    const mica_tensor *vectors[] = {e->bias, e->scale, e->shift};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        if (mica_tensor_given(vectors[i]) && vectors[i]->strides[0] != 1) return false;
    return true;
}

int mica_epilogue_count(const int32_t *steps)
{
    int count = 0;
    while (count < MICA_MAX_STEPS && steps[count]) count++;
    return count;
}

int mica_epilogue_act(const int32_t *steps)
{
    int i = 0, count = mica_epilogue_count(steps);
    while (i < count && steps[i] < MICA_STEP_ACT) i++;
    return i;
}

mica_status mica_epilogue_check_aux(const int32_t *steps, const mica_tensor *aux, mica_dtype input,
                                    mica_why *why)
{
    bool f64 = input == MICA_F64;
    if (!mica_tensor_given(aux)) return MICA_OK;
    if (mica_epilogue_act(steps) == mica_epilogue_count(steps))
        return mica_invalid(why, "aux holds what goes into an activation, epilogue has none");
    bool fits = aux->dtype == MICA_F32 || aux->dtype == MICA_F16 || aux->dtype == MICA_BF16;
    if (f64) fits = aux->dtype == MICA_F64 || aux->dtype == MICA_F32;
    if (fits) return MICA_OK;
    return mica_invalid(why, "aux is %s; with %s inputs it is %s", mica_dtype_name(aux->dtype),
                        mica_dtype_name(input), f64 ? "f64 or f32" : "f32, f16 or bf16");
}

void mica_epilogue_apply_some(const mica_epilogue *e, int from, int to, const mica_view *bias,
                              const mica_view *scale, const mica_view *shift,
                              const mica_view *residual, int64_t channel, int64_t residual_offset,
                              double *value, double *magnitude)
{
    double v = *value, m = *magnitude, s;
    for (int i = from; i < to && e->steps[i]; i++) {
        switch (e->steps[i]) {
        case MICA_STEP_BIAS:
        case MICA_STEP_SHIFT: {
            const mica_view *add = e->steps[i] == MICA_STEP_BIAS ? bias : shift;
            s = mica_get(add, channel * add->t.strides[0]);
            v += s, m += fabs(s);
            break;
        }
        case MICA_STEP_SCALE:
            s = mica_get(scale, channel * scale->t.strides[0]);
            v *= s, m *= fabs(s);
            break;
        case MICA_STEP_RESIDUAL:
            s = mica_get(residual, residual_offset);
            v += s, m += fabs(s);
            break;
        default: {
            mica_act act = (mica_act)(e->steps[i] - MICA_STEP_ACT);
            /* Rounding before the activation passes through its slope. Slopes exceed 1 a little,
             * squared_relu's without bound. */
            double slope = fabs(mica_act_slope(act, v, *e->act_a, *e->act_b));
            v = mica_act_value(act, v, *e->act_a, *e->act_b);
            m = fmax(m * fmax(slope, 1.2), fabs(v));
        }
        }
    }
    *value = v;
    *magnitude = m;
}

void mica_epilogue_apply(const mica_epilogue *e, const mica_view *bias, const mica_view *scale,
                         const mica_view *shift, const mica_view *residual, int64_t channel,
                         int64_t residual_offset, double *value, double *magnitude)
{
    mica_epilogue_apply_some(e, 0, MICA_MAX_STEPS, bias, scale, shift, residual, channel,
                             residual_offset, value, magnitude);
}

void mica_epilogue_bind(mica_epilogue_args *to, void *const *args, int bias)
{
    to->bias = args[bias];
    to->scale = args[bias + 1];
    to->shift = args[bias + 2];
    to->residual = args[bias + 3];
}

static void add_type(mica_text *prologue, const char *name, const mica_tensor *t)
{
    mica_prologue_type(prologue, name, mica_tensor_given(t) ? t->dtype : MICA_F32);
}

void mica_prologue_epilogue(mica_text *prologue, const mica_epilogue *e)
{
    const int act = mica_epilogue_act(e->steps), steps = mica_epilogue_count(e->steps);
    mica_prologue_activation(prologue, act < steps ? (mica_act)(e->steps[act] - MICA_STEP_ACT)
                                                   : MICA_ACT_IDENTITY);
    mica_text_add(prologue,
                  "enum { STEP_BIAS = %d, STEP_SCALE = %d, STEP_SHIFT = %d, STEP_RESIDUAL = %d, "
                  "STEP_ACT = %d };\n",
                  MICA_STEP_BIAS, MICA_STEP_SCALE, MICA_STEP_SHIFT, MICA_STEP_RESIDUAL,
                  MICA_STEP_ACT);
    mica_prologue_int(prologue, "EPILOGUE_STEPS", steps);
    mica_text_add(prologue, "constexpr int EPILOGUE[] = {");
    for (int i = 0; i < steps; i++) mica_text_add(prologue, "%d, ", e->steps[i]);
    mica_text_add(prologue, "0};\n");
    add_type(prologue, "bias_t", e->bias);
    add_type(prologue, "scale_t", e->scale);
    add_type(prologue, "shift_t", e->shift);
    add_type(prologue, "residual_t", e->residual);
}
