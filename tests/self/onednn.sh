#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# onednn.sh MICA FAKES: one binary with oneDNN and without. Where it is missing or cannot be used,
# every problem goes to engines of our own, and `info`, `explain` and the engines' refusals say why.
set -u
mica=$1 fakes=$2/dnnl
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
given=${MICA_ONEDNN:-}
unset MICA_ONEDNN
gemm='gemm a=f32:24x40 b=f32:40x24'
conv='conv x=f32:1x8x9x9 w=f32:8x8x3x3 pad=1x1'

fail() {
    echo "$*"
    failed=1
}

# absent WORDS COMMAND...: with that environment (env's arguments) there is no oneDNN, for that reason.
absent() {
    words=$1
    shift
    env "$@" "$mica" info >"$folder/info" || fail "info failed with $*"
    grep '^onednn  *none: ' "$folder/info" | grep -qF -- "$words" ||
        fail "with $* info says $(grep '^onednn' "$folder/info"), not: $words"
    grep -q '^engines missing .*onednn of conv, onednn of gemm' "$folder/info" ||
        fail "with $* info does not name the engines that are missing"
    for line in "$gemm" "$conv"; do
        env "$@" "$mica" explain -d cpu "$line" >"$folder/explain" || fail "explain failed with $*"
        grep '^  onednn ' "$folder/explain" | grep -qF -- "$words" || fail "with $* explain does not say: $words"
        grep -q '^\* cpu ' "$folder/explain" || fail "with $* the choice for $line is not cpu"
        env "$@" "$mica" check -d cpu --engine onednn "$line" >"$folder/check"
        code=$?
        [ $code = 3 ] || fail "with $* check of the missing engine ended with $code"
        grep '^refused onednn' "$folder/check" | grep -qF -- "$words" || fail "with $* check does not say: $words"
    done
}

absent 'MICA_ONEDNN=none' MICA_ONEDNN=none
absent 'MICA_ONEDNN=some/where is not an absolute path' MICA_ONEDNN=some/where
absent '/nowhere/libdnnl.so.3: cannot open shared object file' MICA_ONEDNN=/nowhere/libdnnl.so.3
absent 'name its path in MICA_ONEDNN' MICA_ONEDNN=/nowhere/libdnnl.so.3
absent 'it has no dnnl_version' MICA_ONEDNN="$2/libcuda.so.1"
absent 'version 4.1.4, known are 2 and 3' MICA_ONEDNN="$fakes/future/libdnnl.so.4"
absent 'version 3.1.4: built for TBB' MICA_ONEDNN="$fakes/tbb/libdnnl.so.3"
absent 'version 3.1.4: built for a thread pool' MICA_ONEDNN="$fakes/pool/libdnnl.so.3"
absent 'version 3.1.4: built for SYCL' MICA_ONEDNN="$fakes/sycl/libdnnl.so.3"
absent 'version 3.1.4: it has no dnnl_engine_create' MICA_ONEDNN="$fakes/lacking/libdnnl.so.3"
absent 'version 2.1.4: it has no dnnl_engine_create' MICA_ONEDNN="$fakes/lacking/libdnnl.so.2"
# Both names, in their order, each with what is wrong with it.
absent 'libdnnl.so.3: version 3.1.4: it has no dnnl_engine_create; libdnnl.so.3.6: version 3.1.4: built for a thread pool, used are those for OpenMP; libdnnl.so.2: version 2.1.4: it has no' \
    LD_LIBRARY_PATH="$fakes/lacking"
# Threads of one OpenMP that ask another one for their numbers; where the process has the one that is
# asked for, there are no two.
if ldd "$mica" | grep -q 'libomp\|libiomp'; then
    absent 'version 3.1.4: it has no dnnl_engine_create' MICA_ONEDNN="$fakes/mixed/libdnnl.so.3"
else
    absent 'mixed/libdnnl.so.3, but this process has ' MICA_ONEDNN="$fakes/mixed/libdnnl.so.3"
fi

# A real one, where there is one: it is found by its name, also behind one that cannot be used, and the
# log says which it is. Its record does not hold where it is not.
[ "$given" ] || if "$mica" info | grep -q '^onednn  *[23]\.'; then
    version=$("$mica" info | sed -n 's/^onednn  *\([0-9.]*\), .*/\1/p')
    "$mica" info | grep -q "^engines missing  *none" || fail "engines are missing beside oneDNN $version"
    MICA_LOG=info "$mica" explain -d cpu "$gemm" 2>&1 >/dev/null |
        grep -q "info,oneDNN $version from /.*/libdnnl\.so\.[23]" || fail "the log does not name oneDNN $version"
    "$mica" check -d cpu --engine onednn "$gemm" "$conv" >/dev/null || fail "oneDNN $version is wrong"
    MICA_ONEDNN=$("$mica" info | sed -n 's/^onednn  *[0-9.]*, //p') "$mica" info |
        grep -q "^onednn  *$version, /" || fail "oneDNN $version is not opened by its path"
    case $version in
    2.*)
        LD_LIBRARY_PATH=$fakes/tbb "$mica" info | grep -q "^onednn  *$version, /" ||
            fail "a libdnnl.so.3 that cannot be used hides libdnnl.so.2"
        ;;
    esac
    line='gemm a=f32:96x96 b=f32:96x96'
    model=$("$mica" info --json - | grep -o '"model": *"[^"]*"' | head -n 1 | cut -d'"' -f4)
    echo "$line | $model | onednn | via=1 | 0.000001 | mica" >"$folder/records"
    MICA_RECORDS=$folder/records "$mica" explain -d cpu --json - "$line" | grep -q '"recorded_ms"' ||
        fail "the record of onednn is not taken"
    MICA_RECORDS=$folder/records MICA_ONEDNN=none "$mica" explain -d cpu "$line" |
        grep -q '^\* cpu ' || fail "a record of onednn is not set aside where there is none"
fi
exit $failed
