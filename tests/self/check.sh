#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The checker must be able to fail: usage errors, refusals, wrong counts and breakages made on
# purpose end in the exit codes that the manual promises. Usage: check.sh MICA
mica=$1
failed=0

# expect CODE ARGUMENTS...
expect() {
    want=$1
    shift
    "$mica" "$@" >/dev/null 2>&1
    got=$?
    [ "$got" = "$want" ] && return
    echo "exit code $got, expected $want: mica $*"
    failed=1
}

line='activation act=tanh x=f32:5x7'
expect 0 check -d cpu "$line"
expect 0 check -d cpu --engine ref --fill exact --expect 2 "$line"
expect 1 check -d cpu --engine ref --fill exact --expect 3 "$line"
expect 2 check -d cpu --engine no_such_engine "$line"
expect 3 check -d cpu --engine cuda "$line"
expect 2 check -d cpu --engine cpu,ref "$line"
expect 0 check -d cpu --engine cuda --allow-refusals "$line"
expect 2 check -d cpu 'activation act=no_such_function x=f32:3'
expect 2 check -d cpu 'activation x={f32:3'
expect 2 check -d cpu
expect 2 check -d cpu --fill no_such_fill "$line"
expect 3 check -d no_such_device "$line"
expect 2 check -d sm_80 "$line"
expect 2 no_such_command
expect 0 check -d cpu --self-test "$line" 'activation act=gelu x=bf16:6x8:20x2 y=bf16:6x8:20x2'
expect 0 check -d cpu --self-test 'transform x=s8:6x8 y=s32:6x8' 'transform x=f32:6x8 y=f16:6x8'
# Results up to the largest number: its neighbour is infinite.
for type in e5m2 f16 bf16 f32; do
    case $type in e5m2 | f16) alpha=30000 ;; *) alpha=1.6e38 ;; esac
    expect 0 check -d cpu --fill=random --self-test "transform x=f64:40x30 y=$type:40x30:50x1 alpha=$alpha" "$line"
done
# A part of the problems by time: one at least, others in another order, and it says how many.
parts=$(for part in 1 2 3 4 5 6; do
    "$mica" check -q -d cpu --fill exact --seconds 1e-9 --part $part --json - 'activation act={relu,tanh,gelu,silu} x=f32:{5,6,7}' |
        grep -o '"line": *"[^"]*"' | sort -u
done | sort -u | wc -l)
[ "$parts" -ge 3 ] || { echo "six parts of twelve problems began with $parts of them"; failed=1; }
"$mica" check -q -d cpu --seconds 1e9 --part 5 "$line" 'activation act=relu x=f32:9' |
    grep -q '^2 of 2 problems in .* (part 5)' || { echo "a part does not say what it held"; failed=1; }

# A self-test of nothing proves nothing.
expect 1 check -d cpu --self-test 'activation act=tanh x=f32:0x7'
# A function that is 0 for nearly every integer: a comparison that could hardly fail.
expect 1 check -d cpu --engine ref --fill exact \
    'activation pass=bwd act=hard_sigmoid x=f32:300 alpha=0 beta=0'
expect 0 check -d cpu --engine ref --fill exact --allow-mistrusted \
    'activation pass=bwd act=hard_sigmoid x=f32:300 alpha=0 beta=0'
# Data that repeats: the small problem has to fit the large one, and is compared with it.
large='transform x=u8:65x3271:0x1 y=u8:65x3271'
expect 0 check -d cpu --expect 2 "$large # repeats: transform x=u8:1x3271 y=u8:1x3271"
expect 2 check -d cpu "$large # repeats: transform x=u8:1x3270 y=u8:1x3270"
expect 2 check -d cpu "$large # repeats: transform x=u8:2x3271 y=u8:2x3271"
expect 2 check -d cpu "$large # repeats: transform x=u8:1x3271 y=s8:1x3271"
expect 2 check -d cpu "$large # repeats: activation x=f32:1x3271"
expect 2 check -d cpu "$large # repeats: nothing"
expect 2 check -d cpu "$large alpha=2 # repeats: transform x=u8:1x3271 y=u8:1x3271"
# Another engine's results for the truth: on data that makes them exact, and only there.
gemm='gemm a=f32:65x17 b=f32:17x127'
expect 0 check -d cpu --against cpu --engine ref --expect 2 --self-test "$gemm"
expect 2 check -d cpu --against cpu --engine ref --fill random "$gemm"
expect 2 check -d cpu --against no_such_engine "$gemm"
expect 3 check -d cpu --against cuda "$gemm"
expect 3 check -d cpu --against cpu 'softmax x=f32:5x7 axis=1'
# What does not repeat is noticed: each of 65 values is a 65th, not 1.
expect 1 check -d cpu 'softmax x=f32:65x37 axis=0 # repeats: softmax x=f32:1x37 axis=0'
# Configs: all, one by its name, the planner's.
line='gemm a=f32:65x17 b=f32:17x127'
expect 0 check -d cpu --pick --fill exact --engine ref --expect 2 "$line"
expect 0 check -d cpu --config "" --fill exact --engine ref --expect 2 "$line"
expect 3 check -d cpu --config no_such_config --engine ref "$line"
# Digests: the same bits from the same data, others from other data; a line for each check.
digests=$(mktemp)
said=$(mktemp)
trap 'rm -f "$digests" "$said"' EXIT
digest() {
    "$mica" check -q -d cpu --digest="$digests" "$@" >"$said" 2>&1 || cat "$said" >&2
    cut -f 1 "$digests"
}
line='activation act=tanh x=f32:5x7'
once=$(digest --engine cpu --fill random "$line" alpha=1)
[ "$(echo "$once" | grep -cx '[0-9a-f]\{16\}')" = 1 ] || { echo "no digest: $once" && failed=1; }
[ "$once" = "$(digest --engine cpu --fill random "$line y=f32:5x7:1x9 alpha=1")" ] ||
    { echo 'another digest of the same elements' && failed=1; }
[ "$once" != "$(digest --engine cpu --fill random --seed 2 "$line" alpha=1)" ] ||
    { echo 'the same digest of other data' && failed=1; }
digest --fill exact,random 'gemm a=f32:65x17 b=f32:17x127' >/dev/null
awk -F '\t' 'NF != 5 || $4 !~ /^(exact|random)$/ || $5 !~ /^gemm a=/ { exit 1 }' "$digests" ||
    { echo 'a line of digests that is none' && failed=1; }
for engine in cpu:4 ref:2; do # the reference, beside others, on the first fill only
    [ "$(grep -c "	${engine%:*}	" "$digests")" = "${engine#*:}" ] || { echo "digests of $engine" && failed=1; }
done
expect 2 check -d cpu --digest="$digests/none" "$line"
# Without `=' they go to standard output, and the case file that follows is one.
cases=$(mktemp)
trap 'rm -f "$digests" "$said" "$cases"' EXIT
echo "$line" >"$cases"
printed=$("$mica" check -d cpu --engine cpu --fill exact --digest "$cases" 2>/dev/null | grep "	")
digest --engine cpu --fill exact "$line" >/dev/null
[ "$(cat "$cases")" = "$line" ] || { echo '--digest wrote over a case file' && failed=1; }
[ -n "$printed" ] && [ "$printed" = "$(cat "$digests")" ] || { echo 'other digests on standard output' && failed=1; }
exit $failed
