#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Kernels that are shipped: compiled into one cache, packed, unpacked into another, and found there.
# Usage: cache.sh MICA. Ends with 77 where there is no NVRTC.
set -u
mica=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
lines='softmax x=f32:3x127 axis=1
activation act=tanh x=bf16:5x7'

fail() {
    echo "$*"
    failed=1
}
# in CACHE ARGUMENTS...: mica with that folder as its cache of kernels.
in_cache() {
    cache=$1
    shift
    MICA_CACHE_DIR=$folder/$cache "$mica" "$@"
}

"$mica" info | grep -q '^nvrtc  *none:' && exit 77
mkdir "$folder/a" "$folder/b" "$folder/c" "$folder/d"
echo "$lines" >"$folder/lines"
in_cache a cache warm --quiet -d sm_90a "$folder/lines" | grep -q '2 problems, 2 kernels compiled' ||
    fail "warm does not compile"
in_cache a cache warm --quiet -d sm_90a "$folder/lines" | grep -q '0 kernels compiled, 2 found' ||
    fail "what is warm is compiled again"
# Two kernels, and which compiler made them.
in_cache a cache pack "$folder/kernels" | grep -q '^3 entries packed' || fail "pack"
in_cache b cache unpack "$folder/kernels" | grep -q '^3 entries unpacked' || fail "unpack"
in_cache b cache warm --quiet -d sm_90a "$folder/lines" | grep -q '0 kernels compiled, 2 found' ||
    fail "what was unpacked is compiled again"
in_cache b cache unpack "$folder/kernels" >/dev/null || fail "unpacked twice"
in_cache b cache | grep -q '^3 entries' || fail "unpacked twice: not the same entries"
in_cache b cache clear | grep -q '^0 entries' || fail "clear"
# Where nobody can compile, the kernels that came along are enough.
in_cache c cache unpack "$folder/kernels" >/dev/null
MICA_NVRTC=$folder/none in_cache c cache warm --quiet -d sm_90a "$folder/lines" |
    grep -q '0 kernels compiled, 2 found' || fail "shipped kernels need a compiler"
# Archives that are none, cut off, or changed: refused whole.
head -c 100 "$folder/kernels" >"$folder/cut"
cp "$folder/kernels" "$folder/changed"
printf 'x' | dd of="$folder/changed" bs=1 seek=3000 conv=notrunc 2>/dev/null
for bad in cut changed lines nothing; do
    in_cache d cache unpack "$folder/$bad" >/dev/null 2>&1 && fail "took an archive that is $bad"
    in_cache d cache | grep -q '^0 entries' || fail "something of an archive that is $bad stayed"
done
# A pack of its own: what the lines need on each device, beside the cache that is set.
in_cache e cache build --quiet --arch sm_80,sm_90a "$folder/pack" "$folder/lines" >"$folder/said" || fail "build"
[ "$(grep -c '2 problems, 2 kernels compiled, 0 found' "$folder/said")" = 2 ] || fail "build: not for each device"
grep -q '^5 entries packed' "$folder/said" || fail "build: not four kernels and their compiler"
[ -e "$folder/e" ] && fail "build touches the cache"
in_cache e cache unpack "$folder/pack" >/dev/null || fail "a built pack is no archive"
for device in sm_80 sm_90a; do
    MICA_NVRTC=$folder/none in_cache e cache warm --quiet -d $device "$folder/lines" |
        grep -q '0 kernels compiled, 2 found' || fail "build: kernels of $device are not there"
done
rm -f "$folder/pack"
in_cache e cache build --quiet --arch sm_90a,cpu "$folder/pack" "$folder/lines" >/dev/null 2>&1 && fail "build --arch cpu"
echo 'softmax x=f32:3x127 axis=7' >"$folder/wrong"
in_cache e cache build --quiet --arch sm_90a "$folder/pack" "$folder/wrong" >/dev/null 2>&1 && fail "build of a wrong line"
[ -e "$folder/pack" ] && fail "a pack that lacks something is made"
exit $failed
