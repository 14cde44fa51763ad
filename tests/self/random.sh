#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/random_problems: lines of every family, the same for the same seed, few as they are written; and a
# family without lines is noticed. Usage: random.sh MICA
set -eu
mica=$1
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bad() {
    echo "random: $*"
    failed=1
}

tests/random_problems "$mica" 1 5 >"$work/lines"
cut -d ' ' -f 1 "$work/lines" | uniq -c | awk '{ print $2, $1 }' >"$work/have"
"$mica" list --json - | sed -n 's/^{"op":"\([a-z0-9_]*\)".*/\1 5/p' >"$work/want"
cmp -s "$work/have" "$work/want" || bad "not 5 lines of each family: $(cat "$work/have")"
tests/random_problems "$mica" 1 5 gemm | cmp -s - "$(grep '^gemm ' "$work/lines" >"$work/gemm" && echo "$work/gemm")" ||
    bad 'other lines of gemm where it is alone'
tests/random_problems "$mica" 2 5 gemm | cmp -s - "$work/gemm" && bad 'the same lines for another seed'
written=$(cat tests/cases/softmax.txt tests/cases/gemm.txt tests/cases/tile.txt | grep -cxFf "$work/lines" || true)
[ "$written" -lt 5 ] || bad "$written of 15 lines are as they are written"

mkdir -p "$work/tests/cases"
cp tests/random_problems "$work/tests"
cp tests/cases/gemm.txt "$work/tests/cases"
"$work/tests/random_problems" "$mica" 1 5 gemm >"$work/again" || bad 'gemm alone has no lines'
said=$("$work/tests/random_problems" "$mica" 1 5 tile 2>&1) && bad 'tile without lines is taken'
echo "$said" | grep -q 'only 0 lines of tile' || bad "tile without lines: $said"
exit $failed
