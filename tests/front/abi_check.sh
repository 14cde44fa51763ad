#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi_check.sh CC: with MICA_CUDNN_INCLUDE a folder with cudnn.h of cuDNN 9, every value of
# front/cudnn/cudnn_types.h, every prototype of functions.def and the layout of every struct that
# callers see are compared with it, by assertions that a compiler reads. Nothing of that folder is
# part of mica. Without it, or without such a header there, the test is left out.
set -eu
cc=$1
cd "$(dirname "$0")/../.."
headers=${MICA_CUDNN_INCLUDE:-}
[ -n "$headers" ] && [ -f "$headers/cudnn.h" ] || {
    echo "abi_check: left out, MICA_CUDNN_INCLUDE names no folder with cudnn.h"
    exit 77
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# What cudnn.h takes from CUDA, where CUDA's own headers are not there.
cat >"$folder/cuda_runtime_api.h" <<'END'
#include <stddef.h>
typedef struct CUstream_st *cudaStream_t;
typedef struct CUgraph_st *cudaGraph_t;
END
cat >"$folder/library_types.h" <<'END'
typedef enum libraryPropertyType_t { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;
END

types=front/cudnn/cudnn_types.h
{
    echo '#include <cudnn.h>'
    echo '#include <stddef.h>'
    # X(NAME, value, ...) of the two tables, then plain enumerators.
    awk '/define CUDNN_STATUSES/ { prefix = "CUDNN_STATUS_" }
         /define CUDNN_DATA_TYPES/ { prefix = "CUDNN_DATA_" }
         match($0, /^ *X\([A-Za-z0-9_]+, [0-9]+,/) {
             split(substr($0, RSTART, RLENGTH), part, /[(,] */)
             printf "_Static_assert(%s%s == %s, \"value\");\n", prefix, part[2], part[3]
         }' "$types"
    tr '{},' '\n\n\n' <"$types" | sed -n 's/^ *\(CUDNN_[A-Z0-9_a-z]*\) = \([0-9]*\) *$/_Static_assert(\1 == \2, "value");/p'
    sed -n 's/^SERVED([^,]*, \([^,]*\), \(cudnn[A-Za-z0-9_]*\), \((.*)\))$/_Static_assert(__builtin_types_compatible_p(__typeof__(\2), \1 \3), "\2");/p' \
        front/cudnn/functions.def
    for perf in Fwd BwdData BwdFilter; do
        printf '_Static_assert(sizeof(cudnnConvolution%sAlgoPerf_t) == 48, "size");\n' "$perf"
        for field in algo:0 status:4 time:8 memory:16 determinism:24 mathType:28 reserved:32; do
            printf '_Static_assert(offsetof(cudnnConvolution%sAlgoPerf_t, %s) == %s, "field");\n' \
                "$perf" "${field%:*}" "${field#*:}"
        done
    done
    echo '_Static_assert(sizeof(cudnnDebug_t) == 120, "size");'
} >"$folder/check.c"
values=$(grep -c '"value"' "$folder/check.c")
prototypes=$(grep -c types_compatible "$folder/check.c")
served=$(grep -c '^SERVED(' front/cudnn/functions.def)
[ "$values" -gt 150 ] && [ "$prototypes" = "$served" ] || {
    echo "abi_check: $values values, $prototypes of $served prototypes were found to check"
    exit 1
}
"$cc" -std=gnu17 -w -fsyntax-only -I"$folder" -isystem "$headers" "$folder/check.c"

# Our own sizes, the other half of the comparison.
cat >"$folder/own.c" <<'END'
#include "mica/types.h"
#include "front/cudnn/cudnn_types.h"
_Static_assert(sizeof(cudnnConvolutionFwdAlgoPerf_t) == 48 && sizeof(cudnnDebug_t) == 120, "size");
_Static_assert(offsetof(cudnnConvolutionFwdAlgoPerf_t, memory) == 16, "field");
_Static_assert(offsetof(cudnnConvolutionFwdAlgoPerf_t, reserved) == 32, "field");
END
"$cc" -std=gnu17 -fsyntax-only -I. -Iinclude "$folder/own.c"

# Functions of those headers that the table does not have.
cat "$headers"/cudnn_*.h | tr '\n' ' ' | grep -oE 'CUDNNWINAPI +cudnn[A-Za-z0-9_]+\(' | sed 's/.* //; s/(//' |
    sort -u | while read -r name; do
        grep -qE "(, |\()$name," front/cudnn/functions.def || echo "$name"
    done >"$folder/missing"
[ -s "$folder/missing" ] && { echo "abi_check: not in functions.def:"; cat "$folder/missing"; exit 1; }

# An assertion that is wrong is found.
echo '_Static_assert(CUDNN_STATUS_NOT_SUPPORTED == 3001, "planted");' >>"$folder/check.c"
"$cc" -std=gnu17 -w -fsyntax-only -I"$folder" -isystem "$headers" "$folder/check.c" 2>"$folder/said" && {
    echo "abi_check: a planted mistake was not found"
    exit 1
}
grep -q planted "$folder/said"
echo "abi_check: $values values and $prototypes prototypes as in $(sed -n 's/^#define CUDNN_M[AI][JN]OR //p' "$headers/cudnn_version.h" | paste -sd.)"
