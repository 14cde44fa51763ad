#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# preload.sh LIBRARY TEST: preloaded, the drop-in is what a program finds that opens libcudnn.so.9 by name
# or asks for a versioned function; MICA_CUDNN_LOG tells what was called and what failed.
set -eu
library=$1 test=$2
fail() { echo "preload: $*"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
LD_PRELOAD=$library python3 -c '
import ctypes
opened = ctypes.CDLL("libcudnn.so.9")
opened.cudnnGetVersion.restype = ctypes.c_size_t
assert opened.cudnnGetVersion() // 10000 == 9
find = ctypes.CDLL(None).dlvsym
find.restype = ctypes.c_void_p
find.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p
assert find(None, b"cudnnBackendExecute", b"libcudnn.so.9")
assert not find(None, b"cudnnBackendExecute", b"libcudnn.so.8")
maps = open("/proc/self/maps").read()
assert maps.count("libcudnn") == maps.count("front/libcudnn"), maps
' || fail "python does not find it"

MICA_CUDNN_LOG=$folder/log "$test" >"$folder/said" 2>&1 || { cat "$folder/said"; fail "the test failed"; }
grep -qE '^mica cudnn: [0-9]+ calls, [0-9]+ served by mica 0\.' "$folder/log" || fail "no report"
grep -qE '^mica cudnn: cudnnConvolutionForward +[1-9][0-9]* calls +[1-9][0-9]* served$' "$folder/log" ||
    fail "no count of convolutions"
grep -qE '^mica cudnn: cudnnGetConvolutionForwardWorkspaceSize: algorithm 8, .* \(CUDNN_STATUS_BAD_PARAM\)$' "$folder/log" ||
    fail "the failure is not in the log"
MICA_CUDNN_LOG=$folder/none LD_PRELOAD=$library true
[ -e "$folder/none" ] && fail "a process that called nothing has a report"
grep -q 'cudnnPoolingForward' "$folder/log" && fail "counts what was not called"
env -u MICA_CUDNN_LOG "$test" >"$folder/said" 2>&1
grep -q '^mica cudnn' "$folder/said" && fail "speaks without being asked"
exit 0
