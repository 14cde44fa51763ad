#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# oneDNN 3 kept the names of oneDNN 2's constants but gave some of them other numbers: a program that opens
# libdnnl.so.2 or libdnnl.so.3 at run time, whichever is there, and passes the numbers of one header to both
# names another function to the other. The algorithms of element-wise operations moved, and so did the base of
# the arguments of post-operations, which decides where a run looks for its operands. Functions that changed
# their parameters kept their names, too (dnnl_post_ops_append_eltwise lost its scale): C links either.
#
# Packages of PyPI: onednn-devel-cpu-gomp 2022.2.1 (oneDNN 2.6) and 2023.2.0 (oneDNN 3.2).
# Seen: relu 0x1f and 0x20; post-op arguments from 16384 and from 32768; eltwise with and without a scale.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/numbers.c" <<'C'
#include <dnnl.h>
#include <stdio.h>
int main(void)
{
    printf("oneDNN %d.%d: relu 0x%x, post-op arguments from %d\n", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR,
           (unsigned)dnnl_eltwise_relu, DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE);
    return 0;
}
C
for version in 2022.2.1 2023.2.0; do
    python3 -m pip download -q --disable-pip-version-check --no-deps --dest "$work/$version" \
        "onednn-devel-cpu-gomp==$version"
    python3 -m zipfile -e "$work/$version"/*.whl "$work/$version/files"
    header=$(find "$work/$version/files" -name dnnl.h -not -path '*/oneapi/*' | head -n 1)
    cc -I"$(dirname "$header")" "$work/numbers.c" -o "$work/numbers"
    "$work/numbers" | tee -a "$work/said"
    if find "$work/$version/files" -name dnnl.h -exec sed -n '/dnnl_post_ops_append_eltwise(/,/;/p' {} + | grep -q 'float scale'; then
        echo "  eltwise has a scale"
    else
        echo "  eltwise has no scale"
    fi | tee -a "$work/said"
done
grep -q '^oneDNN 2\..*: relu 0x1f, post-op arguments from 16384$' "$work/said"
grep -q '^oneDNN 3\..*: relu 0x20, post-op arguments from 32768$' "$work/said"
[ "$(grep 'eltwise has' "$work/said" | tr -d '\n')" = "  eltwise has a scale  eltwise has no scale" ]
