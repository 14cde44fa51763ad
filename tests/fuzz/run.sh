#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh TARGET WORK: searches for MICA_FUZZ_SECONDS (default 25) with libFuzzer, starting from
# the target's seeds and every problem line of tests/cases. What it learns stays in WORK/corpus for
# the next time; what breaks it is left in WORK as crash-*, to be put into seeds/.
set -eu
target=$1 work=$2
here=$(cd "$(dirname "$0")" && pwd)
name=$(basename "$target")
mkdir -p "$work/corpus" "$work/lines"

grep -hv -e '^#' -e '^[[:space:]]*$' "$here"/../cases/*.txt 2>/dev/null |
    awk -v folder="$work/lines" '{ name = folder "/" NR; printf "%s", $0 > name; close(name) }' || true
dictionary=
[ ! -f "$here/$name.dict" ] || dictionary=-dict=$here/$name.dict

cd "$work"
exec "$target" -max_total_time="${MICA_FUZZ_SECONDS:-25}" -timeout=20 -rss_limit_mb=4096 -max_len=600 \
    -print_final_stats=1 -verbosity=1 $dictionary corpus "$here/seeds/$name" lines
