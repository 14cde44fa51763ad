/* SPDX-License-Identifier: Apache-2.0
 * quantize_blocks and dequantize_blocks: tables, inference, checks, fills. */
#include "ops/quantize_blocks/quantize_blocks.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

static const mica_engine *const quantize_engines[] = {&mica_quantize_blocks_cpu, &mica_engine_ref,
                                                      &mica_quantize_blocks_cuda, NULL};
static const mica_engine *const dequantize_engines[] = {
    &mica_dequantize_blocks_cpu, &mica_engine_ref, &mica_dequantize_blocks_cuda, NULL};

#define FORMAT(KIND, name, elements, bytes, scale, second, way, doc)                               \
    [MICA_BLOCK_FORMAT_##KIND] = {#name, elements, bytes, scale, second, MICA_BLOCKS_##way},
const mica_blocks_format mica_blocks_formats[] = {
#include "ops/quantize_blocks/formats.def"
};

#define FORMAT(KIND, name, ...) [MICA_BLOCK_FORMAT_##KIND] = #name,
static const char *const formats[] = {
#include "ops/quantize_blocks/formats.def"
    NULL};

#define OF_READ  0
#define OF_BOTH  0
#define OF_ASIDE 1
#define FORMAT(KIND, name, elements, bytes, scale, second, way, doc)                               \
    | OF_##way << MICA_BLOCK_FORMAT_##KIND
enum {
    WITH_SCALES = 0
#include "ops/quantize_blocks/formats.def"
};

#define QUANTIZE(member, kind, ...) MICA_FIELD(mica_quantize_blocks_desc, member, kind, __VA_ARGS__)
static const mica_field quantize_fields[] = {
    QUANTIZE(format, ENUM, .spellings = formats, .doc = "of the blocks"),
    QUANTIZE(x, TENSOR, .zero = "needed", .doc = "input, rows of whole blocks"),
    QUANTIZE(y, TENSOR, .zero = "inferred", .doc = "bytes of the blocks"),
};

#define DEQUANTIZE(member, kind, ...)                                                              \
    MICA_FIELD(mica_dequantize_blocks_desc, member, kind, __VA_ARGS__)
static const mica_field dequantize_fields[] = {
    DEQUANTIZE(format, ENUM, .spellings = formats, .doc = "of the blocks"),
    DEQUANTIZE(x, TENSOR, .zero = "needed", .doc = "bytes, rows of whole blocks"),
    DEQUANTIZE(y, TENSOR, .zero = "inferred", .doc = "output; inferred in f32"),
    DEQUANTIZE(scale, TENSOR, .zero = "nf4 and fp4: inferred", .doc = "one for each block"),
    DEQUANTIZE(block, I64, .positive = true, .zero = "the format's own",
               .doc = "nf4 and fp4: elements that share a scale"),
};

/* ---- shapes ---- */

/* Rows of so many bytes or elements for each that x has. */
static mica_tensor rows_of(const mica_tensor *x, int64_t from, int64_t to, mica_dtype type)
{
    mica_tensor t = {.dtype = type, .rank = x->rank};
    memcpy(t.dims, x->dims, sizeof t.dims);
    if (t.rank) t.dims[t.rank - 1] = t.dims[t.rank - 1] / from * to;
    mica_tensor_default_strides(&t);
    return t;
}

static mica_tensor quantize_y(const void *desc)
{
    const mica_quantize_blocks_desc *d = desc;
    const mica_blocks_format *f = &mica_blocks_formats[d->format];
    return rows_of(&d->x, f->elements, f->bytes, MICA_U8);
}

static int bytes_of(const mica_dequantize_blocks_desc *d)
{
    const mica_blocks_format *f = &mica_blocks_formats[d->format];
    return (int)(f->bytes * d->block / f->elements);
}

static mica_tensor dequantize_y(const void *desc)
{
    const mica_dequantize_blocks_desc *d = desc;
    return rows_of(&d->x, bytes_of(d), d->block, MICA_F32);
}

static mica_tensor dequantize_scale(const void *desc)
{
    const mica_dequantize_blocks_desc *d = desc;
    return rows_of(&d->x, bytes_of(d), 1, MICA_F32);
}

static const mica_arg quantize_args[] = {
    [MICA_QUANTIZE_BLOCKS_X] = {"x",
                                offsetof(mica_quantize_blocks_desc, x),
                                {MICA_IN},
                                .types = MICA_FLOATS,
                                .need = {MICA_NEEDED}},
    [MICA_QUANTIZE_BLOCKS_Y] = {"y",
                                offsetof(mica_quantize_blocks_desc, y),
                                {MICA_OUT},
                                .types = MICA_TYPE(U8),
                                .need = {MICA_INFERRED},
                                .shape = quantize_y,
                                .words = "bytes of x's blocks"},
};

static const mica_arg dequantize_args[] = {
    [MICA_DEQUANTIZE_BLOCKS_X] = {"x",
                                  offsetof(mica_dequantize_blocks_desc, x),
                                  {MICA_IN},
                                  .types = MICA_TYPE(U8),
                                  .need = {MICA_NEEDED}},
    [MICA_DEQUANTIZE_BLOCKS_Y] = {"y",
                                  offsetof(mica_dequantize_blocks_desc, y),
                                  {MICA_OUT},
                                  .types = MICA_FLOATS,
                                  .need = {MICA_INFERRED},
                                  .shape = dequantize_y,
                                  .words = "elements of x's blocks"},
    [MICA_DEQUANTIZE_BLOCKS_SCALE] = {"scale",
                                      offsetof(mica_dequantize_blocks_desc, scale),
                                      {MICA_IN},
                                      .types = MICA_TYPE(F32),
                                      .need = {MICA_INFERRED},
                                      .shape = dequantize_scale,
                                      .words = "blocks of x",
                                      .when = "format",
                                      .values = WITH_SCALES},
};

/* ---- inference ---- */

static mica_status whole_blocks(const mica_tensor *x, const mica_blocks_format *f, int64_t size,
                                const char *of, mica_why *why)
{
    if (x->rank == 0) return mica_invalid(why, "x has no dimensions, blocks lie along its last");
    const int64_t n = x->dims[x->rank - 1];
    if (n % size)
        return mica_invalid(why, "rows of x are %lld %s, a block of %s is %lld: they must be whole",
                            (long long)n, of, f->name, (long long)size);
    return MICA_OK;
}

static mica_status quantize_infer(void *desc, mica_why *why)
{
    const mica_quantize_blocks_desc *d = desc;
    const mica_blocks_format *f = &mica_blocks_formats[d->format];
    if (f->way != MICA_BLOCKS_BOTH)
        return mica_invalid(why, "format is %s, whose package makes no blocks: it is only read",
                            f->name);
    return whole_blocks(&d->x, f, f->elements, "elements", why);
}

static mica_status dequantize_infer(void *desc, mica_why *why)
{
    mica_dequantize_blocks_desc *d = desc;
    const mica_blocks_format *f = &mica_blocks_formats[d->format];
    const bool aside = f->way == MICA_BLOCKS_ASIDE;
    if (d->block == 0) d->block = f->elements;
    if (!aside && d->block != f->elements)
        return mica_invalid(why, "block is %lld, one of %s is %d", (long long)d->block, f->name,
                            f->elements);
    if (aside && (d->block < 32 || d->block > MICA_BLOCKS_MOST || d->block & (d->block - 1)))
        return mica_invalid(why, "block is %lld, it must be a power of two from 32 to %d",
                            (long long)d->block, MICA_BLOCKS_MOST);
    if (!aside && mica_tensor_given(&d->scale))
        return mica_invalid(why, "scale is for nf4 and fp4, blocks of %s hold theirs", f->name);
    return whole_blocks(&d->x, f, bytes_of(d), "bytes", why);
}

/* ---- tensors of blocks ---- */

static mica_tensor of_blocks(const mica_tensor *t, int64_t size)
{
    mica_tensor r = *t;
    r.dims[r.rank - 1] /= size;
    r.strides[r.rank - 1] *= size;
    return r;
}

void mica_blocks_make(const mica_op *op, const void *desc, const mica_view *views, mica_blocks *b)
{
    memset(b, 0, sizeof *b);
    b->encodes = op == &mica_op_quantize_blocks;
    const mica_dequantize_blocks_desc *w = desc;
    const mica_block_format kind =
        b->encodes ? ((const mica_quantize_blocks_desc *)desc)->format : w->format;
    b->format = &mica_blocks_formats[kind];
    b->elements = b->encodes ? b->format->elements : (int)w->block;
    b->bytes = b->encodes ? b->format->bytes : bytes_of(w);
    b->arg[MICA_BLOCKS_PLACE_CODE] = b->encodes ? MICA_QUANTIZE_BLOCKS_Y : MICA_DEQUANTIZE_BLOCKS_X;
    b->arg[MICA_BLOCKS_PLACE_VALUE] =
        b->encodes ? MICA_QUANTIZE_BLOCKS_X : MICA_DEQUANTIZE_BLOCKS_Y;
    b->arg[MICA_BLOCKS_PLACE_SCALE] =
        b->format->way == MICA_BLOCKS_ASIDE ? MICA_DEQUANTIZE_BLOCKS_SCALE : -1;
    for (int p = 0; p < MICA_BLOCKS_PLACES; p++) {
        const int sizes[] = {b->bytes, b->elements, 1};
        if (b->arg[p] < 0) {
            b->at[p] = (mica_tensor){.dtype = MICA_F32, .rank = b->at[0].rank};
            memcpy(b->at[p].dims, b->at[0].dims, sizeof b->at[p].dims);
            continue;
        }
        mica_tensor t = *mica_op_tensor(op, desc, b->arg[p]);
        if (views && views[b->arg[p]].data)
            memcpy(t.strides, views[b->arg[p]].t.strides, sizeof t.strides);
        if (p < 2) b->step[p] = t.strides[t.rank - 1];
        b->at[p] = of_blocks(&t, sizes[p]);
    }
}

void mica_blocks_layout(const mica_blocks *b, mica_layout *layout)
{
    const mica_tensor *list[MICA_BLOCKS_PLACES];
    for (int p = 0; p < MICA_BLOCKS_PLACES; p++) list[p] = &b->at[p];
    mica_layout_make(layout, list, MICA_BLOCKS_PLACES);
    if (layout->rank == 0) layout->rank = 1, layout->dims[0] = 1;
}

void mica_blocks_contract(const void *desc, const mica_config *config, mica_contract *contract)
{
    (void)desc, (void)config;
    contract->unit = 0x1p-53;
    contract->n_seq = 0;
}

/* ---- fills ---- */

/* An f16 of a sound block: in exact fills a power of two, else of many sizes. */
static unsigned sound_half(mica_fill fill, uint64_t bits)
{
    const unsigned exponent = 12 + (unsigned)(bits % 5), fraction = (unsigned)(bits >> 8) & 1023;
    const unsigned sign = fill == MICA_FILL_SAME_SIGN ? 0 : (unsigned)(bits >> 20) & 1;
    return sign << 15 | exponent << 10 | (fill == MICA_FILL_EXACT ? 0 : fraction);
}

/* Bytes at random. Extreme ones may be anything, with scales that are NaN or infinite; others have
 * scales of common size. */
static void fill_bytes(const mica_dequantize_blocks_desc *d, mica_fill fill, uint64_t seed,
                       double *values)
{
    const mica_blocks_format *f = &mica_blocks_formats[d->format];
    const int64_t count = mica_tensor_count(&d->x), bytes = bytes_of(d);
    for (int64_t i = 0; i < count; i++) {
        const int64_t block = i / bytes;
        const int at = (int)(i % bytes);
        const uint64_t bits = mica_random_bits(seed, (uint64_t)i);
        const uint64_t of_block = mica_random_bits(seed ^ 77, (uint64_t)block);
        unsigned byte = (unsigned)bits & 255;
        if (fill == MICA_FILL_EXTREME) {
            if (of_block % 4 == 0) byte = of_block >> 8 & 1 ? 255 : 0;
            values[i] = byte;
            continue;
        }
        for (int k = 0; k < 2; k++) {
            const int first = k ? f->second : f->scale;
            if (first < 0 || (at != first && at != first + 1)) continue;
            const unsigned half = sound_half(fill, k ? of_block >> 24 : of_block);
            byte = at == first ? half & 255 : half >> 8;
        }
        values[i] = byte;
    }
}

static bool dequantize_fill(const void *desc, const double *scalars, int arg, mica_fill fill,
                            uint64_t seed, double *values)
{
    (void)scalars;
    if (arg != MICA_DEQUANTIZE_BLOCKS_X) return false;
    fill_bytes(desc, fill, seed, values);
    return true;
}

static bool exact(const void *desc)
{
    (void)desc;
    return true;
}

const mica_op mica_op_quantize_blocks = {
    .name = "quantize_blocks",
    .doc = "Rows as blocks of GGUF formats: bytes that hold codes and their scales",
    .desc_size = sizeof(mica_quantize_blocks_desc),
    .fields = quantize_fields,
    .field_count = sizeof quantize_fields / sizeof *quantize_fields,
    .args = quantize_args,
    .arg_count = sizeof quantize_args / sizeof *quantize_args,
    .infer = quantize_infer,
    .exact = exact,
    .reference = mica_quantize_blocks_reference,
    .engines = quantize_engines,
};

const mica_op mica_op_dequantize_blocks = {
    .name = "dequantize_blocks",
    .doc = "Rows of blocks of GGUF formats, nf4 and fp4, as floating-point numbers",
    .desc_size = sizeof(mica_dequantize_blocks_desc),
    .fields = dequantize_fields,
    .field_count = sizeof dequantize_fields / sizeof *dequantize_fields,
    .args = dequantize_args,
    .arg_count = sizeof dequantize_args / sizeof *dequantize_args,
    .infer = dequantize_infer,
    .exact = exact,
    .fill = dequantize_fill,
    .reference = mica_dequantize_blocks_reference,
    .engines = dequantize_engines,
};
