/* SPDX-License-Identifier: Apache-2.0
 * The product of two blocks: c[row][lane] += rows[row][z] * lanes[z][lane]. Four rows by two
 * vectors stay in registers. Included by tiles.c once for each type, REAL, and width of
 * vectors: VECTOR, their bytes; CLONES, for whom it is compiled; NAME(x), what x is called. */

typedef REAL NAME(vec) __attribute__((vector_size(VECTOR), may_alias));

CLONES static void NAME(product)(const REAL *restrict rows, const REAL *restrict lanes,
                                 REAL *restrict c, int n_rows, int n_lanes, int depth)
{
    enum { STEP = VECTOR / sizeof(REAL) };
    for (int r = 0; r < n_rows; r += 4)
        for (int l = 0; l < n_lanes; l += 2 * STEP) {
            NAME(vec) sum[4][2];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                sum[i][0] = *(const NAME(vec) *)(c + (r + i) * LANES + l);
                sum[i][1] = *(const NAME(vec) *)(c + (r + i) * LANES + l + STEP);
            }
            for (int z = 0; z < depth; z++) {
                NAME(vec) p = *(const NAME(vec) *)(lanes + z * LANES + l);
                NAME(vec) q = *(const NAME(vec) *)(lanes + z * LANES + l + STEP);
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    REAL by = rows[(r + i) * DEPTH + z];
                    sum[i][0] += by * p;
                    sum[i][1] += by * q;
                }
            }
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                *(NAME(vec) *)(c + (r + i) * LANES + l) = sum[i][0];
                *(NAME(vec) *)(c + (r + i) * LANES + l + STEP) = sum[i][1];
            }
        }
}

#undef REAL
#undef VECTOR
#undef CLONES
#undef NAME
