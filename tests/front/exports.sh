#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# exports.sh LIBRARY LIBMICA OBJECTS: the drop-in has the name, the version node and the functions that
# clients of cuDNN 9 ask for, and no others; each function of functions.def has the body that it says;
# it needs neither CUDA nor cuDNN to load; libmica knows nothing of it.
set -eu
library=$1 mica=$2 objects=$3
cd "$(dirname "$0")/../.."
table=front/cudnn/functions.def
fail() { echo "exports: $*"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

readelf -d "$library" | grep -q 'SONAME.*\[libcudnn\.so\.9\]' || fail "the soname is not libcudnn.so.9"
readelf -d "$library" | awk '/NEEDED/ && !/libmica|libc\.|libpthread|libdl|ld-linux|libm\.|san/' >"$folder/needed"
[ -s "$folder/needed" ] && fail "needs $(cat "$folder/needed")"

sed -n 's/^SERVED([^(]*, \(cudnn[A-Za-z0-9_]*\), (.*/\1/p' "$table" | sort >"$folder/served"
sed -n 's/^REFUSED([a-z]*, \(cudnn[A-Za-z0-9_]*\),.*/\1/p' "$table" | sort >"$folder/refused"
rows=$(grep -c '^[A-Z]*(' "$table")
[ "$rows" = $(($(wc -l <"$folder/served") + $(wc -l <"$folder/refused"))) ] ||
    fail "$table has rows that are read by nobody"
[ "$(cat "$folder/served" "$folder/refused" | sort | uniq -d)" = "" ] || fail "a function is there twice"
[ "$rows" -ge 224 ] || fail "$rows functions; cuDNN 9.19 exports 224"

# Names, each under the node.
{ cat "$folder/served" "$folder/refused"; printf '%s\n' mica_cudnn_calls mica_cudnn_served mica_cudnn_version; } |
    sed 's/$/@@libcudnn.so.9/' | sort >"$folder/wanted"
nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort >"$folder/found"
diff "$folder/wanted" "$folder/found" || fail "exported is something else than the table says"

# Weak are the refusals alone.
find "$objects" -name '*.o' -exec nm -A {} + | awk '$2 == "T" && $3 ~ /^cudnn/ { print $3 }' | sort >"$folder/bodies"
diff "$folder/served" "$folder/bodies" || fail "bodies (>) are not those of SERVED rows (<)"

nm -D --defined-only "$mica" | grep -i cudnn && fail "libmica exports names of the drop-in"
strip -o "$folder/stripped" "$library"
echo "exports: $rows functions, $(wc -l <"$folder/served") served; stripped $(stat -c %s "$folder/stripped") bytes"
