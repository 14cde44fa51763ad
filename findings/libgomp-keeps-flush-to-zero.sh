#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whether a parallel region flushes subnormal numbers to zero depends on the OpenMP runtime. A thread of libgomp's
# (12.2.0-14+deb12u1 of Debian 12) pool keeps the MXCSR it was started with: a program that sets flush-to-zero after
# its first region flushes in the calling thread alone, so that the result of an element depends on which thread
# it fell to. LLVM's runtime (libomp5-14 1:14.0.6-12) hands the
# caller's mode to all threads of each region, and back, with the same object code, unless
# KMP_INHERIT_FP_CONTROL=0 says otherwise. In a program that sets the mode before its first region libgomp's
# threads flush too, and go on when it is reset.
#
# Seen: threads of 4 that flush before it is set, while it is, and when it is reset: libgomp 0 1 0, libomp 0 4 0;
# set before the first region: libgomp 4 3, libomp 4 0.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -q -o APT::Sandbox::User=root libgomp1=12.2.0-14+deb12u1 libomp5-14=1:14.0.6-12 >/dev/null
for package in *.deb; do dpkg -x "$package" root; done
cat >flush.c <<'C'
#include <stdio.h>
#include <xmmintrin.h>

static int flushing(void)
{
    int count = 0;
#pragma omp parallel num_threads(4) reduction(+ : count)
    count += (_mm_getcsr() & _MM_FLUSH_ZERO_ON) != 0;
    return count;
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc == 1) printf("%d ", flushing());
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
    printf("%d ", flushing());
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_OFF);
    printf("%d\n", flushing());
    return 0;
}
C
# Both runtimes have libgomp's entry points, so one program runs with either.
cc -O1 -fopenmp flush.c -o flush
libgomp=$(dirname "$(find "$work/root" -name 'libgomp.so.1' | head -n 1)")
mkdir llvm
ln -s "$(find "$work/root" -name 'libomp.so.5' -o -name 'libomp.so' | head -n 1)" llvm/libgomp.so.1
export OMP_DYNAMIC=false
gnu="$(LD_LIBRARY_PATH=$libgomp ./flush), $(LD_LIBRARY_PATH=$libgomp ./flush first)"
llvm="$(LD_LIBRARY_PATH=$work/llvm ./flush), $(LD_LIBRARY_PATH=$work/llvm ./flush first)"
echo "threads of 4 that flush to zero: libgomp $gnu; libomp $llvm"
[ "$gnu" = "0 1 0, 4 3" ] && [ "$llvm" = "0 4 0, 4 0" ]
