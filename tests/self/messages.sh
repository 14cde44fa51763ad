#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the tool says: types are listed where one is refused, numbers can be read, one line is no lines.
# Usage: messages.sh MICA
mica=$1
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# says PATTERN ARGUMENTS...
says() {
    pattern=$1
    shift
    "$mica" "$@" >"$work/said" 2>&1
    grep -Eq -e "$pattern" "$work/said" && return
    echo "messages: no \"$pattern\" from mica $*:"
    cat "$work/said"
    failed=1
}

# readable ARGUMENTS...: no number has more digits than 64 bits have.
readable() {
    "$mica" "$@" >"$work/said" 2>&1
    grep -E '[0-9]{20,}' "$work/said" || return
    echo "messages: a number that nobody can read, from mica $*"
    failed=1
}

types='f64 f32 f16 bf16 e4m3 e5m2 e2m1 s8 u8 s4 u4 s32 s64 u32 bool c32 c64 e8m0'
says "\"f33:3\": .*known are $types" explain -d cpu 'activation x=f33:3'
says 'x is c32, it must be f64, f32, f16, bf16, .* s64, u32 or bool$' explain -d cpu 'transform x=c32:3'
# Every operation that refuses a type says which it takes.
for line in 'activation x=s8:3' 'gemm a=s32:3x3 b=s32:3x3' 'conv x=s64:1x1x3x3 w=f32:1x1x1x1' 'pool x=bool:1x1x3' \
    'attention q=u8:1x1x2x2' 'norm x=s8:3x4' 'softmax x=s8:3' 'cross_entropy x=s8:3x4' 'rope q=s8:1x1x2x2' \
    'kv_append k=s8:1x1x2x2 k_cache=f32:1x1x2x2' 'mha q=s8:1x2x2' 'grouped_gemm a=s32:3x3 b=s32:2x3x3' 'optim p=s8:3' \
    'attention_merge outs=s8:2x3x4'; do
    says 'f64,? f32,? f16(,| or)? bf16' explain -d cpu "$line"
done

huge='conv x=f32:1x1x4194304x4194304 w=f32:1x1x4194304x4194304 pad=4194303x4194303'
readable bench -d cpu "$huge"
says 'about [0-9.e+]+ years a run' bench -d cpu "$huge"
says 'out of host memory: [0-9.e+]+ GiB were asked for' bench -d cpu "$huge"
readable explain -d sm_90a "$huge"
says 'as a matrix has [0-9.e+]+ GiB, the limit is [0-9]+ GiB' explain -d sm_90a "$huge"

says ' 1 product per instruction' explain -d cpu 'gemm a=f32:3x3 b=f32:3x3'
says '^mica: 1 line in error' check -d cpu 'activation act=relu'
says '^mica: 2 lines in error' check -d cpu 'activation act=relu' 'activation act=tanh'
says 'after 1 epoch in ' demo -d cpu -q --epochs 1 --report none
says 'after 2 epochs in ' demo -d cpu -q --epochs 2 --report none
exit $failed
