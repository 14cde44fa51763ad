#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every operation at the edges of its types: tests/edges.txt has a line of each, and passes with the
# seeds that say which input has what in it (six kinds: mica_fill_general).
set -eu
mica=$1 lines=$(cd "$(dirname "$0")/.." && pwd)/edges.txt
for op in $("$mica" list --json - | sed -n 's/^{"op":"\([a-z_]*\)".*/\1/p'); do
    grep -q "^$op " "$lines" || { echo "tests/edges.txt has no line of $op"; exit 1; }
done
for seed in 1 2 3 4 5 6 7 8 9 10 11 12; do
    "$mica" check --quiet --device cpu --fill edges --seed "$seed" "$lines"
done
