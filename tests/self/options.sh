#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the command line says and how it ends where something is wrong with it: engines, options that a
# command does not have, variables of the environment, files that cannot be written. One text each, on
# standard error, and the same exit code from every command. Usage: options.sh MICA
set -u
mica=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
unset MICA_LOG MICA_RECORDS MICA_DEVICE

# expect CODE TEXT ARGUMENTS...: the exit code, and a line of standard error that has the text.
expect() {
    want=$1 text=$2
    shift 2
    "$mica" "$@" >"$folder/out" 2>"$folder/err"
    got=$?
    if [ "$got" != "$want" ] || { [ -n "$text" ] && ! grep -qF -e "$text" "$folder/err"; }; then
        echo "exit code $got, expected $want and \"$text\": mica $*"
        cat "$folder/err"
        failed=1
    fi
}
# once TEXT: standard error of the last command has it in one line, no more.
once() {
    [ "$(grep -cF -e "$1" "$folder/err")" = 1 ] && return
    echo "\"$1\" is not there once:"
    cat "$folder/err"
    failed=1
}

gemm='gemm a=f32:8x8 b=f32:8x8'
# An engine that nobody has: a slip of the pen.
for command in check bench explain "bench --first" "bench --overhead" "check --compile-only"; do
    # shellcheck disable=SC2086 # command and options
    expect 2 'there is no engine "onedn", was onednn meant? Engines of gemm: onednn, ' \
        $command -d cpu --engine onedn "$gemm"
    # shellcheck disable=SC2086
    expect 2 'there is no engine "nothing_like_it"; engines of gemm: ' \
        $command -d cpu --engine nothing_like_it "$gemm"
done
expect 2 'there is no engine "onedn", was onednn meant?' check -d cpu --against onedn "$gemm"
expect 2 'there is no engine "onedn", was onednn meant?' check -d cpu "$gemm ; engine=onedn"
expect 2 'there is no engine "onedn"' bench -d cpu --engine cpu,onedn "$gemm"
# One that others have: sound, but not here.
for command in bench explain; do
    expect 3 'it belongs to the other backend, this is cpu' $command -d cpu --engine cuda "$gemm"
    expect 3 'gemm has no engine of that name' $command -d cpu --engine winograd "$gemm"
done
expect 3 '' check -d cpu --engine cuda "$gemm"
grep -q '^refused cuda .* it belongs to the other backend, this is cpu' "$folder/out" || failed=1
expect 3 '' check -d cpu --engine winograd "$gemm"
grep -q '^refused winograd .* gemm has no engine of that name' "$folder/out" || failed=1
# All: those too that are only taken by name, and no refusal is a failure.
conv='conv x=f32:1x2x9x9 w=f32:3x2x3x3'
expect 0 '' check -d cpu --engine all --fill exact "$conv"
grep -q '^fft ' "$folder/out" || { echo "check --engine all leaves fft out"; failed=1; }
expect 0 '' check -d cpu --fill exact "$conv"
grep -q '^fft ' "$folder/out" && { echo "fft is checked unasked"; failed=1; }
expect 0 '' bench -d cpu --engine all --seconds 0.01 "$conv"
grep -q ' fft ' "$folder/out" || { echo "bench --engine all leaves fft out"; failed=1; }
expect 2 'times one engine' bench -d cpu --first --engine all "$gemm"
expect 2 'compared with itself' check -d cpu --engine cpu --against cpu "$gemm"

# Memory that is not there is a word of its own, neither mismatch nor refusal.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}allocator_may_return_null=1
TSAN_OPTIONS=${TSAN_OPTIONS:+$TSAN_OPTIONS:}allocator_may_return_null=1
export ASAN_OPTIONS TSAN_OPTIONS
huge='activation x=f64:4194304x4194304'
expect 3 '' check -d cpu --engine cpu --json "$folder/rows" --allow-refusals --expect 0 "$huge"
grep -q '^no memory cpu .*does not fit' "$folder/out" || { cat "$folder/out"; failed=1; }
grep -q '"status":"no memory"' "$folder/rows" || { cat "$folder/rows"; failed=1; }
expect 3 '' check -d cpu 'transform x=u8:1099511627776x128:0x1 y=u8:1099511627776x128 # repeats: transform x=u8:1x128 y=u8:1x128'
grep -q '^no memory any .*does not fit' "$folder/out" || { cat "$folder/out"; failed=1; }
expect 3 'MEMORY' bench -d cpu --engine cpu "$huge"

# Options that a command does not have, or that need another device; arguments that it has no use for.
expect 2 "unrecognized option '--quiet'" info --quiet
expect 2 "unrecognized option '--commit=x'" list --commit=x
expect 2 "unrecognized option '--json=-'" demo --json=-
expect 2 '"nonsense": options are all that it takes' demo nonsense
expect 2 '"nonsense": options are all that it takes' info nonsense
expect 2 '--measure and --device sm_90a exclude each other: nothing runs on an offline device' explain --measure -d sm_90a "$gemm"
# The same by short and shortened names.
expect 2 '--quiet and --verbose exclude each other' check -d cpu -qv "$gemm"
expect 2 '--compile-only and --self-test exclude each other' check --compile --self "$gemm"

# What a limit or a filter rules out, in text and JSON.
line='conv x=f32:2x16x28x28:nhwc w=f32:16x16x3x3:nhwc pad=1x1'
"$mica" explain -d cpu --no-workspace "$line" | grep -q '^  fft  .* workspace of [1-9][0-9]* bytes > limit of 0 ' ||
    { echo "explain --no-workspace gives no reason"; failed=1; }
"$mica" explain -d cpu --workspace 17 --json - "$line" |
    grep -q '"engine":"fft","status":"refused",[^}]*"reason":"workspace of [1-9][0-9]* bytes > limit of 17"' ||
    { echo "explain --workspace --json gives no reason"; failed=1; }
"$mica" explain -d cpu --engine ref "$line" | grep -q '^  cpu  .* another engine was asked for' ||
    { echo "explain --engine gives no reason"; failed=1; }
expect 0 '' explain -d cpu --workspace 100000000 "$line"
grep -q 'limit of' "$folder/out" && { echo "a limit that holds all refuses"; failed=1; }

# The environment: each variable whose value means nothing, once, by name; the command runs all the same.
small='softmax x=f32:2x3 axis=1'
for row in 'MICA_LOG=loud|known are: error warn info debug' 'MICA_RECORDS=/nowhere/records|there is no such file' \
    'MICA_THREADS=many|a whole number from 1 to 4096 is needed' 'MICA_THREADS=1e3|a whole number from 1 to 4096 is needed' \
    'MICA_THREADS=99999999999|a whole number from 1 to 4096 is needed' 'MICA_THREADS=0|a whole number from 1 to 4096 is needed' \
    'MICA_VECTORS=wide|known are: narrow' \
    'MICA_CACHE_BYTES=1GB|a whole number of at least 0 is needed, K, M or G may follow' 'MICA_CACHE_BYTES=9999999999G|a whole number of at least 0 is needed, K, M or G may follow' 'MICA_CACHE_DIR=here|an absolute path is needed' \
    'MICA_KERNEL_DIR=/nowhere|there is no such directory' 'MICA_NVRTC=/nowhere.so|there is no such file' \
    'MICA_ONEDNN=/nowhere.so|there is no such file' 'MICA_WAIT=never|known are: spin sleep' 'MICA_SYNC=yes|known are: 0 1' 'MICA_LOG_FILE=/nowhere/log|no file can be written there'; do
    for command in "explain -d cpu" "check -q -d cpu --fill exact"; do
        # shellcheck disable=SC2086
        env "${row%%|*}" "$mica" $command "$small" >"$folder/out" 2>"$folder/err" ||
            { echo "${row%%|*}: mica $command fails"; failed=1; }
        once "mica: ${row%%|*}: ${row#*|}"
    done
    env "${row%%|*}" "$mica" info --env >/dev/null 2>"$folder/err"
    once "mica: ${row%%|*}: ${row#*|}"
done
MICA_LOG=info MICA_LOG_FILE=stderr MICA_ONEDNN=none MICA_THREADS=1 MICA_CACHE_BYTES=100M MICA_SYNC=0 MICA_VECTORS=narrow \
    "$mica" explain -d cpu "$small" 2>&1 >/dev/null | grep -v '^mica,v1,' && failed=1
# The log has them too, for programs that are not this tool.
MICA_LOG=warn MICA_SYNC=yes "$mica" explain -d cpu "$small" 2>&1 >/dev/null |
    grep -q '^mica,v1,.*,warn,environment,MICA_SYNC=yes: known are: 0 1$' || { echo "not in the log"; failed=1; }
MICA_DEVICE=nosuch "$mica" explain "$small" >/dev/null 2>"$folder/err" && failed=1
once 'MICA_DEVICE=nosuch: '
MICA_DEVICE=nosuch "$mica" info >/dev/null 2>"$folder/err" || failed=1
once 'MICA_DEVICE=nosuch: '
MICA_DEVICE=nosuch "$mica" explain -d cpu "$small" >/dev/null 2>"$folder/err" || failed=1
[ -s "$folder/err" ] && { cat "$folder/err"; failed=1; }
# tune makes the file that MICA_RECORDS names.
MICA_RECORDS=$folder/records "$mica" tune -q -d cpu --keep-disturbed --budget 20 "$small" 2>"$folder/err" || failed=1
[ -s "$folder/err" ] && { cat "$folder/err"; failed=1; }
[ -s "$folder/records" ] || { echo "tune made no records"; failed=1; }

# Files that cannot be written: before the work, not after it.
expect 2 '/nowhere/report.html: No such file or directory' demo -d cpu --report /nowhere/report.html
[ -s "$folder/out" ] && { echo "the demo ran first:"; cat "$folder/out"; failed=1; }
expect 2 "$folder: Is a directory" demo -d cpu --report "$folder"
expect 2 '/nowhere/plot.svg: No such file or directory' bench -d cpu --plot /nowhere/plot.svg "$gemm"
[ -s "$folder/out" ] && { echo "bench ran first"; failed=1; }
expect 2 '/nowhere/records: No such file or directory' tune -d cpu --output /nowhere/records "$gemm"
expect 0 '' demo -d cpu --epochs 1 --report "$folder/report.html"
[ -s "$folder/report.html" ] || { echo "no report"; failed=1; }
exit $failed
