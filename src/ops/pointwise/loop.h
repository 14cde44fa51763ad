/* SPDX-License-Identifier: Apache-2.0
 * The loop of a block in the type `real`: see blocks.h. */

/* Operand by operand, not row by row: v[k][i] is read before any result of element i is written,
 * and no other element is looked at, so that results may lie on operands. */
POINTWISE void pointwise_loop(int variant, void *const *v, const real *numbers, int64_t count)
{
    real n[MICA_POINTWISE_NUMBERS], *at[BODY_OPERANDS];
    memcpy(n, numbers, sizeof n); /* a copy: stores to results cannot change it */
    for (int k = 0; k < BODY_OPERANDS; k++) at[k] = v[k];
    MICA_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        real e[BODY_OPERANDS] = {0};
        for (int k = 0; k < BODY_OPERANDS; k++)
            if (BODY_READ >> k & 1 && k < pointwise_used(variant)) e[k] = at[k][i];
        pointwise_body(variant, e, n);
        for (int k = 0; k < BODY_OPERANDS; k++)
            if (BODY_WRITTEN >> k & 1 && k < pointwise_used(variant)) at[k][i] = e[k];
    }
}

MICA_CLONES
static void pointwise_block(const void *desc, int variant, void *const *v, const void *numbers,
                            int64_t n)
{
    (void)desc;
    _Static_assert(BODY_VARIANTS <= 4, "a loop for each");
    if (variant == 0) pointwise_loop(0, v, numbers, n);
    if (BODY_VARIANTS > 1 && variant == 1) pointwise_loop(1, v, numbers, n);
    if (BODY_VARIANTS > 2 && variant == 2) pointwise_loop(2, v, numbers, n);
    if (BODY_VARIANTS > 3 && variant == 3) pointwise_loop(3, v, numbers, n);
}
