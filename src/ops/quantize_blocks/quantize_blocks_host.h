/* SPDX-License-Identifier: Apache-2.0
 * Blocks on the host: quantize_blocks_body.h in C, bytes and elements side by side. PIECE is the
 * includer's. */
#include "base/tensor.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define FORMATS      __attribute__((always_inline, unused)) static inline
#define TABLE        __attribute__((unused)) static const
#define mul_of(a, b) ((a) * (b))
#define add_of(a, b) ((a) + (b))
#define sub_of(a, b) ((a) - (b))
#define div_of(a, b) ((a) / (b))
#define floor_of     floorf
#define abs_of       fabsf
#define half_bits    mica_f32_to_f16
#define BYTE(b, i)   ((b)[i])
#define PUT(b, i, v) ((b)[i] = (uint8_t)(v))
#define VALUE(v, i)  ((v)[i])

typedef const uint8_t *block_t;
typedef uint8_t *made_t;
typedef const float *values_t;

FORMATS float bits_float(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

#include "ops/quantize_blocks/quantize_blocks_grids.h"
#include "ops/quantize_blocks/quantize_blocks_body.h"

typedef void (*decode_fn)(block_t b, int i, float scale, float *v);
typedef void (*encode_fn)(values_t x, made_t b);
