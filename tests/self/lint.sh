#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `make lint` where clang-format is not installed says that, once, and fails. Usage: lint.sh
set -u
cd "$(dirname "$0")/../.." || exit 1
command -v make >/dev/null || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Every program but that one.
mkdir "$folder/bin"
IFS=:
for place in $PATH; do
    [ -d "$place" ] && ln -s "$place"/* "$folder/bin/" 2>/dev/null
done
rm -f "$folder"/bin/clang-format*
PATH=$folder/bin make lint >"$folder/said" 2>&1 && { echo "make lint is content"; exit 1; }
[ "$(grep -c 'clang-format' "$folder/said")" = 1 ] &&
    grep -q 'clang-format-14 is not installed' "$folder/said" && exit 0
head -20 "$folder/said"
exit 1
