/* SPDX-License-Identifier: Apache-2.0
 * The kernels of gemm's own loops: sums[i * COLS + j] += panel a times panel b. Included by
 * gemm_cpu.c once for each width of vectors: VECTOR, their bytes; CLONES, for whom it is compiled;
 * NAME(x), what x is called. */

typedef float NAME(floats) __attribute__((vector_size(VECTOR), aligned(4), may_alias));
typedef double NAME(doubles) __attribute__((vector_size(VECTOR), aligned(8), may_alias));

/* Lines of a are `line` numbers apart, numbers of a line `step`: constants. */
MICA_INLINE void NAME(multiply_panels)(int depth, const float *a, int line, int step,
                                       const float *b, double *sums)
{
    enum { PARTS = PANEL_N * sizeof(float) / VECTOR };
    NAME(floats) c[PANEL_M][PARTS] = {0}, stored[PANEL_M][PARTS];
    for (int k = 0; k < depth; k++, a += step, b += PANEL_N) {
        const NAME(floats) *x = (const NAME(floats) *)b;
#pragma GCC unroll 6
        for (int i = 0; i < PANEL_M; i++)
#pragma GCC unroll 4
            for (int v = 0; v < PARTS; v++) c[i][v] += a[i * line] * x[v];
    }
    /* By element: what has an address stays in memory. */
#pragma GCC unroll 6
    for (int i = 0; i < PANEL_M; i++)
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) stored[i][v] = c[i][v];
    const float *part = (const float *)stored;
    for (int i = 0; i < PANEL_M; i++, part += PANEL_N, sums += COLS)
#pragma omp simd
        for (int j = 0; j < PANEL_N; j++) sums[j] += (double)part[j];
}

CLONES static void NAME(kernel_f32)(int depth, const float *a, bool by_rows, const float *b,
                                    double *sums)
{
    if (by_rows)
        NAME(multiply_panels)(depth, a, CHUNK, 1, b, sums);
    else
        NAME(multiply_panels)(depth, a, 1, PANEL_M, b, sums);
}

CLONES static void NAME(kernel_f64)(int depth, const double *a, const double *b, double *sums)
{
    enum { PARTS = PANEL_D * sizeof(double) / VECTOR };
    NAME(doubles) c[PANEL_M][PARTS] = {0};
    for (int k = 0; k < depth; k++, a += PANEL_M, b += PANEL_D) {
        const NAME(doubles) *x = (const NAME(doubles) *)b;
#pragma GCC unroll 6
        for (int i = 0; i < PANEL_M; i++)
#pragma GCC unroll 4
            for (int v = 0; v < PARTS; v++) c[i][v] += a[i] * x[v];
    }
#pragma GCC unroll 6
    for (int i = 0; i < PANEL_M; i++) {
        NAME(doubles) *to = (NAME(doubles) *)(sums + i * COLS);
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; v++) to[v] += c[i][v];
    }
}

#undef VECTOR
#undef CLONES
#undef NAME
