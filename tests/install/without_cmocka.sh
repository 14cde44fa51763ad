#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# without_cmocka.sh BUILD: where cmocka is not to be found the library is configured all the same; tests
# that are asked for are refused by the name of what they lack, and the next configuration, which does
# not ask for them, works in the same folder. BUILD tells where headers are.
set -eu
cache=$1/CMakeCache.txt
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# cached VARIABLE: as BUILD has it.
cached() { sed -n "s/^$1:[A-Z]*=//p" "$cache"; }

configure() {
    cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_C_COMPILER="$(cached CMAKE_C_COMPILER)" \
        -DXXHASH_INCLUDE="$(cached XXHASH_INCLUDE)" -DCMAKE_IGNORE_PATH="$(cached CMOCKA_INCLUDE)" "$@" >"$work/log" 2>&1
}

fail() {
    cat "$work/log"
    echo "without_cmocka: $*"
    exit 1
}

configure || fail "the library asks for cmocka"
configure -DMICA_TESTS=ON && fail "the tests do not need cmocka"
grep -q 'The tests need cmocka, python3 and NumPy' "$work/log" || fail "the refusal does not say what is missing"
configure || fail "tests that were refused once are in the way for ever"
echo "without_cmocka: ok"
