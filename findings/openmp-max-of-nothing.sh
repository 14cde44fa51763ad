#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# reduction(max : m) of OpenMP begins with another number in clang than in gcc. OpenMP asks for the least number of
# the type; for gcc 12.2.0 that is -infinity, for clang 14.0.6 (package clang-14 1:14.0.6-12 of Debian 12) -DBL_MAX
# or -FLT_MAX, and the same of min with the other sign. So the maximum of what is -infinity alone is -infinity by
# the one and -1.8e308 by the other, with threads and with `omp simd`, without -ffast-math. One would guess that it
# is one of the elements. Code that looks for a maximum of -infinity, as softmax does to find rows that are
# masked as a whole, finds none when clang has built it.
#
# Seen: gcc -inf inf, clang -1.79769e+308 1.79769e+308.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -q -o APT::Sandbox::User=root clang-14=1:14.0.6-12 libclang-cpp14=1:14.0.6-12 libllvm14=1:14.0.6-12 \
  libclang-common-14-dev=1:14.0.6-12 libedit2 libz3-4 libbsd0 libmd0 libxml2 libicu72 libffi8 libtinfo6 >/dev/null
for package in *.deb; do dpkg -x "$package" root; done
cat >extremes.c <<'C'
#include <math.h>
#include <stdio.h>

int main(void)
{
    double scores[64], most = -INFINITY, least = INFINITY;
    for (int i = 0; i < 64; i++) scores[i] = -INFINITY;
#pragma omp simd reduction(max : most) reduction(min : least)
    for (int i = 0; i < 64; i++) {
        most = scores[i] > most ? scores[i] : most;
        least = -scores[i] < least ? -scores[i] : least;
    }
    printf("%g %g\n", most, least);
    return 0;
}
C
llvm=$(dirname "$(find root -path '*llvm-14/bin/clang')")
libraries=$(find "$work/root" -name 'lib*.so.*' -exec dirname {} + | sort -u | tr '\n' ':')
gcc -O1 -fopenmp-simd extremes.c -o by-gcc
LD_LIBRARY_PATH=$libraries "$llvm/clang" -O1 -fopenmp-simd -Wno-pass-failed extremes.c -o by-clang
gnu=$(./by-gcc)
clang=$(./by-clang)
echo "the largest of -infinities and the smallest of infinities: gcc $gnu, clang $clang"
[ "$gnu" = "-inf inf" ] && [ "$clang" = "-1.79769e+308 1.79769e+308" ]
