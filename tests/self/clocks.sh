#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `mica bench` says at which clock a GPU ran, where the management library is there to ask; on a fake
# GPU, whose driver launches nothing. Usage: clocks.sh MICA FOLDER, which has the fake libraries.
set -u
mica=$1 fake=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
mkdir -p "$folder/cache" "$folder/kernels/ops/activation"
echo 'extern "C" __global__ void activation(const int a) {}' \
    >"$folder/kernels/ops/activation/activation.cu"

bench() {
    FAKE_MEMSET=none MICA_CUDA_DRIVER=$fake/libcuda.so.1 MICA_NVRTC=$fake/libnvrtc.so.13 \
        MICA_CACHE_DIR=$folder/cache MICA_KERNEL_DIR=$folder/kernels \
        "$mica" bench --device cuda:0 --seconds 0.001 --runs 2 "$@" "activation x=f32:{1000,9}" 2>&1
}
check() {
    [ "$1" = "$2" ] && return
    echo "$3: $2 where $1 was expected"
    failed=1
}

with() {
    LD_LIBRARY_PATH=$fake bench "$@"
}
check 2 "$(with | grep -c ' 19[0-9]*-19[0-9]* ')" "rows of the table with clocks"
check '"sm_mhz":[1980,1965] "sm_mhz":[1950,1935] ' \
    "$(with --quiet --json - | grep -o '"sm_mhz":[^]]*]' | tr '\n' ' ')" "clocks in JSON"
check 2 "$(with --csv | grep -c ',19[0-9]*,19[0-9]*,')" "rows of numbers with clocks"
# Without the library nothing is made up.
check 0 "$(bench --quiet --json - | grep -c sm_mhz)" "clocks that nobody read"
check 2 "$(bench --quiet --json - | grep -c '"ms"')" "rows without clocks"
exit $failed
