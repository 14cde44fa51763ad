/* SPDX-License-Identifier: Apache-2.0
 * Losses, the truth: the table's expressions in double, element by element, sums in long double.
 * Errors are counted in units of roundoff of f32, or of f64 where that is computed in. What goes
 * into an expression with an error comes out with what its result moves by when the input does. */
#include "ops/loss/loss.h"
#include "ops/pointwise/expression.h"
#include "ops/pointwise/pointwise.h"
#include "cpu/cpu.h"
#include "cpu/scratch.h"

#include <math.h>
#include <string.h>

/* Operands of programs: the inputs, the gradients of results, results. */
enum { INPUTS = 6, GRADIENTS = INPUTS, RESULTS = 9, OPERANDS = MICA_POINTWISE_OPERANDS };
_Static_assert(GRADIENTS + LOSS_SUMS == RESULTS && RESULTS + LOSS_SUMS <= OPERANDS, "places");

typedef struct truth {
    const mica_loss_desc *d;
    const mica_view *args;
    mica_loss_texts text;
    double unit, growth;          /* of sums of a row */
    mica_tensor in[LOSS_DY + 1];  /* with x's dimensions; the last one is dy */
    mica_tensor rows, row_target; /* of rows, of which dy may be one */
    mica_tensor row_dy;
    mica_expr_program *value, *sums, *of_value, *of_sums, *own[3];
} truth;

typedef struct numbers {
    double v[OPERANDS], error[OPERANDS];
} numbers;

/* wanted: gradients with respect to these inputs in place of values. */
static mica_expr_program *compile(const truth *t, const char *text, unsigned wanted)
{
    mica_expr_program *p = mica_scratch_zeroed(sizeof *p);
    mica_why why;
    for (int k = 0; k < MICA_EXPR_INPUTS; k++)
        p->expr.inputs[k] = k < INPUTS || k >= MICA_EXPR_X ? MICA_F64 : MICA_NONE;
    p->f64 = t->unit < 0x1p-30;
    if (mica_expr_parse(&p->expr, text, &why) != MICA_OK) return p;
    if (wanted && mica_expr_derive(&p->expr, wanted, &why) != MICA_OK) return p;
    for (int k = 0; k < MICA_EXPR_INPUTS; k++)
        p->operand[k] = k < INPUTS ? k
                        : k >= MICA_EXPR_X && k < MICA_EXPR_X + LOSS_SUMS
                            ? k - MICA_EXPR_X + GRADIENTS
                            : -1;
    for (int k = 0; k < p->expr.result_count; k++) p->result_operand[k] = RESULTS + k;
    return p;
}

/* Results and what they are off by, their inputs' errors included. */
static void evaluate(const truth *t, const mica_expr_program *p, numbers *n)
{
    double base[OPERANDS], off[OPERANDS] = {0};
    memcpy(base, n->v, sizeof base);
    mica_expr_truth(p, NULL, base, off);
    for (int k = 0; k < RESULTS; k++) {
        if (!(n->error[k] > 0)) continue;
        double most[LOSS_SUMS] = {0};
        for (int sign = -1; sign <= 1; sign += 2) {
            double moved[OPERANDS], ignored[OPERANDS];
            memcpy(moved, n->v, sizeof moved);
            moved[k] += sign * n->error[k] * t->unit;
            mica_expr_truth(p, NULL, moved, ignored);
            for (int r = 0; r < p->expr.result_count; r++)
                if (moved[RESULTS + r] != base[RESULTS + r])
                    most[r] = fmax(most[r], fabs(moved[RESULTS + r] - base[RESULTS + r]));
        }
        for (int r = 0; r < p->expr.result_count; r++) off[RESULTS + r] += most[r] / t->unit;
    }
    for (int r = 0; r < p->expr.result_count; r++)
        n->v[RESULTS + r] = base[RESULTS + r], n->error[RESULTS + r] = off[RESULTS + r];
}

static void load(const truth *t, int64_t i, numbers *n)
{
    memset(n, 0, sizeof *n);
    for (int k = 0; k <= LOSS_DY; k++)
        if (mica_tensor_given(&t->in[k])) {
            const int arg = k == LOSS_DY ? MICA_LOSS_DY : k;
            n->v[k] = mica_get(&t->args[arg], mica_offset(&t->in[k], i));
        }
}

/* ---- elements ---- */

static void element_gradients(const truth *t, int64_t i)
{
    numbers n;
    load(t, i, &n);
    n.v[GRADIENTS] = n.v[LOSS_DY];
    int derived = 0;
    numbers own = n;
    if (t->of_value) evaluate(t, t->of_value, &n);
    for (int k = 0; k < 3; k++) {
        const mica_view *to = &t->args[MICA_LOSS_DX + k];
        if (!mica_tensor_given(mica_op_tensor(&mica_op_loss, t->d, MICA_LOSS_DX + k))) continue;
        int at = RESULTS;
        const numbers *from = &own;
        if (t->own[k])
            evaluate(t, t->own[k], &own);
        else
            from = &n, at = RESULTS + derived++;
        mica_put(to, mica_offset(&to->t, i), from->v[at], from->error[at]);
    }
}

/* ---- rows ---- */

static double growth(int64_t n)
{
    return fmax(1, fmin((double)n, 4 * sqrt((double)n)));
}

/* The row's sums as the inputs of its value, its target behind them. */
static void load_row(const truth *t, int64_t row, numbers *sums)
{
    const int64_t n = t->d->x.dims[t->d->x.rank - 1];
    long double sum[LOSS_SUMS] = {0}, size[LOSS_SUMS] = {0};
    for (int64_t i = 0; i < n; i++) {
        numbers e;
        load(t, row * n + i, &e);
        evaluate(t, t->sums, &e);
        for (int k = 0; k < t->text.sums; k++) {
            sum[k] += (long double)e.v[RESULTS + k];
            size[k] += (long double)(fabs(e.v[RESULTS + k]) * t->growth + e.error[RESULTS + k]);
        }
    }
    memset(sums, 0, sizeof *sums);
    for (int k = 0; k < t->text.sums; k++)
        sums->v[k] = (double)sum[k], sums->error[k] = (double)size[k];
    if (mica_loss_has(t->text.value, LOSS_SUMS))
        sums->v[LOSS_SUMS] = mica_get(&t->args[MICA_LOSS_TARGET], mica_offset(&t->row_target, row));
}

static void row_gradients(const truth *t, int64_t row)
{
    const int64_t n = t->d->x.dims[t->d->x.rank - 1];
    numbers s;
    load_row(t, row, &s);
    s.v[GRADIENTS] = mica_get(&t->args[MICA_LOSS_DY], mica_offset(&t->row_dy, row));
    evaluate(t, t->of_value, &s);
    for (int64_t i = row * n; i < (row + 1) * n; i++) {
        numbers e;
        load(t, i, &e);
        for (int k = 0; k < t->text.sums; k++) {
            e.v[GRADIENTS + k] = s.v[RESULTS + k];
            e.error[GRADIENTS + k] = s.error[RESULTS + k] + fabs(s.v[RESULTS + k]);
        }
        evaluate(t, t->of_sums, &e);
        for (int k = 0, at = RESULTS; k < 3; k++) {
            const mica_view *to = &t->args[MICA_LOSS_DX + k];
            if (!mica_tensor_given(mica_op_tensor(&mica_op_loss, t->d, MICA_LOSS_DX + k))) continue;
            mica_put(to, mica_offset(&to->t, i), e.v[at], e.error[at]);
            at++;
        }
    }
}

/* ---- labels ---- */

/* The labels of a row, in x's offsets; how many there are. */
static int64_t labels_of(const truth *t, int64_t row, int64_t *labels, bool *marked)
{
    const mica_view *target = &t->args[MICA_LOSS_TARGET];
    const int64_t classes = t->d->x.dims[t->d->x.rank - 1];
    const bool list = mica_loss_row_of(t->d)->labels == LOSS_LABEL_LIST;
    const int64_t most = list ? classes : 1;
    int64_t n = 0;
    memset(marked, 0, (size_t)classes * sizeof *marked);
    for (; n < most; n++) {
        labels[n] = (int64_t)mica_get(target, mica_offset(&target->t, row * most + n));
        if (list && labels[n] < 0) break;
        if (labels[n] >= 0 && labels[n] < classes) marked[labels[n]] = true;
    }
    return n;
}

static double x_of(const truth *t, int64_t row, int64_t class)
{
    const int64_t classes = t->d->x.dims[t->d->x.rank - 1];
    if (class < 0 || class >= classes) return 0;
    return mica_get(&t->args[MICA_LOSS_X], mica_offset(&t->d->x, row * classes + class));
}

static double weight_of(const truth *t, int64_t label)
{
    const mica_tensor *weight = &t->d->weight;
    if (!mica_tensor_given(weight)) return 1;
    if (label < 0 || label >= weight->dims[0]) return 0;
    return mica_get(&t->args[MICA_LOSS_WEIGHT], mica_offset(weight, label));
}

typedef struct pair {
    double value, value_error, slope, slope_error;
} pair;

static bool is_held(const truth *t, long double v)
{
    return t->unit < 0x1p-30 ? (long double)(double)v == v : (long double)(float)v == v;
}

/* Where the difference may be on the other side of 0, the slope may be anything up to the whole. */
static pair pair_of(const truth *t, double own, double other)
{
    const mica_loss_desc *d = t->d;
    const long double less = (long double)d->margin - (long double)own;
    const bool exact = is_held(t, less) && is_held(t, less + (long double)other);
    const double z = (double)(less + (long double)other), size = fabs(z), above = z > 0 ? z : 0;
    if (isnan(z)) return (pair){0}; /* which is not above 0 */
    const double error = exact ? 0 : fabs(d->margin) + fabs(own) + fabs(other);
    if (d->p == 1)
        return (pair){above, error, z > 0, !exact && size <= error * t->unit ? 1 / t->unit : 0};
    return (pair){above * above, (2 * size + error * t->unit) * error + size * size, 2 * above,
                  2 * error + 2 * size};
}

/* The loss in n->v[RESULTS]; or gradients in dx, if there is one. */
static void label_row(const truth *t, int64_t row, numbers *n, double *dx, double *dx_error)
{
    const int64_t classes = t->d->x.dims[t->d->x.rank - 1];
    int64_t *labels = mica_scratch_zeroed((size_t)classes * sizeof *labels);
    bool *marked = mica_scratch_zeroed((size_t)classes * sizeof *marked);
    const int64_t count = labels_of(t, row, labels, marked);
    long double sum = 0, size = 0;
    for (int64_t k = 0; k < count; k++) {
        const double own = x_of(t, row, labels[k]);
        const bool there = labels[k] >= 0 && labels[k] < classes;
        long double less = 0, less_error = 0;
        for (int64_t j = 0; j < classes; j++) {
            if (marked[j]) continue;
            const pair of = pair_of(t, own, x_of(t, row, j));
            sum += (long double)of.value;
            size += (long double)(of.value * t->growth + of.value_error);
            less += (long double)of.slope;
            less_error += (long double)(of.slope * t->growth + of.slope_error);
            if (dx) dx[j] += of.slope, dx_error[j] += of.slope * t->growth + of.slope_error;
        }
        if (dx && there) dx[labels[k]] -= (double)less, dx_error[labels[k]] += (double)less_error;
    }
    const double share = weight_of(t, labels[0]) / (double)classes;
    memset(n, 0, sizeof *n);
    n->v[RESULTS] = (double)sum * share;
    n->error[RESULTS] = (double)size * fabs(share) + 3 * fabs(n->v[RESULTS]);
    n->v[0] = share;
}

static void label_gradients(const truth *t, int64_t row)
{
    const int64_t classes = t->d->x.dims[t->d->x.rank - 1];
    const mica_view *to = &t->args[MICA_LOSS_DX];
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    double *dx = mica_scratch_zeroed((size_t)classes * sizeof *dx);
    double *error = mica_scratch_zeroed((size_t)classes * sizeof *error);
    numbers n;
    label_row(t, row, &n, dx, error);
    const double by = mica_get(&t->args[MICA_LOSS_DY], mica_offset(&t->row_dy, row)) * n.v[0] *
                      mica_loss_scale(t->d);
    for (int64_t j = 0; j < classes; j++)
        mica_put(to, mica_offset(&to->t, row * classes + j), dx[j] * by,
                 (error[j] + 4 * fabs(dx[j])) * fabs(by));
}

/* ---- all ---- */

static long double sum_of_weights(const truth *t)
{
    const mica_view *weight = &t->args[MICA_LOSS_WEIGHT];
    const int64_t count = mica_tensor_count(&t->d->x);
    long double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (long double)mica_get(weight, mica_offset(&t->in[MICA_LOSS_WEIGHT], i));
    return sum;
}

static void forward(const truth *t, int64_t count)
{
    const mica_loss_desc *d = t->d;
    const mica_view *y = &t->args[MICA_LOSS_Y];
    long double sum = 0, size = 0, off = 0;
    for (int64_t i = 0; i < count; i++) {
        mica_scratch row MICA_SCOPED = mica_scratch_open();
        numbers n;
        if (mica_loss_row_of(d)->labels) {
            label_row(t, i, &n, NULL, NULL);
        } else {
            (t->sums ? load_row : load)(t, i, &n);
            evaluate(t, t->value, &n);
        }
        if (d->reduction == MICA_LOSS_NONE)
            mica_put(y, mica_offset(&y->t, i), n.v[RESULTS], n.error[RESULTS]);
        sum += (long double)n.v[RESULTS];
        size += (long double)fabs(n.v[RESULTS]);
        off += (long double)n.error[RESULTS];
    }
    if (d->reduction == MICA_LOSS_NONE) return;
    long double divisor = d->reduction == MICA_LOSS_MEAN ? (long double)count : 1;
    if (mica_loss_is_over_weights(d)) divisor = sum_of_weights(t);
    if (d->reduction == MICA_LOSS_BATCHMEAN) divisor = (long double)d->x.dims[0];
    mica_put(y, 0, (double)(sum / divisor),
             (double)((size + off / (long double)growth(count)) / divisor));
}

static void make_programs(truth *t)
{
    const mica_loss_desc *d = t->d;
    unsigned wanted = 0, derived = 0;
    char all[LOSS_SUMS * LOSS_TEXT] = "";
    mica_text text = {all, sizeof all, 0};
    for (int k = 0; k < 3; k++)
        if (mica_tensor_given(mica_op_tensor(&mica_op_loss, d, MICA_LOSS_DX + k))) {
            wanted |= 1u << k;
            if (*t->text.gradient[k])
                t->own[k] = compile(t, t->text.gradient[k], 0);
            else
                derived |= 1u << k;
        }
    t->value = compile(t, t->text.value, 0);
    if (t->text.sums == 0) {
        if (derived) t->of_value = compile(t, t->text.value, derived);
        return;
    }
    for (int k = 0; k < t->text.sums; k++)
        mica_text_add(&text, "%s%s", k ? ";" : "", t->text.sum[k]);
    t->sums = compile(t, all, 0);
    t->of_value = compile(t, t->text.value, (1u << t->text.sums) - 1);
    t->of_sums = compile(t, all, wanted);
}

void mica_loss_reference(const void *desc, const mica_view *args, const double *scalars)
{
    const mica_loss_desc *d = desc;
    const bool bwd = d->pass == MICA_LOSS_BWD, rows = mica_loss_of_a_row(d);
    const bool labels = mica_loss_row_of(d)->labels;
    const int64_t count = mica_loss_count(d);
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    truth t = {.d = d, .args = args, .rows = mica_loss_rows_of(d)};
    (void)scalars;
    t.unit = mica_loss_real(d) == MICA_F64 ? 0x1p-53 : 0x1p-24;
    t.growth = rows ? growth(d->x.dims[d->x.rank - 1]) : 1;
    mica_loss_make_texts(d, bwd ? mica_loss_scale(d) : 1, &t.text);
    const bool row_target = labels || (rows && mica_loss_has(t.text.value, LOSS_SUMS));
    for (int k = 0; k <= LOSS_DY; k++) {
        const int arg = k == LOSS_DY ? MICA_LOSS_DY : k;
        if (mica_op_dir(&mica_op_loss, d, arg) == MICA_UNUSED) continue;
        if (labels && arg == MICA_LOSS_WEIGHT) continue;
        if (row_target && arg == MICA_LOSS_TARGET)
            t.row_target = args[arg].t;
        else if (rows && arg == MICA_LOSS_DY)
            t.row_dy = mica_loss_expanded(&args[arg].t, &t.rows);
        else
            t.in[k] = mica_loss_expanded(&args[arg].t, &d->x);
    }
    if (bwd && mica_loss_is_over_weights(d))
        mica_loss_make_texts(d, (double)(1 / sum_of_weights(&t)), &t.text);
    if (!labels) make_programs(&t);
    if (!bwd) {
        forward(&t, count);
        return;
    }
#pragma omp parallel for num_threads(mica_cpu_threads_for((double)mica_tensor_count(&d->x) * 64))
    for (int64_t i = 0; i < count; i++)
        if (labels)
            label_gradients(&t, i);
        else if (rows)
            row_gradients(&t, i);
        else
            element_gradients(&t, i);
}
