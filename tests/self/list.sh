#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `mica list`: lines that fit, a default for every field, engines by where they run. Usage: list.sh MICA
mica=$1
failed=0
ops=$("$mica" list --json - | sed -n 's/^{"op":"\([a-z_]*\)".*/\1/p')

bad() {
    echo "list: $*"
    failed=1
}

# has TEXT LINE-PATTERN...
has() {
    text=$1
    shift
    for pattern; do
        printf '%s\n' "$text" | grep -q "$pattern" || bad "nothing like \"$pattern\" in: $text"
    done
}

[ "$(echo "$ops" | wc -w)" -gt 10 ] || bad "only these operations: $ops"
for op in '' $ops; do
    long=$("$mica" list $op | awk 'length > 100')
    [ -z "$long" ] || bad "$op: longer than 100 characters: $long"
    trailing=$("$mica" list $op | grep -c ' $')
    [ "$trailing" = 0 ] || bad "$op: $trailing lines end in blanks"
done
has "$("$mica" list)" 'CPU engines  *GPU engines' '^softmax  *[0-9]*  *cpu, cpu_variants, ref  *columns, cuda'
has "$("$mica" list conv)" '^pass  *enum  *fwd  *' '^stride  *axes  *1  ' '^pad  *axes  *none  ' \
    '^flip  *flag  *no  ' '^w  *tensor  *needed  ' '^CPU  *onednn, ' '^GPU  *sm90_slab, ' '^run-time scalars: alpha=1, beta=0$'
has "$("$mica" list cross_entropy)" '^argument  *fwd  *bwd  *types$' '^labels  *in  *in  *s32, s64$' '^lse  *out  *-  *f64, f32, f16, bf16$'
has "$("$mica" list --json - softmax)" '"name":"dx",[^}]*"like":"y","directions":{"fwd":"-","bwd":"out"},"need":{"fwd":"","bwd":"inferred"},"types":\["f64","f32","f16","bf16"\]'
has "$("$mica" list norm)" '^eps  *float  *1e-05  ' '^mode  *enum  *train  ' '^y  *tensor  *inferred  '
has "$("$mica" list --markdown)" '^| `mask` | in | in | - | bool, u8 |$\|^| `mask` | in | in | - | u8, bool |$' '^| `stride` | axes | 1 |  | ' '^Engines, best first. CPU: `cpu`, `ref`. GPU: `cuda`.$'
has "$("$mica" list --json - norm)" '"name":"eps",[^}]*"default":"1e-05"' '"cpu_engines":\[[^]]*"ref"\],"gpu_engines":\["cuda"\]'
"$mica" list --json - | grep -q '"default":""' && bad "a field without a default"
exit $failed
