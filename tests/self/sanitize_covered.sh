#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/sanitize/run --covered has to notice an engine that lost its line, and one that is taken only when
# asked for by name. Usage: sanitize_covered.sh MICA
set -eu
mica=$1
home=$(cd "$(dirname "$0")/../sanitize" && pwd)
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
failures=0

# without WORDS ENGINE: the lines but for those that WORDS match leave conv's ENGINE out.
without() {
    grep '^conv' "$home/lines.txt" | sed "$1" >"$lines"
    if "$home/run" --covered --mica "$mica" --lines "$lines" | grep -qx "no line reaches conv $2"; then
        return
    fi
    echo "FAIL: $2 is not missed"
    failures=$((failures + 1))
}

without '/x=bf16:1x32x3x9x10/d' sm90_volume
without 's/ ; engine=winograd//' winograd
exit "$failures"
