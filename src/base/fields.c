/* SPDX-License-Identifier: Apache-2.0
 * Field tables. */
#include "base/fields.h"
#include "base/format.h"
#include "base/tensor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const size_t kind_sizes[] = {
    [MICA_FIELD_TENSOR] = sizeof(mica_tensor), [MICA_FIELD_ENUM] = sizeof(int32_t),
    [MICA_FIELD_FLAG] = sizeof(bool),          [MICA_FIELD_I64] = sizeof(int64_t),
    [MICA_FIELD_F64] = sizeof(double),         [MICA_FIELD_AXES] = sizeof(int64_t),
    [MICA_FIELD_LIST] = sizeof(int32_t),       [MICA_FIELD_TEXT] = sizeof(char)};

static int field_count(const mica_field *f)
{
    return f->count ? f->count : 1;
}

size_t mica_field_size(const mica_field *f)
{
    return kind_sizes[f->kind] * (size_t)field_count(f);
}

/* ---- reading ---- */

static mica_status bad(const mica_field *f, const char *value, const char *rule, mica_why *why)
{
    return mica_invalid(why, "%s=%.60s: %s", f->name, value, rule);
}

/* MICA_ZERO_INT stands for 0, and is no number. */
static bool read_i64(const char *s, char **end, int64_t *value)
{
    errno = 0;
    *value = strtoll(s, end, 10);
    return *end != s && errno == 0 && *value != MICA_ZERO_INT;
}

/* Whether a 0 that is given is not what a field left out has. */
static bool zero_is_apart(const mica_field *f)
{
    return f->def != 0 || f->apart || f->positive;
}

/* The number as a caller's descriptor has it. */
static int64_t given_i64(const mica_field *f, int64_t number)
{
    return number == 0 && zero_is_apart(f) ? MICA_ZERO_INT : number;
}

static int spelled(const char *const *spellings, const char *value, size_t length)
{
    for (int i = 0; spellings[i]; i++)
        if (strlen(spellings[i]) == length && !strncmp(spellings[i], value, length)) return i;
    return -1;
}

static mica_status unknown_spelling(const mica_field *f, const char *value, mica_why *why)
{
    char list[160] = "";
    mica_text text = {list, sizeof list, 0};
    for (int i = 0; f->spellings[i]; i++)
        if (*f->spellings[i])
            mica_text_add(&text, "%s%s", text.length ? ", " : "", f->spellings[i]);
    return mica_invalid(why, "%s=%.40s: known are %s", f->name, value, list);
}

static bool all_zero(const int64_t *numbers, int n)
{
    while (n > 0 && numbers[n - 1] == 0) n--;
    return n == 0;
}

static mica_status parse_axes(const mica_field *f, const char *value, int64_t *out, mica_why *why)
{
    int64_t numbers[MICA_MAX_RANK] = {0};
    const char *s = value;
    int n = 0;
    do {
        char *end;
        if (n == f->count) return bad(f, value, "too many numbers", why);
        if (*s == 'x' && zero_is_apart(f)) {
            n++; /* left out */
            continue;
        }
        if (!read_i64(s, &end, &numbers[n])) return bad(f, value, "numbers are written 1x2x3", why);
        numbers[n] = given_i64(f, numbers[n]);
        n++;
        s = end;
    } while (*s++ == 'x');
    if (s[-1]) return bad(f, value, "numbers are written 1x2x3", why);
    if (f->permutation && n > 1 && all_zero(numbers, n))
        return bad(f, value, "0 stands twice, a permutation names each dimension once", why);
    memcpy(out, numbers, (size_t)f->count * sizeof *out);
    return MICA_OK;
}

static mica_status parse_list(const mica_field *f, const char *value, int32_t *out, mica_why *why)
{
    int32_t list[16] = {0};
    int n = 0;
    for (const char *s = value; *s;) {
        size_t length = strcspn(s, ",");
        int v = spelled(f->spellings, s, length);
        if (v <= 0) return unknown_spelling(f, s, why);
        if (n == f->count - 1) return bad(f, value, "too many steps", why);
        list[n++] = v;
        s += length;
        if (*s == ',') s++;
    }
    memcpy(out, list, (size_t)f->count * sizeof *out);
    return MICA_OK;
}

/* What a line can say: it is divided by spaces. */
static mica_status check_text(const mica_field *f, const char *value, mica_why *why)
{
    const size_t length = strnlen(value, (size_t)f->count);
    if (length == (size_t)f->count)
        return mica_invalid(why, "%s=%.40s...: at most %d characters fit", f->name, value,
                            f->count - 1);
    for (size_t i = 0; i < length; i++)
        if (value[i] <= ' ' || value[i] > '~')
            return mica_invalid(why, "%s=%.40s: character %d (code %d) is not one that is seen",
                                f->name, value, (int)i + 1, (unsigned char)value[i]);
    return MICA_OK;
}

mica_status mica_field_parse(const mica_field *f, const char *value, void *desc, mica_why *why)
{
    char *at = (char *)desc + f->offset, *end;
    int64_t number;
    switch (f->kind) {
    case MICA_FIELD_TENSOR: {
        mica_tensor t;
        if (mica_tensor_from_text(value, &t) != MICA_OK)
            return mica_invalid(why, "%s: %.200s", f->name, mica_error());
        memcpy(at, &t, sizeof t);
        return MICA_OK;
    }
    case MICA_FIELD_ENUM: {
        int32_t v = spelled(f->spellings, value, strlen(value));
        if (v < 0) return unknown_spelling(f, value, why);
        memcpy(at, &v, sizeof v);
        return MICA_OK;
    }
    case MICA_FIELD_FLAG:
        if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
            return bad(f, value, "a flag is 0 or 1", why);
        *(bool *)at = *value == '1';
        return MICA_OK;
    case MICA_FIELD_I64:
        if (!read_i64(value, &end, &number) || *end)
            return bad(f, value, "not a whole number", why);
        number = given_i64(f, number);
        memcpy(at, &number, sizeof number);
        return MICA_OK;
    case MICA_FIELD_F64: {
        double v = mica_read_double(value, &end);
        if (end == value || *end || isnan(v) || (isinf(v) && !f->infinite))
            return bad(f, value, f->infinite ? "not a number" : "not a finite number", why);
        if (v == 0) v = zero_is_apart(f) ? MICA_ZERO : 0;
        memcpy(at, &v, sizeof v);
        return MICA_OK;
    }
    case MICA_FIELD_AXES: {
        int64_t numbers[MICA_MAX_RANK];
        MICA_TRY(parse_axes(f, value, numbers, why));
        memcpy(at, numbers, mica_field_size(f));
        return MICA_OK;
    }
    case MICA_FIELD_LIST: {
        int32_t list[16];
        MICA_TRY(parse_list(f, value, list, why));
        memcpy(at, list, mica_field_size(f));
        return MICA_OK;
    }
    case MICA_FIELD_TEXT:
        MICA_TRY(check_text(f, value, why));
        memset(at, 0, mica_field_size(f));
        memcpy(at, value, strlen(value));
        return MICA_OK;
    }
    return bad(f, value, "a field of unknown kind", why);
}

/* ---- writing ---- */

/* Shortest decimal that reads back as the same double. */
static void add_double(mica_text *text, double v)
{
    char digits[40];
    for (int precision = 6; precision <= 17; precision++) {
        mica_text t = {digits, sizeof digits, 0};
        mica_text_add(&t, "%.*g", precision, v);
        if (mica_read_double(digits, NULL) == v) break;
    }
    mica_text_add(text, "%s", digits);
}

static void axes_text(const mica_field *f, const int64_t *v, mica_text *text)
{
    int used = 0;
    bool standard = true;
    for (int i = 0; i < f->count; i++) {
        if (v[i]) used = i + 1;
        standard &= v[i] == 0 || (double)v[i] == f->def;
    }
    if (!used || standard) return;
    /* Defaults at the end of the axes are left out; the reader puts them back. */
    while (used > 1 && f->def != 0 && (double)v[used - 1] == f->def) used--;
    mica_text_add(text, " %s=", f->name);
    for (int i = 0; i < used; i++) {
        if (i) mica_text_add(text, "x");
        if (v[i] || !(f->def != 0 || f->positive))
            mica_text_add(text, "%lld", (long long)(v[i] == MICA_ZERO_INT ? 0 : v[i]));
    }
}

static void list_text(const mica_field *f, const int32_t *v, mica_text *text)
{
    for (int i = 0; i < f->count && v[i]; i++) {
        if (!i) mica_text_add(text, " %s=", f->name);
        mica_text_add(text, "%s%s", i ? "," : "", f->spellings[v[i]]);
    }
}

void mica_field_text(const mica_field *f, const void *desc, mica_text *text)
{
    const char *at = (const char *)desc + f->offset;
    switch (f->kind) {
    case MICA_FIELD_TENSOR: {
        const mica_tensor *t = (const mica_tensor *)at;
        char buffer[256];
        if (t->dtype == MICA_NONE) return;
        mica_tensor_text(t, buffer, sizeof buffer);
        mica_text_add(text, " %s=%s", f->name, buffer);
        return;
    }
    case MICA_FIELD_ENUM: {
        int32_t v;
        memcpy(&v, at, sizeof v);
        if (v) mica_text_add(text, " %s=%s", f->name, f->spellings[v]);
        return;
    }
    case MICA_FIELD_FLAG:
        if (*(const bool *)at) mica_text_add(text, " %s=1", f->name);
        return;
    case MICA_FIELD_I64: {
        int64_t v = *(const int64_t *)at;
        if (v && (double)v != f->def)
            mica_text_add(text, " %s=%lld", f->name, (long long)(v == MICA_ZERO_INT ? 0 : v));
        return;
    }
    case MICA_FIELD_F64: {
        double v = *(const double *)at;
        if (mica_left_out(v) || (v != 0 && v == f->def)) return;
        mica_text_add(text, " %s=", f->name);
        add_double(text, v == MICA_ZERO ? 0 : v + 0); /* not -0 */
        return;
    }
    case MICA_FIELD_AXES:
        axes_text(f, (const int64_t *)at, text);
        return;
    case MICA_FIELD_LIST:
        list_text(f, (const int32_t *)at, text);
        return;
    case MICA_FIELD_TEXT:
        if (*at) mica_text_add(text, " %s=%s", f->name, at);
        return;
    }
}

void mica_field_zero(const mica_field *f, mica_text *text)
{
    if (f->zero)
        mica_text_add(text, "%s", f->zero);
    else if (f->kind == MICA_FIELD_ENUM)
        mica_text_add(text, "%s", f->spellings[0]);
    else if (f->kind == MICA_FIELD_FLAG)
        mica_text_add(text, "no");
    else if (f->kind == MICA_FIELD_LIST || f->kind == MICA_FIELD_TENSOR ||
             f->kind == MICA_FIELD_TEXT)
        mica_text_add(text, "none");
    else
        add_double(text, f->def);
}

static double default_f64(const mica_field *f, double v)
{
    if (v != 0 && v != MICA_ZERO) return v;
    if (!zero_is_apart(f)) return 0;
    return mica_left_out(v) ? f->def : -0.0;
}

static mica_status default_i64(const mica_field *f, int64_t *v, mica_why *why)
{
    if (*v == 0) {
        *v = (int64_t)f->def;
    } else if (*v == MICA_ZERO_INT && f->positive) {
        char left_out[80];
        mica_text words = {left_out, sizeof left_out, 0};
        mica_field_zero(f, &words);
        return mica_invalid(why, "%s is 0, it must be 1 or more; left out it means: %s", f->name,
                            left_out);
    } else if (*v == MICA_ZERO_INT && !f->apart) {
        *v = 0;
    }
    return MICA_OK;
}

mica_status mica_field_default(const mica_field *f, void *desc, mica_why *why)
{
    char *at = (char *)desc + f->offset;
    if (f->kind == MICA_FIELD_F64) *(double *)at = default_f64(f, *(double *)at);
    if (f->kind == MICA_FIELD_I64 || f->kind == MICA_FIELD_AXES)
        for (int i = 0; i < field_count(f); i++) MICA_TRY(default_i64(f, (int64_t *)at + i, why));
    return MICA_OK;
}

void mica_field_settle(const mica_field *f, void *desc)
{
    int64_t *at = (int64_t *)(void *)((char *)desc + f->offset);
    for (int i = 0; f->apart && f->kind != MICA_FIELD_F64 && i < field_count(f); i++)
        if (at[i] == MICA_ZERO_INT) at[i] = 0;
}

/* ---- copying ---- */

static mica_status check_value(const mica_field *f, const void *at, mica_why *why)
{
    int values = 0;
    if (f->kind == MICA_FIELD_TEXT) return check_text(f, at, why);
    if (f->kind == MICA_FIELD_ENUM || f->kind == MICA_FIELD_LIST)
        while (f->spellings[values]) values++;
    for (int i = 0; values && i < field_count(f); i++) {
        int32_t v = ((const int32_t *)at)[i];
        if (v < 0 || v >= values)
            return mica_invalid(why, "%s: %d is no known value, 0 to %d are", f->name, v,
                                values - 1);
        /* In a list, 0 ends; what stands at the head of a block of values is a base, not a value.
         */
        if (f->kind == MICA_FIELD_LIST && v && !*f->spellings[v])
            return mica_invalid(why, "%s: %d is no known value", f->name, v);
        if (f->kind == MICA_FIELD_LIST && i == f->count - 1 && v)
            return mica_invalid(why, "%s: the list must end in 0, at most %d steps", f->name,
                                f->count - 1);
    }
    if (f->kind == MICA_FIELD_F64) {
        double v = *(const double *)at;
        if (isnan(v) || (isinf(v) && !f->infinite))
            return mica_invalid(why, "%s: not a %snumber", f->name, f->infinite ? "" : "finite ");
    }
    if (f->kind != MICA_FIELD_TENSOR) return MICA_OK;
    const mica_tensor *t = at;
    if ((unsigned)t->dtype >= MICA_DTYPE_COUNT)
        return mica_invalid(why, "%s: %d is no data type", f->name, (int)t->dtype);
    if (t->rank < 0 || t->rank > MICA_MAX_RANK)
        return mica_invalid(why, "%s: rank is %d, 0 to %d are legal", f->name, t->rank,
                            MICA_MAX_RANK);
    return MICA_OK;
}

/* Dims and strides past the rank mean nothing and must not make two equal tensors differ. */
static void copy_tensor(const mica_tensor *from, mica_tensor *to)
{
    to->dtype = from->dtype;
    to->rank = from->rank;
    memcpy(to->dims, from->dims, (size_t)from->rank * sizeof *to->dims);
    memcpy(to->strides, from->strides, (size_t)from->rank * sizeof *to->strides);
    to->strided = from->strided;
    mica_tensor_default_strides(to);
}

mica_status mica_fields_copy(const mica_field *fields, int count, const void *desc,
                             size_t desc_size, void *copy, mica_why *why)
{
    for (int i = 0; i < count; i++) {
        const mica_field *f = &fields[i];
        const char *from = (const char *)desc + f->offset;
        char *to = (char *)copy + f->offset;
        if (f->offset + mica_field_size(f) > desc_size) continue;
        if (f->kind == MICA_FIELD_FLAG) {
            /* Any bits but zero are true: a bool with other bits would compare unequal. */
            *(unsigned char *)to = *(const unsigned char *)from != 0;
            continue;
        }
        MICA_TRY(check_value(f, from, why));
        if (f->kind == MICA_FIELD_TEXT)
            memcpy(to, from, strlen(from)); /* what stands behind the end means nothing */
        else if (f->kind == MICA_FIELD_TENSOR)
            copy_tensor((const mica_tensor *)from, (mica_tensor *)to);
        else
            memcpy(to, from, mica_field_size(f));
    }
    return MICA_OK;
}
