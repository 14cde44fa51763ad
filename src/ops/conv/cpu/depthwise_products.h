/* SPDX-License-Identifier: Apache-2.0
 * A pixel's sums of products, channels along the lanes, in registers. Included by depthwise.c
 * once for each width of vectors: VECTOR, their bytes; CLONES, for whom it is compiled; NAME(x),
 * what x is called. */

/* Neighbouring channels, wherever floats may lie. */
typedef float NAME(lanes) __attribute__((vector_size(VECTOR), aligned(4), may_alias));
enum { NAME(LANES) = VECTOR / sizeof(float) };

INLINE void NAME(add_block)(const products *p, int64_t at, int vectors, float *to)
{
    NAME(lanes) a = {0}, b = {0}, c = {0}, d = {0};
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t k = 0; k < p->columns; k++) {
            const NAME(lanes) *v = (const NAME(lanes) *)(p->data[i] + p->from[k] + at);
            const NAME(lanes) *f = (const NAME(lanes) *)(p->filter[i] + p->tap[k] + at);
            a += v[0] * f[0];
            if (vectors > 1) b += v[1] * f[1];
            if (vectors > 2) c += v[2] * f[2], d += v[3] * f[3];
        }
    NAME(lanes) *results = (NAME(lanes) *)(to + at);
    results[0] = a;
    if (vectors > 1) results[1] = b;
    if (vectors > 2) results[2] = c, results[3] = d;
}

/* Fewer channels than a vector has. */
INLINE void NAME(add_rest)(const products *p, int64_t at, int64_t n, float *to)
{
    MICA_ALIGNED float sum[NAME(LANES)] = {0};
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t k = 0; k < p->columns; k++) {
            const float *v = p->data[i] + p->from[k] + at, *f = p->filter[i] + p->tap[k] + at;
            for (int64_t l = 0; l < n; l++) sum[l] += v[l] * f[l];
        }
    memcpy(to + at, sum, (size_t)n * sizeof *sum);
}

CLONES static void NAME(add_products)(const products *p, int64_t n, float *to)
{
    const int64_t lanes = NAME(LANES);
    int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) NAME(add_block)(p, i, 4, to);
    if (i + 2 * lanes <= n) NAME(add_block)(p, i, 2, to), i += 2 * lanes;
    if (i + lanes <= n) NAME(add_block)(p, i, 1, to), i += lanes;
    if (i < n) NAME(add_rest)(p, i, n - i, to);
}

#undef VECTOR
#undef CLONES
#undef NAME
