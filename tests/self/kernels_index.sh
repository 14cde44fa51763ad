#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/kernels: every kernel is in the index and clang reads it; a mistake, or a file that no line leads
# to, is told. Usage: kernels_index.sh TOOL MICA NVRTC CLANG
set -u
tool=$1 clang=$4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$tool" "$2" "$3" "$folder" || exit 1
"$tool" --check "$folder" "$clang" || exit 1

bad() {
    echo "kernels_index: $*"
    exit 1
}

cp "$folder/compile_commands.json" "$folder/kept"
sed -i 's#/src/kernels/mma.cuh"#/src/kernels/mma.none"#' "$folder/compile_commands.json"
"$tool" --check "$folder" true | grep -q 'kernels/mma.cuh: not in' || bad "mma.cuh left out: not told"
python3 -c 'import json, sys
json.dump([row if "softmax_cuda.cu" in row["file"] else dict(row, arguments=["", "--version"])
           for row in json.load(open(sys.argv[1]))], open(sys.argv[2], "w"))' "$folder/kept" "$folder/compile_commands.json"
echo 'int wrong = nothing;' >>"$folder/ops-softmax-softmax_cuda.cu.h"
"$tool" --check "$folder" "$clang" | grep -q "undeclared identifier 'nothing'" || bad "a mistake: not told"
