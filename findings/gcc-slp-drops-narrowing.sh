#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gcc 12.2.0 (packages gcc-12 and cpp-12 12.2.0-14+deb12u1 of Debian 12) forgets that a double was rounded to a float, where two
# such values lie side by side: from -O2 on, which has turned on vectorisation of straight lines since gcc 12, it takes
# the pair of conversions there and back for none and goes on with the double. No -ffast-math; x86-64. A
# conversion by itself stays, and so do two that read memory and write memory. One would guess that a cast
# rounds: C says so (6.3.1.5), and code that imitates narrow arithmetic by casts stands on it.
#
# Seen: -O1 and -O2 -fno-tree-slp-vectorize 0.10000000149011612 0.20000000298023224,
# -O2 and -O3 0.10000000000000001 0.20000000000000001.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
version=12.2.0-14+deb12u1
apt-get download -q -o APT::Sandbox::User=root gcc-12=$version cpp-12=$version libgcc-12-dev=$version libisl23 libmpc3 \
  libmpfr6 libgmp10 >/dev/null
for package in *.deb; do dpkg -x "$package" root; done
cat >narrow.c <<'C'
#include <stdio.h>

__attribute__((noipa)) void narrow(double a, double b, double *to)
{
    const float p = (float)a, q = (float)b;
    const double u = p, v = q;
    to[0] = u * 4;
    to[1] = v * 4;
}

int main(void)
{
    double found[2];
    narrow(0.1, 0.2, found);
    printf("%.17g %.17g\n", found[0] / 4, found[1] / 4);
    return 0;
}
C
LD_LIBRARY_PATH=$(dirname "$(find root -name 'libisl.so.23')")
export LD_LIBRARY_PATH
gcc=root/usr/bin/gcc-12
$gcc --version | head -n 1
seen() {
    $gcc -B root/usr/lib/gcc/x86_64-linux-gnu/12/ "$@" -S narrow.c -o narrow.s
    cc narrow.s -o narrow
    ./narrow
}
rounded="0.10000000149011612 0.20000000298023224" whole="0.10000000000000001 0.20000000000000001"
for level in -O1 "-O2 -fno-tree-slp-vectorize" -O2 -O3; do
    # shellcheck disable=SC2086
    found=$(seen $level)
    echo "$level: $found"
    case $level in
    -O2 | -O3) [ "$found" = "$whole" ] ;;
    *) [ "$found" = "$rounded" ] ;;
    esac
done
