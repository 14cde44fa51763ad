/* SPDX-License-Identifier: Apache-2.0
 * Field tables: what a descriptor is made of. Text, hash, comparison, defaults, tools and bindings
 * all follow from them. */
#ifndef MICA_BASE_FIELDS_H
#define MICA_BASE_FIELDS_H

#include "base/why.h"
#include "base/text.h"

#include <math.h>

typedef enum mica_field_kind {
    MICA_FIELD_TENSOR, /* mica_tensor       x=f32:1x3x8x8 */
    MICA_FIELD_ENUM,   /* C enum            pass=dgrad */
    MICA_FIELD_FLAG,   /* bool              log=1 */
    MICA_FIELD_I64,    /* int64_t           groups=4 */
    MICA_FIELD_F64,    /* double            eps=1e-6 */
    MICA_FIELD_AXES,   /* int64_t[count]    pad=1x1   trailing zeros may be left out */
    MICA_FIELD_LIST,   /* int32_t[count], ended by 0: epilogue=bias,relu */
    MICA_FIELD_TEXT    /* char[count], ended by 0, without spaces: expr=exp(x0) */
} mica_field_kind;

typedef struct mica_field {
    const char *name;
    mica_field_kind kind;
    int count; /* of AXES, LIST and TEXT */
    size_t offset;
    const char *const *spellings; /* ENUM and LIST: by value, NULL-terminated */
    double def;                   /* what zero means, if not zero: AXES, I64, F64 */
    const char *zero;             /* what zero means, in words, where no other member tells */
    const char *doc;
    bool infinite;    /* of F64: the value may be infinite */
    bool permutation; /* of AXES: all zeros mean that it is left out, and are not written */
    /* I64, F64, AXES: `infer` fills what was left out, and leaves a 0 that was given: a F64 for
     * which mica_left_out() is false, a I64 that is MICA_ZERO_INT and is then replaced by 0. */
    bool apart;
    bool positive; /* I64, AXES: zero means something else, and a 0 that is given is refused */
} mica_field;

/* A row of a field table: MICA_FIELD(mica_conv_desc, groups, I64, .def = 1, .doc = "...") */
#define MICA_FIELD(type, member, field_kind, ...)                                                  \
    {                                                                                              \
        .name = #member, .kind = MICA_FIELD_##field_kind, .offset = offsetof(type, member),        \
        __VA_ARGS__                                                                                \
    }

/* Bytes of one field in the descriptor. */
size_t mica_field_size(const mica_field *field);
/* Reads one value into the descriptor; the reason names the field, the value and the rule. */
mica_status mica_field_parse(const mica_field *field, const char *value, void *desc, mica_why *why);
/* Writes "name=value" preceded by a space; nothing if the value is zero or the default. */
void mica_field_text(const mica_field *field, const void *desc, mica_text *text);
/* What zero means: a field's words, its default, its first spelling; "none" of a list, "no" of a
 * flag. */
void mica_field_zero(const mica_field *field, mica_text *text);
/* Replaces zero by the default, and what stands for 0 by a 0. Among descriptors with defaults, a
 * F64 of 0 that was given is -0.0 where it differs from one left out: it counts as 0, survives a
 * copy into the descriptor of a child, and is not taken for left out there. */
mica_status mica_field_default(const mica_field *field, void *desc, mica_why *why);
/* Behind `infer`: MICA_ZERO_INT in fields that infer tells apart. */
void mica_field_settle(const mica_field *field, void *desc);
static inline bool mica_left_out(double value)
{
    return value == 0 && !signbit(value);
}
/* Copies the fields of a caller's descriptor of desc_size bytes into a zeroed one: padding and
 * members past its end stay zero, so that equal descriptors have equal bytes. Spellings' range and
 * tensors' ranks are checked. */
mica_status mica_fields_copy(const mica_field *fields, int count, const void *desc,
                             size_t desc_size, void *copy, mica_why *why);

#endif
