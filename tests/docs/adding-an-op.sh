#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# adding-an-op.sh BUILD: follows docs/adding-an-op.md to the letter in a copy of the tree: writes its
# files, builds the library and the tool, runs its commands. BUILD tells the compiler to use.
set -eu
cd "$(dirname "$0")/../.."
doc=docs/adding-an-op.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "adding-an-op: $*"; }

# A copy of what git knows and does not ignore; without git, of everything but builds.
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard | xargs -0 tar cf - 2>/dev/null | tar xf - -C "$work"
else
    tar cf - --exclude='./build*' . | tar xf - -C "$work"
fi

# Blocks: ```LANGUAGE [after=TEXT] file=PATH, append=PATH, run or run=nvrtc; others are only for reading.
awk -v work="$work" '
    /^```/ && inside { inside = 0; if (to != "") close(to); next }
    /^```/ {
        inside = 1; to = ""; anchor = ""
        if (match($0, /after=.* file=/)) anchor = substr($0, RSTART + 6, RLENGTH - 12)
        if (match($0, /file=[^ ]+$/)) path = substr($0, RSTART + 5)
        if (anchor != "") { to = work "/insert"; print path "\n" anchor > (work "/insert.where"); close(work "/insert.where") }
        else if ($0 ~ /file=/) { to = work "/" path; system("mkdir -p \"$(dirname \"" to "\")\""); printf "" > to }
        else if (match($0, /append=[^ ]+$/)) to = work "/" substr($0, RSTART + 7)
        else if ($0 ~ /run=nvrtc$/) to = work "/commands.nvrtc"
        else if ($0 ~ /run$/) to = work "/commands"
        appended = $0 ~ /append=/
        next
    }
    inside && to != "" { if (appended) print >> to; else print > to }
' "$doc"
[ -s "$work/commands" ] && [ -s "$work/src/ops/hypot/hypot.c" ] && [ -s "$work/insert" ] ||
    { say "the page has not the blocks that this test looks for"; exit 1; }
path=$(sed -n 1p "$work/insert.where") anchor=$(sed -n 2p "$work/insert.where")
grep -qxF "$anchor" "$work/$path" || { say "$path has no line $anchor"; exit 1; }
awk -v anchor="$anchor" -v file="$work/insert" '{ print } $0 == anchor { while ((getline line < file) > 0) print line }' \
    "$work/$path" >"$work/merged"
mv "$work/merged" "$work/$path"

cd "$work"
say "building"
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Debug -DMICA_WERROR=ON -DMICA_TESTS=OFF >log 2>&1 &&
    cmake --build build -j 2 --target mica >>log 2>&1 || { tail -n 40 log; say "it does not build"; exit 1; }
export PATH="$work/build:$PATH" MICA_CACHE_DIR="$work/cache"
follow() {
    while read -r command; do
        say "$command"
        sh -c "$command" || { say "failed: $command"; exit 1; }
    done <"$1"
}
follow commands
if mica info | grep -qi 'nvrtc.*not found'; then
    say "NVRTC is not here: its kernel was not compiled"
else
    follow commands.nvrtc
fi
say "ok"
