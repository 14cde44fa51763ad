#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# One kernel can be in several of the tables tests/kernels/ARCH/CASES.txt, and CI compiles a part of them
# with each commit. Whoever changed it and took over one table only is told here, without a compiler: a
# kernel has the same bytes of spills in every table of its architecture (registers vary a little with the
# compiler's version). The project's tables are read, and then some that differ, which must be noticed.
set -eu
project=$(cd "$(dirname "$0")/../.." && pwd)

# agree FOLDER, which has a folder for each architecture
agree() {
    for arch in "$1"/*/; do
        awk -v arch="$(basename "$arch")" '
            FNR == 1 { sub(/.*\//, "", FILENAME) }
            { at = index($0, " | ") }
            !at { next }
            { kernel = substr($0, at + 3); kernels++ }
            !(kernel in spills) { spills[kernel] = $2; table[kernel] = FILENAME; next }
            spills[kernel] != $2 {
                print arch ": " spills[kernel] " bytes of spills in " table[kernel] ", " $2 " in " FILENAME ": " kernel
                bad = 1
            }
            END { if (!kernels) { print arch ": no kernels"; bad = 1 } exit bad }' "$arch"*.txt || return 1
    done
}

agree "$project/tests/kernels" || exit 1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/sm_0"
printf '# Kernels\n40 0 16 | a.cu a X=1\n50 8 0 | b.cu b\n' >"$folder/sm_0/one.txt"
printf '# Kernels\n42 0 16 | a.cu a X=1\n60 4 0 | b.cu b X=2\n' >"$folder/sm_0/two.txt"
agree "$folder" || { echo "tables that agree were found to differ"; exit 1; }
sed -i 's/^42 0/42 20/' "$folder/sm_0/two.txt"
if agree "$folder" >"$folder/said"; then
    echo "spills that differ were not noticed"
    exit 1
fi
grep -q '^sm_0: 0 bytes of spills in one.txt, 20 in two.txt: a.cu a X=1$' "$folder/said"
: >"$folder/sm_0/one.txt"
: >"$folder/sm_0/two.txt"
if agree "$folder" >/dev/null; then
    echo "tables without a kernel were not noticed"
    exit 1
fi
