/* SPDX-License-Identifier: Apache-2.0
 * libcudnn_ops.so.9 and its siblings have no code: what they are asked for is in libcudnn.so.9,
 * which they need. */
typedef int front_part_is_empty;
