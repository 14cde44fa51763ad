/* SPDX-License-Identifier: Apache-2.0
 * Tensor and filter descriptors. */
#include "front.h"

cudnnStatus_t front_tensor(cudnnTensorDescriptor_t descriptor, const char *argument,
                           mica_tensor *tensor)
{
    FRONT_TRY(front_check(descriptor, FRONT_TENSOR, argument));
    if (!descriptor->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "%s was never set", argument);
    *tensor = descriptor->tensor;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t front_filter(cudnnFilterDescriptor_t descriptor, const char *argument,
                           mica_tensor *tensor)
{
    FRONT_TRY(front_check(descriptor, FRONT_FILTER, argument));
    if (!descriptor->set) return front_fail(CUDNN_STATUS_BAD_PARAM, "%s was never set", argument);
    *tensor = descriptor->tensor;
    return CUDNN_STATUS_SUCCESS;
}
