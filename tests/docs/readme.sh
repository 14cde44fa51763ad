#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# readme.sh BUILD: what README.md shows is so. The program is examples/01_convolution.c, letter for
# letter; the figures of ResNet-50 are those of the result file it names; what `mica explain` prints is
# what it prints here, where the processor is of the same kind, and else of the same form. Its commands
# are run by tests/install/bare_root, its CMake project by tests/install/run.sh.
set -eu
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# block LANGUAGE: what stands in README.md's fences of that language.
block() {
    awk -v fence="\`\`\`$1" '$0 == fence { inside = 1; next } /^```/ { inside = 0 } inside' README.md
}

block c >"$work/program.c"
diff -u "$work/program.c" examples/01_convolution.c
echo "readme: the program is the example"

# images WHAT ENGINE: images per second of 256, from the file that README.md links to.
results=$(sed -n 's/.*(\(bench\/results\/[^)]*torch\.jsonl\)).*/\1/p' README.md)
images() {
    python3 - "$results" "$1" "$2" <<'END'
import json, sys
path, what, engine = sys.argv[1:]
rows = [json.loads(line) for line in open(path) if '"resnet50"' in line]
found, = (r for r in rows if r["line"].startswith(f"resnet50 {what} bf16 256x") and r["engine"] == engine)
runs = {r["run"] for r in rows if r["line"].startswith(("resnet50 training bf16 256x", "resnet50 inference bf16 256x"))}
assert len(runs) == 1, f"{path}: not measured in the same run: {runs}"
print(f"{round(256e3 / found['ms']):,}")
END
}
tr '\n' ' ' <README.md >"$work/flat"
figure() { # WHAT ENGINE TEXT, where @ is the figure
    measured=$(images "$1" "$2")
    grep -qF "$(echo "$3" | sed "s/@/$measured/")" "$work/flat" && return
    echo "readme: $results has $measured where README.md should say: $3"
    exit 1
}
figure training mica '**@ images/s** in training'
figure inference mica '**@** in inference'
figure training peer/torch 'PyTorch with cuDNN reaches @ and'
figure inference peer/torch 'and @ in the same run'
echo "readme: ResNet-50's figures are those of $results"

# The line is taken from the command that README.md shows.
block sh | sed -n 's/^build\/mica explain //p' >"$work/arguments"
[ -s "$work/arguments" ] || { echo "readme: README.md shows no mica explain"; exit 1; }
eval "\"$build/mica\" explain $(cat "$work/arguments")" | sed 's/ *$//' >"$work/real"
block text | sed 's/ *$//' >"$work/shown"

# The processor and what it is reckoned to do; with another one times and the choice differ.
kind() { grep -o ' on cpu (.*' "$1"; }
# What does not depend on it: headings, columns, arguments, engines but for those of a kind of processor.
form() {
    sed -e 's/roofline .*/roofline/' -e 's/^[* ] \(bf16\|cpu\|onednn\|ref\) .*/  \1/' -e '/^  bf16$/d' \
        -e 's/^\(  engine\) .*/\1/' -e 's/^  [a-z0-9]*, predicted .*/  chosen/' \
        -e "s/^  accumulator's .*/  contract/" -e 's/^  phi = [^:]*/  phi/' "$1"
}
if [ "$(kind "$work/real")" = "$(kind "$work/shown")" ]; then
    diff -u "$work/shown" "$work/real"
    echo "readme: mica explain prints what is shown"
else
    form "$work/shown" >"$work/shown.form"
    form "$work/real" >"$work/real.form"
    diff -u "$work/shown.form" "$work/real.form"
    echo "readme: mica explain prints what is shown but for the processor:$(kind "$work/real")"
fi
