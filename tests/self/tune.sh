#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tuning from end to end: what `mica tune` writes is what later programs plan by. Usage: tune.sh MICA
set -u
mica=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
records=$folder/records
failed=0
line='gemm a=f32:96x96 b=f32:96x96'

fail() {
    echo "$*"
    failed=1
}
# explain LINE: what a program that has the records plans.
explain() {
    MICA_RECORDS=$records "$mica" explain -d cpu --json - "$1"
}
tune() {
    "$mica" tune -d cpu --quiet --keep-disturbed --budget 50 "$@" # other tests run beside it
}

tune "$line" 2>/dev/null && fail "tuned without a file"
tune --output "$records" 2>/dev/null && fail "tuned nothing"
tune -d sm_90a --output "$records" "$line" 2>/dev/null && fail "timed a device that is not there"
[ -e "$records" ] && fail "a failure left a file"
tune --output "$folder/no/such/folder" "$line" 2>/dev/null && fail "wrote into no folder"

tune --output "$records" "$line" || fail "tune failed"
[ "$(wc -l <"$records")" = 1 ] || fail "not one record"
explain "$line" | grep -q '"recorded_ms"' || fail "the record is not used"
tune --output "$records" "$line" || fail "tuning again failed"
[ "$(wc -l <"$records")" = 1 ] || fail "a problem on record was measured again"
explain 'gemm a=f32:96x96 b=f32:96x97' | grep -q '"recorded_ms"' && fail "a record of another problem"

# What it says of the model, on a terminal and in JSON.
"$mica" tune -d cpu --keep-disturbed --budget 50 --output "$folder/other" --json "$folder/rows" "$line" >"$folder/said" 2>&1
grep -q "within 5 % of the measured one on [01] of 1 lines" "$folder/said" || fail "no word on the model"
grep -q '"line":"gemm a=f32:96x96 b=f32:96x96","model":{"engine":"[a-z]*","config":".*","ms":[0-9.e-]*},"measured":{' \
    "$folder/rows" || fail "no JSON of the choices"

# Another engine than the model's choice, a later line wins.
sed 's/| [a-z]* | [^|]* | \([^|]*| mica\)/| ref | | \1/' "$records" >>"$records"
explain "$line" | grep -q '"choice":{"engine":"ref"' || fail "a later record does not win"
# One that does not hold any more, and lines that are none.
sed -i 's/| ref |/| gone |/' "$records"
{ printf 'no record\n'; cat "$records"; } >"$folder/bad"
MICA_RECORDS=$folder/bad "$mica" explain -d cpu "$line" >/dev/null 2>&1 || fail "a bad record stops planning"
tune --output "$folder/bad" 'gemm a=f32:96x96 b=f32:96x95' 2>"$folder/said" || fail "a bad line stops tuning"
grep -q ':1:' "$folder/said" || fail "a bad line is not named"

"$mica" tune -d cpu --quiet --keep-disturbed --fit --output "$records" || fail "fit failed"
grep -q '^constants | .* | fit | copy_gbps=' "$records" || fail "no constants on record"
rate=$(sed -n 's/.*copy_gbps=\([0-9.e+]*\) .*/\1/p' "$records")
shown=$(printf %.4g "$rate") # as explain rounds it
MICA_RECORDS=$records "$mica" explain -d cpu "$line" | grep -qF ": $shown GB/s" ||
    fail "the constants are not used: $rate"
exit $failed
