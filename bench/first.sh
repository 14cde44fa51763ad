#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What first calls cost: fresh processes, five of each engine with no kernel on disk (first-cold) and
# five with the kernels that the last of those left there (first-disk). Files of the libraries come
# from the system's page cache all the same.
#   [COMMIT=ID] bench/first.sh TOOL RESULTS.jsonl "LINE" [ENGINE...]     ENGINE pick: the planner's choice
set -eu
tool=$1 results=$2 line=$3
shift 3
rows=$(mktemp) caches=$(mktemp -d)
trap 'rm -rf "$rows" "$caches"' EXIT
measure() {
    set_name=$1 engine=$2
    option="--engine $engine"
    [ "$engine" = pick ] && option=
    # shellcheck disable=SC2086
    MICA_CACHE_DIR="$caches/mica" CUDA_CACHE_PATH="$caches/nvrtc" "$tool" bench --first $option \
        --set "$set_name" --commit "${COMMIT:-}" --json "$rows" $line
    cat "$rows" >>"$results"
}
for engine in "${@:-pick}"; do
    for _ in 1 2 3 4 5; do
        rm -rf "$caches/mica" "$caches/nvrtc"
        measure first-cold "$engine"
    done
    for _ in 1 2 3 4 5; do measure first-disk "$engine"; done
done
