#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A machine whose CPUs are all taken: bench marks what it measured, tune keeps nothing of it and says
# so, and both can be told apart from a quiet run. Usage: busy.sh MICA
set -u
mica=$1
folder=$(mktemp -d)
spinners=
stop() {
    # shellcheck disable=SC2086 # a list
    [ -z "$spinners" ] || kill $spinners 2>/dev/null
    spinners=
}
trap 'stop; rm -rf "$folder"' EXIT
failed=0
line='gemm a=f32:384x384 b=f32:384x384'

fail() {
    echo "$*"
    failed=1
}

for cpu in $(seq 1 $((2 * $(nproc)))); do
    sh -c 'while :; do :; done' &
    spinners="$spinners $!"
done

"$mica" bench -d cpu --pick --seconds 0.2 --json "$folder/rows" "$line" >"$folder/out" 2>"$folder/err" ||
    fail "bench: exit code $?"
grep -q '%~ ' "$folder/out" || fail "bench marks nothing: $(cat "$folder/out")"
grep -q '"disturbed":"' "$folder/rows" || fail "no word in JSON: $(cat "$folder/rows")"
grep -q 'disturbed results (marked ~): 1 of 1' "$folder/err" || fail "no summary: $(cat "$folder/err")"
"$mica" bench -d cpu --pick --seconds 0.2 --csv "$line" 2>/dev/null | grep -q ',1,"gemm' ||
    fail "no mark in CSV"
"$mica" bench --compare "$folder/rows" "$folder/rows" >"$folder/out" || fail "bench --compare"
grep -q ' disturbed ' "$folder/out" || fail "compared as though nothing were wrong: $(cat "$folder/out")"

"$mica" tune -d cpu --budget 200 --output "$folder/records" "$line" >"$folder/out" 2>"$folder/err"
code=$?
[ $code = 1 ] || fail "tune: exit code $code, expected 1"
grep -q "^mica: $line: disturbed 3 times, nothing is kept: its threads" "$folder/err" ||
    fail "tune does not say why: $(cat "$folder/err")"
[ -s "$folder/records" ] && fail "a record was kept: $(cat "$folder/records")"
"$mica" tune -d cpu --budget 200 --keep-disturbed --quiet --output "$folder/records" "$line" ||
    fail "tune --keep-disturbed: exit code $?"
[ -s "$folder/records" ] || fail "--keep-disturbed kept nothing"
stop
exit $failed
