#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/docs --check has to notice a figure that was typed, a page that is missing and one that no result
# speaks of; and no page may grow past what a browser shows. On a small tree with two results.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/tools" "$tree/docs" "$tree/bench/results/toy" "$tree/tests/kernels"
printf '# Kernels\nsoftmax 7\nnorm 5\n8 | ops/norm/norm_cuda.cu norm\n' >"$tree/tests/kernels/sm_80.txt"
cp "$root/tools/docs" "$tree/tools/"
: >"$tree/bench/figures.jsonl"
echo 'all of the set | ratio | torch | some | . | 1.50 | 1.00 | nothing' >"$tree/bench/aims.txt"
printf '#!/bin/sh\necho "# Operations"\n' >"$tree/mica"
chmod +x "$tree/mica"

# row ENGINE MS [LINE]
row() {
    printf '{"set": "some", "line": "%s", "run": 1, "engine": "%s", "ms": %s, "gbps": 1.0, "tflops": 1.0, "roofline": 0.5, "device": "Toy", "commit": "abcdef0", "driver": "1"}\n' \
        "${3:-softmax x=f32:4x4}" "$1" "$2"
}
{ row cpu 0.5; row peer/torch 1.0; } >"$tree/bench/results/toy/torch.jsonl"

docs() { "$tree/tools/docs" "$@" "$tree/mica" >"$tree/said" 2>&1; }
fail() {
    echo "docs: $1"
    cat "$tree/said"
    exit 1
}

docs || fail "the pages could not be written"
docs --check || fail "pages just written were refused"
grep -q '| cpu | 500.0 .*| 2 |' "$tree/docs/performance/toy/some.md" || fail "the ratio is not 2"
grep -q '(performance/toy/some.md)' "$tree/docs/performance.md" || fail "the front page does not lead to the set's"

grep -q '^| norm | 5 | - | - |$' "$tree/docs/ops.md" || fail "the kernels of norm are not told"
grep -q '^| \*\*all\*\* | \*\*12\*\* ' "$tree/docs/ops.md" || fail "the kernels are not added up"
grep -q '^| that spill registers | 1 | 0 | 0 |$' "$tree/docs/ops.md" || fail "the one that spills is not told"

sed -i 's/500\.0/400.0/' "$tree/docs/performance/toy/some.md"
docs --check && fail "a typed figure was not noticed"
docs
rm "$tree/docs/performance/toy/README.md"
docs --check && fail "a missing page was not noticed"
docs
echo old >"$tree/docs/performance/toy/gone.md"
docs --check && fail "a page that no result speaks of was not noticed"
docs
[ ! -e "$tree/docs/performance/toy/gone.md" ] || fail "a page that no result speaks of was kept"
docs --check || fail "the pages are not what they were"

for i in $(seq 400); do
    line="softmax x=f32:4x$i $(printf '%0300d' 0)"
    row cpu 0.5 "$line"
    row peer/torch 1.0 "$line"
done >"$tree/bench/results/toy/torch.jsonl"
docs && fail "a page of more than 100 KB was written"
grep -q 'more than 100000 bytes: docs/performance/toy/some.md' "$tree/said" || fail "it does not say which page is too large"
echo "docs: four mistakes planted, all noticed"
