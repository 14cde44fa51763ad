/* SPDX-License-Identifier: Apache-2.0
 * Text from a small transformer, by the ways in which servers make it, which must agree byte for
 * byte:
 *
 *   whole         every step computes all tokens again; attention without a cache
 *   cache         new keys and values go to a cache, the prompt first
 *   pages         the same, in pages that lie anywhere
 *   chunks        the prompt goes to the cache 7 tokens at a time
 *   speculative   up to 4 bytes are guessed from what was written before and verified at once
 *   q4_0          weights of 4 bits and their scales, read by dequantize_blocks and by hand
 *
 * and a text that is drawn with temperature and top_k, twice from one seed.
 *
 *   05_generate WEIGHTS      examples/05_generate.bin, which generate_train.py made */
#include <mica/mica.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WIDTH = 64, HEADS = 4, LAYERS = 2, WIDE = 128, LENGTH = 128, BYTES = 128, PAGE = 16 };
enum { HEAD = WIDTH / HEADS, PAGES = LENGTH / PAGE, GUESSED = 4, CHUNK = 7 };
enum { QKV, OUT, UP, DOWN, MATRICES };
enum { EMBEDDINGS = (BYTES + LENGTH) * WIDTH, BLOCK = 32, BLOCK_BYTES = 18 };

static const int size_of[MATRICES] = {3 * (WIDTH * WIDTH), (WIDTH * WIDTH), (WIDE * WIDTH),
                                      (WIDE * WIDTH)};
enum { LAYER = 4 * WIDTH * WIDTH + 2 * WIDE * WIDTH, ALL = EMBEDDINGS + LAYERS * LAYER };

typedef enum way { WHOLE, CACHE, PAGED, CHUNKS, SPECULATIVE, WAYS } way;
static const char *const way_names[] = {"whole", "cache", "pages", "chunks", "speculative"};

typedef struct model {
    mica_context *context;
    const float *weights; /* embeddings of bytes, of positions, then the layers' matrices */
    float cache[LAYERS][2][LENGTH * WIDTH];
    int tokens[LENGTH], count, cached;
    int64_t next[LENGTH]; /* what follows each of the tokens computed last */
    double scalars[MICA_MAX_SCALARS];
    int runs;
} model;

static void stop(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, mica_error());
    exit(1);
}

/* Runs a problem line on these arguments. */
static void run_line(model *m, mica_run run, const char *format, ...)
{
    char line[512];
    mica_plan *plan;
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (mica_plan_from_text(m->context, line, NULL, &plan) != MICA_OK) stop(line);
    const size_t bytes = (mica_plan_workspace(plan) + 255) / 256 * 256;
    run.workspace = bytes ? aligned_alloc(256, bytes) : NULL;
    if ((bytes && !run.workspace) || mica_plan_run(plan, &run) != MICA_OK) stop(line);
    free(run.workspace);
    mica_plan_destroy(plan);
}

static const float *matrix(const model *m, int layer, int which)
{
    const float *at = m->weights + EMBEDDINGS + layer * LAYER;
    for (int i = 0; i < which; i++) at += size_of[i];
    return at;
}

/* y = epilogue(a w^T), w as torch.nn.Linear has it. */
static void multiply(model *m, int n, int in, int out, const float *a, const float *w,
                     const float *residual, const char *epilogue, float *y)
{
    run_line(m,
             (mica_run){.args = {[MICA_GEMM_A] = (void *)(uintptr_t)a,
                                 [MICA_GEMM_B] = (void *)(uintptr_t)w,
                                 [MICA_GEMM_RESIDUAL] = (void *)(uintptr_t)residual,
                                 [MICA_GEMM_C] = y}},
             "gemm a=f32:%dx%d b=f32:%dx%d:t%s", n, in, in, out, epilogue);
}

static void normalise(model *m, int n, float *x, float *y)
{
    run_line(m, (mica_run){.args = {[MICA_NORM_X] = x, [MICA_NORM_Y] = y}},
             "norm kind=rms x=f32:%dx%d", n, WIDTH);
}

/* Attention of the last n tokens; w: the cache is not used. */
static void attend(model *m, way w, int layer, int n, float *qkv, float *out)
{
    static int pages[PAGES] = {5, 2, 7, 0, 3, 6, 1, 4};
    float *q = qkv, *k = qkv + WIDTH, *v = qkv + 2 * WIDTH, *keys = k, *values = v;
    int before = m->count - n, after = m->count;
    char fresh[96], stored[96];
    snprintf(fresh, sizeof fresh, "f32:1x%dx%dx%d:%dx%dx%dx1", HEADS, n, HEAD, n * 3 * WIDTH, HEAD,
             3 * WIDTH);
    snprintf(stored, sizeof stored,
             w == PAGED ? "f32:%dx%dx%dx%d pages=s32:1x%d" : "f32:%dx%dx%dx%d",
             w == PAGED ? PAGES : 1, HEADS, w == PAGED ? PAGE : LENGTH, HEAD, PAGES);
    if (w != WHOLE) {
        keys = m->cache[layer][0], values = m->cache[layer][1];
        run_line(m,
                 (mica_run){.args = {[MICA_KV_APPEND_K] = k,
                                     [MICA_KV_APPEND_V] = v,
                                     [MICA_KV_APPEND_K_CACHE] = keys,
                                     [MICA_KV_APPEND_V_CACHE] = values,
                                     [MICA_KV_APPEND_SEQ_K] = &before,
                                     [MICA_KV_APPEND_PAGES] = pages}},
                 "kv_append k=%s v=%s k_cache=%s", fresh, fresh, stored);
    }
    run_line(m,
             (mica_run){.args = {[MICA_ATTENTION_Q] = q,
                                 [MICA_ATTENTION_K] = keys,
                                 [MICA_ATTENTION_V] = values,
                                 [MICA_ATTENTION_OUT] = out,
                                 [MICA_ATTENTION_SEQ_K] = &after,
                                 [MICA_ATTENTION_PAGES] = pages}},
             "attention causal=bottom_right q=%s k=%s v=%s%s out=f32:1x%dx%dx%d:%dx%dx%dx1", fresh,
             w == WHOLE ? fresh : stored, w == WHOLE ? fresh : "f32",
             w == WHOLE ? "" : " seq_k=s32:1", HEADS, n, HEAD, n * WIDTH, HEAD, WIDTH);
}

/* Computes the last n tokens, and what follows each of them. */
static void forward(model *m, way w, int n)
{
    static float x[LENGTH * WIDTH], y[LENGTH * WIDTH], h[LENGTH * WIDTH], qkv[LENGTH * 3 * WIDTH],
        wide[LENGTH * WIDE], logits[LENGTH * BYTES];
    const float *bytes = m->weights, *places = m->weights + BYTES * WIDTH;
    for (int i = 0; i < n; i++)
        for (int c = 0; c < WIDTH; c++)
            x[i * WIDTH + c] = bytes[m->tokens[m->count - n + i] * WIDTH + c] +
                               places[(m->count - n + i) * WIDTH + c];
    for (int l = 0; l < LAYERS; l++) {
        normalise(m, n, x, h);
        multiply(m, n, WIDTH, 3 * WIDTH, h, matrix(m, l, QKV), NULL, "", qkv);
        attend(m, w, l, n, qkv, h);
        multiply(m, n, WIDTH, WIDTH, h, matrix(m, l, OUT), x, " epilogue=residual", y);
        normalise(m, n, y, h);
        multiply(m, n, WIDTH, WIDE, h, matrix(m, l, UP), NULL, " epilogue=gelu", wide);
        multiply(m, n, WIDE, WIDTH, wide, matrix(m, l, DOWN), y, " epilogue=residual", x);
    }
    normalise(m, n, x, h);
    multiply(m, n, WIDTH, BYTES, h, bytes, NULL, "", logits);
    m->scalars[MICA_SAMPLE_OFFSET] = m->count;
    run_line(m,
             (mica_run){.scalars = m->scalars,
                        .args = {[MICA_SAMPLE_X] = logits, [MICA_SAMPLE_TOKEN] = m->next}},
             "sample x=f32:%dx%d", n, BYTES);
    m->cached = m->count;
    m->runs++;
}

static void add_tokens(model *m, const int *tokens, int n)
{
    memcpy(m->tokens + m->count, tokens, (size_t)n * sizeof *tokens);
    m->count += n;
}

/* Guesses what follows from the last place where the last two bytes stood. */
static int guess(const model *m, int next, int *guesses)
{
    for (int i = m->count - 2; i >= 0; i--) {
        if (m->tokens[i] != m->tokens[m->count - 1] || m->tokens[i + 1] != next) continue;
        int n = m->count - i - 2;
        if (n > GUESSED) n = GUESSED;
        memcpy(guesses, m->tokens + i + 2, (size_t)n * sizeof *guesses);
        return n;
    }
    return 0;
}

/* The next token with guesses behind it, of which those stay that the model would have made. */
static void speculate(model *m, int most)
{
    int tokens[1 + GUESSED] = {(int)m->next[0]}, right = 0;
    int n = 1 + guess(m, tokens[0], tokens + 1);
    if (n > most - m->count) n = most - m->count;
    add_tokens(m, tokens, n);
    forward(m, SPECULATIVE, n);
    while (right + 1 < n && m->next[right] == tokens[right + 1]) right++;
    m->next[0] = m->next[right];
    m->count -= n - right - 1; /* what the cache holds behind them is overwritten */
}

/* Writes `length` tokens, the prompt among them; a line says how fast. */
static void generate(model *m, way w, const char *name, const char *prompt, int length)
{
    struct timespec from, to;
    const int given = (int)strlen(prompt), chunk = w == CHUNKS ? CHUNK : given;
    m->count = m->runs = 0;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < given; i += chunk) {
        const int n = given - i < chunk ? given - i : chunk;
        for (int k = 0; k < n; k++) m->tokens[m->count++] = prompt[i + k];
        forward(m, w, n);
        m->next[0] = m->next[n - 1];
    }
    while (m->count < length) {
        if (w == SPECULATIVE) {
            speculate(m, length);
            continue;
        }
        const int n = w == WHOLE ? m->count + 1 : 1;
        m->tokens[m->count++] = (int)m->next[0];
        forward(m, w, n);
        m->next[0] = m->next[n - 1];
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    const double s = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9;
    printf("%-20s %3d tokens in %3d runs, %6.0f a second\n", name, length - given, m->runs,
           (length - given) / s);
}

/* ---- weights ---- */

static void read_weights(model *m, const char *path, float *weights)
{
    uint16_t *halves = malloc(ALL * sizeof *halves);
    FILE *file = fopen(path, "rb");
    if (!file || !halves || fread(halves, sizeof *halves, ALL, file) != ALL || fgetc(file) != EOF) {
        fprintf(stderr, "%s: not the weights of this model\n", path);
        exit(1);
    }
    fclose(file);
    run_line(m, (mica_run){.args = {[MICA_TRANSFORM_X] = halves, [MICA_TRANSFORM_Y] = weights}},
             "transform x=f16:%d y=f32:%d", ALL, ALL);
    free(halves);
}

/* A positive or negative normal f16. */
static float half(const uint8_t *at)
{
    const uint32_t bits = (uint32_t)(at[0] | at[1] << 8);
    const uint32_t wide = (bits & 0x8000) << 16 | (((bits & 0x7fff) << 13) + (112u << 23));
    float v;
    memcpy(&v, &wide, sizeof v);
    return bits & 0x7c00 ? v : 0;
}

/* Matrices of 4 bits: as mica reads them, and by hand. */
static void quantise(model *m, const float *weights, float *by_mica, float *by_hand)
{
    enum { COUNT = LAYERS * LAYER, BLOCKS = COUNT / BLOCK };
    uint8_t *codes = malloc((size_t)BLOCKS * BLOCK_BYTES);
    if (!codes) exit(1);
    memcpy(by_mica, weights, EMBEDDINGS * sizeof *weights);
    memcpy(by_hand, weights, EMBEDDINGS * sizeof *weights);
    run_line(
        m,
        (mica_run){.args = {[MICA_QUANTIZE_BLOCKS_X] = (void *)(uintptr_t)(weights + EMBEDDINGS),
                            [MICA_QUANTIZE_BLOCKS_Y] = codes}},
        "quantize_blocks format=q4_0 x=f32:%d", COUNT);
    run_line(m,
             (mica_run){.args = {[MICA_DEQUANTIZE_BLOCKS_X] = codes,
                                 [MICA_DEQUANTIZE_BLOCKS_Y] = by_mica + EMBEDDINGS}},
             "dequantize_blocks format=q4_0 x=u8:%d", BLOCKS * BLOCK_BYTES);
    for (int b = 0; b < BLOCKS; b++)
        for (int i = 0; i < BLOCK; i++) {
            const uint8_t *block = codes + b * BLOCK_BYTES;
            const int code = block[2 + i % 16] >> (i < 16 ? 0 : 4) & 15;
            by_hand[EMBEDDINGS + b * BLOCK + i] = half(block) * (float)(code - 8);
        }
    free(codes);
}

static void print_text(const model *m)
{
    printf("  ");
    for (int i = 0; i < m->count; i++)
        putchar(m->tokens[i] >= ' ' && m->tokens[i] < 127 ? m->tokens[i] : ' ');
    printf("\n");
}

static void must_agree(const model *m, const int *tokens, const char *name)
{
    if (!memcmp(m->tokens, tokens, sizeof m->tokens)) return;
    fprintf(stderr, "%s: another text\n", name);
    exit(1);
}

int main(int argc, char **argv)
{
    static model m;
    static const char prompt[] = "mica is a library of deep-learning";
    float *weights = malloc(ALL * sizeof *weights), *by_mica = malloc(ALL * sizeof *by_mica),
          *by_hand = malloc(ALL * sizeof *by_hand);
    int first[LENGTH];
    if (argc < 2 || !weights || !by_mica || !by_hand) return 1;
    if (mica_context_create("cpu", &m.context) != MICA_OK) stop("cpu");
    read_weights(&m, argv[1], weights);
    m.weights = weights;
    m.scalars[MICA_SAMPLE_TOP_P] = m.scalars[MICA_SAMPLE_REPETITION] = 1;
    for (int w = 0; w < WAYS; w++) {
        generate(&m, (way)w, way_names[w], prompt, LENGTH);
        if (w == WHOLE) memcpy(first, m.tokens, sizeof first);
        must_agree(&m, first, way_names[w]);
    }
    print_text(&m);
    quantise(&m, weights, by_mica, by_hand);
    m.weights = by_mica;
    generate(&m, CACHE, "q4_0 by mica", prompt, LENGTH);
    memcpy(first, m.tokens, sizeof first);
    m.weights = by_hand;
    generate(&m, CACHE, "q4_0 by hand", prompt, LENGTH);
    must_agree(&m, first, "q4_0 by hand");
    print_text(&m);
    m.weights = weights;
    m.scalars[MICA_SAMPLE_TEMPERATURE] = 0.8, m.scalars[MICA_SAMPLE_TOP_K] = 20;
    m.scalars[MICA_SAMPLE_SEED] = 7;
    generate(&m, CACHE, "drawn", prompt, LENGTH);
    memcpy(first, m.tokens, sizeof first);
    generate(&m, PAGED, "drawn again", prompt, LENGTH);
    must_agree(&m, first, "drawn again");
    print_text(&m);
    mica_context_destroy(m.context);
    free(weights), free(by_mica), free(by_hand);
    return 0;
}
