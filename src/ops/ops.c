/* SPDX-License-Identifier: Apache-2.0
 * The registry, and what follows from an operation's tables. */
#include "ops/op.h"
#include "base/format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define X(name) extern const mica_op mica_op_##name;
#include "ops/ops.def"
#undef X

const mica_op *const mica_ops[] = {
#define X(name) &mica_op_##name,
#include "ops/ops.def"
#undef X
};
const int mica_op_count = (int)(sizeof mica_ops / sizeof *mica_ops);

static const mica_op *find(const char *name, size_t length)
{
    for (int i = 0; i < mica_op_count; i++)
        if (*mica_ops[i]->name == *name && !strncmp(mica_ops[i]->name, name, length) &&
            !mica_ops[i]->name[length])
            return mica_ops[i];
    return NULL;
}

const mica_op *mica_op_find(const char *name)
{
    return find(name, strlen(name));
}

/* Asked very often while plans are made: most names differ in their first letter. */
static bool is_name(const char *a, const char *b)
{
    return *a == *b && !strcmp(a, b);
}

int mica_op_pass(const mica_op *op, const void *desc)
{
    if (!is_name(op->fields[0].name, "pass")) return 0;
    int32_t pass;
    memcpy(&pass, (const char *)desc + op->fields[0].offset, sizeof pass);
    return pass;
}

mica_dir mica_op_dir(const mica_op *op, const void *desc, int i)
{
    if (!mica_tensor_given(mica_op_tensor(op, desc, i))) return MICA_UNUSED;
    return op->args[i].dir[mica_op_pass(op, desc)];
}

int mica_op_arg_index(const mica_op *op, const char *name)
{
    for (int i = 0; name && i < op->arg_count; i++)
        if (is_name(op->args[i].name, name)) return i;
    return -1;
}

int mica_op_scalar_index(const mica_op *op, const char *name)
{
    for (int i = 0; i < op->scalar_count; i++)
        if (!strcmp(op->scalars[i].name, name)) return i;
    return -1;
}

int64_t mica_offset(const mica_tensor *t, int64_t i)
{
    int64_t offset = 0;
    for (int d = t->rank - 1; d >= 0; d--) {
        offset += i % t->dims[d] * t->strides[d];
        i /= t->dims[d];
    }
    return offset;
}

/* ---- descriptors ---- */

static mica_status unknown_arithmetic(const char *name, const mica_tensor *t, mica_why *why)
{
    char list[160];
    mica_text types = {list, sizeof list, 0};
    mica_dtype_list(&types, true);
    return mica_invalid(why, "%s is %s, which no operation computes with yet; they do with %s",
                        name, mica_dtype_name(t->dtype), list);
}

static mica_status check_tensors(const mica_op *op, const void *desc, mica_why *why)
{
    for (int i = 0; i < op->arg_count; i++) {
        mica_dir dir = mica_op_dir(op, desc, i);
        const mica_tensor *t = mica_op_tensor(op, desc, i);
        if (dir == MICA_UNUSED && !mica_tensor_given(t)) continue;
        MICA_TRY(mica_tensor_check(t, op->args[i].name, dir == MICA_OUT || dir == MICA_INOUT, why));
        if (!mica_dtype_load(t->dtype)) return unknown_arithmetic(op->args[i].name, t, why);
    }
    return MICA_OK;
}

/* What the caller gave must be sane before inference computes with it. */
static mica_status check_given(const mica_op *op, const void *desc, mica_why *why)
{
    for (int i = 0; i < op->field_count; i++) {
        const mica_field *f = &op->fields[i];
        if (f->kind != MICA_FIELD_TENSOR) continue;
        const mica_tensor *t = (const mica_tensor *)((const char *)desc + f->offset);
        if (mica_tensor_given(t)) MICA_TRY(mica_tensor_check(t, f->name, false, why));
    }
    return MICA_OK;
}

static mica_status infer_and_check(const mica_op *op, void *desc, mica_why *why)
{
    for (int i = 0; i < op->field_count; i++)
        MICA_TRY(mica_field_default(&op->fields[i], desc, why));
    MICA_TRY(check_given(op, desc, why));
    MICA_TRY(mica_args_given(op, desc, why));
    if (op->infer) MICA_TRY(op->infer(desc, why));
    mica_args_infer(op, desc);
    for (int i = 0; i < op->field_count; i++) mica_field_settle(&op->fields[i], desc);
    MICA_TRY(check_tensors(op, desc, why));
    MICA_TRY(mica_args_check(op, desc, why));
    return op->check ? op->check(desc, why) : MICA_OK;
}

mica_status mica_op_resolve(const mica_op *op, const void *desc, size_t desc_size, void *out,
                            mica_why *why)
{
    MICA_TRY(mica_fields_copy(op->fields, op->field_count, desc, desc_size, out, why));
    return infer_and_check(op, out, why);
}

void mica_op_strided(const mica_op *op, void *desc)
{
    for (int i = 0; i < op->field_count; i++) {
        mica_tensor *t = (mica_tensor *)(void *)((char *)desc + op->fields[i].offset);
        if (op->fields[i].kind == MICA_FIELD_TENSOR) t->strided = t->rank > 0;
    }
}

mica_status mica_op_resolve_child(const char *name, const void *desc, void *out, mica_why *why)
{
    const mica_op *op = mica_op_find(name);
    _Alignas(16) char given[MICA_MAX_DESC];
    memcpy(given, desc, op->desc_size);
    mica_op_strided(op, given);
    memset(out, 0, op->desc_size);
    return mica_op_resolve(op, given, op->desc_size, out, why);
}

/* ---- text ---- */

void mica_op_text(const mica_op *op, const void *desc, mica_text *text)
{
    /* Leave out, one after the other, each field that inference brings back. */
    _Alignas(16) char shorter[MICA_MAX_DESC], trial[MICA_MAX_DESC];
    mica_why why;
    memcpy(shorter, desc, op->desc_size);
    for (int i = op->field_count - 1; i >= 0; i--) {
        const mica_field *f = &op->fields[i];
        char saved[512]; /* holds any field */
        size_t bytes = mica_field_size(f);
        memcpy(saved, shorter + f->offset, bytes);
        memset(shorter + f->offset, 0, bytes);
        memcpy(trial, shorter, op->desc_size);
        if (infer_and_check(op, trial, &why) != MICA_OK || memcmp(trial, desc, op->desc_size) != 0)
            memcpy(shorter + f->offset, saved, bytes);
    }
    mica_text_add(text, "%s", op->name);
    for (int i = 0; i < op->field_count; i++) mica_field_text(&op->fields[i], shorter, text);
}

mica_status mica_op_parse_pair(const mica_op *op, char *pair, void *desc, double *scalars,
                               bool *seen, mica_why *why)
{
    char *equals = strchr(pair, '=');
    if (!equals) return mica_invalid(why, "\"%.60s\": a field is written name=value", pair);
    *equals = 0;
    for (int i = 0; i < op->field_count; i++) {
        if (strcmp(op->fields[i].name, pair) != 0) continue;
        if (seen[i]) return mica_invalid(why, "%s stands twice", pair);
        seen[i] = true;
        return mica_field_parse(&op->fields[i], equals + 1, desc, why);
    }
    for (int i = 0; i < op->scalar_count; i++) {
        if (strcmp(op->scalars[i].name, pair) != 0) continue;
        char *end;
        double value = mica_read_double(equals + 1, &end);
        bool taken = isfinite(value) || value == op->scalars[i].def; /* nms: -inf, no threshold */
        if (end == equals + 1 || *end || !taken)
            return mica_invalid(why, "%s=%.60s: not a finite number", pair, equals + 1);
        scalars[i] = value;
        return MICA_OK;
    }
    return mica_invalid(why, "%s has no field %.60s; `mica list %s` shows them", op->name, pair,
                        op->name);
}

mica_status mica_op_parse(const char *line, const mica_op **op_out, void *desc, size_t desc_size,
                          double *scalars, mica_why *why)
{
    static const char *const space = " \t\r\n";
    const char *s = line + strspn(line, space);
    size_t length = strcspn(s, space);
    const mica_op *op = find(s, length);
    if (!op)
        return mica_invalid(why, "\"%.*s\" is no operation; `mica list` shows them",
                            length < 60 ? (int)length : 60, s);
    if (op->desc_size > desc_size) return mica_invalid(why, "descriptor buffer too small");
    *op_out = op;
    memset(desc, 0, op->desc_size);
    mica_op_default_scalars(op, scalars);
    bool seen[MICA_MAX_FIELDS] = {false};
    for (s += length; *(s += strspn(s, space)); s += length) {
        char pair[512];
        length = strcspn(s, space);
        if (length >= sizeof pair) return mica_invalid(why, "a field of %zu characters", length);
        memcpy(pair, s, length);
        pair[length] = 0;
        MICA_TRY(mica_op_parse_pair(op, pair, desc, scalars, seen, why));
    }
    return MICA_OK;
}

void mica_op_default_scalars(const mica_op *op, double *scalars)
{
    for (int i = 0; i < op->scalar_count; i++) scalars[i] = op->scalars[i].def;
}

/* ---- cost and contract ---- */

double mica_op_arg_bytes(const mica_op *op, const void *desc, int arg)
{
    const mica_dir dir = mica_op_dir(op, desc, arg);
    if (dir == MICA_UNUSED) return 0;
    const mica_tensor *t = mica_op_tensor(op, desc, arg);
    /* A broadcast dimension is read once. */
    double elements = 1;
    for (int d = 0; d < t->rank; d++)
        elements *= t->strides[d] || t->dims[d] == 0 ? (double)t->dims[d] : 1;
    return elements * mica_dtype_bits(t->dtype) / 8 * (dir == MICA_INOUT ? 2 : 1);
}

double mica_op_bytes(const mica_op *op, const void *desc)
{
    double flops = 0, bytes = 0;
    if (op->cost) op->cost(desc, &flops, &bytes);
    if (bytes > 0) return bytes;
    for (int i = 0; i < op->arg_count; i++) bytes += mica_op_arg_bytes(op, desc, i);
    return bytes;
}

double mica_roofline_ms(const mica_op *op, const void *desc, const mica_device_info *device)
{
    double flops = 0, bytes = 0;
    if (op->cost) op->cost(desc, &flops, &bytes);
    const mica_tensor *first = mica_op_tensor(op, desc, 0);
    bool narrow = mica_tensor_given(first) && mica_dtype_bits(first->dtype) < 32;
    double rate = narrow ? device->bf16_tflops : device->f32_tflops;
    double compute = rate > 0 ? flops / (rate * 1e9) : 0;
    double memory = device->copy_gbps > 0 ? mica_op_bytes(op, desc) / (device->copy_gbps * 1e6) : 0;
    return compute > memory ? compute : memory;
}

void mica_op_contract(const mica_op *op, const void *desc, mica_contract *c)
{
    bool f64 = true;
    for (int i = 0; i < op->arg_count && f64; i++) {
        const mica_tensor *t = mica_op_tensor(op, desc, i);
        if (mica_op_dir(op, desc, i) != MICA_UNUSED && mica_dtype_is_float(t->dtype))
            f64 = t->dtype == MICA_F64;
    }
    *c = (mica_contract){.unit = mica_dtype_unit(f64 ? MICA_F64 : MICA_F32),
                         .k_inst = 1,
                         .n_seq = op->terms ? op->terms(desc) : 1,
                         .ulps = op->ulps};
}

static double additions(int64_t n)
{
    double root = 4 * sqrt((double)n);
    return (double)n < root ? (double)n : root;
}

double mica_contract_phi(const mica_contract *c)
{
    double k = c->k_inst > 1 ? (double)c->k_inst : 1;
    if (c->truncates) return c->unit * (2 * ((double)c->n_seq / k) + additions(c->n_outer));
    return c->unit * (additions(c->n_seq) + additions(c->n_outer));
}

/* ---- tables for tools ---- */

void mica_arg_describe(const mica_op *op, int index, int pass, mica_arg_info *info)
{
    const mica_arg *a = &op->args[index];
    *info = (mica_arg_info){.name = a->name,
                            .optional = a->optional,
                            .alias = mica_op_arg_index(op, a->alias),
                            .types = a->types,
                            .need = a->need[pass],
                            .like = a->like,
                            .with = a->with,
                            .refused = a->refused};
}

const char *mica_op_name(int index)
{
    return index >= 0 && index < mica_op_count ? mica_ops[index]->name : NULL;
}

static mica_status named(const char *name, const mica_op **op)
{
    *op = name ? mica_op_find(name) : NULL;
    if (*op) return MICA_OK;
    return mica_fail(MICA_INVALID, "\"%.60s\" is no operation", name ? name : "(null)");
}

mica_status mica_op_field(const char *name, int index, mica_field_info *info)
{
    static const char *const types[] = {"tensor", "enum", "flag", "int",
                                        "float",  "axes", "list", "text"};
    const mica_op *op;
    MICA_TRY(named(name, &op));
    if (index < 0 || index >= op->field_count)
        return mica_fail(MICA_INVALID, "field %d: %s has %d", index, name, op->field_count);
    const mica_field *f = &op->fields[index];
    *info =
        (mica_field_info){f->name, types[f->kind], f->offset, f->spellings, f->doc ? f->doc : ""};
    return MICA_OK;
}

int mica_op_default(const char *name, int index, char *buffer, size_t size)
{
    mica_text text = {buffer, size, 0};
    mica_field_info info;
    if (size) *buffer = 0;
    if (mica_op_field(name, index, &info) != MICA_OK) return 0;
    mica_field_zero(&mica_op_find(name)->fields[index], &text);
    return (int)text.length;
}

size_t mica_op_desc_size(const char *name)
{
    const mica_op *op;
    return named(name, &op) == MICA_OK ? op->desc_size : 0;
}

mica_status mica_op_scalar(const char *name, int index, const char **scalar, double *value)
{
    const mica_op *op;
    MICA_TRY(named(name, &op));
    if (index < 0 || index >= op->scalar_count)
        return mica_fail(MICA_INVALID, "scalar %d: %s has %d", index, name, op->scalar_count);
    *scalar = op->scalars[index].name;
    *value = op->scalars[index].def;
    return MICA_OK;
}

mica_status mica_op_arg(const char *name, int index, int pass, mica_arg_info *info)
{
    const mica_op *op;
    MICA_TRY(named(name, &op));
    if (index < 0 || index >= op->arg_count || pass < 0 || pass > 2)
        return mica_fail(MICA_INVALID, "argument %d of pass %d: %s has %d arguments", index, pass,
                         name, op->arg_count);
    int column = strcmp(op->fields[0].name, "pass") == 0 ? pass : 0;
    mica_arg_describe(op, index, column, info);
    info->dir = op->args[index].dir[column];
    return MICA_OK;
}

const char *mica_op_doc(const char *name)
{
    const mica_op *op;
    return named(name, &op) == MICA_OK ? op->doc : "";
}

static bool named_before(const mica_op *op, int engine)
{
    for (int i = 0; i < engine; i++)
        if (!strcmp(op->engines[i]->name, op->engines[engine]->name)) return true;
    return false;
}

const char *mica_op_backend_engine(const char *name, bool cuda, int index)
{
    const mica_op *op;
    if (named(name, &op) != MICA_OK || index < 0) return NULL;
    for (int i = 0; op->engines[i]; i++)
        if (op->engines[i]->cuda == cuda && index-- == 0) return op->engines[i]->name;
    return NULL;
}

const char *mica_op_engine(const char *name, int index)
{
    const mica_op *op;
    if (named(name, &op) != MICA_OK || index < 0) return NULL;
    for (int i = 0; op->engines[i]; i++)
        if (!named_before(op, i) && index-- == 0) return op->engines[i]->name;
    return NULL;
}
