#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# graph.sh BUILD: docs/graph.md has each rewrite with what the library says of it, and no other; its graph passes
# the check, and the tool says what the page promises.
set -eu
cd "$(dirname "$0")/../.."
mica=$(cd "$1" && pwd)/mica
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

bad() {
    echo "graph: $*"
    failed=1
}

# says PATTERN ARGUMENTS...
says() {
    pattern=$1
    shift
    "$mica" "$@" >"$work/said" 2>&1 || true
    grep -Eq -e "$pattern" "$work/said" && return
    bad "no \"$pattern\" from mica $*:"
    cat "$work/said"
}

# ends CODE ARGUMENTS...
ends() {
    wanted=$1 code=0
    shift
    "$mica" "$@" >"$work/said" 2>&1 || code=$?
    [ "$code" = "$wanted" ] && return
    bad "mica $* ended with $code, not $wanted:"
    cat "$work/said"
}

for name in $(sed -n 's/^X(\([a-z_]*\))$/\1/p' src/graph/rewrites.def); do
    doc=$(sed -n 's/^    \.doc = "\(.*\)",$/\1/p' "src/graph/rewrites/$name.c")
    [ -n "$doc" ] || bad "src/graph/rewrites/$name.c has no .doc"
    grep -Fqx "| \`$name\` | $doc |" docs/graph.md || bad "docs/graph.md has no row of $name: $doc"
    echo "$name" >>"$work/listed"
done
sed -n 's/^| `\([a-z_]*\)` | .*/\1/p' docs/graph.md | cmp -s - "$work/listed" || bad "other rewrites, or another order, in docs/graph.md"

# The first block of the page.
awk '/^```/ { if (on) exit; on = 1; next } on' docs/graph.md >"$work/block.graph"
block=$work/block.graph
cp "$block" "$work/block.txt"
says '^  0 1 +[a-z].* conv .*epilogue=(bias,residual|residual,bias),relu' explain --device cpu "$block"
says '^  1 +epilogue +taken' explain --device cpu "$block"
says 'workspace [0-9]+ bytes, at least [0-9]+' explain --device cpu "$block"
says '^  0 +[a-z]' explain --device cpu graph "file=$work/block.txt" mode=unfused
says '^  0 +[a-z]' explain --device cpu "graph file=$work/block.txt without=epilogue,pointwise_chain"
says '"nodes":"0 1","line":"conv ' explain --device cpu --json - "$block"
says '^fused +3 +0 ' check --device cpu "$block"
says '^separate +1 +0 ' check --device cpu --fill random "$block"
says '^9 passed, 0 failed' check --device cpu "$block"
says ' unfused +graph file=' bench --device cpu --seconds 0 --runs 3 "$block"
ends 0 check -q --device cpu "$block" softmax x=f32:3x4 axis=1

# A drawing has a box for each launch, as well-formed XML.
"$mica" explain --device cpu --plot "$work/fused.svg" "$block" >/dev/null
"$mica" explain --device cpu --plot "$work/nodes.svg" graph "file=$block" mode=unfused >/dev/null
boxes() { grep -c '^<rect x=' "$1"; }
launches() { "$mica" explain --device cpu --json - "$@" | grep -o '"nodes":' | wc -l; }
[ "$(boxes "$work/fused.svg")" = "$(launches "$block")" ] || bad "a drawing of $(boxes "$work/fused.svg") boxes"
[ "$(boxes "$work/nodes.svg")" = 4 ] || bad "a drawing of $(boxes "$work/nodes.svg") boxes, not 4 nodes"
python3 -c 'import sys, xml.dom.minidom as m; [m.parse(f) for f in sys.argv[1:]]' "$work/fused.svg" "$work/nodes.svg" ||
    bad "a drawing is no XML"
says '.--plot .*: 0 graphs are given, one is drawn' explain --device cpu --plot "$work/x.svg" softmax x=f32:3x4 axis=1
ends 2 explain --device cpu --plot "$work/x.svg" "$block" "$block"
ends 2 explain --device cpu --plot "$work/absent/x.svg" "$block"

# The block with an extent that has a name.
awk '/^```/ { on = !on; if (on) n++; next } on && n == 3' docs/graph.md >"$work/tokens.graph"
sed -i 's/1\.\.4096/1..64/' "$work/tokens.graph"
tokens=$work/tokens.graph
says '^15 passed, 0 failed' check --device cpu --fill random "$tokens"
says '^3 passed, 0 failed' check --device cpu --fill random "$tokens" extent=N=37
says '^3 passed, 0 failed' check --device cpu --fill random "graph file=$tokens mode=unfused extent=N=37"
says '^  N +37 +1 to 64 +powers of 2' explain --device cpu "$tokens" extent=N=37
says 'gemm a=bf16:37x32' explain --device cpu graph "file=$tokens" extent=N=37
says 'gemm a=bf16:64x32' explain --device cpu "$tokens"
says ' unfused +graph file=.*extent=N=5' bench --device cpu --seconds 0 --runs 3 "$tokens" extent=N=5
says 'extent=M=3: the graph has no extent of that name' explain --device cpu "$tokens" extent=M=3
says 'extent=N=x: NAME=NUMBER,... is expected' explain --device cpu "$tokens" extent=N=x
says 'the extent N is 65, its range is 1 to 64' explain --device cpu "$tokens" extent=N=65
says 'extent=N=3: the graph has no extents' explain --device cpu "$block" extent=N=3
ends 2 check --device cpu "$tokens" extent=N=0

# What is wrong has a place, and an exit code.
printf 'input x = f32:3\nsoftmax axis=0 x=@x z=@y\n' >"$work/wrong.graph"
says 'wrong.graph: line 2, column 21: softmax has no argument z' explain --device cpu "$work/wrong.graph"
ends 2 explain --device cpu "$work/wrong.graph"
ends 2 check --device cpu "$work/wrong.graph"
ends 2 bench --device cpu "$work/wrong.graph"
ends 2 explain --device cpu "$work/absent.graph"
# what is bound but not described: found by inference, whose reason check repeats
printf 'input x = f16:3x2x8\ninput w = f16:1664\noutput y\noutput hy\nrnn cell=lstm hidden=16 x=@x w=@w y=@y hy=@hy\n' >"$work/undescribed.graph"
says 'hy is bound to hy, but is not there: give its type' check --device cpu "$work/undescribed.graph"
ends 2 explain --device cpu graph mode=unfused
says 'mode=quick: known are fused, unfused, separate' explain --device cpu graph "file=$block" mode=quick
printf 'input x = f32:3\nsoftmax axis=7 x=@x y=@y\n' >"$work/wrong.graph"
says 'node 0 \(softmax, line 2\): axis' explain --device cpu "$work/wrong.graph"
[ "$failed" = 0 ] && echo "graph: ok"
exit $failed
