#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# functions.sh [TYPE [ELEMENTS]]: a problem line for every element function and formula of reals, from the table, for
#   bench/functions.sh f32 1048576 >lines && build/mica bench --hot --pick --engine cpu --json now.jsonl lines
set -eu
cd "$(dirname "$0")/.."
type=${1:-f32} count=${2:-1048576}
sed -n -e 's/^\(FUNCTION\|ACTIVATION\)(\([a-z][a-z0-9_]*\), \([A-Z]*\), \([123]\),.*/\2 \3 \4/p' \
    -e 's/^FORMULA(\([a-z][a-z0-9_]*\), \([123]\),.*/\1 FORMULA \2/p' src/ops/pointwise/functions.def |
    while read -r name kind arity; do
        case $kind in BITS | CAST | HIDDEN) continue ;; esac
        arguments='' tensors=''
        for i in $(seq 0 $((arity - 1))); do
            arguments="$arguments${arguments:+,}x$i" tensors="$tensors x$i=$type:$count"
        done
        echo "pointwise expr=$name($arguments)$tensors"
    done
