#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A disk that is full while a result file grows (a bound on the size of files stands in for it): the
# tool says which file, ends with 2, and leaves whole lines only. Usage: full_disk.sh MICA
mica=$1
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
lines='softmax x=f32:{2,3,4,5}x{10,11}'

# fails NAME FILE ARGUMENTS...: with one block of 512 or 1024 bytes for each file.
fails() {
    name=$1 file=$2
    shift 2
    (
        ulimit -f 1
        "$mica" "$@" 2>&1 >/dev/null | cat >"$work/said" # a pipe: the text itself may be long
    )
    (
        ulimit -f 1
        "$mica" "$@" >/dev/null 2>/dev/null
        echo $? >"$work/code"
    )
    [ "$(cat "$work/code")" = 2 ] || { echo "$name: ends with $(cat "$work/code"), not 2"; failed=1; }
    [ "$(grep -c "^mica: .*$(basename "$file"): writing failed" "$work/said")" = 1 ] ||
        { echo "$name: no word of $file"; cat "$work/said"; failed=1; }
}

whole() {
    [ -s "$1" ] || { echo "$1: nothing was written"; failed=1; return; }
    [ "$(tail -c 1 "$1" | wc -l)" = 1 ] || { echo "$1: half a line is left"; failed=1; }
}

fails check "$work/check.json" check -q -d cpu --fill exact --json "$work/check.json" "$lines"
whole "$work/check.json"
python3 - "$work/check.json" <<'END' || { echo "check: lines are not JSON"; failed=1; }
import json, sys
assert [json.loads(line) for line in open(sys.argv[1])]
END
fails digest "$work/digest.txt" check -q -d cpu --fill exact --digest="$work/digest.txt" "$lines"
whole "$work/digest.txt"
fails bench "$work/bench.json" bench -q -d cpu --engine cpu --hot --seconds 0.001 --runs 1 --json "$work/bench.json" "$lines"
whole "$work/bench.json"
fails explain "$work/explain.json" explain -d cpu --json "$work/explain.json" "$lines"
[ "$(tail -c 1 "$work/explain.json" | wc -l)" = 1 ] || [ ! -s "$work/explain.json" ] ||
    { echo "explain: half a line is left"; failed=1; }
fails list "$work/list.json" list --json "$work/list.json" conv
fails svg "$work/plot.svg" bench -q -d cpu --engine cpu --hot --seconds 0.001 --runs 1 --plot "$work/plot.svg" 'softmax x=f32:{2,3,4}x5'
fails report "$work/report.html" demo -d cpu -q --epochs 1 --report "$work/report.html"
"$mica" list --json /dev/full >/dev/null 2>"$work/said"
[ $? = 2 ] || { echo "/dev/full: not 2"; failed=1; }
"$mica" list >/dev/full 2>"$work/said"
[ $? = 2 ] || { echo "standard output on /dev/full: not 2"; failed=1; }
exit $failed
