#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# size.sh BUILD: the library as it is installed, kernels included, is as small as README.md says.
set -eu
cd "$(dirname "$0")/../.."
said=$(sed -n 's/.*One library of less than \([0-9.]*\) MiB.*/\1/p' README.md)
[ -n "$said" ] || { echo "size: README.md states no size"; exit 1; }
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$1" --strip --prefix "$prefix" >/dev/null
bytes=$(find "$prefix" -name libmica.so -exec stat -L -c %s {} +)
echo "size: $bytes bytes installed; README.md says less than $said MiB"
awk "BEGIN { exit !($bytes < $said * 1024 * 1024) }"
