#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# functions.sh BUILD: docs/functions.md is what the table of functions says, and each function stands
# in the problem lines by itself.
set -eu
cd "$(dirname "$0")/../.."
tools/functions --check
missing=0
for name in $(sed -n 's/^\(FUNCTION\|ACTIVATION\|FORMULA\)(\([a-z][a-z0-9_]*\),.*/\2/p' src/ops/pointwise/functions.def); do
    grep -Eq "expr=(.*[{,])?$name[,}(]" tests/cases/pointwise-cpu.txt || {
        echo "functions: no line of tests/cases/pointwise-cpu.txt has $name"
        missing=1
    }
done
exit $missing
