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
    put src/ops/reduce/cpu/tile.h '#include "ops/op.h"\n'
    put src/ops/pointwise/pointwise.h '#include "ops/op.h"\n#include "ops/reduce/cpu/tile.h"\n'
    put src/ops/a/pointwise.c '#include "ops/pointwise/pointwise.h"\n'
    put src/ops/a/a_args.h '#include <stdint.h>\n'
    put src/ops/a/a.c '#include "ops/op.h"\n#include "ops/a/a_args.h"\n#include "a_args.h"\n#include "ops/reduce/cpu/tile.h"\n#include "cpu/cpu.h"\n'
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
expect src/ops/epilogue/x.h:1 src/ops/epilogue/x.h '#include <dnnl.h>\n'
expect src/ops/epilogue/x.h:1 src/ops/epilogue/x.h '#include <oneapi/dnnl/dnnl.h>\n'
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

# ---- links: objects of a sound tree, and one that wants what it may not ----
compiler=${CC:-cc}
objects=$tree/mica_objects.dir list=$tree/objects.txt

# object SOURCE TEXT
object() {
    mkdir -p "$objects/$(dirname "$1")"
    printf "$2" | "$compiler" -x c -c -o "$objects/$1.o" -
    echo "$objects/./$1.o" >>"$list"
}

sound_objects() {
    object src/base/why.c 'int mica_why(void) { return 1; }\n'
    object src/cpu/cpu.c 'int mica_why(void); int mica_cpu(void) { return mica_why(); }\n'
    object src/cuda/cuda.c 'extern int mica_embedded; int mica_cuda(void) { return mica_embedded; }\n'
    object kernels.c 'int mica_embedded;\n'
    object src/peers/peers.c 'int mica_peers_rows(void) { return 1; } int mica_blas(void) { return 2; }\n'
    object src/ops/ops.c 'extern int mica_op_a, mica_op_b; int mica_ops(void) { return mica_op_a + mica_op_b; }\n'
    object src/ops/access/fill.c 'int mica_why(void); int mica_fill(void) { return mica_why(); }\n'
    object src/ops/pointwise/walk.c 'int mica_fill(void); int mica_walk(void) { return mica_fill(); }\n'
    object src/ops/a/a.c 'int mica_op_a; int mica_book(int), mica_walk(void); int a_x(void) { return mica_book(1) + mica_walk(); }\n'
    object src/ops/b/b.c 'int mica_op_b, mica_cuda(void); int b_x(void) { return mica_cuda(); }\n'
    object src/ops/b/peer/b.c 'int mica_blas(void); int b_peer(void) { return mica_blas(); }\n'
    object src/ops/gemm/gemm.c 'extern int gemm_sm90_blocks; int gemm_tile(void) { return gemm_sm90_blocks; }\n'
    object src/ops/grouped_gemm/g.c 'int gemm_sm90_blocks, gemm_tile(void); int g_x(void) { return gemm_tile(); }\n'
    object src/plan/plan.c 'int mica_ops(void), mica_peers_rows(void); int mica_plan(void) { return mica_ops() + mica_peers_rows(); }\nint mica_book(int b) { return b; }\n'
}

check_links() { "$layering" --links "$1" "$tree"; }

# links PLACE SOURCE TEXT: with that object, exactly that place is reported.
links() {
    cp "$tree/sound.txt" "$list"
    object "$2" "$3"
    checks=$((checks + 1))
    found=$(check_links "$list" | cut -d: -f1,2 | sed 's/\.o: / /') || true
    if [ "$found" != "$1" ]; then
        echo "layering: planted link $1, reported: ${found:-nothing}"
        failures=$((failures + 1))
    fi
}

sound_tree
put src/ops/services.h 'int mica_book(int bytes);\n'
put src/ops/ops.def 'X(a)\nX(b)\n'
put src/peers/peers.h 'int mica_peers_rows(void);\n'
sound_objects
cp "$list" "$tree/sound.txt"
check_links "$list" || { echo "layering: sound links were refused"; exit 1; }
links "src/base/x.c wants mica_cpu of src/cpu" src/base/x.c 'int mica_cpu(void); int x(void) { return mica_cpu(); }\n'
links "src/cuda/x.c wants mica_fill of src/ops/access" src/cuda/x.c 'int mica_fill(void); int x(void) { return mica_fill(); }\n'
links "src/cuda/x.c wants mica_book of src/plan" src/cuda/x.c 'int mica_book(int); int x(void) { return mica_book(1); }\n'
links "src/ops/a/x.c wants mica_plan of src/plan" src/ops/a/x.c 'int mica_plan(void); int x(void) { return mica_plan(); }\n'
links "src/ops/a/x.c wants b_x of src/ops/b" src/ops/a/x.c 'int b_x(void); int x(void) { return b_x(); }\n'
links "src/ops/epilogue/x.c wants a_x of src/ops/a" src/ops/epilogue/x.c 'int a_x(void); int x(void) { return a_x(); }\n'
links "src/ops/x.c wants a_x of src/ops/a" src/ops/x.c 'int a_x(void); int x(void) { return a_x(); }\n'
links "src/ops/gemm/x.c wants g_x of src/ops/grouped_gemm" src/ops/gemm/x.c 'int g_x(void); int x(void) { return g_x(); }\n'
links "src/ops/a/x.c wants mica_blas of src/peers" src/ops/a/x.c 'int mica_blas(void); int x(void) { return mica_blas(); }\n'
links "src/plan/x.c wants mica_blas of src/peers" src/plan/x.c 'int mica_blas(void); int x(void) { return mica_blas(); }\n'
# A row that nothing needs any more, and objects that are none.
checks=$((checks + 1))
grep -v grouped_gemm "$tree/sound.txt" >"$list"
check_links "$list" | grep -q "nothing is tied by the row src/ops/gemm to" || {
    echo "layering: a row that is not needed was kept"
    failures=$((failures + 1))
}
checks=$((checks + 1))
: >"$tree/none.txt"
if check_links "$tree/none.txt" >/dev/null 2>&1; then
    echo "layering: no objects at all passed"
    failures=$((failures + 1))
fi

echo "layering: $checks planted violations, $failures missed or misplaced"
[ "$failures" = 0 ]
