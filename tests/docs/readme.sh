#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program that README.md shows is examples/01_convolution.c, letter for letter.
set -eu
cd "$(dirname "$0")/../.."
shown=$(mktemp)
trap 'rm -f "$shown"' EXIT
awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' README.md >"$shown"
diff -u "$shown" examples/01_convolution.c && echo "readme: the program is the example"
