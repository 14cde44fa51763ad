/* SPDX-License-Identifier: Apache-2.0
 * Engine "channels_last": a convolution of images whose channels lie apart (NCHW, NCDHW), or of a
 * filter's whose do, by way of copies with channels side by side, which the engines of tensor cores
 * read. Each tensor that needs it is copied into workspace, the convolution is a child plan on the
 * copies, and what it wrote is copied back: child plans as well, no kernel of its own. Cost: each
 * of those tensors written and read once more. All passes, types, epilogues and further results. */
#include "mica/transform.h"
#include "ops/compose/compose.h"
#include "ops/conv/lowered/gemm.h"

enum { IMAGE_X, IMAGE_W, IMAGE_Y, IMAGE_RESIDUAL, IMAGE_AUX, IMAGES };
static const int args[IMAGES] = {MICA_CONV_X, MICA_CONV_W, MICA_CONV_Y, MICA_CONV_RESIDUAL,
                                 MICA_CONV_AUX};

/* Pixels of more channels than that are spread to multiples of 16 bytes, which vectors need. */
enum { FEW_CHANNELS = 8, ALIGNMENT = 16 };

typedef struct copy {
    bool made, read, written; /* by the convolution; the result is read where beta is not 0 */
} copy;

static mica_tensor *image_of(mica_conv_desc *d, int i)
{
    mica_tensor *images[IMAGES] = {&d->x, &d->w, &d->y, &d->residual, &d->aux};
    return images[i];
}

static int64_t element_bytes(const mica_tensor *t)
{
    return mica_dtype_bits(t->dtype) / 8;
}

/* Elements from pixel to pixel of the copy. */
static int64_t pitch_of(const mica_tensor *t)
{
    int64_t channels = t->dims[1], each = ALIGNMENT / element_bytes(t);
    return channels <= FEW_CHANNELS ? channels : (channels + each - 1) / each * each;
}

static mica_tensor copy_of(const mica_tensor *t)
{
    mica_tensor c = *t;
    int64_t next = pitch_of(t);
    c.strides[1] = 1;
    for (int i = t->rank - 1; i > 0; i--) {
        if (i == 1) continue;
        c.strides[i] = next;
        next *= t->dims[i];
    }
    c.strides[0] = next;
    return c;
}

static bool is_apart(const mica_tensor *t)
{
    return mica_tensor_given(t) && t->dims[1] > 1 && t->strides[1] != 1;
}

/* Which images are copied and what the convolution does with each; and the convolution that is
 * left. A filter's gradient is small and stored where it belongs by whatever forms it. */
static mica_conv_desc moved(const mica_conv_desc *d, copy copies[IMAGES])
{
    mica_conv_desc c = *d;
    mica_conv_roles roles = mica_conv_roles_of(d);
    for (int i = 0; i < IMAGES; i++) {
        mica_tensor *t = image_of(&c, i);
        if (!is_apart(t) || (i == IMAGE_W && roles.wgrad)) continue;
        copies[i] = (copy){.made = true,
                           .read = i != IMAGE_AUX,
                           .written = args[i] == roles.out || i == IMAGE_AUX};
        *t = copy_of(t);
    }
    return c;
}

static mica_status accepts(const void *desc, const mica_device_info *device, mica_why *why)
{
    const mica_conv_desc *d = desc;
    copy copies[IMAGES] = {0};
    bool any = false;
    (void)device;
    MICA_TRY(conv_refuse_empty(d, why));
    moved(d, copies);
    for (int i = 0; i < IMAGES; i++) any = any || copies[i].made;
    if (!any)
        return mica_refuse(why, "channels lie side by side: other engines read them where they "
                                "are");
    return MICA_OK;
}

static mica_transform_desc between(const mica_tensor *from, const mica_tensor *to)
{
    return (mica_transform_desc){.x = *from, .y = *to};
}

static double predict(const void *desc, const mica_device_info *device, const mica_config *config)
{
    copy copies[IMAGES] = {0};
    mica_conv_desc from = *(const mica_conv_desc *)desc, to = moved(&from, copies);
    double ms = mica_op_predict(&mica_op_conv, &to, device, true);
    (void)config;
    for (int i = 0; i < IMAGES; i++) {
        mica_transform_desc t = between(image_of(&from, i), image_of(&to, i));
        if (copies[i].made) ms += mica_op_predict(mica_op_find("transform"), &t, device, true);
    }
    return ms;
}

static void contract(const void *desc, const mica_config *config, mica_contract *c)
{
    (void)config;
    conv_child_contract(desc, c);
}

/* ---- plans ---- */

static void add_copy(mica_compose *c, const mica_tensor *from, mica_memory at,
                     const mica_tensor *to, mica_memory there)
{
    mica_transform_desc t = between(from, to);
    mica_compose_step(c, "transform", &t, sizeof t, NULL);
    mica_compose_bind(c, MICA_TRANSFORM_X, at);
    mica_compose_bind(c, MICA_TRANSFORM_Y, there);
}

static mica_status build(mica_plan *plan)
{
    mica_compose c = {0};
    copy copies[IMAGES] = {0};
    mica_memory there[IMAGES] = {0};
    mica_conv_desc from = *(const mica_conv_desc *)plan->desc, to = moved(&from, copies);
    for (int i = 0; i < IMAGES; i++) {
        const mica_tensor *t = image_of(&to, i);
        if (!copies[i].made) continue;
        there[i] =
            mica_compose_temporary(&c, (size_t)(t->dims[0] * t->strides[0] * element_bytes(t)));
        if (!copies[i].read) continue;
        add_copy(&c, image_of(&from, i), mica_compose_arg(args[i]), t, there[i]);
        if (copies[i].written) mica_compose_if_beta(&c);
    }
    mica_compose_step(&c, "conv", &to, sizeof to, NULL);
    mica_compose_pass(&c, mica_op_conv.arg_count);
    mica_compose_scale(&c);
    for (int i = 0; i < IMAGES; i++)
        if (copies[i].made) mica_compose_bind(&c, args[i], there[i]);
    for (int i = 0; i < IMAGES; i++)
        if (copies[i].written)
            add_copy(&c, image_of(&to, i), there[i], image_of(&from, i), mica_compose_arg(args[i]));
    return mica_compose_build(plan, &c);
}

const mica_engine mica_conv_channels_last = {.name = "channels_last",
                                             .cuda = true,
                                             .accepts = accepts,
                                             .predict = predict,
                                             .contract = contract,
                                             .build = build,
                                             .run = mica_compose_run};
