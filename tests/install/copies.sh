#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# copies.sh BUILD INSIDE: several copies of the library in one process (copies.c): a static one, the shared one, and
# one of another version and soname, opened for itself or for everybody, by programs that show their own
# functions to the libraries (-rdynamic) or not; and a host built with -ffast-math.
set -eu
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
source=$here/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compiler=${CC:-cc}

# Another version: the same objects but for the one that says which it is.
mkdir -p "$work/include"
cp -r "$source/include/mica" "$work/include/mica"
sed -i -E 's/(define MICA_VERSION_MAJOR) .*/\1 9/; s/(define MICA_VERSION_MINOR) .*/\1 8/' \
    "$work/include/mica/types.h"
"$compiler" -std=gnu17 -O2 -fPIC -fvisibility=hidden -I"$work/include" -I"$source/src" \
    -c "$source/src/base/why.c" -o "$work/why.o"
cp "$2" "$work/libother.a"
ar d "$work/libother.a" why.c.o
sed 's/MICA_[0-9.]* {/MICA_9.8 {/' "$build/mica.map" >"$work/other.map"
"$compiler" -shared -fopenmp "$work/why.o" -Wl,--whole-archive "$work/libother.a" -Wl,--no-whole-archive \
    -Wl,-soname,libmica.so.9 -Wl,--version-script="$work/other.map" -Wl,-Bsymbolic -Wl,-z,nodelete \
    -o "$work/libmica.so.9" -lm -ldl -lpthread
version=$(sed -n 's/^Version: //p' "$build/mica.pc")

build_host() {
    "$compiler" -std=gnu17 -O2 -Wall -Wextra -Werror -fopenmp "$@" -I"$source/include" "$here/copies.c" \
        "$build/libmica.a" -o "$work/host" -lm -ldl -lpthread
}

# Of each case file some lines that stand for one problem of a few elements.
set --
for file in "$source"/tests/cases/*.txt; do
    case $file in *huge* | *-l*.txt | *-tiles*) continue ;; esac
    for line in 1 2; do
        text=$(grep -Ev '^(#|$)|[{};|,]|:-|[0-9]{4}' "$file" | sed 's/ *#.*//' |
            awk 'length($0) < 110' | sed -n "$((line * 3))p")
        [ -z "$text" ] || set -- "$@" "$text"
    done
done
[ $# -gt 20 ] || { echo "copies: only $# lines"; exit 1; }

failed=0 first=
for way in "" -rdynamic -ffast-math; do
    build_host $way
    for scope in local global; do
        if ! said=$("$work/host" $scope "$build/libmica.so=$version" "$work/libmica.so.9=9.8.${version##*.}" -- "$@" 2>&1); then
            echo "copies: $scope ${way:-plain}: $said"
            failed=1
            continue
        fi
        first=${first:-$said}
        echo "copies: $scope ${way:-plain}: $said"
        [ "$said" = "$first" ] || { echo "copies: not as the first"; failed=1; }
    done
done
exit $failed
