/* SPDX-License-Identifier: Apache-2.0
 * The text of one wgmma instruction as a device function: assembly with as many operands as the
 * accumulator has registers, which nobody wants to read or keep for every size and type. */
#include "cuda/cuda.h"

static const struct {
    mica_dtype dtype;
    const char *name;
    int k; /* elements of 32 bytes */
} kinds[] = {
    {MICA_BF16, "bf16", 16}, {MICA_F16, "f16", 16}, {MICA_F32, "tf32", 8}, {MICA_E4M3, "e4m3", 32},
    {MICA_E5M2, "e5m2", 32}, {MICA_S8, "s8", 32},   {MICA_U8, "u8", 32},
};

static int kind_of(mica_dtype dtype)
{
    for (int i = 0; i < (int)(sizeof kinds / sizeof *kinds); i++)
        if (kinds[i].dtype == dtype) return i;
    return -1;
}

static void add_operands(mica_text *p, const mica_wgmma *w, const char *constraint)
{
    int held = w->n / 2;
    mica_text_add(p, "        : ");
    for (int i = 0; i < held; i++)
        mica_text_add(p, "%s\"+%s\"(d[%d])", i ? ", " : "", constraint, i);
    mica_text_add(p, "\n        : ");
    if (w->a_in_registers)
        mica_text_add(p, "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])");
    else
        mica_text_add(p, "\"l\"(a)");
    mica_text_add(p, ", \"l\"(b), \"r\"(add));\n}\n");
}

void mica_prologue_wgmma(mica_text *p, const char *name, const mica_wgmma *w)
{
    int a = kind_of(w->a), b = kind_of(w->b), held = w->n / 2;
    if (a < 0 || b < 0 || kinds[a].k != kinds[b].k) {
        mica_text_add(p, "#error no wgmma of %s by %s\n", mica_dtype_name(w->a),
                      mica_dtype_name(w->b));
        return;
    }
    bool whole = w->a == MICA_S8 || w->a == MICA_U8;
    mica_text_add(p, "__device__ __forceinline__ void %s(%s (&d)[%d], %s, u64 b, int add)\n{\n",
                  name, whole ? "s32" : "float", held,
                  w->a_in_registers ? "const u32 (&a)[4]" : "u64 a");
    int first = held, second = held + (w->a_in_registers ? 4 : 1);
    mica_text_add(p,
                  "    asm volatile(\"{ .reg .pred p; setp.ne.b32 p, %%%d, 0; "
                  "wgmma.mma_async.sync.aligned.m64n%dk%d.%s.%s.%s {",
                  second + 1, w->n, kinds[a].k, whole ? "s32" : "f32", kinds[a].name,
                  kinds[b].name);
    for (int i = 0; i < held; i++) mica_text_add(p, "%s%%%d", i ? ", " : "", i);
    if (w->a_in_registers)
        mica_text_add(p, "}, {%%%d, %%%d, %%%d, %%%d}, %%%d, p", first, first + 1, first + 2,
                      first + 3, second);
    else
        mica_text_add(p, "}, %%%d, %%%d, p", first, second);
    if (!whole) mica_text_add(p, ", 1, 1");
    if (kinds[a].k == 16 && !w->a_in_registers) mica_text_add(p, ", %d", w->a_mn_major);
    if (kinds[a].k == 16) mica_text_add(p, ", %d", w->b_mn_major);
    mica_text_add(p, "; }\"\n");
    add_operands(p, w, whole ? "r" : "f");
}
