#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# GCC's OpenMP runtime (libgomp 12.2.0-14+deb12u1 of Debian 12) keeps its pool of threads between parallel
# regions only while the team does not shrink. A program that alternates num_threads(3) and num_threads(4)
# starts an operating-system thread for every pair of regions: the surplus thread of the larger team ends when
# the smaller one starts, instead of waiting. One would guess that 4 threads serve for ever, as they do with
# LLVM's runtime (libomp5-14 1:14.0.6-12), where the same object code starts no thread after the first.
# It matters to libraries that choose a team by the size of the problem.
#
# Seen: 200 pairs of regions; libgomp started 199 threads after the first team, libomp none.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -q -o APT::Sandbox::User=root libgomp1=12.2.0-14+deb12u1 libomp5-14=1:14.0.6-12 >/dev/null
for package in *.deb; do dpkg -x "$package" root; done

cat >teams.c <<'C'
#include <omp.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
enum { PAIRS = 200, MOST = 4096 };
static long seen[MOST];
static int count;
static void note(void)
{
    long id = syscall(SYS_gettid);
#pragma omp critical
    {
        int i = 0;
        while (i < count && seen[i] != id) i++;
        if (i == count && count < MOST) seen[count++] = id;
    }
}
int main(void)
{
    int first = 0;
    for (int i = 0; i < PAIRS; i++) {
#pragma omp parallel num_threads(4)
        note();
        if (i == 0) first = count;
#pragma omp parallel num_threads(3)
        note();
    }
    printf("%d\n", count - first);
    return 0;
}
C
# Both runtimes have libgomp's entry points, so one program runs with either.
cc -O1 -fopenmp teams.c -o teams
libgomp=$(dirname "$(find "$work/root" -name 'libgomp.so.1' | head -n 1)")
mkdir llvm
ln -s "$(find "$work/root" -name 'libomp.so.5' -o -name 'libomp.so' | head -n 1)" llvm/libgomp.so.1
gnu=$(OMP_DYNAMIC=false LD_LIBRARY_PATH=$libgomp ./teams)
llvm=$(OMP_DYNAMIC=false LD_LIBRARY_PATH=$work/llvm ./teams)
echo "threads started after the first team, 200 pairs of regions of 4 and 3: libgomp $gnu, libomp $llvm"
[ "$gnu" -ge 190 ] && [ "$llvm" = 0 ]
