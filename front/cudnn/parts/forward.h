/* SPDX-License-Identifier: Apache-2.0
 * FORWARD(name): a function of this library that jumps to that of libcudnn.so.9, whatever its
 * arguments are. */
#ifndef FRONT_CUDNN_FORWARD_H
#define FRONT_CUDNN_FORWARD_H

#if defined(__x86_64__)
#define FORWARD_JUMP "jmp front_", "@PLT"
#elif defined(__aarch64__)
#define FORWARD_JUMP "b front_", ""
#else
#error "no jump is known for this processor"
#endif

#define FORWARD_LINES(name, jump, suffix)                                                          \
    __asm__(".symver front_" name "," name "@libcudnn.so.9\n"                                      \
            ".text\n.balign 16\n.globl " name "\n.type " name ",%function\n" name                  \
            ":\n" jump name suffix "\n.size " name ",.-" name "\n");
#define FORWARD_WITH(name, ...) FORWARD_LINES(name, __VA_ARGS__)
#define FORWARD(name)           FORWARD_WITH(#name, FORWARD_JUMP)

#endif
