#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# parts.sh FOLDER CC LIBRARY: a program that is linked with libcudnn_graph, ops, cnn and adv, or opens one of
# them, gets the drop-in's functions, under each part's own version node, as NVIDIA's have them.
set -eu
parts=$1 cc=$2 library=$3
table=$(dirname "$0")/../../front/cudnn/functions.def
fail() { echo "parts: $*"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for part in graph ops cnn adv; do
    file=$parts/libcudnn_$part.so.9
    readelf -d "$file" | grep -q "SONAME.*\[libcudnn_$part\.so\.9\]" || fail "$file has another soname"
    readelf -d "$file" | grep -q 'NEEDED.*\[libcudnn\.so\.9\]' || fail "$file does not need libcudnn.so.9"
    sed -n "s/^REFUSED($part, \(cudnn[A-Za-z0-9_]*\).*/\1/p; s/^SERVED($part, [^,]*, \(cudnn[A-Za-z0-9_]*\),.*/\1/p" \
        "$table" | sed "s/\$/@@libcudnn_$part.so.9/" | sort >"$folder/wanted"
    nm -D --defined-only "$file" | awk '$2 == "T" { print $3 }' | sort >"$folder/found"
    [ -s "$folder/wanted" ] && diff "$folder/wanted" "$folder/found" || fail "$file has other functions"
    python3 -c '
import ctypes, sys
part = ctypes.CDLL(sys.argv[1])
part.cudnnGetVersion.restype = ctypes.c_size_t
assert part.cudnnGetVersion() // 10000 == 9
find = ctypes.CDLL(None).dlvsym
find.restype = ctypes.c_void_p
find.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p
name = {"graph": "BackendExecute", "ops": "SoftmaxForward", "cnn": "ConvolutionForward", "adv": "RNNForward"}[sys.argv[2]]
assert find(part._handle, b"cudnn" + name.encode(), b"libcudnn_" + sys.argv[2].encode() + b".so.9")
handle = ctypes.c_void_p()
assert part.cudnnCreate(ctypes.byref(handle)) == 0 and part.cudnnDestroy(handle) == 0
' "$file" $part || fail "$file does not serve"
done
cat >"$folder/client.c" <<'END'
#include <stddef.h>
size_t cudnnGetVersion(void);
int cudnnOpsVersionCheck(void), cudnnCnnVersionCheck(void), cudnnAdvVersionCheck(void);
int main(void)
{
    return cudnnOpsVersionCheck() || cudnnCnnVersionCheck() || cudnnAdvVersionCheck() || cudnnGetVersion() < 90000;
}
END
"$cc" -o "$folder/client" "$folder/client.c" -Wl,--no-as-needed -L"$parts" -l:libcudnn_graph.so.9 -l:libcudnn_ops.so.9 \
    -l:libcudnn_cnn.so.9 -l:libcudnn_adv.so.9 -Wl,-rpath-link,"$(dirname "$library")" || fail "nothing links with the parts"
LD_LIBRARY_PATH=$parts:$(dirname "$library") timeout 20 "$folder/client" || fail "a client does not find its functions"
