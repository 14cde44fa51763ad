#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/layering has to find each kind of violation, planted one at a time into a small sound tree,
# at its file and line, and nothing in the sound tree.
set -eu
layering=$(cd "$(dirname "$0")/../.." && pwd)/tools/layering
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0 checks=0

# put FILE TEXT: the file's text; a header that somebody includes only has to exist.
put() {
    mkdir -p "$tree/$(dirname "$1")"
    printf "$2" >"$tree/$1"
}

sound_tree() {
    rm -rf "$tree"
    put include/mica/types.h '#include <stddef.h>\n'
    put src/base/why.h '#include "mica/types.h"\n'
    put src/base/env.c '#include "base/why.h"\nconst char *e(void) { return secure_getenv("A"); }\n'
    put src/base/log.c '/* never printf(),\n * nor exit() */\nint f(void) { return fprintf(0, "abort()") + snprintf(0, 0, "x"); }\n'
    put src/cpu/cpu.h '#include "base/why.h"\n'
    put src/cuda/cuda.h '#include "base/why.h"\n#include <mica/types.h>\n'
    put src/kernels/math.cuh '#include <cuda_fp16.h>\n'
    put src/ops/op.h '#include "cuda/cuda.h"\n'
    put src/ops/shared/cpu/tile.h '#include "ops/op.h"\n'
    put src/ops/pointwise/pointwise.h '#include "ops/op.h"\n#include "ops/shared/cpu/tile.h"\n'
    put src/ops/a/pointwise.c '#include "ops/pointwise/pointwise.h"\n'
    put src/ops/a/a_args.h '#include <stdint.h>\n'
    put src/ops/a/a.c '#include "ops/op.h"\n#include "ops/a/a_args.h"\n#include "a_args.h"\n#include "ops/shared/cpu/tile.h"\n#include "cpu/cpu.h"\n'
    put src/ops/a/a.cu '#include "kernels/math.cuh"\n#include "ops/a/a_args.h"\n'
    put src/ops/b/b.h '#include "ops/op.h"\n'
    put src/plan/plan.c '#include "ops/op.h"\n#include "cuda/cuda.h"\n'
    put src/plan/plan.h '#include "mica/types.h"\n'
    put cli/main.c '#include <mica/types.h>\n#include "cli.h"\nint main(void) { char *e = getenv("NO_COLOR"); printf("x"); exit(0); }\n'
    put cli/cli.h '#include "mica/types.h"\n'
    put tests/api/t.c '#include "mica/types.h"\n'
}

# expect FILE:LINE FILE TEXT: with that file, exactly that place is reported.
expect() {
    sound_tree
    put "$2" "$3"
    checks=$((checks + 1))
    found=$("$layering" "$tree" | cut -d: -f1,2) || true
    if [ "$found" != "$1" ]; then
        echo "layering: planted at $1, reported: ${found:-nothing}"
        failures=$((failures + 1))
    fi
}

sound_tree
"$layering" "$tree" || { echo "layering: a sound tree was refused"; exit 1; }

expect src/base/x.c:2 src/base/x.c '#include "base/why.h"\n#include "cpu/cpu.h"\n'
expect src/base/x.c:1 src/base/x.c '#include "ops/op.h"\n'
expect src/cpu/x.c:1 src/cpu/x.c '#include "cuda/cuda.h"\n'
expect src/cuda/x.c:1 src/cuda/x.c '#include "ops/op.h"\n'
expect src/cuda/x.c:1 src/cuda/x.c '#include <cuda.h>\n'
expect src/ops/shared/x.h:1 src/ops/shared/x.h '#include <dnnl.h>\n'
expect src/ops/shared/x.h:1 src/ops/shared/x.h '#include <oneapi/dnnl/dnnl.h>\n'
expect src/ops/a/x.c:1 src/ops/a/x.c '#include "ops/b/b.h"\n'
expect src/ops/pointwise/x.c:1 src/ops/pointwise/x.c '#include "ops/b/b.h"\n'
expect src/ops/a/x.cu:1 src/ops/a/x.cu '#include "ops/b/b.h"\n'
expect src/ops/a/x.c:1 src/ops/a/x.c '#include "plan/plan.h"\n'
expect src/ops/a/x.c:1 src/ops/a/x.c '#include "../b/b.h"\n'
expect src/ops/a/x.c:1 src/ops/a/x.c '#include "nowhere.h"\n'
expect src/ops/x.c:1 src/ops/x.c '#include "plan/plan.h"\n'
expect src/plan/x.c:1 src/plan/x.c '#include "ops/b/b.h"\n'
expect cli/x.c:1 cli/x.c '#include "base/why.h"\n'
expect tests/api/x.c:1 tests/api/x.c '#include "ops/op.h"\n'
expect examples/x.c:1 examples/x.c '#include "base/why.h"\n'
expect include/mica/x.h:1 include/mica/x.h '#include "base/why.h"\n'
expect src/base/x.c:1 src/base/x.c 'char *e = getenv("A");\n'
expect cli/x.c:1 cli/x.c 'char *e = getenv("A");\n'
expect src/plan/x.c:2 src/plan/x.c '/* a */\nvoid f(void) { printf("x"); }\n'
expect src/plan/x.c:1 src/plan/x.c 'void f(void) { if (1) abort(); }\n'
expect src/plan/x.c:1 src/plan/x.c 'void f(void) { /* why */ exit(1); }\n'
expect src/plan/x.c:1 src/plan/x.c 'void f(int n) { assert(n > 0); }\n'

echo "layering: $checks planted violations, $failures missed or misplaced"
[ "$failures" = 0 ]
