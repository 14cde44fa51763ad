/* SPDX-License-Identifier: Apache-2.0
 * Blocks in kernels: quantize_blocks_body.h in CUDA, any strides. Constants: SIDE_BY_SIDE (the bytes of
 * a block are), PIECE, BLOCK; type value_t; CODER, the function of the format. */
#pragma once
#include "kernels/layout.cuh"
#include "kernels/overlap.cuh"
#include "kernels/types.cuh"
#include "kernels/vector.cuh"
#include "ops/quantize_blocks/quantize_blocks_args.h"

#define FORMATS      __device__ __forceinline__
#define TABLE        __device__ const
#define BYTE(b, i)   ((b).at[SIDE_BY_SIDE ? (s64)(i) : (i) * (b).step])
#define PUT(b, i, v) ((b).at[SIDE_BY_SIDE ? (s64)(i) : (i) * (b).step] = (u8)(v))
#define VALUE(v, i)  narrow_to<float>::from(widen<wide_t>((v).at[(i) * (v).step]))

/* What value_t becomes an f32 by, rounded once. */
template <typename T> struct wide { typedef float type; };
template <> struct wide<double> { typedef double type; };
typedef wide<value_t>::type wide_t;

struct block_t { const u8 *at; s64 step; };
struct made_t { u8 *at; s64 step; };
struct values_t { const value_t *at; s64 step; };

FORMATS float mul_of(float a, float b) { return __fmul_rn(a, b); }
FORMATS float add_of(float a, float b) { return __fadd_rn(a, b); }
FORMATS float sub_of(float a, float b) { return __fsub_rn(a, b); }
FORMATS float div_of(float a, float b) { return __fdiv_rn(a, b); }
FORMATS float floor_of(float a) { return floorf(a); }
FORMATS float abs_of(float a) { return fabsf(a); }
FORMATS float bits_float(u32 bits) { return __uint_as_float(bits); }
FORMATS u32 half_bits(float v) { return to_f16(v).bits; }

#define GRID __device__ const
#include "ops/quantize_blocks/quantize_blocks_grids_body.h"
#include "ops/quantize_blocks/quantize_blocks_body.h"
