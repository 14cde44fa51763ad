#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# symbols.sh LIBRARY [--accept]: the dynamic symbols that LIBRARY (libmica.so) exports are those of
# symbols.txt, each with its version, and those that the public headers declare with MICA_API.
# --accept writes the new list, for the commit that adds functions; taking one away or changing
# its version breaks programs and needs a new major version.
set -eu
library=$1
here=$(cd "$(dirname "$0")" && pwd)
list=$here/symbols.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
LC_ALL=C
export LC_ALL

# "name@@VERSION"; the version itself is an absolute symbol (A) and no function.
nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort >"$work/exported"
cat "$here"/../../include/mica/*.h | tr '\n' ' ' | sed 's|/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/||g' |
    tr ';{}' '\n\n\n' | sed -n 's/.*MICA_API[^(]*[ *]\(mica_[a-z0-9_]*\)(.*/\1/p' | sort >"$work/declared"
sed 's/@.*//' "$work/exported" >"$work/names"

if [ "${2:-}" = --accept ]; then
    cp "$work/exported" "$list"
    echo "symbols: $(wc -l <"$list") accepted; commit $list"
fi

status=0
if ! diff -u --label "accepted (tests/abi/symbols.txt)" --label "exported now" "$list" \
    "$work/exported"; then
    echo "symbols: the exported list changed. If that is meant: tests/abi/symbols.sh $library --accept"
    status=1
fi
if ! diff -u --label "declared MICA_API in include/mica" --label "exported" "$work/declared" \
    "$work/names"; then
    echo "symbols: - is declared but cannot be linked; + is exported but in no public header"
    status=1
fi
[ $status != 0 ] || echo "symbols: $(wc -l <"$list") exported, as accepted and as declared"
exit $status
