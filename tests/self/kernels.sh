#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `mica check --compile-only --table` notices kernels that spill more than before or are gone, and only
# those; with a compiler that answers what this test tells it. Usage: kernels.sh MICA FOLDER, which has
# the fake libraries.
set -u
mica=$1 fake=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
table=$folder/table.txt
mkdir -p "$folder/kernels/ops/activation"
echo 'extern "C" __global__ void activation(const int a) {}' \
    >"$folder/kernels/ops/activation/activation.cu"

# compile "SPILLED BYTES" ARGUMENTS...: 32 bytes of loads come on top
compile() {
    spills=$1
    shift
    rm -rf "$folder/cache"
    FAKE_NVRTC_SPILLS=$spills MICA_NVRTC=$fake/libnvrtc.so.13 MICA_CACHE_DIR=$folder/cache \
        MICA_KERNEL_DIR=$folder/kernels "$mica" check -q --compile-only -d sm_90a \
        --table "$table" "$@" 'activation x=f32:9' >"$folder/out" 2>&1
}

# expect CODE TEXT "SPILLED BYTES" WHAT [OPTIONS]: the exit code, and what the output has to say
expect() {
    # shellcheck disable=SC2086
    compile "$3" ${5:-}
    got=$?
    [ "$got" = "$1" ] && grep -q "$2" "$folder/out" && return
    echo "$4: exit code $got, expected $1 and '$2' in"
    cat "$folder/out"
    failed=1
}

compile 16 --update || failed=1
grep -q '^48 | ops/activation/activation.cu activation' "$table" && grep -qx 'line 1' "$table" || { cat "$table"; failed=1; }
expect 0 '1 kernel emitted' 16 "the same kernel"
expect 1 'spills: 56 bytes, the table says 48' 24 "more spills"
expect 0 '2 times a kernel was compiled again' "24 20 16" "fewer spills at the third try"
expect 0 '1 kernel spills less' 8 "fewer spills"
expect 0 '1 kernel emitted' 16 "the planner's config" --pick
expect 0 '1 kernel emitted' 16 "an engine" --engine=cuda
expect 2 'there is no engine "no_such_engine"' 16 "an engine that nobody has" --engine=no_such_engine
expect 3 'no line leads to a kernel' 16 "an engine that is not there" --engine=sm80
expect 3 'no line leads to a kernel' 16 "a config that is not there" --config=no_such_config
expect 0 '^1 plan, 1 kernel emitted' 16 "the share that has the problem" --share=0/2
expect 0 '^0 plans, 0 kernels emitted' 16 "a share that does not" --share=1/2
expect 2 'not those of a part' 16 "a share taken for a table" "--update --share=0/2"
expect 0 '1 of 1 problems' 16 "time enough for all" --seconds=1000
sed -i 's/^line 1/line 2/' "$table"
expect 1 '^line: 1 kernel, the table says 2' 16 "a kernel that is gone"
expect 0 '1 kernel emitted' 16 "a part, which counts nothing" --share=0/2
echo 'other 5' >>"$table"
compile 0 --update || failed=1
grep -qx 'line 1' "$table" && grep -qx 'other 5' "$table" && ! grep -q ' | ' "$table" || { cat "$table"; failed=1; }
expect 1 'spills: 48 bytes, the table says 0' 16 "spills where there were none"
exit $failed
