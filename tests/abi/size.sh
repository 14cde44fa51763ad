#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# size.sh LIBRARY: stripped, kernels included, the library stays under 3 MiB.
set -eu
limit=$((3 * 1024 * 1024))
copy=$(mktemp)
trap 'rm -f "$copy"' EXIT
strip -o "$copy" "$1"
bytes=$(wc -c <"$copy")
echo "size: $bytes bytes stripped, limit $limit"
[ "$bytes" -lt $limit ]
