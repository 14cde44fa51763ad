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
    int64_t a_row = p->a_row, a_step = p->a_step, depth = p->depth;
    float *to = p->c + row * LANES + lane;
    bool add = p->add; /* kept: stores to c may change *p, for all that the compiler knows */
    for (int64_t k = 0; k < depth; k++, a += a_step, b += LANES) {
        const NAME(vector) *x = (const NAME(vector) *)b;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            c[r][0] += a[r * a_row] * x[0];
            if (width > 1) c[r][1] += a[r * a_row] * x[1];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++, to += LANES) {
        NAME(vector) *y = (NAME(vector) *)to;
        for (int v = 0; v < width; v++) {
            if (add) c[r][v] += y[v];
            y[v] = c[r][v];
        }
    }
}

/* All lanes of `rows` rows, a constant. */
MICA_INLINE void NAME(multiply_lanes)(const attention_product *p, int64_t row, int rows)
{
    enum { STEP = VECTOR / sizeof(float) };
    int lane = 0;
    for (; lane + STEP < p->lanes; lane += 2 * STEP) NAME(multiply_rows)(p, row, lane, rows, 2);
    for (; lane < p->lanes; lane += STEP) NAME(multiply_rows)(p, row, lane, rows, 1);
}

CLONES static void NAME(multiply)(const attention_product *p)
{
    for (int64_t row = 0; row < p->rows;) {
        int64_t left = p->rows - row, rest = left - BLOCK_ROWS;
        /* A row alone waits for its sums as long as four do: twice four rather than two or three
         * rows alone at the end. */
        if (rest >= 0 && rest != 2 && rest != 3) {
            NAME(multiply_lanes)(p, row, BLOCK_ROWS);
            row += BLOCK_ROWS;
        } else if (left >= 4) {
            NAME(multiply_lanes)(p, row, 4);
            row += 4;
        } else {
            NAME(multiply_lanes)(p, row, 1);
            row += 1;
        }
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
