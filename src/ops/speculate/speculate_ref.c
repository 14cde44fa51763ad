/* SPDX-License-Identifier: Apache-2.0
 * Speculative decoding: the truth. */
#include "ops/speculate/speculate.h"
#include "ops/speculate/speculate_body.h"

#include <math.h>

typedef struct truth {
    const mica_view *views;
    mica_speculate_args a;
} truth;

static float probability(const truth *t, int arg, int64_t b, int64_t i, int64_t c)
{
    const mica_tensor *v = &t->views[arg].t;
    const int64_t at = b * v->strides[0] + i * v->strides[1] + c * v->strides[2];
    return speculate_probability((float)mica_get(&t->views[arg], at));
}

/* Of the draft model, at position i. */
static float draft(const truth *t, int64_t b, int64_t i, int64_t c)
{
    if (t->views[MICA_SPECULATE_Q].data) return probability(t, MICA_SPECULATE_Q, b, i, c);
    return c == speculate_integer(t->a.drafts, b, i) ? 1 : 0;
}

static bool accepts(const truth *t, int64_t b, int64_t i)
{
    const int64_t token = speculate_integer(t->a.drafts, b, i);
    if (token < 0 || token >= t->a.columns) return false;
    const float p = probability(t, MICA_SPECULATE_P, b, i, token);
    return speculate_accepts(&t->a, b, i, p, draft(t, b, i, token));
}

/* -1 if all weights are 0. */
static int64_t draw(const truth *t, int64_t b, int64_t i, bool rejected)
{
    uint64_t sum = 0, reached = 0, target = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t c = 0; c < t->a.columns; c++) {
            const float q = rejected ? draft(t, b, i, c) : 0;
            const uint64_t w = speculate_weight(probability(t, MICA_SPECULATE_P, b, i, c), q);
            *(pass ? &reached : &sum) += w;
            if (pass && reached >= target) return c;
        }
        if (sum == 0) break;
        target = speculate_target(&t->a, b, i, sum);
    }
    return rejected ? draw(t, b, i, false) : -1;
}

void mica_speculate_reference(const void *desc, const mica_view *views, const double *scalars)
{
    truth t = {.views = views};
    mica_speculate_desc viewed = *(const mica_speculate_desc *)desc;
    void *args[MICA_SPECULATE_OFFSETS + 1];
    for (int i = 0; i <= MICA_SPECULATE_OFFSETS; i++) {
        args[i] = views[i].data;
        mica_tensor *tensor =
            (mica_tensor *)(void *)((char *)&viewed + mica_op_speculate.args[i].tensor);
        if (views[i].data) *tensor = views[i].t;
    }
    mica_speculate_args_make(&viewed, &t.a);
    mica_speculate_args_point(desc, args, scalars, &t.a);
    const mica_view *tokens = &views[MICA_SPECULATE_TOKENS];
    for (int64_t b = 0; b < t.a.batch; b++) {
        const int64_t length = speculate_length(&t.a, b);
        int64_t n = 0;
        while (n < length && accepts(&t, b, n)) n++;
        for (int64_t i = 0; i <= t.a.drafts_most; i++) {
            int64_t token = -1;
            if (i < n)
                token = speculate_integer(t.a.drafts, b, i);
            else if (i == n && n == length && t.a.bonus.at)
                token = speculate_integer(t.a.bonus, b, 0);
            else if (i == n)
                token = draw(&t, b, i, n < length);
            mica_put(tokens, b * tokens->t.strides[0] + i * tokens->t.strides[1], (double)token,
                     fabs((double)token));
        }
        mica_put(&views[MICA_SPECULATE_ACCEPTED], b * views[MICA_SPECULATE_ACCEPTED].t.strides[0],
                 (double)n, (double)n);
    }
}
