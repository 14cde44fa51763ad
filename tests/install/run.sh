#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD: installs the build into an empty prefix, moves that prefix (an installed tree must not
# know where it was), and builds and runs a program of somebody else's against it: through pkg-config
# and through find_package, shared and static, in C and in C++.
set -eu
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/moved
passed=0

step() {
    name=$1
    shift
    "$@" >"$work/log" 2>&1 || {
        cat "$work/log"
        echo "install: failed: $name"
        exit 1
    }
    passed=$((passed + 1))
    echo "install: $name"
}

# The libraries that are found only where they were just put.
with_library() {
    LD_LIBRARY_PATH=$libdir "$@"
}

# True when the program needs libmica.so at run time ($1 = shared), or does not ($1 = static).
linked_as() {
    if readelf -d "$2" | grep -q 'NEEDED.*libmica\.so\.0'; then [ "$1" = shared ]; else [ "$1" = static ]; fi
}

# The library that the tool loads is the one of its own prefix, whatever else the loader knows.
runs_with_its_own() {
    ldd "$prefix/bin/mica" | grep -qF "libmica.so.0 => $prefix/bin/../${libdir#"$prefix/"}/libmica.so.0"
}

step "cmake --install" cmake --install "$build" --strip --prefix "$work/first"
mv "$work/first" "$prefix"
libdir=$(dirname "$(find "$prefix" -name libmica.so)")
step "DESTDIR" env DESTDIR="$work/staged" cmake --install "$build" --prefix /usr
step "DESTDIR is honoured" test -f "$work/staged/usr/include/mica/mica.h"
step "licence" test -f "$prefix/share/doc/mica/LICENSE"
step "no library path is left in the library" \
    sh -c '! readelf -d "$1" | grep -E "RPATH|RUNPATH"' sh "$libdir/libmica.so"

cp "$here/consumer.c" "$work/consumer.c"
cp "$here/consumer.c" "$work/consumer.cpp"

# pkg-config, shared
export PKG_CONFIG_PATH="$libdir/pkgconfig"
step "pkg-config knows the version" pkg-config --exact-version="$(sed -n 's/^Version: //p' "$libdir/pkgconfig/mica.pc")" mica
step "pkg-config mentions no CUDA" sh -c '! pkg-config --static --cflags --libs mica | grep -iE "cuda|nvrtc"'
for language in c c++; do
    case $language in
    c) compiler="${CC:-cc} -std=c99" source=$work/consumer.c ;;
    c++) compiler="${CXX:-c++} -std=c++17" source=$work/consumer.cpp ;;
    esac
    step "pkg-config, shared, $language: build" $compiler -Wall -Wextra -Werror "$source" -o "$work/program" \
        $(pkg-config --cflags --libs mica)
    step "pkg-config, shared, $language: links libmica.so" linked_as shared "$work/program"
    step "pkg-config, shared, $language: run" with_library "$work/program"
done

# pkg-config, static: as on a machine that has only the archive
static=$work/static
cp -r "$prefix" "$static"
find "$static" -name 'libmica.so*' -delete
export PKG_CONFIG_PATH="$static/${libdir#"$prefix"/}/pkgconfig"
for language in c c++; do
    case $language in
    c) compiler="${CC:-cc} -std=c99" source=$work/consumer.c ;;
    c++) compiler="${CXX:-c++} -std=c++17" source=$work/consumer.cpp ;;
    esac
    step "pkg-config, static, $language: build" $compiler -Wall -Wextra -Werror "$source" -o "$work/program" \
        $(pkg-config --static --cflags --libs mica)
    step "pkg-config, static, $language: holds the library" linked_as static "$work/program"
    step "pkg-config, static, $language: run" "$work/program"
done

# find_package
for language in C CXX; do
    case $language in C) source=$work/consumer.c ;; CXX) source=$work/consumer.cpp ;; esac
    out=$work/package-$language
    step "find_package, $language: configure" cmake -S "$here/package" -B "$out" \
        -DCMAKE_PREFIX_PATH="$prefix" -DLANGUAGE=$language -DSOURCE="$source"
    step "find_package, $language: build" cmake --build "$out"
    step "find_package, $language: mica::mica is shared" linked_as shared "$out/consumer_mica"
    step "find_package, $language: mica::static is static" linked_as static "$out/consumer_static"
    step "find_package, $language: run, shared" "$out/consumer_mica"
    step "find_package, $language: run, static" "$out/consumer_static"
done

# The project that README.md shows, with its program.
mkdir "$work/readme"
cp "$here/../../examples/01_convolution.c" "$work/readme"
awk '/^```cmake$/ { inside = 1; next } /^```/ { inside = 0 } inside' "$here/../../README.md" >"$work/readme/CMakeLists.txt"
step "README's project: configure" cmake -S "$work/readme" -B "$work/readme/build" -DCMAKE_PREFIX_PATH="$prefix"
step "README's project: build" cmake --build "$work/readme/build"
step "README's project: run" "$work/readme/build/first"

refuses_newer() {
    ! cmake -S "$here/newer" -B "$work/newer" -DCMAKE_PREFIX_PATH="$prefix" >"$work/refusal" 2>&1 &&
        grep -q 'mica-config.cmake, version: 0' "$work/refusal"
}
step "find_package refuses another major version, having seen ours" refuses_newer

# The tool and its page
if [ -x "$build/mica" ]; then
    step "mica runs" "$prefix/bin/mica" --version
    step "mica runs with the library beside it" runs_with_its_own
    for command in $("$build/mica" --help | sed -n '/^Examples/q; s/^  \([a-z]*\) .*/\1/p'); do
        step "the man page has mica $command" grep -q "^\*$command\*$" "$here/../../docs/man/mica.1.scd"
    done
    step "bash completion" bash -n "$prefix/share/bash-completion/completions/mica"
fi
if command -v scdoc >/dev/null; then
    for page in man1/mica.1 man7/mica.7 man7/mica-env.7; do
        step "man page $page" test -s "$prefix/share/man/$page"
    done
fi
echo "install: $passed steps passed"
