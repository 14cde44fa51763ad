#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# headers.sh BUILD: the public headers say of each field what zero means, as the tables do, and mica.h
# where each operation is; the check notices what it is there for; the program of mica.h runs.
set -eu
cd "$(dirname "$0")/../.."
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

tools/headers "$build/mica" || failed=1

# planted FILE SED-COMMAND EXPECTED: a copy with this mistake is refused, with these words.
planted() {
    rm -rf "$work/mica"
    cp -r include/mica "$work/mica"
    sed -i "$2" "$work/mica/$1"
    cmp -s "include/mica/$1" "$work/mica/$1" && { echo "headers: nothing changed: $1, $2"; failed=1; }
    if tools/headers "$build/mica" "$work/mica" >"$work/said"; then
        echo "headers: not noticed: $1, $2"
        failed=1
    fi
    grep -q "$3" "$work/said" || { echo "headers: no word of \"$3\""; cat "$work/said"; failed=1; }
}
planted conv.h '/int64_t groups;/s/0 means 1/one as a rule/' 'mica_conv_desc.groups: "0 means 1" is not'
planted conv.h '/int64_t groups;/s/0 means 1/0 means 16/' 'mica_conv_desc.groups: "0 means 1" is not'
planted norm.h '/double eps;/s/1e-05/1e-06/' 'mica_norm_desc.eps: "0 means 1e-05" is not'
planted gemm.h '/mica_tensor a, b;/s/needed//' 'mica_gemm_desc.b: "needed" is not'
planted softmax.h '/bool log;/d' 'mica_softmax_desc has no log'
planted plan.h '/int measure_ms;/s/0 means/as a rule/' 'mica_options.measure_ms: "0 means" is not'
planted mica.h '/"mica\/rope.h"/s/, kv_append//' 'kv_append is in rope.h, the index says nothing'
planted mica.h '/"mica\/rope.h"/s/, kv_append/, kv_appends/' 'kv_appends, beside rope.h, is no operation'
planted mica.h '/"mica\/conv.h"/d' 'conv is in conv.h, the index says nothing'

# What the first page shows is a program, from the context to the run.
{
    printf '#include <mica/mica.h>\n#include <stdio.h>\n#include <stdlib.h>\nint main(void)\n{\n'
    printf 'static float pixels[2 * 3 * 8 * 8];\nint64_t bytes = sizeof pixels;\n'
    printf 'mica_tensor x = mica_tensor_packed(MICA_F32, 4, (int64_t[]){2, 3, 8, 8});\n'
    printf 'mica_tensor w = mica_tensor_packed(MICA_F32, 4, (int64_t[]){4, 3, 3, 3});\n'
    awk '/^#ifndef/ { exit } /^ \*     / { print substr($0, 8) }' include/mica/mica.h |
        sed 's/^mica_plan_run(plan, &run);$/if (mica_plan_run(plan, \&run)) return puts(mica_error()), 1;/'
    printf 'float y = 1;\nif (mica_download(ctx, &y, run.args[MICA_CONV_Y], sizeof y, NULL)) return 2;\n'
    printf 'for (int k = 0; k < MICA_MAX_ARGS; k++) mica_free(ctx, run.args[k]);\n'
    printf 'mica_free(ctx, run.workspace), mica_plan_destroy(plan), mica_context_destroy(ctx);\n'
    printf 'return 0;\n}\n'
} >"$work/page.c"
grep -q 'mica_plan_arg' "$work/page.c" && grep -q 'return puts(mica_error' "$work/page.c" ||
    { echo "headers: mica.h has not the program that this test looks for"; failed=1; }
${CC:-cc} -std=c17 -Wall -Wextra -Werror -Iinclude -o "$work/page" "$work/page.c" -L"$build" -lmica \
    -Wl,-rpath,"$build" && MICA_DEVICE=cpu "$work/page" ||
    { echo "headers: the program of mica.h fails"; failed=1; }
[ "$failed" = 0 ] && echo "headers: ok"
exit $failed
