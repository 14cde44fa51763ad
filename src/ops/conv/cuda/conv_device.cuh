/* SPDX-License-Identifier: Apache-2.0
 * What the convolution kernels share: where pixels and (tap, channel) pairs lie, and the end of a
 * sum. Constants: KIND; types left_t, right_t, out_t, acc_t (sums), fin_t (alpha, beta, epilogue),
 * coord_t (positions along an axis: s32 where all of them fit, else s64); COUNT_64: a number of
 * pixels, pairs or results exceeds 31 bits. */
#pragma once
#include "kernels/epilogue.cuh"
#include "ops/conv/conv_args.h"

constexpr bool FWD = KIND == MICA_CONV_KIND_FWD;
constexpr bool DGRAD = KIND == MICA_CONV_KIND_DGRAD;
constexpr bool WGRAD = KIND == MICA_CONV_KIND_WGRAD;

/* 64-bit division is a call and costs ten times as much: compiled in only where counts need it. */
__device__ __forceinline__ long long divide(long long a, long long b)
{
    if constexpr (COUNT_64)
        return (a | b) >> 32 ? a / b : (long long)((u32)a / (u32)b);
    else
        return (long long)((u32)a / (u32)b);
}

/* A pixel of b, or of a in dgrad. */
struct pixel_entry {
    long long source; /* offset of its batch in the image that is read */
    long long place;  /* its offset in the image whose pixels are counted */
    long long residual;
    coord_t at[3];    /* its position in the image that is read, before the tap */
    int exists;
};

/* A tap and a channel of the image that is read. */
struct pair_entry {
    long long source, filter; /* offsets of the channel, and of both in the filter */
    coord_t tap[3];           /* distance in the image that is read */
    int exists;
};

__device__ __forceinline__ const mica_conv_strides &read_strides(const mica_conv_geometry &g)
{
    return DGRAD ? g.b : g.a;
}
__device__ __forceinline__ const mica_conv_strides &counted_strides(const mica_conv_geometry &g)
{
    return DGRAD ? g.a : g.b;
}

__device__ pixel_entry make_pixel(const mica_conv_geometry &g, long long i, long long count)
{
    pixel_entry e = {};
    e.exists = i < count;
    if (!e.exists) return e;
    const mica_conv_strides &counted = counted_strides(g);
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        long long size = DGRAD ? g.in[d] : g.out[d], rest = divide(i, size), at = i - rest * size;
        e.at[d] = (coord_t)(DGRAD ? at + g.pad[d] : at * g.stride[d] - g.pad[d]);
        e.place += at * counted.s[d];
        e.residual += at * g.residual.s[d];
        i = rest;
    }
    e.source = i * read_strides(g).n;
    e.place += i * counted.n;
    e.residual += i * g.residual.n;
    return e;
}

/* Pairs count tap * channels + channel. */
__device__ pair_entry make_pair_entry(const mica_conv_geometry &g, long long i, long long count)
{
    pair_entry e = {};
    e.exists = i < count;
    if (!e.exists) return e;
    long long channels = DGRAD ? g.k : g.c, tap = divide(i, channels), c = i - tap * channels;
    e.source = c * read_strides(g).c;
    e.filter = g.f_base + c * (DGRAD ? g.f.n : g.f.c);
#pragma unroll
    for (int d = 2; d >= 0; d--) {
        long long rest = divide(tap, g.tap[d]), t = tap - rest * g.tap[d];
        e.tap[d] = (coord_t)(DGRAD ? -t * g.dilation[d] : t * g.dilation[d]);
        e.filter += t * g.f.s[d];
        tap = rest;
    }
    return e;
}

/* Offset along one axis; false outside of the image and, in dgrad, between its pixels. */
__device__ __forceinline__ bool along(const mica_conv_geometry &g, int d, coord_t v, long long &offset)
{
    if constexpr (DGRAD) {
        if (v < 0) return false;
        coord_t s = (coord_t)g.stride[d], q = v;
        if (s != 1) {
            q = v / s;
            if (q * s != v) return false;
        }
        if (q >= (coord_t)g.out[d]) return false;
        offset += (long long)q * g.b.s[d];
        return true;
    } else {
        if (v < 0 || v >= (coord_t)g.in[d]) return false;
        offset += (long long)v * g.a.s[d];
        return true;
    }
}

/* The image at a pixel and a pair; 0 where it does not exist. */
__device__ __forceinline__ acc_t image_value(const mica_conv_geometry &g, const left_t *image, const pixel_entry &p,
                                             const pair_entry &q)
{
    long long offset = p.source + q.source;
    if (!p.exists || !q.exists) return 0;
#pragma unroll
    for (int d = 0; d < 3; d++)
        if (!along(g, d, p.at[d] + q.tap[d], offset)) return 0;
    return widen<acc_t>(image[offset]);
}

__device__ __forceinline__ void finish(const mica_conv_args &a, long long offset, long long channel, long long residual,
                                       acc_t sum)
{
    out_t *out = (out_t *)a.out + offset;
    fin_t v = (fin_t)sum * (fin_t)a.alpha;
    if (a.beta != 0) v += (fin_t)a.beta * widen<fin_t>(*out);
    *out = narrow<out_t>(epilogue(a.epilogue, v, channel, residual));
}
