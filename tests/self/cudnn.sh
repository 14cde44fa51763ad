#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `mica cudnn`: programs run with the drop-in before others, with their own options and exit code; what is
# wrong is told. Usage: cudnn.sh MICA LIBRARY
set -u
mica=$1 library=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

bad() {
    echo "cudnn: $*"
    failed=1
}

# expect CODE PATTERN ARGUMENTS...: of standard output and error together
expect() {
    code=$1 pattern=$2
    shift 2
    "$mica" cudnn "$@" >"$folder/said" 2>&1
    got=$?
    [ "$got" = "$code" ] || bad "mica cudnn $* ended with $got, not $code"
    grep -q -e "$pattern" "$folder/said" || bad "mica cudnn $*: no \"$pattern\" in: $(cat "$folder/said")"
}

expect 0 "^$library\$" path
expect 0 "^$library\$" path --library "$library"
expect 0 "^$library stderr\$" run sh -c 'echo $LD_PRELOAD $MICA_CUDNN_LOG'
expect 7 "^-x --log y\$" run sh -c 'echo "$@"; exit 7' sh -x --log y
expect 0 "^calls\$" run --log calls sh -c 'echo $MICA_CUDNN_LOG'
LD_PRELOAD=/lib/none.so expect 0 "^$library:/lib/none.so\$" run sh -c 'echo $LD_PRELOAD'
MICA_CUDNN_LOG=mine expect 0 "^mine\$" run sh -c 'echo $MICA_CUDNN_LOG'
expect 2 'nowhere: No such file' run "$folder/nowhere"
expect 3 'none.so: No such file' path --library "$folder/none.so"
expect 2 'known are run PROGRAM' run
expect 2 'known are run PROGRAM' walk
expect 2 'known are run PROGRAM'
expect 2 'known are run PROGRAM' path more
expect 2 'is of run' path --log file
cp "$mica" "$folder/mica"
mica=$folder/mica
LD_LIBRARY_PATH=$(dirname "$library")/.. expect 3 'MICA_CUDNN_FRONT' path
exit $failed
