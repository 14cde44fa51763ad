#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# archive.sh ARCHIVE INSIDE PC COMPILER: libmica.a shows the functions of symbols.txt and nothing else, so that no
# name in a program that links it can meet one of the library's own. INSIDE is an archive of the same
# objects as they were compiled, PC is mica.pc: a program that defines all of INSIDE's other names is linked and run.
set -eu
archive=$1 inside=$2 pc=$3 compiler=$4
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
LC_ALL=C
export LC_ALL

globals() {
    readelf -sW "$1" | awk '$5 != "LOCAL" && $7 != "UND" && $8 != "" && $5 != "Bind" { print $8 }' | sort -u
}

sed 's/@.*//' "$here/symbols.txt" | sort >"$work/accepted"
globals "$archive" >"$work/shown"
diff -u --label "accepted (tests/abi/symbols.txt)" --label "global in $archive" "$work/accepted" "$work/shown" || {
    echo "archive: the static library shows other names than the shared one"
    exit 1
}

# Each name is defined in a group of that name: of two groups a linker keeps one, too.
globals "$inside" | comm -23 - "$work/accepted" >"$work/own"
[ "$(wc -l <"$work/own")" -gt 100 ] || { echo "archive: $inside shows only what it should: nothing was tested"; exit 1; }
awk '{ printf ".section .data.%d,\"awG\",@progbits,%s,comdat\n.globl %s\n%s: .long 0\n", NR, $1, $1, $1 }' \
    "$work/own" >"$work/own.s"
echo '.section .note.GNU-stack,"",@progbits' >>"$work/own.s"
libraries=$(sed -n 's/^Libs.private: *//p' "$pc")
cat >"$work/program.c" <<'END'
#include <mica/mica.h>
int main(void)
{
    static float x[1000], y[1000];
    mica_context *ctx;
    mica_plan *plan;
    for (int i = 0; i < 1000; i++) x[i] = (float)(i - 500);
    if (mica_context_create("cpu", &ctx) ||
        mica_plan_from_text(ctx, "activation x=f32:1000 act=relu", NULL, &plan) ||
        mica_plan_run(plan, &(mica_run){.args = {x, y}}))
        return 1;
    return y[0] != 0 || y[999] != 499;
}
END
"$compiler" -fopenmp -I"$here/../../include" "$work/program.c" "$work/own.s" "$archive" $libraries -o "$work/program"
"$work/program"
echo "archive: $(wc -l <"$work/shown") names shown; $(wc -l <"$work/own") of its own meet no other of that name"
