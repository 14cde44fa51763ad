#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# musl 1.2.3 (package musl of Debian 12): acosh(x) in double precision is a finite number for half of the
# numbers between -2^26 and -10^6, and for fewer of those nearer to zero, where C asks for a NaN and a domain error:
# log(2 x - 1 / (x + sqrt(x x - 1))) is taken there without a look at the sign, whose argument is what rounding
# leaves of a difference. acoshf of the same numbers is NaN, as glibc's acosh is. So code that finds
# "x < 1" by a NaN (checks of domains, masks in arrays, tests that take libm for the truth) goes on with 11.47.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -q -o APT::Sandbox::User=root musl=1.2.3-1 musl-dev=1.2.3-1 >/dev/null
for package in *.deb; do dpkg -x "$package" root; done
cat >acosh.c <<'SOURCE'
#include <math.h>
#include <stdio.h>

int main(void)
{
    int finite = 0, finite_f32 = 0;
    for (int i = 0; i < 1000; i++) {
        volatile double x = -1e6 - 7919.77 * i;
        volatile float f = (float)x;
        finite += isfinite(acosh(x)) != 0;
        finite_f32 += isfinite(acoshf(f)) != 0;
    }
    volatile double one = -14863183.0;
    printf("%d %d %.4f\n", finite, finite_f32, acosh(one));
    return 0;
}
SOURCE
lib=$(dirname "$(find root -name libc.a | head -n 1)")
include=$(dirname "$(find root -name math.h | head -n 1)")
gcc -O0 -nostdinc -isystem "$include" -c acosh.c
gcc -static -nostdlib "$lib/crt1.o" "$lib/crti.o" acosh.o "$lib/libc.a" "$(gcc -print-libgcc-file-name)" "$lib/crtn.o" -o acosh
gcc -O0 acosh.c -lm -o acosh-glibc
musl=$(./acosh)
glibc=$(./acosh-glibc)
echo "of 1000 numbers below -10^6, acosh and acoshf are finite for, and acosh(-14863183): musl $musl, glibc $glibc"
[ "${musl%% *}" -gt 100 ] && [ "${glibc%% *}" = 0 ]
