/* SPDX-License-Identifier: Apache-2.0
 * quantize_blocks and dequantize_blocks: blocks at random and of adversarial bytes and numbers, bit
 * for bit as the packages that define the formats have them (tests/judges/quantize_blocks.py);
 * blocks by hand; shapes; refusals. */
#include "line.h"

enum { BLOCKS = 96, SETS = 3 };

static const struct judged {
    mica_block_format format;
    int made;
    uint64_t digest[SETS];
    uint32_t first[4]; /* of block 8 of the first set */
} judged[] = {
#include "../judges/quantize_blocks.h"
};

/* What the tests know of a format: nothing but what the header says. */
static const struct size {
    const char *name;
    int elements, bytes;
} sizes[] = {[MICA_BLOCK_FORMAT_Q4_0] = {"q4_0", 32, 18},
             [MICA_BLOCK_FORMAT_Q4_1] = {"q4_1", 32, 20},
             [MICA_BLOCK_FORMAT_Q5_0] = {"q5_0", 32, 22},
             [MICA_BLOCK_FORMAT_Q5_1] = {"q5_1", 32, 24},
             [MICA_BLOCK_FORMAT_Q8_0] = {"q8_0", 32, 34},
             [MICA_BLOCK_FORMAT_Q2_K] = {"q2_k", 256, 84},
             [MICA_BLOCK_FORMAT_Q3_K] = {"q3_k", 256, 110},
             [MICA_BLOCK_FORMAT_Q4_K] = {"q4_k", 256, 144},
             [MICA_BLOCK_FORMAT_Q5_K] = {"q5_k", 256, 176},
             [MICA_BLOCK_FORMAT_Q6_K] = {"q6_k", 256, 210},
             [MICA_BLOCK_FORMAT_IQ4_NL] = {"iq4_nl", 32, 18},
             [MICA_BLOCK_FORMAT_IQ4_XS] = {"iq4_xs", 256, 136},
             [MICA_BLOCK_FORMAT_TQ1_0] = {"tq1_0", 256, 54},
             [MICA_BLOCK_FORMAT_TQ2_0] = {"tq2_0", 256, 66},
             [MICA_BLOCK_FORMAT_MXFP4] = {"mxfp4", 32, 17},
             [MICA_BLOCK_FORMAT_NVFP4] = {"nvfp4", 64, 36},
             [MICA_BLOCK_FORMAT_NF4] = {"nf4", 64, 32},
             [MICA_BLOCK_FORMAT_FP4] = {"fp4", 64, 32},
             [MICA_BLOCK_FORMAT_IQ1_S] = {"iq1_s", 256, 50},
             [MICA_BLOCK_FORMAT_IQ1_M] = {"iq1_m", 256, 56},
             [MICA_BLOCK_FORMAT_IQ2_XXS] = {"iq2_xxs", 256, 66},
             [MICA_BLOCK_FORMAT_IQ2_XS] = {"iq2_xs", 256, 74},
             [MICA_BLOCK_FORMAT_IQ2_S] = {"iq2_s", 256, 82},
             [MICA_BLOCK_FORMAT_IQ3_XXS] = {"iq3_xxs", 256, 98},
             [MICA_BLOCK_FORMAT_IQ3_S] = {"iq3_s", 256, 110}};

/* splitmix64 (Steele, Lea, Flood 2014), as the judge has it. */
static uint64_t bits_of(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static uint64_t digest_of(const uint8_t *data, size_t bytes)
{
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < bytes; i++) h = (h ^ data[i]) * 0x100000001b3;
    return h;
}

static void fill_bytes(uint64_t seed, int size, uint8_t *data)
{
    static const int same[] = {255, 0, 0x7c, 0x80};
    for (int i = 0; i < BLOCKS * size; i++) data[i] = (uint8_t)(bits_of(seed, (uint64_t)i) >> 56);
    for (int b = 0; b < 4; b++) memset(data + b * size, same[b], (size_t)size);
}

static float special(int pick, float v)
{
    const float values[] = {INFINITY, -INFINITY, NAN, 3e38f, -3e38f};
    return pick < 5 ? values[pick] : v;
}

/* kind 0: of many sizes; 1: halves, with ties; 2: infinities, NaN, the ends of f32. */
static void fill_numbers(uint64_t seed, int size, int kind, float *x)
{
    for (int i = 0; i < BLOCKS * size; i++) {
        const uint64_t bits = bits_of(seed, (uint64_t)i);
        const int whole = (int)((bits >> 32) % 4001) - 2000;
        x[i] = (float)whole;
        if (kind == 0) x[i] = ldexpf((float)whole, (int)(bits % 24) - 20);
        if (kind == 1) x[i] = (float)(((whole % 33) + 33) % 33 - 16) / 2;
        if (x[i] == 0 || i < size) x[i] = 0;
        if (kind != 2) continue;
        x[i] = special((int)(bits % 1000), x[i]);
        if (i / size == 5) x[i] *= 0x1p-149f;
        if (i / size == 6) x[i] *= 0x1p-126f;
        if (i / size == 7) x[i] *= 0x1p110f;
    }
}

static void run_plan(const char *engine, const char *op, const void *desc, size_t bytes,
                     void *const *args)
{
    mica_options options = {.engine = engine};
    mica_plan *plan;
    if (mica_plan_create(context, op, desc, bytes, &options, &plan) != MICA_OK)
        fail_msg("%s: %s", op, mica_error());
    mica_run run = {.args = {args[0], args[1], args[2]}};
    assert_int_equal(mica_plan_run(plan, &run), MICA_OK);
    mica_plan_destroy(plan);
}

static void canonical(float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(v[i])) memcpy(&v[i], &(uint32_t){0x7fc00000}, 4);
}

static void read_blocks(const char *engine, const struct judged *j, int set)
{
    const struct size *s = &sizes[j->format];
    const bool aside = j->format == MICA_BLOCK_FORMAT_NF4 || j->format == MICA_BLOCK_FORMAT_FP4;
    const size_t count = (size_t)BLOCKS * (size_t)s->elements;
    uint8_t *x = malloc((size_t)BLOCKS * (size_t)s->bytes);
    float *y = malloc(count * 4), scale[BLOCKS];
    fill_bytes((uint64_t)set, s->bytes, x);
    fill_numbers((uint64_t)set + 50, 1, 0, scale);
    for (int b = 0; b < BLOCKS; b++) scale[b] = fabsf(scale[b]);
    scale[3] = INFINITY, scale[4] = NAN, scale[5] = 1e-42f;
    mica_dequantize_blocks_desc d = {
        .format = j->format,
        .x = mica_tensor_packed(MICA_U8, 1, (int64_t[]){BLOCKS * (int64_t)s->bytes})};
    run_plan(engine, "dequantize_blocks", &d, sizeof d, (void *[]){x, y, aside ? scale : NULL});
    canonical(y, count);
    const float *first = y + 8 * s->elements;
    if (set == 0 && memcmp(first, j->first, sizeof j->first) != 0)
        fail_msg("%s, %s: block 8 begins with %.9g %.9g", s->name, engine, (double)first[0],
                 (double)first[1]);
    if (digest_of((const uint8_t *)y, count * 4) != j->digest[set])
        fail_msg("%s, %s: set %d is read otherwise", s->name, engine, set);
    free(x), free(y);
}

/* A scale of NaN is one. */
static void canonical_bytes(mica_block_format format, uint8_t *block)
{
    const int tail = format == MICA_BLOCK_FORMAT_TQ1_0   ? 52
                     : format == MICA_BLOCK_FORMAT_TQ2_0 ? 64
                                                         : 0;
    const bool two = format == MICA_BLOCK_FORMAT_Q4_1 || format == MICA_BLOCK_FORMAT_Q5_1;
    for (int at = tail; at <= tail + (two ? 2 : 0); at += 2) {
        const unsigned half = block[at] | (unsigned)block[at + 1] << 8;
        if ((half & 0x7fff) > 0x7c00) block[at] = 0, block[at + 1] = 0x7e;
    }
}

static void make_blocks(const char *engine, const struct judged *j, int set)
{
    const struct size *s = &sizes[j->format];
    const size_t bytes = (size_t)BLOCKS * (size_t)s->bytes;
    float *x = malloc((size_t)BLOCKS * (size_t)s->elements * 4);
    uint8_t *y = malloc(bytes);
    fill_numbers((uint64_t)set, s->elements, set, x);
    mica_quantize_blocks_desc d = {
        .format = j->format,
        .x = mica_tensor_packed(MICA_F32, 1, (int64_t[]){BLOCKS * (int64_t)s->elements})};
    run_plan(engine, "quantize_blocks", &d, sizeof d, (void *[]){x, y, NULL});
    for (int b = 0; b < BLOCKS; b++) canonical_bytes(j->format, y + b * s->bytes);
    for (int i = 0; set == 0 && i < 4; i++) assert_int_equal(y[8 * s->bytes + i], j->first[i]);
    if (digest_of(y, bytes) != j->digest[set])
        fail_msg("%s, %s: set %d is made otherwise", s->name, engine, set);
    free(x), free(y);
}

static void as_packages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
        for (int e = 0; e < 2; e++)
            for (int set = 0; set < SETS; set++)
                (judged[i].made ? make_blocks : read_blocks)(engines[e], &judged[i], set);
}

/* Every format is judged. */
static void all_judged(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof sizes / sizeof *sizes; f++) {
        int found = 0;
        for (size_t i = 0; i < sizeof judged / sizeof *judged; i++)
            found += (size_t)judged[i].format == f && !judged[i].made;
        assert_int_equal(found, 1);
    }
}

/* q8_0 by hand: scale 0.5, codes 0 to 31; and nf4 with a scale of 2. */
static void by_hand(void **state)
{
    (void)state;
    uint8_t x[34] = {0x00, 0x38}, codes[32] = {0x7f, 0x80};
    float y[64], scale = 2;
    for (int i = 0; i < 32; i++) x[2 + i] = (uint8_t)(i - 16);
    for (int e = 0; e < 2; e++) {
        mica_dequantize_blocks_desc d = {.format = MICA_BLOCK_FORMAT_Q8_0,
                                         .x = mica_tensor_packed(MICA_U8, 1, (int64_t[]){34})};
        run_plan(engines[e], "dequantize_blocks", &d, sizeof d, (void *[]){x, y, NULL});
        for (int i = 0; i < 32; i++) assert_true(y[i] == (float)(i - 16) / 2);
        d = (mica_dequantize_blocks_desc){.format = MICA_BLOCK_FORMAT_NF4,
                                          .x = mica_tensor_packed(MICA_U8, 1, (int64_t[]){32})};
        run_plan(engines[e], "dequantize_blocks", &d, sizeof d, (void *[]){codes, y, &scale});
        assert_true(y[0] == 0 && y[1] == 2 && y[2] == 0.07958029955625534f * 2 && y[3] == -2);
    }
}

static void shapes(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"dequantize_blocks format=q6_k x=u8:2x3x420", "1", "f32:2x3x512"},
        {"dequantize_blocks format=q4_0 x=u8:5x36 y=bf16", "1", "bf16:5x64"},
        {"dequantize_blocks format=nf4 x=u8:5x256 block=128", "2", "f32:5x4"},
        {"dequantize_blocks format=fp4 x=u8:64", "2", "f32:2"},
        {"dequantize_blocks format=q4_k x=u8:3x0", "1", "f32:3x0"},
        {"quantize_blocks format=q5_1 x=f16:4x96", "1", "u8:4x72"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[128];
        mica_problem *p;
        mica_arg_info info;
        if (mica_problem_from_text(rows[i][0], &p) != MICA_OK) fail_msg("%s", mica_error());
        assert_int_equal(mica_problem_arg(p, rows[i][1][0] - '0', &info), MICA_OK);
        mica_tensor_text(&info.tensor, text, sizeof text);
        assert_string_equal(text, rows[i][2]);
        mica_problem_destroy(p);
    }
}

static void refusals(void **state)
{
    (void)state;
    refuses("dequantize_blocks format=q4_k", "x is needed");
    refuses("dequantize_blocks format=q9_k x=u8:144", "q9_k");
    refuses("dequantize_blocks format=q4_k x=u8:3x143",
            "rows of x are 143 bytes, a block of q4_k is 144");
    refuses("dequantize_blocks format=q4_k x=u8:144x3", "rows of x are 3 bytes");
    refuses("dequantize_blocks format=nf4 x=u8:100", "rows of x are 100 bytes");
    refuses("dequantize_blocks format=nf4 x=u8:64 block=48", "block is 48, it must be a power");
    refuses("dequantize_blocks format=nf4 x=u8:8192 block=8192", "block is 8192");
    refuses("dequantize_blocks format=nf4 x=u8:64 block=0", "block");
    refuses("dequantize_blocks format=q4_0 x=u8:18 block=64", "block is 64, one of q4_0 is 32");
    refuses("dequantize_blocks format=q4_0 x=u8:18 scale=f32:1", "scale is for nf4 and fp4");
    refuses("dequantize_blocks format=nf4 x=u8:64 scale=f32:3", "scale");
    refuses("dequantize_blocks format=nf4 x=u8:64 scale=f16:2", "scale is f16");
    refuses("dequantize_blocks format=q4_0 x=s8:18", "x is s8");
    refuses("dequantize_blocks format=q4_0 x=u8:18 y=u8", "y is u8");
    refuses("dequantize_blocks format=q4_0 x=u8:18 y=f32:31", "y");
    refuses("quantize_blocks format=q4_k x=f32:256", "format is q4_k, whose package makes no");
    refuses("quantize_blocks format=q4_0 x=f32:4x33", "rows of x are 33 elements");
    refuses("quantize_blocks format=q4_0 x=f32:32 y=s8", "y is s8");
    refuses("quantize_blocks format=q4_0 x=f32:32 y=u8:17", "y");
    refuses("quantize_blocks format=q4_0 x=u8:32", "x is u8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_packages), cmocka_unit_test(all_judged), cmocka_unit_test(by_hand),
        cmocka_unit_test(shapes),      cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
