/* SPDX-License-Identifier: Apache-2.0
 * Products of attention on the CPU. Included by attention_cpu_kernels.c once for each width of
 * vectors: VECTOR, their bytes; BLOCK_ROWS, rows whose sums stay in registers; CLONES, for whom it
 * is compiled; NAME(x), what x is called. */

typedef float NAME(vector) __attribute__((vector_size(VECTOR), aligned(4), may_alias));

/* `rows` rows by `width` vectors; both are constants where it is inlined. */
MICA_INLINE void NAME(multiply_rows)(const attention_product *p, int64_t row, int lane, int rows,
                                     int width)
{
    NAME(vector) c[BLOCK_ROWS][2] = {0};
    const float *a = p->a + row * p->a_row, *b = p->b + lane;
    int64_t a_row = p->a_row, a_step = p->a_step;
    for (int64_t k = 0; k < p->depth; k++, a += a_step, b += LANES) {
        const NAME(vector) *x = (const NAME(vector) *)b;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            c[r][0] += a[r * a_row] * x[0];
            if (width > 1) c[r][1] += a[r * a_row] * x[1];
        }
    }
    float *to = p->c + row * LANES + lane;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++, to += LANES) {
        NAME(vector) *y = (NAME(vector) *)to;
        for (int v = 0; v < width; v++) {
            if (p->add) c[r][v] += y[v];
            y[v] = c[r][v];
        }
    }
}

CLONES static void NAME(multiply)(const attention_product *p)
{
    enum { STEP = VECTOR / sizeof(float) };
    int lane = 0;
    for (; lane + STEP < p->lanes; lane += 2 * STEP) {
        int64_t row = 0;
        for (; row + BLOCK_ROWS <= p->rows; row += BLOCK_ROWS)
            NAME(multiply_rows)(p, row, lane, BLOCK_ROWS, 2);
        for (; row < p->rows; row++) NAME(multiply_rows)(p, row, lane, 1, 2);
    }
    for (; lane < p->lanes; lane += STEP) {
        int64_t row = 0;
        for (; row + BLOCK_ROWS <= p->rows; row += BLOCK_ROWS)
            NAME(multiply_rows)(p, row, lane, BLOCK_ROWS, 1);
        for (; row < p->rows; row++) NAME(multiply_rows)(p, row, lane, 1, 1);
    }
}

/* `count` rows of a, a constant, with row `lane` of b; 16 chains of additions, added in pairs. */
MICA_INLINE void NAME(dots)(const attention_product *p, int64_t row, int count, int lane)
{
    enum { STEP = VECTOR / sizeof(float), PARTS = WIDTH / STEP };
    NAME(vector) sum[4][PARTS] = {0};
    const float *a = p->a + row * p->a_row, *b = p->b + lane * p->depth;
    int64_t k = 0, a_row = p->a_row;
    for (; k + WIDTH <= p->depth; k += WIDTH) {
        const NAME(vector) *y = (const NAME(vector) *)(b + k);
#pragma GCC unroll 4
        for (int r = 0; r < count; r++) {
            const NAME(vector) *x = (const NAME(vector) *)(a + r * a_row + k);
#pragma GCC unroll 4
            for (int v = 0; v < PARTS; v++) sum[r][v] += x[v] * y[v];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < count; r++) {
        float total = 0, chain[WIDTH];
        for (int64_t i = k; i < p->depth; i++) total += a[r * a_row + i] * b[i];
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) *(NAME(vector) *)(chain + v * STEP) = sum[r][v];
        for (int half = WIDTH / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) chain[i] += chain[i + half];
        p->c[(row + r) * LANES + lane] = total + chain[0];
    }
}

CLONES static void NAME(multiply_dots)(const attention_product *p)
{
    for (int lane = 0; lane < p->lanes; lane++) {
        int64_t row = 0;
        for (; row + 4 <= p->rows; row += 4) NAME(dots)(p, row, 4, lane);
        for (; row < p->rows; row++) NAME(dots)(p, row, 1, lane);
    }
}

#undef VECTOR
#undef BLOCK_ROWS
#undef CLONES
#undef NAME
