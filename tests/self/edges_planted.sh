#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fill edges finds what other fills do not: faults planted in kernels, on the GPU played by the CPU. Usage:
# edges_planted.sh MICA FOLDER SOURCES; FOLDER has the played driver and compiler.
set -u
mica=$1 emu=$2 sources=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

check() {
    MICA_CUDA_DRIVER=$emu/libcuda.so.1 MICA_NVRTC=$emu/libnvrtc.so.13 MICA_CACHE_BYTES=0 \
        MICA_KERNEL_DIR=$folder/kernels "$mica" check -q -d cuda:0 -e cuda --pick "$@" >"$folder/out" 2>&1
}

# planted FILE RIGHT WRONG LINE WORD: other fills pass, edges does not with one of these seeds, and says WORD.
planted() {
    rm -rf "$folder/kernels"
    cp -r "$sources" "$folder/kernels"
    python3 - "$folder/kernels/$1" "$2" "$3" <<'E' || { failed=1; return; }
import sys
path, right, wrong = sys.argv[1:]
text = open(path).read()
assert text.count(right) == 1, f"{path} has {text.count(right)} times {right}"
open(path, "w").write(text.replace(right, wrong))
E
    check --fill exact,random "$4" || { echo "without edges: $3"; cat "$folder/out"; failed=1; }
    for seed in 1 2 3 4 5 6 7 8 9 10 11 12; do
        check --fill edges --seed $seed "$4" || { grep -q -- "$5" "$folder/out" && return; }
    done
    echo "not found: $3 in $1"
    cat "$folder/out"
    failed=1
}

# A 0 that was given becomes the default.
planted ops/activation/activation.cu 'a = n[ACTIVATION_A],' 'a = n[ACTIVATION_A] == 0 ? (real)0.01 : n[ACTIVATION_A],' \
    'activation act=leaky_relu x=f32:5x40' 'act_a=0'
# NaN loses a comparison.
planted ops/reduce/reduce_op.cuh 'part + v[i] : max_of(part, v[i])' 'part + v[i] : v[i] > part ? v[i] : part' \
    'reduce kind=max x=f32:6x33 axes=1' 'want nan'
# Above an infinite maximum exp(inf - inf) is NaN.
planted ops/reduce/reduce_op.cuh 'sum += v[i] == max ? (float)!none : exp2_near(' 'sum += exp2_near(' \
    'reduce kind=logsumexp x=f32:6x33 axes=1' 'want inf'
exit $failed
