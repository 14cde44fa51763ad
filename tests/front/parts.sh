#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# parts.sh FOLDER CC LIBRARY: a program that is linked with libcudnn_graph, ops, cnn and adv, or opens one of
# them, gets the drop-in's functions; each part has its soname, and no code.
set -eu
parts=$1 cc=$2 library=$3
fail() { echo "parts: $*"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for part in graph ops cnn adv; do
    file=$parts/libcudnn_$part.so.9
    readelf -d "$file" | grep -q "SONAME.*\[libcudnn_$part\.so\.9\]" || fail "$file has another soname"
    readelf -d "$file" | grep -q 'NEEDED.*\[libcudnn\.so\.9\]' || fail "$file does not need libcudnn.so.9"
    nm -D --defined-only "$file" | grep cudnn && fail "$file has functions of its own"
    python3 -c '
import ctypes, sys
part = ctypes.CDLL(sys.argv[1])
part.cudnnGetVersion.restype = ctypes.c_size_t
assert part.cudnnGetVersion() // 10000 == 9
handle = ctypes.c_void_p()
assert part.cudnnCreate(ctypes.byref(handle)) == 0 and part.cudnnDestroy(handle) == 0
' "$file" || fail "$file does not serve"
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
    -l:libcudnn_cnn.so.9 -l:libcudnn_adv.so.9 "$library" || fail "nothing links with the parts"
LD_LIBRARY_PATH=$parts:$(dirname "$library") timeout 20 "$folder/client" || fail "a client does not find its functions"
