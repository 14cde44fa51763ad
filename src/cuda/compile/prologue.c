/* SPDX-License-Identifier: Apache-2.0
 * Lines of generated CUDA C. */
#include "cuda/cuda.h"

#include <inttypes.h>

void mica_prologue_int(mica_text *prologue, const char *name, int64_t value)
{
    /* The smallest integer has no literal; and what does not fit an int is a long long. */
    if (value == INT64_MIN)
        mica_text_add(prologue, "constexpr long long %s = -0x7fffffffffffffffLL - 1;\n", name);
    else if (value < INT32_MIN || value > INT32_MAX)
        mica_text_add(prologue, "constexpr long long %s = %" PRId64 "LL;\n", name, value);
    else
        mica_text_add(prologue, "constexpr int %s = %" PRId64 ";\n", name, value);
}

void mica_prologue_double(mica_text *prologue, const char *name, double value)
{
    /* NaN and the infinities have no constant expression in NVRTC. */
    if (value != value)
        mica_text_add(prologue, "#define %s __longlong_as_double(0x7ff8000000000000LL)\n", name);
    else if (value - value != 0)
        mica_text_add(prologue, "#define %s __longlong_as_double(0x%sff0000000000000LL)\n", name,
                      value < 0 ? "f" : "7");
    else
        mica_text_add(prologue, "constexpr double %s = %a;\n", name, value);
}

static const char *const type_names[MICA_DTYPE_COUNT] = {
    [MICA_F64] = "double", [MICA_F32] = "float", [MICA_F16] = "f16", [MICA_BF16] = "bf16",
    [MICA_E4M3] = "e4m3",  [MICA_E5M2] = "e5m2", [MICA_S8] = "s8",   [MICA_U8] = "u8",
    [MICA_S32] = "s32",    [MICA_S64] = "s64",   [MICA_U32] = "u32", [MICA_BOOL] = "boolean",
};

/* NULL, and a line that does not compile and whose message says which it is, for a type without a
 * name on the device. */
static const char *type_name(mica_text *prologue, const char *name, mica_dtype dtype)
{
    const char *type = (unsigned)dtype < MICA_DTYPE_COUNT ? type_names[dtype] : NULL;
    if (!type)
        mica_text_add(prologue, "\n#error %s has no type on the device (%s)\n",
                      mica_dtype_name(dtype), name);
    return type;
}

void mica_prologue_type(mica_text *prologue, const char *name, mica_dtype dtype)
{
    const char *type = type_name(prologue, name, dtype);
    if (type) mica_text_add(prologue, "typedef %s %s;\n", type, name);
}

void mica_prologue_types(mica_text *prologue, const char *name, const mica_dtype *dtypes, int count)
{
    mica_text_add(prologue, "typedef types<");
    for (int i = 0; i < count; i++) {
        const char *type = type_name(prologue, name, dtypes[i]);
        if (type) mica_text_add(prologue, "%s%s", i ? "," : "", type);
    }
    mica_text_add(prologue, "> %s;\n", name);
}
