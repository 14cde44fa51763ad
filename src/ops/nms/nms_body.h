/* SPDX-License-Identifier: Apache-2.0
 * Boxes, for the CPU and kernels. The including file defines NMS (qualifiers), real, and mul_of
 * (a product that is rounded by itself). */

typedef struct nms_box {
    real low[2], high[2], area; /* area 0: it suppresses nothing */
} nms_box;

/* Four numbers of a box: two corners, or middle and extents. */
NMS nms_box nms_box_make(real v0, real v1, real v2, real v3, int center, real offset)
{
    nms_box b;
    const real v[4] = {v0, v1, v2, v3};
    for (int i = 0; i < 2; i++) {
        const real first = center ? v[i] - mul_of(v[i + 2], (real)0.5) : v[i];
        const real last = center ? v[i] + mul_of(v[i + 2], (real)0.5) : v[i + 2];
        const int swap = !center && last < first;
        b.low[i] = swap ? last : first;
        b.high[i] = swap ? first : last;
    }
    const real w = b.high[0] - b.low[0] + offset, h = b.high[1] - b.low[1] + offset;
    const real area = mul_of(w, h);
    b.area = w > 0 && h > 0 && area > 0 ? area : (real)0;
    return b;
}

NMS int nms_overlap(const nms_box *a, const nms_box *b, real offset, real threshold)
{
    real extent[2];
    for (int i = 0; i < 2; i++) {
        const real low = a->low[i] > b->low[i] ? a->low[i] : b->low[i];
        const real high = a->high[i] < b->high[i] ? a->high[i] : b->high[i];
        extent[i] = high - low + offset;
    }
    if (!(extent[0] > 0 && extent[1] > 0 && a->area > 0 && b->area > 0)) return 0;
    const real common = mul_of(extent[0], extent[1]);
    return common > 0 && common / (a->area + b->area - common) > threshold;
}
