/* SPDX-License-Identifier: Apache-2.0
 * The checker, checked: results are broken on purpose after a run that was right, and the judge
 * must notice each breakage. */
#include "check/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Breaks the images of a case; false if the case is too small or too uniform for this breakage. */
typedef bool (*breakage)(cli_case *k, cli_tolerance tolerance);

static int first_output(const cli_case *k)
{
    for (int i = 0; i < k->args; i++)
        if (cli_is_output(&k->info[i]) && mica_tensor_count(&k->info[i].tensor) > 0) return i;
    return -1;
}

static double *load(const cli_case *k, int arg)
{
    const mica_tensor *t = &k->info[arg].tensor;
    double *values = cli_alloc((size_t)mica_tensor_count(t) * sizeof *values);
    mica_tensor_load(t, cli_buffer_after(&k->buffers[arg]), values);
    return values;
}

static void store(cli_case *k, int arg, double *values)
{
    mica_tensor_store(&k->info[arg].tensor, values, cli_buffer_after(&k->buffers[arg]));
    free(values);
}

/* Nearest value of the type above what the tolerance allows: R + T, then a step of growing size.
 * It is computed from the formula, not from the judge's answer. */
static bool just_beyond(const cli_case *k, int arg, cli_tolerance tolerance, int64_t i,
                        double *value)
{
    mica_dtype d = k->info[arg].tensor.dtype;
    double want = k->results[arg][i];
    if (!isfinite(want)) return false;
    double t = cli_element_tolerance(d, tolerance, want, k->magnitudes[arg][i]);
    /* Integers may be any rounding of what lies within the tolerance, exact results theirs. */
    double limit = cli_quantize(d, want + t), unit = cli_unit(d);
    if (unit > 0 && !tolerance.exact) limit = want + t;
    double step = unit > 0 ? unit * fabs(limit) + cli_tiny(d) : 1;
    for (int n = 0; n < 8; n++, step *= 2) {
        *value = cli_quantize(d, limit + step);
        if (isfinite(*value) && *value > limit) return true;
    }
    return false; /* at the end of the type's range */
}

static bool one_ulp(cli_case *k, cli_tolerance tolerance)
{
    int arg = first_output(k);
    if (arg < 0) return false;
    int64_t count = mica_tensor_count(&k->info[arg].tensor);
    double *values = load(k, arg), broken;
    for (int64_t i = count / 2; i < count; i++) {
        if (!just_beyond(k, arg, tolerance, i, &broken)) continue;
        values[i] = broken;
        store(k, arg, values);
        return true;
    }
    free(values);
    return false;
}

static bool swapped(cli_case *k, cli_tolerance tolerance)
{
    int arg = first_output(k);
    if (arg < 0) return false;
    int64_t count = mica_tensor_count(&k->info[arg].tensor);
    double *values = load(k, arg);
    for (int64_t i = 0; i + 1 < count; i++) {
        double a = values[i], b = values[i + 1];
        mica_dtype d = k->info[arg].tensor.dtype;
        double t = cli_element_tolerance(d, tolerance, k->results[arg][i], k->magnitudes[arg][i]);
        if (!isfinite(k->results[arg][i]) || a == b) continue;
        if (!tolerance.exact && !(fabs(b - k->results[arg][i]) > (cli_unit(d) > 0 ? 0 : 1) + 2 * t))
            continue;
        values[i] = b;
        values[i + 1] = a;
        store(k, arg, values);
        return true;
    }
    free(values);
    return false;
}

/* Replaces elements from `from` on by zeros; false if none of them should be anything else. */
static bool zero_from(cli_case *k, cli_tolerance tolerance, bool tail)
{
    int arg = first_output(k);
    if (arg < 0) return false;
    mica_dtype d = k->info[arg].tensor.dtype;
    int64_t count = mica_tensor_count(&k->info[arg].tensor);
    double *values = load(k, arg);
    bool telling = false;
    for (int64_t i = tail ? count - (count + 15) / 16 : 0; i < count; i++) {
        double t = cli_element_tolerance(d, tolerance, k->results[arg][i], k->magnitudes[arg][i]);
        telling |= values[i] != 0 && fabs(k->results[arg][i]) > t + (cli_unit(d) > 0 ? 0 : 1);
        values[i] = 0;
    }
    if (telling)
        store(k, arg, values);
    else
        free(values);
    return telling;
}

static bool dropped_tail(cli_case *k, cli_tolerance tolerance)
{
    return zero_from(k, tolerance, true);
}

static bool zeros(cli_case *k, cli_tolerance tolerance)
{
    return zero_from(k, tolerance, false);
}

static bool poison_left(cli_case *k, cli_tolerance tolerance)
{
    (void)tolerance;
    int arg = first_output(k);
    if (arg < 0) return false;
    const mica_tensor *t = &k->info[arg].tensor;
    int bytes = mica_dtype_bits(t->dtype) / 8;
    if (cli_unit(t->dtype) == 0 || bytes == 0) return false; /* 0xFF is a value: the second run */
    memset(cli_buffer_after(&k->buffers[arg]), isnan(k->results[arg][0]) ? 0x5a : 0xff,
           (size_t)bytes);
    return true;
}

static bool flip(cli_buffer *b, int64_t at)
{
    if (!b->memory || at < 0 || at >= b->bytes) return false;
    b->after[at] ^= 1;
    return true;
}

static bool fence_before(cli_case *k, cli_tolerance tolerance)
{
    (void)tolerance;
    int arg = first_output(k);
    return arg >= 0 && flip(&k->buffers[arg], k->buffers[arg].low - 1);
}

static bool fence_behind(cli_case *k, cli_tolerance tolerance)
{
    (void)tolerance;
    int arg = first_output(k);
    return arg >= 0 && flip(&k->buffers[arg], k->buffers[arg].low + k->buffers[arg].span + 64);
}

static bool fence_of_workspace(cli_case *k, cli_tolerance tolerance)
{
    (void)tolerance;
    return flip(&k->workspace, k->workspace.low + k->workspace.span);
}

static bool input_changed(cli_case *k, cli_tolerance tolerance)
{
    (void)tolerance;
    for (int i = 0; i < k->args; i++)
        if (k->info[i].dir == MICA_IN && k->buffers[i].span > 0)
            return flip(&k->buffers[i], k->buffers[i].low + k->buffers[i].span / 2);
    return false;
}

static bool gap_written(cli_case *k, cli_tolerance tolerance)
{
    (void)tolerance;
    int arg = first_output(k);
    if (arg < 0) return false;
    cli_buffer *b = &k->buffers[arg];
    if (mica_dtype_bits(b->tensor.dtype) < 8) return false;
    unsigned char *element = cli_alloc((size_t)b->span), *one = cli_alloc((size_t)b->span);
    memset(element, 0, (size_t)b->span);
    memset(one, 1, (size_t)b->span);
    cli_copy_elements(&b->tensor, b->first, element, one);
    int64_t at = 0;
    while (at < b->span && element[at]) at++;
    bool found = at < b->span && flip(b, b->low + at);
    free(element);
    free(one);
    return found;
}

/* A constant added everywhere: what a wrong mean or bias does. */
static bool shifted(cli_case *k, cli_tolerance tolerance)
{
    int arg = first_output(k);
    if (arg < 0) return false;
    mica_dtype d = k->info[arg].tensor.dtype;
    int64_t count = mica_tensor_count(&k->info[arg].tensor);
    double *values = load(k, arg), shift = 0;
    bool telling = false;
    for (int64_t i = 0; i < count; i++) {
        double t = cli_element_tolerance(d, tolerance, k->results[arg][i], k->magnitudes[arg][i]);
        if (isfinite(t) && t > shift) shift = t;
    }
    shift = 4 * shift + (cli_unit(d) > 0 ? 0.25 : 2);
    for (int64_t i = 0; i < count; i++) {
        double moved = cli_quantize(d, values[i] + shift);
        telling |= isfinite(moved) && fabs(moved - values[i]) >= shift / 2;
        values[i] = moved;
    }
    if (telling)
        store(k, arg, values);
    else
        free(values);
    return telling;
}

static bool infinity(cli_case *k, cli_tolerance tolerance)
{
    (void)tolerance;
    int arg = first_output(k);
    if (arg < 0) return false;
    double bad = k->results[arg][0] > 0 ? -INFINITY : INFINITY;
    if (!isinf(cli_quantize(k->info[arg].tensor.dtype, bad))) return false; /* e4m3, integers */
    double *values = load(k, arg);
    values[0] = bad;
    store(k, arg, values);
    return true;
}

/* The largest result that its type can still hold becomes infinite. */
static bool overflow(cli_case *k, cli_tolerance tolerance)
{
    int arg = first_output(k);
    if (arg < 0) return false;
    mica_dtype d = k->info[arg].tensor.dtype;
    if (!isinf(cli_quantize(d, INFINITY))) return false; /* e4m3, integers */
    int64_t count = mica_tensor_count(&k->info[arg].tensor), at = -1;
    for (int64_t i = 0; i < count; i++) {
        double want = fabs(k->results[arg][i]);
        double error = cli_element_error(tolerance, k->magnitudes[arg][i]);
        if (!isfinite(cli_quantize(d, want + error))) continue;
        if (at < 0 || want > fabs(k->results[arg][at])) at = i;
    }
    if (at < 0) return false;
    double *values = load(k, arg);
    values[at] = copysign(INFINITY, k->results[arg][at]);
    store(k, arg, values);
    return true;
}

static struct {
    const char *name;
    breakage apply;
    long tried, noticed;
} breakages[] = {
    {"one element an ulp beyond the tolerance", one_ulp, 0, 0},
    {"two elements swapped", swapped, 0, 0},
    {"a dropped tail", dropped_tail, 0, 0},
    {"all zeros", zeros, 0, 0},
    {"a constant added", shifted, 0, 0},
    {"an infinity", infinity, 0, 0},
    {"an overflow where there is none", overflow, 0, 0},
    {"poison left in an output", poison_left, 0, 0},
    {"a byte before an output", fence_before, 0, 0},
    {"a byte behind an output", fence_behind, 0, 0},
    {"a byte behind the workspace", fence_of_workspace, 0, 0},
    {"an input changed", input_changed, 0, 0},
    {"a gap of a strided output written", gap_written, 0, 0},
};
enum { BREAKAGES = sizeof breakages / sizeof *breakages };

/* Breakages that not every set of problems can show: no workspace, no gaps. */
static bool may_be_absent(breakage b)
{
    return b == fence_of_workspace || b == gap_written;
}

static void save(const cli_case *k, unsigned char **images, unsigned char **workspace)
{
    for (int i = 0; i < k->args; i++) {
        const cli_buffer *b = &k->buffers[i];
        images[i] = b->memory ? cli_alloc((size_t)b->bytes) : NULL;
        if (images[i]) memcpy(images[i], b->after, (size_t)b->bytes);
    }
    *workspace = k->workspace.memory ? cli_alloc((size_t)k->workspace.bytes) : NULL;
    if (*workspace) memcpy(*workspace, k->workspace.after, (size_t)k->workspace.bytes);
}

static void restore(cli_case *k, unsigned char **images, unsigned char *workspace)
{
    for (int i = 0; i < k->args; i++)
        if (images[i]) memcpy(k->buffers[i].after, images[i], (size_t)k->buffers[i].bytes);
    if (workspace) memcpy(k->workspace.after, workspace, (size_t)k->workspace.bytes);
}

int check_self_test(cli_case *k, cli_tolerance tolerance)
{
    unsigned char *images[MICA_MAX_ARGS], *workspace;
    int missed = 0;
    save(k, images, &workspace);
    for (int i = 0; i < BREAKAGES; i++) {
        cli_judgement j;
        if (breakages[i].apply(k, tolerance)) {
            breakages[i].tried++;
            cli_case_judge(k, tolerance, &j);
            breakages[i].noticed += !j.ok;
            missed += j.ok;
            if (j.ok) printf("not noticed: %s\n", breakages[i].name);
        }
        restore(k, images, workspace);
    }
    for (int i = 0; i < k->args; i++) free(images[i]);
    free(workspace);
    return missed;
}

bool check_self_test_summary(FILE *out)
{
    cli_table t;
    bool ok = true;
    cli_table_begin(&t, "broken on purpose|>tried|>noticed");
    for (int i = 0; i < BREAKAGES; i++) {
        cli_cell(&t, "%s", breakages[i].name);
        cli_cell(&t, "%ld", breakages[i].tried);
        cli_cell(&t, "%ld", breakages[i].noticed);
        ok &= breakages[i].noticed == breakages[i].tried;
        ok &= breakages[i].tried > 0 || may_be_absent(breakages[i].apply);
    }
    cli_table_print(&t, out);
    cli_table_end(&t);
    return ok;
}
