/* SPDX-License-Identifier: Apache-2.0
 * The tail of the normal distribution over its density, in f32: a polynomial of degree 9 in
 * t = 1 / (1 + 0.35 |x|), good to 5e-8. Host and device share this file. */
#ifndef MICA_KERNELS_NORMAL_TAIL_H
#define MICA_KERNELS_NORMAL_TAIL_H

__attribute__((always_inline)) static inline float mica_normal_tail(float t)
{
    float q = -0x1.ddb8eep-6f;
    q = q * t + 0x1.26f9a0p-3f;
    q = q * t - 0x1.05fa9ap-2f;
    q = q * t + 0x1.464948p-3f;
    q = q * t - 0x1.7c4f12p-6f;
    q = q * t + 0x1.b057c4p-4f;
    q = q * t + 0x1.eac9bep-4f;
    q = q * t + 0x1.1e70c4p-3f;
    q = q * t + 0x1.1df1c6p-3f;
    return q * t;
}

#endif
