/* SPDX-License-Identifier: Apache-2.0
 * Engine "cpu" of CTC: a thread for each sequence, in f64 whatever the types, but for the
 * logarithms of logits' sums of exponentials, which are as tensors have it. Probabilities are a
 * significand and an exponent, both double: a step of a state costs no exponential and no
 * logarithm, and its loops are vectors. Backward keeps what precedes each step, a table for each
 * thread in the workspace, and adds up classes on the way back. Cost: states times steps, some 2 ns
 * each; of many classes the exponentials of all of x. */
#include "ops/ctc_loss/ctc_loss.h"
#include "cpu/cpu.h"
#include "ops/convert/cpu/convert.h"
#include "ops/reduce/cpu/rows.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* The exponent of 0: no other's is lower. */
#define LOWEST (-1e308)

/* Numbers for each column of a sequence, of which there is one more than pairs: a row of states is
 * four; the sums, and backward the way back, are one each; then what a step says of each label. */
enum { ROW = 4, STEP = 6 };
enum { CHUNK = 512 }; /* classes whose exponentials are found together */

typedef struct state {
    mica_ctc_loss_children children;
    mica_ctc_loss_sizes sizes;
    mica_load_fn load_x, load_label, load_label_length, load_input_length, load_dloss;
    mica_store_fn store_dx, store_loss;
    size_t columns, shares;
    int64_t rows; /* of states */
    int threads;
    bool wide;
} state;

/* A row of states: significands and exponents of blanks and of labels, before the first of which
 * lies one of probability 0. */
typedef struct row {
    double *blank_m, *blank_e, *label_m, *label_e;
} row;

typedef struct sequence {
    const mica_ctc_loss_desc *d;
    const state *s;
    const mica_run *run;
    int64_t b, steps, count, first;
    bool bad;
    double *columns, *shares;
    /* Of pairs: whether a label may follow the one before it; what the step says, as logarithm and
     * its parts. label: as doubles, too. */
    double *label, *skip, *log, *rest, *y_m, *y_e;
    double blank_m, blank_e;
} sequence;

/* ---- numbers ---- */

static inline double of_bits(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline uint64_t bits_of(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* 2^e of a whole e up to 0; of very low ones something very small. */
static inline double power(double e)
{
    e = e > -1022 ? e : -1022;
    return of_bits(bits_of(e + (0x1.8p52 + 1023)) << 52);
}

static inline double higher(double a, double b)
{
    return a > b ? a : b;
}

/* m 2^e with an m from 1 to below 2, or 0, infinite or NaN. */
static inline void normalise(double m, double e, double *to_m, double *to_e)
{
    const uint64_t bits = bits_of(m);
    const double own = of_bits(0x4330000000000000U | bits >> 52) - (0x1p52 + 1023);
    const double significand = of_bits((bits & 0xfffffffffffffU) | 0x3ff0000000000000U);
    const bool plain = m > 0 && m <= 0x1.fffffffffffffp1023;
    *to_m = plain ? significand : m;
    *to_e = plain ? e + own : m == 0 ? LOWEST : 0;
}

/* 0 times infinity or NaN is 0. */
static inline double times(double a, double b)
{
    return a == 0 || b == 0 ? 0 : a * b;
}

/* ---- steps ---- */

/* sum: what leads to each pair of a blank and the label behind it. */
static MICA_CLONES void sum_pairs(const row *from, const double *restrict skip, int64_t pairs,
                                  const row *sum)
{
    const double *restrict bm = from->blank_m, *restrict be = from->blank_e;
    const double *restrict lm = from->label_m, *restrict le = from->label_e;
    double *restrict sbm = sum->blank_m, *restrict sbe = sum->blank_e;
    double *restrict slm = sum->label_m + 1, *restrict sle = sum->label_e + 1;
    for (int64_t i = 0; i < pairs; i++) {
        const double top = higher(be[i], le[i]);
        const double before = lm[i] * power(le[i] - top), blank = bm[i] * power(be[i] - top);
        normalise(blank + before, top, &sbm[i], &sbe[i]);
        const double third = skip[i] != 0 ? le[i] : LOWEST;
        const double all = higher(higher(third, le[i + 1]), be[i]);
        const double skipped = skip[i] != 0 ? lm[i] * power(third - all) : 0;
        const double both = bm[i] * power(be[i] - all) + lm[i + 1] * power(le[i + 1] - all);
        normalise(both + skipped, all, &slm[i], &sle[i]);
    }
}

static MICA_CLONES void multiply(const row *sum, const double *restrict y_m,
                                 const double *restrict y_e, double blank_m, double blank_e,
                                 int64_t pairs, const row *to)
{
    const double *sbm = sum->blank_m, *sbe = sum->blank_e;
    const double *slm = sum->label_m + 1, *sle = sum->label_e + 1;
    double *bm = to->blank_m, *be = to->blank_e, *lm = to->label_m + 1, *le = to->label_e + 1;
    MICA_INDEPENDENT
    for (int64_t i = 0; i < pairs; i++) {
        normalise(times(sbm[i], blank_m), sbe[i] + blank_e, &bm[i], &be[i]);
        normalise(times(slm[i], y_m[i]), sle[i] + y_e[i], &lm[i], &le[i]);
    }
}

/* exp of each logarithm. */
static MICA_CLONES void split(const double *restrict l, int64_t n, double *restrict rest,
                              double *restrict e)
{
    for (int64_t i = 0; i < n; i++) {
        const bool plain = l[i] - l[i] == 0;
        const double v = plain ? l[i] : 0, k = rint(v * 0x1.71547652b82fep0);
        const double r = fma(-k, 0x1.abc9e3b39803fp-56, fma(-k, 0x1.62e42fefa39efp-1, v));
        rest[i] = r > 1 ? 1 : r < -1 ? -1 : r;
        e[i] = k;
    }
}

static MICA_CLONES void join(const double *restrict l, const double *restrict exponential,
                             int64_t n, double *restrict m, double *restrict e)
{
    for (int64_t i = 0; i < n; i++) {
        double significand, exponent;
        normalise(exponential[i], e[i], &significand, &exponent);
        const bool plain = l[i] - l[i] == 0;
        m[i] = plain ? significand : l[i] < 0 ? 0 : l[i];
        e[i] = plain ? exponent : l[i] < 0 ? LOWEST : 0;
    }
}

static void exponentials(const double *l, int64_t n, double *rest, double *m, double *e)
{
    split(l, n, rest, e);
    mica_row_exp_f64(rest, 1, 0x1.5bf0a8b145769p+1, n, rest);
    join(l, rest, n, m, e);
}

/* ---- sequences ---- */

static int64_t length(mica_load_fn load, const void *data, int64_t at)
{
    return load == NULL ? 0 : (int64_t)load(data, at);
}

static double *take(double **from, int64_t n)
{
    double *at = *from;
    *from += n;
    return at;
}

static row row_at(const sequence *q, int64_t i)
{
    const int64_t n = q->count + 2;
    double *at = q->columns + ROW * i * n;
    return (row){at, at + n, at + 2 * n, at + 3 * n};
}

static void clear(const row *r, int64_t n)
{
    memset(r->blank_m, 0, (size_t)n * sizeof(double));
    memset(r->label_m, 0, (size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++) r->blank_e[i] = r->label_e[i] = LOWEST;
}

/* In the order of labels, or from the last one on. */
static void begin(sequence *q, bool back, int64_t state_row)
{
    const int64_t pairs = q->count + 1;
    for (int64_t i = 0; i < pairs; i++) {
        const int64_t own = back ? q->count - 1 - i : i, other = back ? own + 1 : own - 1;
        q->skip[i] = i > 0 && i < q->count && q->label[own] != q->label[other];
    }
    const row r = row_at(q, state_row), sum = row_at(q, q->s->rows);
    clear(&r, pairs + 1);
    clear(&sum, pairs + 1);
    r.blank_m[0] = 1;
    r.blank_e[0] = 0;
}

static double lse_at(const sequence *q, int64_t t)
{
    if (!q->s->children.lse.plan) return 0;
    const void *lse = mica_at(q->run, q->s->children.lse.result);
    const int64_t at = t * q->s->sizes.batch + q->b;
    return q->s->wide ? ((const double *)lse)[at] : (double)((const float *)lse)[at];
}

static int64_t offset_of(const sequence *q, const mica_tensor *x, int64_t t, int64_t c)
{
    return t * x->strides[0] + q->b * x->strides[1] + c * x->strides[2];
}

static double log_prob(const sequence *q, int64_t t, int64_t c)
{
    const void *x = q->run->args[MICA_CTC_LOSS_X];
    return q->s->load_x(x, offset_of(q, &q->d->x, t, c)) - lse_at(q, t);
}

/* What the step says. Behind the last label there is none. */
static void say(sequence *q, int64_t t, bool back)
{
    const int64_t n = q->count;
    for (int64_t i = 0; i < n; i++)
        q->log[back ? n - 1 - i : i] = log_prob(q, t, (int64_t)q->label[i]);
    q->log[n] = log_prob(q, t, q->d->blank);
    exponentials(q->log, n + 1, q->rest, q->y_m, q->y_e);
    q->blank_m = q->y_m[n], q->blank_e = q->y_e[n];
    q->y_m[n] = 0, q->y_e[n] = LOWEST;
}

static void step(sequence *q, int64_t from, int64_t to)
{
    const row before = row_at(q, from), sum = row_at(q, q->s->rows), behind = row_at(q, to);
    sum_pairs(&before, q->skip, q->count + 1, &sum);
    multiply(&sum, q->y_m, q->y_e, q->blank_m, q->blank_e, q->count + 1, &behind);
}

/* The last blank and the last label. */
static void total_of(const sequence *q, int64_t state_row, double *m, double *e)
{
    const row r = row_at(q, state_row);
    const int64_t n = q->count;
    if (q->steps == 0) {
        *m = n == 0, *e = 0;
        return;
    }
    const double top = higher(r.blank_e[n], r.label_e[n]);
    normalise(r.blank_m[n] * power(r.blank_e[n] - top) + r.label_m[n] * power(r.label_e[n] - top),
              top, m, e);
}

static void find(sequence *q, int thread)
{
    const mica_ctc_loss_desc *d = q->d;
    const state *s = q->s;
    const mica_ctc_loss_sizes *z = &s->sizes;
    const mica_run *r = q->run;
    q->count = length(s->load_label_length, r->args[MICA_CTC_LOSS_LABEL_LENGTHS],
                      q->b * d->label_lengths.strides[0]);
    q->steps = z->steps;
    if (s->load_input_length)
        q->steps = length(s->load_input_length, r->args[MICA_CTC_LOSS_INPUT_LENGTHS],
                          q->b * d->input_lengths.strides[0]);
    q->first = z->padded ? 0 : ((const int64_t *)mica_at(r, s->children.starts.result))[q->b];
    q->bad = q->steps < 0 || q->steps > z->steps || q->count < 0 || q->count > z->most ||
             (!z->padded && (q->first > z->labels || q->count > z->labels - q->first));
    if (q->bad) return;
    const int64_t column = z->padded ? thread * (z->most + 2) : q->first + 2 * q->b;
    const int64_t n = q->count + 2;
    double *at = (double *)mica_at(r, s->columns) + column * (ROW * (s->rows + 1) + STEP);
    q->columns = take(&at, ROW * (s->rows + 1) * n);
    double **const parts[STEP] = {&q->label, &q->skip, &q->log, &q->rest, &q->y_m, &q->y_e};
    for (int i = 0; i < STEP; i++) *parts[i] = take(&at, n);
    q->shares = (double *)mica_at(r, s->shares) + thread * z->classes;
    const int64_t by = d->labels.strides[z->padded];
    const int64_t from = z->padded ? q->b * d->labels.strides[0] : q->first * by;
    for (int64_t i = 0; i < q->count; i++) {
        const double label = s->load_label(r->args[MICA_CTC_LOSS_LABELS], from + i * by);
        q->label[i] = label;
        if (!(label >= 0 && label < (double)z->classes) || label == (double)d->blank) q->bad = true;
    }
}

/* ---- forward ---- */

static void forward(sequence *q)
{
    const mica_ctc_loss_desc *d = q->d;
    double loss = NAN, m, e;
    if (!q->bad) {
        begin(q, false, 0);
        for (int64_t t = 0; t < q->steps; t++) {
            say(q, t, false);
            step(q, 0, 0);
        }
        total_of(q, 0, &m, &e);
        loss = m == 0 ? (d->zero_infinity ? 0 : INFINITY) : -(log(m) + e * 0x1.62e42fefa39efp-1);
        if (d->reduction == MICA_REDUCE_MEAN && q->count > 1) loss /= (double)q->count;
    }
    if (d->reduction != MICA_REDUCE_NONE)
        ((double *)mica_at(q->run, q->s->children.sum.result))[q->b] = loss;
    else
        q->s->store_loss(q->run->args[MICA_CTC_LOSS_LOSS], q->b * d->loss.strides[0], loss);
}

/* ---- backward ---- */

static double gradient_of(const sequence *q)
{
    const mica_ctc_loss_desc *d = q->d;
    const bool each = d->reduction == MICA_REDUCE_NONE;
    const void *dloss = q->run->args[MICA_CTC_LOSS_DLOSS];
    const double g = q->s->load_dloss(dloss, each ? q->b * d->dloss.strides[0] : 0);
    if (d->reduction != MICA_REDUCE_MEAN) return g;
    return g / (double)q->s->sizes.batch / (q->count > 1 ? (double)q->count : 1);
}

static void write_dx(const sequence *q, int64_t t, int64_t c, double v)
{
    q->s->store_dx(q->run->args[MICA_CTC_LOSS_DX], offset_of(q, &q->d->dx, t, c), v);
}

static void write_same(const sequence *q, int64_t t, double v)
{
    double same[CHUNK];
    const int64_t classes = q->s->sizes.classes;
    for (int64_t i = 0; i < CHUNK; i++) same[i] = v;
    for (int64_t c = 0; c < classes; c += CHUNK)
        mica_from_f64(q->d->dx.dtype, q->run->args[MICA_CTC_LOSS_DX], offset_of(q, &q->d->dx, t, c),
                      q->d->dx.strides[2], same, classes - c < CHUNK ? classes - c : CHUNK);
}

/* m 2^e of the share of some alignments, in two steps: it may be below the least normal number. */
static double share_of(double m, double e)
{
    const double first = e > 2 ? 2 : higher(e, -1000);
    return m == 0 ? 0 : m * power(first) * power(higher(e, -2000) - first);
}

/* What of all alignments says each class; 0 of those that are not labels. */
static void add_shares(const sequence *q, int64_t t, double total_m, double total_e)
{
    const row before = row_at(q, t + 1), behind = row_at(q, q->s->rows);
    const int64_t n = q->count;
    for (int64_t i = 0; i <= n; i++) {
        const double m = times(before.blank_m[i], behind.blank_m[n - i]);
        const double e = before.blank_e[i] + behind.blank_e[n - i] - total_e;
        q->shares[q->d->blank] += share_of(m / total_m, e);
    }
    for (int64_t i = 0; i < n; i++) {
        const double m = times(before.label_m[i + 1], behind.label_m[n - i]);
        const double e = before.label_e[i + 1] + behind.label_e[n - i] - total_e;
        q->shares[(int64_t)q->label[i]] += share_of(m / total_m, e);
    }
}

/* g exp(l) of some classes, about their largest. False where that is infinite or NaN. */
static bool write_f32(const sequence *q, int64_t t, int64_t c, int64_t n, double g)
{
    float x[CHUNK];
    const mica_ctc_loss_desc *d = q->d;
    const double lse = lse_at(q, t);
    mica_to_f32(d->x.dtype, q->run->args[MICA_CTC_LOSS_X], offset_of(q, &d->x, t, c),
                d->x.strides[2], x, n);
    const float top = mica_row_max(x, n);
    if (!isfinite(top) || !isfinite(lse)) return false;
    mica_row_exp(x, top, (float)(g * exp((double)top - lse)), 0, n, x);
    mica_from_f32(d->dx.dtype, q->run->args[MICA_CTC_LOSS_DX], offset_of(q, &d->dx, t, c),
                  d->dx.strides[2], x, n);
    return true;
}

static bool write_f64(const sequence *q, int64_t t, int64_t c, int64_t n, double g)
{
    double x[CHUNK];
    const mica_ctc_loss_desc *d = q->d;
    const double lse = lse_at(q, t);
    mica_to_f64(d->x.dtype, q->run->args[MICA_CTC_LOSS_X], offset_of(q, &d->x, t, c),
                d->x.strides[2], x, n);
    const double top = mica_row_max_f64(x, n);
    if (!isfinite(top) || !isfinite(lse)) return false;
    mica_row_exp_f64(x, top, g * exp(top - lse), n, x);
    mica_from_f64(d->dx.dtype, q->run->args[MICA_CTC_LOSS_DX], offset_of(q, &d->dx, t, c),
                  d->dx.strides[2], x, n);
    return true;
}

static void write_all(const sequence *q, int64_t t, double g)
{
    const int64_t classes = q->s->sizes.classes;
    if (q->d->gradient == MICA_CTC_LOSS_BY_LOG_PROBS) {
        write_same(q, t, g * 0);
        return;
    }
    for (int64_t from = 0; from < classes; from += CHUNK) {
        const int64_t n = classes - from < CHUNK ? classes - from : CHUNK;
        if (q->s->wide ? write_f64(q, t, from, n, g) : write_f32(q, t, from, n, g)) continue;
        for (int64_t c = from; c < from + n; c++) write_dx(q, t, c, g * exp(log_prob(q, t, c)));
    }
}

static void write_class(const sequence *q, int64_t t, double g, int64_t c)
{
    const bool by_logits = q->d->gradient == MICA_CTC_LOSS_BY_LOGITS;
    const double p = by_logits ? exp(log_prob(q, t, c)) : 0;
    write_dx(q, t, c, g * (p - q->shares[c]));
}

/* Labels that repeat are written again: their share stays until all are. */
static void write_step(const sequence *q, int64_t t, double g)
{
    write_all(q, t, g);
    write_class(q, t, g, q->d->blank);
    for (int64_t i = 0; i < q->count; i++) write_class(q, t, g, (int64_t)q->label[i]);
    q->shares[q->d->blank] = 0;
    for (int64_t i = 0; i < q->count; i++) q->shares[(int64_t)q->label[i]] = 0;
}

static void backward(sequence *q)
{
    const int64_t last = q->s->rows - 1, most = q->s->sizes.steps;
    double m = NAN, e = 0;
    if (q->bad) q->steps = q->count = 0;
    const double g = gradient_of(q);
    if (!q->bad) {
        begin(q, false, 0);
        for (int64_t t = 0; t < q->steps; t++) {
            const row next = row_at(q, t + 1);
            next.label_m[0] = 0, next.label_e[0] = LOWEST;
            say(q, t, false);
            step(q, t, t + 1);
        }
        total_of(q, q->steps, &m, &e);
    }
    const bool nan = isnan(m) || (m == 0 && !q->d->zero_infinity);
    for (int64_t t = 0; t < most; t++)
        if (q->bad || t >= q->steps || nan || m == 0)
            write_same(q, t, q->bad || (t < q->steps && nan) ? NAN : 0);
    if (q->bad || nan || m == 0) return;
    memset(q->shares, 0, (size_t)q->s->sizes.classes * sizeof(double));
    begin(q, true, last);
    for (int64_t t = q->steps - 1; t >= 0; t--) {
        say(q, t, true);
        step(q, last, last);
        add_shares(q, t, m, e);
        write_step(q, t, g);
    }
}

/* ---- planning and running ---- */

static mica_status build(mica_plan *plan)
{
    const mica_ctc_loss_desc *d = plan->desc;
    const bool fwd = d->pass == MICA_CTC_LOSS_FWD;
    state *s;
    MICA_TRY(mica_plan_state(plan, sizeof *s, &s));
    const mica_ctc_loss_sizes z = s->sizes = mica_ctc_loss_sizes_of(d);
    s->wide = mica_ctc_loss_is_wide(d);
    s->load_x = mica_dtype_load(d->x.dtype);
    s->load_label = mica_dtype_load(d->labels.dtype);
    s->load_label_length = mica_dtype_load(d->label_lengths.dtype);
    if (mica_tensor_given(&d->input_lengths))
        s->load_input_length = mica_dtype_load(d->input_lengths.dtype);
    if (fwd) s->store_loss = mica_dtype_store(d->loss.dtype);
    if (!fwd) s->load_dloss = mica_dtype_load(d->dloss.dtype);
    if (!fwd) s->store_dx = mica_dtype_store(d->dx.dtype);
    /* Each step of a pair costs as much as some hundred bytes of traffic. */
    const int threads =
        mica_cpu_threads_planned(256.0 * (double)z.steps * (double)(z.batch + z.labels));
    s->threads = threads < z.batch ? threads : z.batch > 0 ? (int)z.batch : 1;
    s->rows = fwd ? 1 : z.steps + 2;
    MICA_TRY(mica_ctc_loss_children_build(plan, &s->children));
    const int64_t columns = z.padded ? s->threads * (z.most + 2) : z.labels + 2 * z.batch;
    const size_t each = sizeof(double) * (size_t)(ROW * (s->rows + 1) + STEP);
    MICA_TRY(mica_book(plan, "states", (size_t)columns * each, &s->columns));
    if (fwd) return MICA_OK;
    return mica_book(plan, "shares of classes",
                     (size_t)s->threads * (size_t)z.classes * sizeof(double), &s->shares);
}

static mica_status run(const mica_plan *plan, const mica_run *r)
{
    const mica_ctc_loss_desc *d = plan->desc;
    const state *s = plan->state;
    MICA_TRY(mica_ctc_loss_before(&s->children, r));
#pragma omp parallel for num_threads(s->threads) schedule(dynamic)
    for (int64_t b = 0; b < s->sizes.batch; b++) {
        sequence q = {.d = d, .s = s, .run = r, .b = b};
        find(&q, omp_get_thread_num());
        if (d->pass == MICA_CTC_LOSS_FWD)
            forward(&q);
        else
            backward(&q);
    }
    return mica_ctc_loss_behind(&s->children, r);
}

const mica_engine mica_ctc_loss_cpu = {
    .name = "cpu", .reached = 0.2, .start_ms = 2e-3, .build = build, .run = run};
