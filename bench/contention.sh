#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two builds of the library in turn, on two CPUs: each line alone, which must not have become slower
# (5 % at most), then beside others, then the demo as a whole program. The middle of the rounds is
# what counts; run it where nothing else does.
#   [CPUS=0,1] bench/contention.sh OLD_LIBRARY_FOLDER NEW_LIBRARY_FOLDER [BUILD_FOLDER]
set -eu
old=$1 new=$2 build=${3:-build}
with() {
    folder=$1
    shift
    LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} taskset -c "${CPUS:-0,1}" "$@"
}
for round in 1 2 3 4 5; do
    for folder in "$old" "$new"; do
        echo "== alone, $folder, round $round"
        with "$folder" "$build/bench_contention" -a -s 0.5 -r 3
        with "$folder" "$build/bench_contention" -a -r 3 -p "$build/mica" demo --report none
    done
done
beside() { # the old library takes minutes where it waits for threads without a CPU
    echo "== beside others, $1"
    with "$1" "$build/bench_contention" -s 1 -r "$2"
    with "$1" "$build/bench_contention" -r "$2" -p "$build/mica" demo --report none
}
beside "$new" 3
beside "$old" 1
