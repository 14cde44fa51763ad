/* SPDX-License-Identifier: Apache-2.0
 * Addresses in shared memory as instructions take them. */
#pragma once
#include "kernels/types.cuh"

__device__ __forceinline__ u32 shared_address(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}
