/* SPDX-License-Identifier: Apache-2.0
 * Products of rows of x with decoded rows of w. Included by quantized_gemm_cpu.c once for each
 * width of vectors: VECTOR, their bytes; CLONES, for whom it is compiled; KERNEL(x), what x is
 * called. */

typedef float KERNEL(floats) __attribute__((vector_size(VECTOR), aligned(4), may_alias));

/* `lines` rows of x, a constant, with ROWS of w; sums of a row are ROWS apart. */
MICA_INLINE void KERNEL(multiply_lines)(int lines, const float *x, int64_t x_m, const float *w,
                                        int64_t w_n, int64_t n, float *sums)
{
    enum { LANES = VECTOR / sizeof(float) };
    KERNEL(floats) c[ROWS][ROWS] = {0};
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES) {
#pragma GCC unroll 4
        for (int i = 0; i < lines; i++) {
            const KERNEL(floats) v = *(const KERNEL(floats) *)(x + i * x_m + k);
#pragma GCC unroll 4
            for (int j = 0; j < ROWS; j++)
                c[i][j] += v * *(const KERNEL(floats) *)(w + j * w_n + k);
        }
    }
    for (int i = 0; i < lines; i++)
        for (int j = 0; j < ROWS; j++) {
            const KERNEL(floats) part = c[i][j];
            float sum = 0;
            for (int l = 0; l < (int)LANES; l++) sum += part[l];
            for (int64_t t = k; t < n; t++) sum += x[i * x_m + t] * w[j * w_n + t];
            sums[i * ROWS + j] += sum;
        }
}

CLONES static void KERNEL(multiply)(const float *x, int64_t x_m, int64_t m, const float *w,
                                    int64_t w_n, int64_t n, float *sums)
{
    int64_t i = 0;
    for (; i + ROWS <= m; i += ROWS)
        KERNEL(multiply_lines)(ROWS, x + i * x_m, x_m, w, w_n, n, sums + i * ROWS);
    for (; i < m; i++) KERNEL(multiply_lines)(1, x + i * x_m, x_m, w, w_n, n, sums + i * ROWS);
}

#undef VECTOR
#undef CLONES
#undef KERNEL
