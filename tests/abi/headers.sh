#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each public header compiles alone, as C99, C11, C17 and C++17, without a warning, with every
# compiler that is here; and including it twice does no harm.
set -eu
cd "$(dirname "$0")/../.."
failures=0 checks=0

# try COMPILER LANGUAGE STANDARD HEADER
try() {
    checks=$((checks + 1))
    printf '#include "%s"\n#include "%s"\nint translation_unit_is_not_empty;\n' "$4" "$4" |
        "$1" -x "$2" -std="$3" -Wall -Wextra -Wpedantic -Wconversion -Werror -fsyntax-only \
            -Iinclude - || {
        echo "headers: <$4> does not compile with $1 -std=$3"
        failures=$((failures + 1))
    }
}

for path in include/mica/*.h; do
    header=${path#include/}
    for compiler in gcc clang; do
        command -v $compiler >/dev/null || continue
        for standard in c99 c11 c17; do try $compiler c $standard "$header"; done
    done
    for compiler in g++ clang++; do
        command -v $compiler >/dev/null || continue
        try $compiler c++ c++17 "$header"
    done
done
echo "headers: $checks compilations, $failures failed"
[ "$checks" -gt 0 ] && [ "$failures" = 0 ]
