/* SPDX-License-Identifier: Apache-2.0
 * Engine "compose" of integer_gemm: the product of the codes in s32 by gemm, sums of rows and
 * columns where there are zero points, and an expression that corrects and scales it:
 *
 *     t = p - zero_a sums_b - zero_b (sums_a - K zero_a)
 *
 * in s32, where what wraps behind p does not matter. p itself must fit: rows of a have at most
 * 65793 columns in u8, 131071 in s8. Codes of b in u8 become s8 less 128, zero points as much less.
 * Floor: the product, and 4 M N bytes that are written and read once more. */
#include "ops/integer_gemm/integer_gemm.h"
#include "mica/gemm.h"
#include "mica/pointwise.h"
#include "ops/compose/held.h"
#include "base/format.h"

typedef struct steps {
    const mica_integer_gemm_desc *d;
    mica_compose *list;
    int64_t rows, columns, k;
    bool shifted; /* b is u8 */
} steps;

static mica_held argument(const steps *p, int arg)
{
    return mica_held_arg(mica_op_tensor(&mica_op_integer_gemm, p->d, arg), arg);
}

/* One element, or a vector along a dimension of y. */
static mica_held along(const steps *p, mica_held h, int dimension)
{
    const int64_t count = mica_held_given(&h) ? mica_tensor_count(&h.t) : 0, step = h.t.strides[0];
    if (!count) return h;
    h.t.rank = 2;
    for (int i = 0; i < 2; i++) {
        const bool own = i == dimension && count > 1;
        h.t.dims[i] = own ? count : 1;
        h.t.strides[i] = own ? step : 1;
    }
    (void)p;
    return h;
}

/* b as s8; as it lies in memory where it is. */
static mica_held codes_of_b(const steps *p)
{
    const mica_held b = argument(p, MICA_INTEGER_GEMM_B);
    if (!p->shifted) return b;
    const mica_held to = mica_held_transposed(
        mica_held_temporary(p->list, MICA_S8, 2, (const int64_t[]){p->columns, p->k}));
    mica_held_expression(p->list, "s8(s32(x0)-128)", to, &b, 1);
    return to;
}

static mica_held sums(const steps *p, mica_held of, int axis, int64_t count)
{
    const mica_held to = mica_held_temporary(p->list, MICA_S32, 1, &count);
    mica_held_reduction(p->list, MICA_REDUCE_KIND_SUM, axis, of, to);
    return to;
}

static void product(const steps *p, mica_held b, mica_held to)
{
    const mica_gemm_desc g = {.a = p->d->a, .b = b.t, .c = to.t};
    mica_compose_step(p->list, "gemm", &g, sizeof g, NULL);
    mica_compose_bind(p->list, MICA_GEMM_A, mica_compose_arg(MICA_INTEGER_GEMM_A));
    mica_compose_bind(p->list, MICA_GEMM_B, b.at);
    mica_compose_bind(p->list, MICA_GEMM_C, to.at);
}

enum { PRODUCT, ZERO_A, ZERO_B, SUMS_B, SUMS_A, SCALE_A, SCALE_B, BIAS, OPERANDS };

/* The sum alone. */
static void write_sum(const steps *p, const mica_held *x, mica_text *e)
{
    const bool zero_a = mica_held_given(&x[ZERO_A]), zero_b = mica_held_given(&x[ZERO_B]);
    mica_text_add(e, "(x0");
    if (zero_a) {
        mica_text_add(e, "-s32(x%d)*(x%d", ZERO_A, SUMS_B);
        if (p->shifted && mica_tensor_given(&p->d->sums_b))
            mica_text_add(e, "-%lld", (long long)p->k * 128);
        mica_text_add(e, ")");
    }
    if (zero_b || p->shifted) {
        mica_text_add(e, "-(");
        if (zero_b) mica_text_add(e, "s32(x%d)", ZERO_B);
        if (p->shifted) mica_text_add(e, "-128");
        mica_text_add(e, ")*(x%d", SUMS_A);
        if (zero_a) mica_text_add(e, "-s32(x%d)*%lld", ZERO_A, (long long)p->k);
        mica_text_add(e, ")");
    }
    mica_text_add(e, ")");
}

static void list_steps(const void *desc, mica_compose *c)
{
    const mica_integer_gemm_desc *d = desc;
    const steps p = {.d = d,
                     .list = c,
                     .rows = d->a.dims[0],
                     .columns = d->b.dims[1],
                     .k = d->a.dims[1],
                     .shifted = d->b.dtype == MICA_U8};
    const bool bytes = d->y.dtype == MICA_S8 || d->y.dtype == MICA_U8;
    const int64_t dims[] = {p.rows, p.columns};
    if (p.rows == 0 || p.columns == 0) return;
    const mica_held y = argument(&p, MICA_INTEGER_GEMM_Y), b = codes_of_b(&p);
    mica_held x[OPERANDS] = {{.t = {0}}};
    x[ZERO_A] = along(&p, argument(&p, MICA_INTEGER_GEMM_ZERO_A), 0);
    x[ZERO_B] = along(&p, argument(&p, MICA_INTEGER_GEMM_ZERO_B), 1);
    x[SCALE_A] = along(&p, argument(&p, MICA_INTEGER_GEMM_SCALE_A), 0);
    x[SCALE_B] = along(&p, argument(&p, MICA_INTEGER_GEMM_SCALE_B), 1);
    x[BIAS] = along(&p, argument(&p, MICA_INTEGER_GEMM_BIAS), 1);
    const bool zero_a = mica_held_given(&x[ZERO_A]),
               zero_b = mica_held_given(&x[ZERO_B]) || p.shifted;
    if (d->y.dtype == MICA_S32 && !zero_a && !zero_b) {
        product(&p, b, y);
        return;
    }
    if (zero_a) {
        x[SUMS_B] = argument(&p, MICA_INTEGER_GEMM_SUMS_B);
        if (!mica_held_given(&x[SUMS_B])) x[SUMS_B] = sums(&p, b, 0, p.columns);
        x[SUMS_B] = along(&p, x[SUMS_B], 1);
    }
    if (zero_b) x[SUMS_A] = along(&p, sums(&p, argument(&p, MICA_INTEGER_GEMM_A), 1, p.rows), 0);
    x[PRODUCT] = mica_held_temporary(c, MICA_S32, 2, dims);
    product(&p, b, x[PRODUCT]);
    char buffer[512] = "";
    mica_text e = {buffer, sizeof buffer, 0};
    if (d->y.dtype != MICA_S32) mica_text_add(&e, "f32");
    write_sum(&p, x, &e);
    if (mica_held_given(&x[SCALE_A])) mica_text_add(&e, "*x%d", SCALE_A);
    if (mica_held_given(&x[SCALE_B])) mica_text_add(&e, "*x%d", SCALE_B);
    if (mica_held_given(&x[BIAS])) mica_text_add(&e, "+f32(x%d)", BIAS);
    const mica_held v = bytes ? mica_held_temporary(c, MICA_F32, 2, dims) : y;
    mica_held_expression(c, buffer, v, x, OPERANDS);
    if (!bytes) return;
    mica_held q[3] = {v, along(&p, argument(&p, MICA_INTEGER_GEMM_SCALE_Y), 0),
                      along(&p, argument(&p, MICA_INTEGER_GEMM_ZERO_Y), 0)};
    mica_format(buffer, sizeof buffer, "%s(round(x0%s)%s)", mica_dtype_name(d->y.dtype),
                mica_held_given(&q[1]) ? "/x1" : "", mica_held_given(&q[2]) ? "+f32(x2)" : "");
    mica_held_expression(c, buffer, y, q, 3);
}

/* The product of the codes, whose integers saturate, must fit s32. */
static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_integer_gemm_desc *d = desc;
    const int64_t largest = (d->a.dtype == MICA_U8 ? 255 : 128) * 128, k = d->a.dims[1];
    (void)device;
    if (k > INT32_MAX / largest)
        return mica_refuse(why, "a has %lld columns, sums of up to %lld codes fit s32",
                           (long long)k, (long long)(INT32_MAX / largest));
    return MICA_OK;
}

const mica_engine mica_integer_gemm_compose = {
    .name = "compose", .accepts = accepts, MICA_COMPOSED(list_steps)};
const mica_engine mica_integer_gemm_compose_cuda = {
    .name = "compose", .cuda = true, .accepts = accepts, MICA_COMPOSED(list_steps)};
