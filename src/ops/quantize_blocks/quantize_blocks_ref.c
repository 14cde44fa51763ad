/* SPDX-License-Identifier: Apache-2.0
 * The truth of quantize_blocks and dequantize_blocks, block by block, element by element. What a
 * format's own package makes of blocks is in tests/judges/quantize_blocks.txt. */
#include "ops/quantize_blocks/quantize_blocks.h"
#include "cpu/scratch.h"

#define PIECE 1
#include "ops/quantize_blocks/quantize_blocks_host.h"

#define DECODE_ONE(name) decode_##name
#define NO_ENCODE(name)  NULL
#define ENCODE(name)     encode_##name
#define ENCODE_READ      NO_ENCODE
#define ENCODE_ASIDE     NO_ENCODE
#define ENCODE_BOTH      ENCODE
#define FORMAT(KIND, name, elements, bytes, scale, second, way, doc)                               \
    [MICA_BLOCK_FORMAT_##KIND] = DECODE_ONE(name),
static const decode_fn decoders[] = {
#include "ops/quantize_blocks/formats.def"
};
#define FORMAT(KIND, name, elements, bytes, scale, second, way, doc)                               \
    [MICA_BLOCK_FORMAT_##KIND] = ENCODE_##way(name),
static const encode_fn encoders[] = {
#include "ops/quantize_blocks/formats.def"
};

float mica_blocks_element(int format, const uint8_t *block, int i, float scale)
{
    float v;
    decoders[format](block, i, scale, &v);
    return v;
}

typedef struct truth {
    mica_blocks b;
    const mica_view *views;
    int kind;
} truth;

static const mica_view *view_of(const truth *t, int place)
{
    return &t->views[t->b.arg[place]];
}

static void encode(const truth *t, const int64_t *at)
{
    float v[MICA_BLOCKS_HELD];
    uint8_t bytes[MICA_BLOCKS_HELD * 2];
    for (int i = 0; i < t->b.elements; i++)
        v[i] = (float)mica_get(view_of(t, MICA_BLOCKS_PLACE_VALUE),
                               at[MICA_BLOCKS_PLACE_VALUE] + i * t->b.step[1]);
    encoders[t->kind](v, bytes);
    for (int i = 0; i < t->b.bytes; i++)
        mica_put(view_of(t, MICA_BLOCKS_PLACE_CODE), at[MICA_BLOCKS_PLACE_CODE] + i * t->b.step[0],
                 bytes[i], bytes[i]);
}

static void decode(const truth *t, const int64_t *at, uint8_t *bytes)
{
    float scale = 1;
    for (int i = 0; i < t->b.bytes; i++)
        bytes[i] = (uint8_t)mica_get(view_of(t, MICA_BLOCKS_PLACE_CODE),
                                     at[MICA_BLOCKS_PLACE_CODE] + i * t->b.step[0]);
    if (t->b.arg[MICA_BLOCKS_PLACE_SCALE] >= 0)
        scale = (float)mica_get(view_of(t, MICA_BLOCKS_PLACE_SCALE), at[MICA_BLOCKS_PLACE_SCALE]);
    for (int i = 0; i < t->b.elements; i++) {
        const float v = mica_blocks_element(t->kind, bytes, i, scale);
        mica_put(view_of(t, MICA_BLOCKS_PLACE_VALUE),
                 at[MICA_BLOCKS_PLACE_VALUE] + i * t->b.step[1], v, fabsf(v));
    }
}

static void reference(const mica_op *op, const void *desc, const mica_view *views)
{
    truth t = {.views = views};
    mica_scratch scope MICA_SCOPED = mica_scratch_open();
    uint8_t *bytes = mica_scratch_take(MICA_BLOCKS_MOST_BYTES);
    mica_blocks_make(op, desc, views, &t.b);
    t.kind = (int)(t.b.format - mica_blocks_formats);
    const int64_t count = mica_tensor_count(&t.b.at[0]);
    for (int64_t i = 0; i < count; i++) {
        int64_t at[MICA_BLOCKS_PLACES];
        for (int p = 0; p < MICA_BLOCKS_PLACES; p++) at[p] = mica_offset(&t.b.at[p], i);
        if (t.b.encodes)
            encode(&t, at);
        else
            decode(&t, at, bytes);
    }
}

void mica_quantize_blocks_reference(const void *desc, const mica_view *views, const double *scalars)
{
    (void)scalars;
    reference(&mica_op_quantize_blocks, desc, views);
}

void mica_dequantize_blocks_reference(const void *desc, const mica_view *views,
                                      const double *scalars)
{
    (void)scalars;
    reference(&mica_op_dequantize_blocks, desc, views);
}
