#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# sizes.sh BUILD OBJECTS [--accept]: what each family adds to the library. OBJECTS is a file that names the
# objects, a line each. A family's bytes are the text and data of its objects and its share of the packed
# kernel sources (BUILD/kernels.txt, kernels.lzma); folders of src that are no family count as such. None
# may exceed its line in sizes.txt by more than a tenth, and all lines together stay within what the
# whole of mica is promised to take, 6 MiB. --accept writes the lines, for the commit that means it.
set -eu
build=$1 objects=$2
table=$(cd "$(dirname "$0")" && pwd)/sizes.txt
promise=$((6 * 1024 * 1024))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
LC_ALL=C
export LC_ALL

# .../src/ops/conv/slab/slab.c.o and ops/conv/slab/slab.cu are conv's.
family='function family(path) {
    sub(".*mica_objects.dir/(\\./)?(src/)?", "", path)
    if (path ~ "^ops/.*/") sub("^ops/", "", path)
    return path ~ "/" ? substr(path, 1, index(path, "/") - 1) : "generated"
}'
# The packed text is shared out below.
grep -v '/kernels\.c\.o$' "$objects" | xargs size | awk "$family"' FNR > 1 && $1 != "text" { print family($6), $1 + $2 }' >"$work/bytes"
plain=$(wc -c <"$build/kernels.txt") packed=$(wc -c <"$build/kernels.lzma")
tr '\0' '\n' <"$build/kernels.txt" | awk -v share="$packed/$plain" "$family"'
    BEGIN { split(share, part, "/"); share = part[1] / part[2] }
    /^(ops|kernels)\/[^ ]*\.(cuh?|h|inc)$/ { name = family($0) }
    { print name, (length($0) + 1) * share }' >>"$work/bytes"
awk '{ bytes[$1] += $2 } END { for (f in bytes) printf "%s %d\n", f, bytes[f] }' "$work/bytes" | sort >"$work/now"
[ "$(wc -l <"$work/now")" -gt 10 ] || { echo "sizes: $objects names no families"; exit 1; }

if [ "${3:-}" = --accept ]; then
    {
        echo "# Bytes that each family adds to the library: tests/abi/sizes.sh --accept, within a tenth."
        cat "$work/now"
    } >"$table"
    echo "sizes: commit $table"
fi

grep -v '^#' "$table" | awk -v promise=$promise '
    NR == FNR { accepted[$1] = $2; sum += $2; next }
    {
        wrong = !($1 in accepted) ? "has no line" : $2 > accepted[$1] * 1.1 ? "grew by more than a tenth" : ""
        printf "%-18s %8d of %8d %s\n", $1, $2, accepted[$1], wrong
        all += $2
        seen[$1]
        bad += wrong != ""
    }
    END {
        for (f in accepted) if (!(f in seen)) { print f, "is in the table and not in the library"; bad++ }
        if (sum > promise) { print "all lines together exceed the promise"; bad++ }
        printf "sizes: %d bytes, %d of the promised %d accepted\n", all, sum, promise
        if (bad) print "sizes: if that is meant: tests/abi/sizes.sh BUILD OBJECTS --accept"
        exit bad != 0
    }' - "$work/now"
