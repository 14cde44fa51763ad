/* SPDX-License-Identifier: Apache-2.0
 * Blocks as formats.def lists them, in C and in CUDA: decode_name() reads the PIECE elements from
 * `i` on, a multiple of PIECE, which is 1, 8 or 16; encode_name() makes a block. The file that
 * includes it says what these are:
 *   FORMATS                 before a function, TABLE before an array
 *   mul_of, add_of, sub_of, div_of   of f32, each rounds once
 *   floor_of, abs_of, bits_float(u)  of f32; the number with these bits
 *   half_bits(v)            f16, to nearest even
 *   block_t, BYTE(b, i)     a block and a byte of it; made_t, PUT(b, i, v) one that is made
 *   mica_iq1_s_grid, ...    of quantize_blocks_grids_body.h
 *   values_t, VALUE(v, i)   elements that a block is made of, in f32 */

#define EACH for (int e = 0; e < PIECE; e++)

/* ---- numbers of a block ---- */

FORMATS unsigned word_at(block_t b, int at)
{
    return (unsigned)BYTE(b, at) | (unsigned)BYTE(b, at + 1) << 8;
}

FORMATS float half_of(unsigned h)
{
    const unsigned sign = (h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 31) return bits_float(sign | 0x7f800000u | (m ? 0x400000u : 0));
    if (e) return bits_float(sign | (e + 112) << 23 | m << 13);
    const float small = mul_of((float)m, 0x1p-24f);
    return sign ? -small : small;
}

FORMATS float half_at(block_t b, int at)
{
    return half_of(word_at(b, at));
}

FORMATS int signed_at(block_t b, int at)
{
    return (int)(BYTE(b, at) ^ 128u) - 128;
}

/* ---- 32 elements: the first half in low bits. Of element e of the piece at i ---- */

FORMATS unsigned nibble_at(block_t b, int first, int i, int e)
{
    return (unsigned)BYTE(b, first + (i & 15) + e) >> (i & 16 ? 4 : 0) & 15;
}

FORMATS void decode_q4_0(block_t b, int i, float scale, float *v)
{
    const float d = half_at(b, 0);
    (void)scale;
    EACH v[e] = mul_of(d, (float)((int)nibble_at(b, 2, i, e) - 8));
}

FORMATS void decode_q4_1(block_t b, int i, float scale, float *v)
{
    const float d = half_at(b, 0), m = half_at(b, 2);
    (void)scale;
    EACH v[e] = add_of(mul_of(d, (float)nibble_at(b, 4, i, e)), m);
}

FORMATS unsigned fifth_bit(block_t b, int first, int i)
{
    return (unsigned)BYTE(b, first + (i >> 3)) >> (i & 7) & 1;
}

FORMATS void decode_q5_0(block_t b, int i, float scale, float *v)
{
    const float d = half_at(b, 0);
    (void)scale;
    EACH
    {
        const unsigned q = nibble_at(b, 6, i, e) | fifth_bit(b, 2, i + e) << 4;
        v[e] = mul_of(d, (float)((int)q - 16));
    }
}

FORMATS void decode_q5_1(block_t b, int i, float scale, float *v)
{
    const float d = half_at(b, 0), m = half_at(b, 2);
    (void)scale;
    EACH
    {
        const unsigned q = nibble_at(b, 8, i, e) | fifth_bit(b, 4, i + e) << 4;
        v[e] = add_of(mul_of(d, (float)q), m);
    }
}

FORMATS void decode_q8_0(block_t b, int i, float scale, float *v)
{
    const float d = half_at(b, 0);
    (void)scale;
    EACH v[e] = mul_of((float)signed_at(b, 2 + i + e), d);
}

/* ---- 256 elements: scales in scales ---- */

/* 2 bits: those of 128 elements in 32 bytes. */
FORMATS unsigned pair_at(block_t b, int first, int i, int e)
{
    return (unsigned)BYTE(b, first + (i >> 7) * 32 + (i & 31) + e) >> (i >> 4 & 6) & 3;
}

FORMATS void decode_q2_k(block_t b, int i, float scale, float *v)
{
    const unsigned s = BYTE(b, i >> 4);
    const float d = mul_of(half_at(b, 80), (float)(s & 15));
    const float m = mul_of(half_at(b, 82), (float)(s >> 4));
    (void)scale;
    EACH v[e] = sub_of(mul_of(d, (float)pair_at(b, 16, i, e)), m);
}

FORMATS void decode_q3_k(block_t b, int i, float scale, float *v)
{
    const int k = i >> 4;
    const unsigned low = (unsigned)BYTE(b, 96 + (k & 7)) >> (k & 8 ? 4 : 0) & 15;
    const unsigned high = (unsigned)BYTE(b, 104 + (k & 3)) >> (k >> 2) * 2 & 3;
    const float d = mul_of(half_at(b, 108), (float)((int)(low | high << 4) - 32));
    (void)scale;
    EACH
    {
        const unsigned set = (unsigned)BYTE(b, (i & 31) + e) >> (i >> 5) & 1;
        v[e] = mul_of(d, (float)((int)pair_at(b, 32, i, e) - (set ? 0 : 4)));
    }
}

/* Scale and offset of the k-th 32, in 6 bits each: 12 bytes from byte 4 on. */
FORMATS unsigned scale_of_32(block_t b, int k)
{
    if (k < 4) return (unsigned)BYTE(b, 4 + k) & 63;
    return ((unsigned)BYTE(b, 8 + k) & 15) | ((unsigned)BYTE(b, k) >> 2 & 48);
}

FORMATS unsigned offset_of_32(block_t b, int k)
{
    if (k < 4) return (unsigned)BYTE(b, 8 + k) & 63;
    return (unsigned)BYTE(b, 8 + k) >> 4 | ((unsigned)BYTE(b, 4 + k) >> 2 & 48);
}

/* 4 bits: those of 64 elements in 32 bytes. */
FORMATS unsigned nibble_of_64(block_t b, int first, int i, int e)
{
    return (unsigned)BYTE(b, first + (i >> 6) * 32 + (i & 31) + e) >> (i & 32 ? 4 : 0) & 15;
}

FORMATS void decode_q4_k(block_t b, int i, float scale, float *v)
{
    const float d = mul_of(half_at(b, 0), (float)scale_of_32(b, i >> 5));
    const float m = mul_of(half_at(b, 2), (float)offset_of_32(b, i >> 5));
    (void)scale;
    EACH v[e] = sub_of(mul_of(d, (float)nibble_of_64(b, 16, i, e)), m);
}

FORMATS void decode_q5_k(block_t b, int i, float scale, float *v)
{
    const float d = mul_of(half_at(b, 0), (float)scale_of_32(b, i >> 5));
    const float m = mul_of(half_at(b, 2), (float)offset_of_32(b, i >> 5));
    (void)scale;
    EACH
    {
        const unsigned high = (unsigned)BYTE(b, 16 + (i & 31) + e) >> (i >> 5) & 1;
        v[e] = sub_of(mul_of(d, (float)(nibble_of_64(b, 48, i, e) | high << 4)), m);
    }
}

FORMATS void decode_q6_k(block_t b, int i, float scale, float *v)
{
    const float d = mul_of(half_at(b, 208), (float)signed_at(b, 192 + (i >> 4)));
    const int half = i >> 7;
    (void)scale;
    EACH
    {
        const unsigned byte = BYTE(b, half * 64 + (i & 63) + e);
        const unsigned low = byte >> (i & 64 ? 4 : 0) & 15;
        const unsigned high = pair_at(b, 128, i, e);
        v[e] = mul_of(d, (float)((int)(low | high << 4) - 32));
    }
}

/* ---- numbers of tables ---- */

TABLE signed char iq4_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
/* Twice those of e2m1. */
TABLE signed char e2m1_table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

FORMATS void decode_iq4_nl(block_t b, int i, float scale, float *v)
{
    const float d = half_at(b, 0);
    (void)scale;
    EACH v[e] = mul_of(d, (float)iq4_table[nibble_at(b, 2, i, e)]);
}

FORMATS void decode_iq4_xs(block_t b, int i, float scale, float *v)
{
    const int k = i >> 5;
    const unsigned low = (unsigned)BYTE(b, 4 + (k >> 1)) >> (k & 1 ? 4 : 0) & 15;
    const unsigned high = word_at(b, 2) >> 2 * k & 3;
    const float d = mul_of(half_at(b, 0), (float)((int)(low | high << 4) - 32));
    (void)scale;
    EACH v[e] = mul_of(d, (float)iq4_table[nibble_at(b, 8 + k * 16, i, e)]);
}

FORMATS void decode_mxfp4(block_t b, int i, float scale, float *v)
{
    const unsigned e8 = BYTE(b, 0);
    const float d = bits_float(e8 < 2 ? 0x00200000u << e8 : (e8 - 1) << 23);
    (void)scale;
    EACH v[e] = mul_of(d, (float)e2m1_table[nibble_at(b, 1, i, e)]);
}

FORMATS void decode_nvfp4(block_t b, int i, float scale, float *v)
{
    const unsigned s = BYTE(b, i >> 4), e8 = s >> 3 & 15, m = s & 7;
    float d = e8 ? bits_float((e8 + 119) << 23 | m << 20) : mul_of((float)m, 0x1p-10f);
    if (s == 0x7f) d = 0;
    (void)scale;
    EACH
    {
        const int j = i + e;
        const unsigned byte = BYTE(b, 4 + (j >> 4) * 8 + (j & 7));
        v[e] = mul_of(d, (float)e2m1_table[byte >> (j & 8 ? 4 : 0) & 15]);
    }
}

TABLE float nf4_table[16] = {-1.0f,
                             -0.6961928009986877f,
                             -0.5250730514526367f,
                             -0.39491748809814453f,
                             -0.28444138169288635f,
                             -0.18477343022823334f,
                             -0.09105003625154495f,
                             0.0f,
                             0.07958029955625534f,
                             0.16093020141124725f,
                             0.24611230194568634f,
                             0.33791524171829224f,
                             0.44070982933044434f,
                             0.5626170039176941f,
                             0.7229568362236023f,
                             1.0f};
TABLE float fp4_table[8] = {0,         0.0625f / 12, 8.0f / 12, 1.0f,
                            4.0f / 12, 6.0f / 12,    2.0f / 12, 3.0f / 12};

/* The first of two in the high half. */
FORMATS unsigned high_first(block_t b, int i)
{
    return (unsigned)BYTE(b, i >> 1) >> (i & 1 ? 0 : 4) & 15;
}

FORMATS void decode_nf4(block_t b, int i, float scale, float *v)
{
    EACH v[e] = mul_of(nf4_table[high_first(b, i + e)], scale);
}

FORMATS void decode_fp4(block_t b, int i, float scale, float *v)
{
    EACH
    {
        const unsigned q = high_first(b, i + e);
        const float a = fp4_table[q & 7];
        v[e] = mul_of(q & 8 ? -a : a, scale);
    }
}

/* ---- rows of grids: words of 8 times 2 bits or 4 times 3, and bits that are signs ---- */

/* Among 8 neighbours: in a piece of 1 the first is anywhere, others begin with a whole row. */
#define ROW(i, e)  (((i) >> 3) + ((e) >> 3))
#define LANE(i, e) (((i)&7) + ((e)&7))

FORMATS unsigned wide_at(block_t b, int at)
{
    return word_at(b, at) | word_at(b, at + 2) << 16;
}

/* 7 signs, and one that makes their number even. */
FORMATS unsigned even_signs(unsigned signs)
{
    unsigned odd = signs ^ signs >> 4;
    odd ^= odd >> 2;
    return signs | ((odd ^ odd >> 1) & 1) << 7;
}

FORMATS float signed_by(unsigned signs, int lane, float v)
{
    return signs >> lane & 1 ? -v : v;
}

/* 8, 25, 43 */
FORMATS float grid_of_3(unsigned row, int lane)
{
    const unsigned q = row >> 2 * lane & 3;
    return (float)(8 + 17 * q + (q >> 1));
}

/* Scales that are halves more than a number, of d and a quarter or a half. */
FORMATS float half_more(float d, unsigned scale, float part)
{
    return mul_of(mul_of(d, add_of(0.5f, (float)scale)), part);
}

FORMATS void decode_iq2_xxs(block_t b, int i, float scale, float *v)
{
    const unsigned word = wide_at(b, 6 + (i >> 5) * 8);
    const float d = half_more(half_at(b, 0), word >> 28, 0.25f);
    (void)scale;
    EACH
    {
        const int row = ROW(i, e), lane = LANE(i, e);
        const unsigned grid = mica_iq2_xxs_grid[BYTE(b, 2 + (i >> 5) * 8 + (row & 3))];
        const unsigned signs = even_signs(word >> 7 * (row & 3) & 127);
        v[e] = signed_by(signs, lane, mul_of(d, grid_of_3(grid, lane)));
    }
}

FORMATS void decode_iq2_xs(block_t b, int i, float scale, float *v)
{
    const unsigned of_16 = (unsigned)BYTE(b, 66 + (i >> 5)) >> (i & 16 ? 4 : 0) & 15;
    const float d = half_more(half_at(b, 0), of_16, 0.25f);
    (void)scale;
    EACH
    {
        const int row = ROW(i, e), lane = LANE(i, e);
        const unsigned word = word_at(b, 2 + 2 * row), signs = even_signs(word >> 9);
        v[e] = signed_by(signs, lane, mul_of(d, grid_of_3(mica_iq2_xs_grid[word & 511], lane)));
    }
}

FORMATS void decode_iq2_s(block_t b, int i, float scale, float *v)
{
    const unsigned of_16 = (unsigned)BYTE(b, 74 + (i >> 5)) >> (i & 16 ? 4 : 0) & 15;
    const float d = half_more(half_at(b, 0), of_16, 0.25f);
    (void)scale;
    EACH
    {
        const int row = ROW(i, e), lane = LANE(i, e);
        const unsigned high = (unsigned)BYTE(b, 66 + (i >> 5)) >> 2 * (row & 3) & 3;
        const unsigned grid = mica_iq2_s_grid[BYTE(b, 2 + row) | high << 8];
        v[e] = signed_by(BYTE(b, 34 + row), lane, mul_of(d, grid_of_3(grid, lane)));
    }
}

/* 4, 12, ... 52, 62 */
FORMATS float grid_of_8(unsigned row, int lane)
{
    const unsigned q = row >> 3 * (lane & 3) & 7;
    return (float)(4 + 8 * q + (q == 7 ? 2 : 0));
}

FORMATS void decode_iq3_xxs(block_t b, int i, float scale, float *v)
{
    const unsigned word = wide_at(b, 66 + (i >> 5) * 4);
    const float d = half_more(half_at(b, 0), word >> 28, 0.5f);
    (void)scale;
    EACH
    {
        const int row = ROW(i, e), lane = LANE(i, e);
        const unsigned grid = mica_iq3_xxs_grid[BYTE(b, 2 + 2 * row + (lane >> 2))];
        const unsigned signs = even_signs(word >> 7 * (row & 3) & 127);
        v[e] = signed_by(signs, lane, mul_of(d, grid_of_8(grid, lane)));
    }
}

FORMATS void decode_iq3_s(block_t b, int i, float scale, float *v)
{
    const unsigned of_32 = (unsigned)BYTE(b, 106 + (i >> 6)) >> (i & 32 ? 4 : 0) & 15;
    const float d = mul_of(half_at(b, 0), (float)(1 + 2 * of_32));
    (void)scale;
    EACH
    {
        const int row = ROW(i, e), lane = LANE(i, e), at = 2 * row + (lane >> 2);
        const unsigned high = (unsigned)BYTE(b, 66 + (at >> 3)) >> (at & 7) & 1;
        const unsigned grid = mica_iq3_s_grid[BYTE(b, 2 + at) | high << 8];
        const unsigned q = grid >> 3 * (lane & 3) & 7;
        v[e] = signed_by(BYTE(b, 74 + row), lane, mul_of(d, (float)(1 + 2 * q)));
    }
}

/* -1, 0 or 1, shifted by an eighth. */
FORMATS float grid_of_1(unsigned row, int lane, unsigned down)
{
    const float v = (float)((int)(row >> 2 * lane & 3) - 1);
    return add_of(v, down ? -0.125f : 0.125f);
}

FORMATS void decode_iq1_s(block_t b, int i, float scale, float *v)
{
    const unsigned word = word_at(b, 34 + (i >> 5) * 2);
    const float d = mul_of(half_at(b, 0), (float)(2 * (word >> 12 & 7) + 1));
    (void)scale;
    EACH
    {
        const int row = ROW(i, e), lane = LANE(i, e);
        const unsigned high = word >> 3 * (row & 3) & 7;
        const unsigned grid = mica_iq1_s_grid[BYTE(b, 2 + row) | high << 8];
        v[e] = mul_of(d, grid_of_1(grid, lane, word & 0x8000));
    }
}

/* d is in the upper 4 bits of four words, whose lower 12 are scales of 16. */
FORMATS void decode_iq1_m(block_t b, int i, float scale, float *v)
{
    const unsigned half = word_at(b, 48) >> 12 | (word_at(b, 50) >> 8 & 0xf0) |
                          (word_at(b, 52) >> 4 & 0xf00) | (word_at(b, 54) & 0xf000);
    const unsigned of_16 = word_at(b, 48 + (i >> 6) * 2) >> 3 * (i >> 4 & 3) & 7;
    const float d = mul_of(half_of(half), (float)(2 * of_16 + 1));
    (void)scale;
    EACH
    {
        const int row = ROW(i, e), lane = LANE(i, e);
        const unsigned high = (unsigned)BYTE(b, 32 + (row >> 1)) >> (row & 1 ? 4 : 0) & 15;
        const unsigned grid = mica_iq1_s_grid[BYTE(b, row) | (high & 7) << 8];
        v[e] = mul_of(d, grid_of_1(grid, lane, high & 8));
    }
}

/* ---- -1, 0 and 1 ---- */

/* Digits of base 3, as fractions of 256: 5 in each of 48 bytes, 4 in each of the next 4. */
FORMATS int digit_at(block_t b, int i)
{
    const int j = i < 160 ? i : i < 240 ? i - 160 : i - 240;
    const int digit = i < 160 ? j >> 5 : i < 240 ? j >> 4 : j >> 2;
    const int at = i < 160 ? j & 31 : i < 240 ? 32 + (j & 15) : 48 + (j & 3);
    const unsigned power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81;
    return (int)(((unsigned)BYTE(b, at) * power & 255) * 3 >> 8) - 1;
}

FORMATS void decode_tq1_0(block_t b, int i, float scale, float *v)
{
    const float d = half_at(b, 52);
    (void)scale;
    EACH v[e] = mul_of(d, (float)digit_at(b, i + e));
}

FORMATS void decode_tq2_0(block_t b, int i, float scale, float *v)
{
    const float d = half_at(b, 64);
    (void)scale;
    EACH v[e] = mul_of(d, (float)((int)pair_at(b, 0, i, e) - 1));
}

/* ---- blocks that are made ---- */

/* What is no number, or infinite, is 0. */
FORMATS int whole_of(float v)
{
    return abs_of(v) < 0x1p30f ? (int)v : 0;
}

/* Halves away from zero. */
FORMATS int near_of(float v)
{
    const float a = abs_of(v), f = floor_of(a);
    const int near = whole_of(add_of(f, floor_of(mul_of(2, sub_of(a, f)))));
    return v < 0 ? -near : near;
}

FORMATS float inverse_of(float d)
{
    return d == 0 ? 0 : div_of(1, d);
}

FORMATS void put_half(made_t b, int at, float v)
{
    const unsigned h = v != v ? 0x7e00u : half_bits(v);
    PUT(b, at, h & 255);
    PUT(b, at + 1, h >> 8);
}

/* The first of the largest magnitudes, or of what is no number. */
FORMATS float first_largest(values_t x, int n)
{
    float most = VALUE(x, 0);
    for (int i = 1; i < n; i++) {
        const float v = VALUE(x, i);
        if (abs_of(v) > abs_of(most) || (v != v && most == most)) most = v;
    }
    return most;
}

FORMATS int capped(int q, int top)
{
    return q > top ? top : q;
}

/* Codes of the two elements of a byte, less an offset or more; bits of the fifth in `fifth`. */
FORMATS void put_codes(made_t b, int at, int fifth, values_t x, float from, float id, float more,
                       int top)
{
    unsigned high = 0;
    for (int j = 0; j < 16; j++) {
        unsigned q[2];
        for (int k = 0; k < 2; k++) {
            const float v = mul_of(sub_of(VALUE(x, j + 16 * k), from), id);
            q[k] = (unsigned)capped(whole_of(add_of(v, more)), top);
            high |= q[k] >> 4 << (j + 16 * k);
        }
        PUT(b, at + j, (q[0] & 15) | (q[1] & 15) << 4);
    }
    if (fifth < 0) return;
    for (int k = 0; k < 4; k++) PUT(b, fifth + k, high >> 8 * k & 255);
}

FORMATS void encode_q4_0(values_t x, made_t b)
{
    const float d = div_of(first_largest(x, 32), -8);
    put_half(b, 0, d);
    put_codes(b, 2, -1, x, 0, inverse_of(d), 8.5f, 15);
}

FORMATS void encode_q5_0(values_t x, made_t b)
{
    const float d = div_of(first_largest(x, 32), -16);
    put_half(b, 0, d);
    put_codes(b, 6, 2, x, 0, inverse_of(d), 16.5f, 31);
}

/* From the least element to the greatest. */
FORMATS void put_range(values_t x, made_t b, int at, int fifth, int top)
{
    float low = VALUE(x, 0), high = low;
    for (int i = 1; i < 32; i++) {
        const float v = VALUE(x, i);
        if (v < low || v != v) low = v;
        if (v > high || v != v) high = v;
        if (v != v) break;
    }
    const float d = div_of(sub_of(high, low), (float)top);
    put_half(b, 0, d);
    put_half(b, 2, low);
    put_codes(b, at, fifth, x, low, inverse_of(d), 0.5f, top);
}

FORMATS void encode_q4_1(values_t x, made_t b)
{
    put_range(x, b, 4, -1, 15);
}

FORMATS void encode_q5_1(values_t x, made_t b)
{
    put_range(x, b, 8, 4, 31);
}

FORMATS void encode_q8_0(values_t x, made_t b)
{
    const float d = div_of(abs_of(first_largest(x, 32)), 127), id = inverse_of(d);
    put_half(b, 0, d);
    for (int i = 0; i < 32; i++) PUT(b, 2 + i, (unsigned)near_of(mul_of(VALUE(x, i), id)) & 255);
}

FORMATS unsigned third_of(values_t x, int i, float id)
{
    return (unsigned)(near_of(mul_of(VALUE(x, i), id)) + 1);
}

/* `count` elements from `first` on, `step` apart, as the digits of a byte. */
FORMATS void put_digits(values_t x, made_t b, int at, int first, int step, int count, float id)
{
    unsigned sum = 0, power = 81;
    for (int n = 0; n < count; n++, power /= 3) sum += third_of(x, first + n * step, id) * power;
    PUT(b, at, (sum * 256 + 242) / 243);
}

FORMATS void encode_tq1_0(values_t x, made_t b)
{
    const float d = abs_of(first_largest(x, 256)), id = inverse_of(d);
    for (int c = 0; c < 32; c++) put_digits(x, b, c, c, 32, 5, id);
    for (int c = 0; c < 16; c++) put_digits(x, b, 32 + c, 160 + c, 16, 5, id);
    for (int c = 0; c < 4; c++) put_digits(x, b, 48 + c, 240 + c, 4, 4, id);
    put_half(b, 52, d);
}

FORMATS void encode_tq2_0(values_t x, made_t b)
{
    const float d = abs_of(first_largest(x, 256)), id = inverse_of(d);
    for (int c = 0; c < 64; c++) {
        unsigned byte = 0;
        for (int n = 0; n < 4; n++)
            byte |= third_of(x, (c >> 5) * 128 + n * 32 + (c & 31), id) << 2 * n;
        PUT(b, c, byte);
    }
    put_half(b, 64, d);
}
