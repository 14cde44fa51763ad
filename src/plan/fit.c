/* SPDX-License-Identifier: Apache-2.0
 * Constants of the cost model: measured on request, kept as a record, taken over from one. */
#include "plan/context.h"
#include "base/format.h"
#include "base/log.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---- */

enum { CONSTANTS = 3 };
static const struct {
    const char *name;
    size_t offset;
} constants[CONSTANTS] = {{"copy_gbps", offsetof(mica_device_info, copy_gbps)},
                          {"f32_tflops", offsetof(mica_device_info, f32_tflops)},
                          {"bf16_tflops", offsetof(mica_device_info, bf16_tflops)}};

static double *constant(mica_device_info *d, int i)
{
    return (double *)((char *)d + constants[i].offset);
}

mica_status mica_fit_parse(const char *text, mica_device_info *d)
{
    for (int i = 0; i < CONSTANTS; i++) {
        size_t length = strlen(constants[i].name);
        text += strspn(text, " ");
        if (strncmp(text, constants[i].name, length) != 0 || text[length] != '=')
            return MICA_INVALID;
        char *end;
        double v = mica_read_double(text + length + 1, &end);
        if (end == text + length + 1 || (*end && *end != ' ') || !(v > 0) || !isfinite(v))
            return MICA_INVALID;
        *constant(d, i) = v;
        text = end;
    }
    return text[strspn(text, " ")] ? MICA_INVALID : MICA_OK;
}

void mica_fit_apply(mica_context *c)
{
    mica_choice r;
    mica_device_info d = c->device;
    if (!mica_records_find(&c->records, MICA_FIT_PROBLEM, c->device.model, true, &r)) return;
    if (strcmp(r.engine, MICA_FIT_ENGINE) != 0 || mica_fit_parse(r.config, &d) != MICA_OK) return;
    c->device = d;
    mica_log(MICA_LOG_INFO, "constants,%s,%s", c->device.name, r.config);
}

/* ---- measurement ---- */

/* Median of the fastest engine and config, in milliseconds. */
static mica_status time_line(mica_context *c, const char *line, double *ms)
{
    const mica_op *op;
    double scalars[MICA_MAX_SCALARS];
    _Alignas(16) char given[MICA_MAX_DESC], desc[MICA_MAX_DESC];
    mica_why why = {""};
    mica_options o = {.measure_ms = 1000};
    mica_candidate list[MICA_MAX_CANDIDATES];
    memset(given, 0, sizeof given);
    if (mica_op_parse(line, &op, given, sizeof given, scalars, &why) != MICA_OK ||
        mica_op_resolve(op, given, op->desc_size, desc, &why) != MICA_OK)
        return mica_fail(MICA_INVALID, "%s", why.text);
    int count = mica_candidates(c, op, desc, &o, list, NULL);
    *ms = 0;
    MICA_TRY(mica_measure(c, op, desc, &o, list, count, ms));
    if (*ms > 0) return MICA_OK;
    return mica_fail(MICA_UNSUPPORTED, "no engine of %s could be timed on %s", line,
                     c->device.name);
}

/* Past the cache, but in time and memory that a test can spare too. */
static mica_status measure_copy(mica_context *c, double *gbps)
{
    char line[96];
    double ms;
    int64_t bytes = 256 << 20, most = c->device.memory_bytes / 16;
    if (bytes > most) bytes = most;
    snprintf(line, sizeof line, "transform x=f32:%lld y=f32:%lld", (long long)(bytes / 4),
             (long long)(bytes / 4));
    MICA_TRY(time_line(c, line, &ms));
    *gbps = 2e-6 * (double)bytes / ms;
    return MICA_OK;
}

static mica_status measure_product(mica_context *c, const char *type, double *tflops)
{
    char line[96];
    double ms;
    int n = c->device.cuda ? 8192 : 512;
    snprintf(line, sizeof line, "gemm a=%s:%dx%d b=%s:%dx%d", type, n, n, type, n, n);
    MICA_TRY(time_line(c, line, &ms));
    *tflops = 2e-9 * n * n * n / ms;
    return MICA_OK;
}

mica_status mica_context_fit(mica_context *c)
{
    if (!c) return mica_fail(MICA_INVALID, "context is NULL");
    char text[2 * MICA_KEY_NAME];
    mica_device_info d = c->device;
    MICA_TRY(measure_copy(c, &d.copy_gbps));
    MICA_TRY(measure_product(c, "f32", &d.f32_tflops));
    d.bf16_tflops = d.f32_tflops; /* the CPU has no matrix units here */
    if (d.cuda) MICA_TRY(measure_product(c, "bf16", &d.bf16_tflops));
    mica_format(text, sizeof text, "copy_gbps=%.6g f32_tflops=%.6g bf16_tflops=%.6g", d.copy_gbps,
                d.f32_tflops, d.bf16_tflops);
    MICA_TRY(mica_records_add(&c->records, MICA_FIT_PROBLEM, c->device.model, MICA_FIT_ENGINE, text,
                              0, true));
    mica_fit_apply(c);
    return MICA_OK;
}
