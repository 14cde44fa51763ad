#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh search|replay TARGET WORK: gives a fuzz target its seeds and the problem lines of tests/cases
# (of each list of alternatives the first). replay does only that. search is for targets with
# libFuzzer: it goes on from there for MICA_FUZZ_RUNS runs (default 30000) or, if they are given, for
# MICA_FUZZ_SECONDS; what it learns stays in WORK/corpus for the next time; what breaks it is left in
# WORK as crash-*, timeout-* or oom-*, to be put into seeds/.
set -eu
mode=$1 target=$2 work=$3
here=$(cd "$(dirname "$0")" && pwd)
name=$(basename "$target")
rm -rf "$work/lines"
mkdir -p "$work/corpus" "$work/lines"

# A comma separates alternatives, but for epilogue, where '|' does; braces expand inside a value.
cat "$here"/../cases/*.txt 2>/dev/null | awk -v folder="$work/lines" '
    /^[ \t]*(#|$)/ { next }
    {
        while (match($0, /\{[^{}]*\}/)) {
            choice = substr($0, RSTART + 1, RLENGTH - 2)
            sub(/,.*/, "", choice)
            $0 = substr($0, 1, RSTART - 1) choice substr($0, RSTART + RLENGTH)
        }
        line = $1
        for (i = 2; i <= NF; i++) {
            value = $i
            sub(value ~ /^epilogue=/ ? "\\|.*" : ",.*", "", value)
            line = line " " value
        }
        name = folder "/" NR
        printf "%s", line > name
        close(name)
        lines++
    }
    END { printf "fuzz: %d problem lines\n", lines }'

case $mode in
replay) exec "$target" "$here/seeds/$name" "$work/lines" ;;
search)
    dictionary=
    [ ! -f "$here/$name.dict" ] || dictionary=-dict=$here/$name.dict
    cd "$work"
    # The same inputs in the same order, seed, number of runs and addresses (which are learned from
    # comparisons) each time: a commit passes or fails for what it is, not for the machine's speed.
    find "$here/seeds/$name" lines -type f | LC_ALL=C sort | paste -sd, >inputs
    limit=-runs=${MICA_FUZZ_RUNS:-30000}
    [ -z "${MICA_FUZZ_SECONDS:-}" ] || limit=-max_total_time=$MICA_FUZZ_SECONDS
    fixed=
    ! setarch -R true 2>/dev/null || fixed='setarch -R'
    # shellcheck disable=SC2086 # words
    exec $fixed "$target" -seed="${MICA_FUZZ_SEED:-1}" "$limit" -timeout=20 -rss_limit_mb=4096 \
        -max_len=600 -reload=0 -print_final_stats=1 $dictionary -seed_inputs=@inputs corpus
    ;;
esac
