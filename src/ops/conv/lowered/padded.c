/* SPDX-License-Identifier: Apache-2.0
 * Engine "padded": a convolution whose groups have numbers of channels that are no multiples of 16
 * bytes, by way of copies with zeros for the channels that are missing, side by side: tensor cores'
 * engines read whole vectors only. The sum is over the image's channels, so that zeros add nothing;
 * of a filter's gradient what they lead to is left out. Images that are read, and the filter, are
 * copied into workspace, the convolution is a child plan on the copies: transform, pointwise and
 * conv, no kernel of its own. Cost: each of those tensors read and written once more. All passes,
 * epilogues and further results, of f32, f16 and bf16. */
#include "mica/pointwise.h"
#include "mica/transform.h"
#include "ops/compose/compose.h"
#include "ops/conv/lowered/gemm.h"

enum { ALIGNMENT = 16, MAX_GIB = 16 };

/* A tensor's copy: of `groups` groups, each of so many rows (a filter's, images') and channels. */
typedef struct padding {
    int arg;
    bool made, filter;
    int64_t rows, channels;           /* of a group; rows of an image: 1 */
    int64_t wide_rows, wide_channels; /* of the copy */
} padding;

enum { IMAGE_A, IMAGE_B, FILTER, PADDINGS };

static mica_tensor *tensor_of(mica_conv_desc *d, int arg)
{
    return arg == MICA_CONV_X ? &d->x : arg == MICA_CONV_W ? &d->w : &d->y;
}

static int64_t element_bytes(const mica_tensor *t)
{
    return mica_dtype_bits(t->dtype) / 8;
}

static int64_t whole(const mica_tensor *t, int64_t channels)
{
    int64_t each = ALIGNMENT / element_bytes(t);
    return conv_ceil_div(channels, each) * each;
}

/* Which tensors are copied. Channels of the result of fwd and dgrad stay as they are: only their
 * filter's rows begin at multiples of 16 bytes. */
static bool find_paddings(const mica_conv_desc *d, padding p[PADDINGS])
{
    mica_conv_roles roles = mica_conv_roles_of(d);
    const mica_tensor *a = mica_conv_tensor(d, roles.a), *b = mica_conv_tensor(d, roles.b);
    int64_t c = a->dims[1] / d->groups, k = b->dims[1] / d->groups;
    int64_t wide_c = roles.dgrad ? c : whole(a, c),
            wide_k = roles.dgrad || roles.wgrad ? whole(b, k) : k;
    p[IMAGE_A] = (padding){roles.a, wide_c != c, false, 1, c, 1, wide_c};
    p[IMAGE_B] = (padding){roles.b, wide_k != k, false, 1, k, 1, wide_k};
    bool any = p[IMAGE_A].made || p[IMAGE_B].made;
    p[FILTER] = (padding){MICA_CONV_W, any, true, k, c, wide_k, wide_c};
    return any;
}

/* Channels side by side, those of a filter's row from a multiple of 16 bytes on. */
static mica_tensor copy_of(const mica_tensor *t, const padding *p, int64_t groups)
{
    mica_tensor c = *t;
    if (p->filter) c.dims[0] = groups * p->wide_rows;
    c.dims[1] = p->filter ? p->wide_channels : groups * p->wide_channels;
    int64_t next = whole(t, c.dims[1]);
    c.strides[1] = 1;
    for (int i = t->rank - 1; i > 1; i--) {
        c.strides[i] = next;
        next *= c.dims[i];
    }
    c.strides[0] = next;
    return c;
}

static mica_conv_desc widened(const mica_conv_desc *d, const padding p[PADDINGS])
{
    mica_conv_desc to = *d;
    for (int i = 0; i < PADDINGS; i++)
        if (p[i].made)
            *tensor_of(&to, p[i].arg) = copy_of(mica_conv_tensor(d, p[i].arg), &p[i], d->groups);
    return to;
}

static int64_t bytes_of(const mica_tensor *copy)
{
    return copy->dims[0] * copy->strides[0] * element_bytes(copy);
}

/* Groups as a dimension of their own, `rows` and `channels` of each. */
static mica_tensor by_groups(const mica_tensor *t, const padding *p, int64_t groups, bool copy)
{
    mica_tensor v = {.dtype = t->dtype, .rank = t->rank + 1};
    int64_t rows = copy ? p->wide_rows : p->rows, channels = copy ? p->wide_channels : p->channels;
    v.dims[0] = p->filter ? groups : t->dims[0];
    v.strides[0] = p->filter ? rows * t->strides[0] : t->strides[0];
    v.dims[1] = p->filter ? p->rows : groups;
    v.strides[1] = p->filter ? t->strides[0] : channels * t->strides[1];
    v.dims[2] = p->channels;
    v.strides[2] = t->strides[1];
    for (int i = 2; i < t->rank; i++) {
        v.dims[i + 1] = t->dims[i];
        v.strides[i + 1] = t->strides[i];
    }
    return v;
}

static mica_status check_size(const mica_conv_desc *d, const padding p[PADDINGS], mica_why *why)
{
    mica_conv_desc to = widened(d, p);
    double gib = 0;
    for (int i = 0; i < PADDINGS; i++) {
        const mica_tensor *t = mica_conv_tensor(&to, p[i].arg);
        double elements = 1;
        for (int k = 0; k < t->rank; k++) elements *= (double)t->dims[k];
        if (p[i].made) gib += elements * (double)element_bytes(t) / 0x1p30;
    }
    if (gib > MAX_GIB)
        return mica_refuse(why, "copies take %.3g GiB, the limit is %d", gib, MAX_GIB);
    return MICA_OK;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_conv_desc *d = desc;
    padding p[PADDINGS];
    mica_dtype t = mica_conv_tensor(d, mica_conv_roles_of(d).image)->dtype;
    (void)device;
    MICA_TRY(conv_refuse_empty(d, why));
    if (t != MICA_F32 && t != MICA_F16 && t != MICA_BF16)
        return mica_refuse(why, "inputs are %s, this engine takes f32, f16 and bf16",
                           mica_dtype_name(t));
    if (!find_paddings(d, p))
        return mica_refuse(why, "channels of groups are multiples of 16 bytes: other engines read "
                                "them where they are");
    for (int i = 0; i < FILTER; i++)
        if (p[i].wide_channels > 2 * p[i].channels)
            return mica_refuse(why,
                               "groups of %lld channels would become %lld, the limit is twice "
                               "as many",
                               (long long)p[i].channels, (long long)p[i].wide_channels);
    return check_size(d, p, why);
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    conv_child_contract(desc, c);
}

/* ---- steps ---- */

static void add_copy(mica_compose *c, const mica_tensor *from, mica_memory at,
                     const mica_tensor *to, mica_memory there)
{
    mica_transform_desc t = {.x = *from, .y = *to};
    mica_compose_step(c, "transform", &t, sizeof t, NULL);
    mica_compose_bind(c, MICA_TRANSFORM_X, at);
    mica_compose_bind(c, MICA_TRANSFORM_Y, there);
}

static void add_zeros(mica_compose *c, const mica_tensor *t, mica_memory there)
{
    mica_pointwise_desc zeros = {.expr = "0", .y0 = *t};
    mica_compose_step(c, "pointwise", &zeros, sizeof zeros, NULL);
    mica_compose_bind(c, MICA_POINTWISE_Y0, there);
}

/* An image's missing channels; all of a filter, which is small. */
static void zero_rest(mica_compose *c, const mica_tensor *copy, const padding *p, int64_t groups,
                      mica_memory there)
{
    if (p->filter) {
        mica_tensor all = {.dtype = copy->dtype, .rank = 1};
        all.dims[0] = copy->dims[0] * copy->strides[0];
        all.strides[0] = 1;
        add_zeros(c, &all, there);
        return;
    }
    mica_tensor rest = by_groups(copy, p, groups, true);
    rest.dims[2] = p->wide_channels - p->channels;
    there.at += p->channels * element_bytes(copy);
    add_zeros(c, &rest, there);
}

static void list_steps(const void *desc, mica_compose *c)
{
    mica_conv_desc from = *(const mica_conv_desc *)desc;
    padding p[PADDINGS];
    mica_memory there[PADDINGS] = {0};
    find_paddings(&from, p);
    mica_conv_desc to = widened(&from, p);
    int out = mica_conv_roles_of(&from).out;
    for (int i = 0; i < PADDINGS; i++) {
        const mica_tensor *t = tensor_of(&from, p[i].arg), *copy = tensor_of(&to, p[i].arg);
        if (!p[i].made) continue;
        there[i] = mica_compose_temporary(c, (size_t)bytes_of(copy));
        zero_rest(c, copy, &p[i], from.groups, there[i]);
        if (p[i].arg == out) mica_compose_if_beta(c);
        mica_tensor x = by_groups(t, &p[i], from.groups, false),
                    y = by_groups(copy, &p[i], from.groups, true);
        add_copy(c, &x, mica_compose_arg(p[i].arg), &y, there[i]);
        if (p[i].arg == out) mica_compose_if_beta(c);
    }
    mica_compose_step(c, "conv", &to, sizeof to, NULL);
    mica_compose_pass(c, mica_op_conv.arg_count);
    mica_compose_scale(c);
    for (int i = 0; i < PADDINGS; i++)
        if (p[i].made) mica_compose_bind(c, p[i].arg, there[i]);
    if (out != MICA_CONV_W) return;
    mica_tensor x = by_groups(&to.w, &p[FILTER], from.groups, true),
                y = by_groups(&from.w, &p[FILTER], from.groups, false);
    add_copy(c, &x, there[FILTER], &y, mica_compose_arg(MICA_CONV_W));
}

const mica_engine mica_conv_padded = {.name = "padded",
                                      .cuda = true,
                                      .accepts = accepts,
                                      .contract = contract,
                                      MICA_COMPOSED(list_steps)};
