#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# cudnn.sh BUILD: docs/cudnn.md has the functions of front/cudnn/functions.def, and says the version and the
# size of states that the sources have. A page that lacks a function is told.
set -eu
cd "$(dirname "$0")/../.."
tools/cudnn-table --check docs/cudnn.md
version=$(sed -n 's/.*MAJOR = \([0-9]*\), MINOR = \([0-9]*\), PATCH = \([0-9]*\),.*/\1.\2.\3/p' front/cudnn/handle.c)
grep -q "version $version:" docs/cudnn.md || { echo "docs/cudnn.md does not say version $version"; exit 1; }
bytes=$(sed -n 's/.*STATES_BYTES = \([0-9]*\).*/\1/p' front/cudnn/dropout.c)
grep -q "$bytes bytes" docs/cudnn.md || { echo "docs/cudnn.md does not say $bytes bytes of states"; exit 1; }
copy=$(mktemp)
trap 'rm -f "$copy"' EXIT
sed 's/ConvolutionForward, //' docs/cudnn.md >"$copy"
tools/cudnn-table --check "$copy" 2>/dev/null >/dev/null && { echo "a page without ConvolutionForward is right"; exit 1; }
exit 0
