#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/install/bare_root has to stop at the first command that fails, also before && and a comment, and
# to run what stands in a page's ```sh blocks and nothing else.
set -u
bare_root=$(cd "$(dirname "$0")/../install" && pwd)/bare_root
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

# expect CODE OUTPUT: of the script that $folder/page becomes.
expect() {
    "$bare_root" --commands "$folder/page" >"$folder/script"
    output=$(bash "$folder/script" 2>/dev/null)
    code=$?
    [ "$code" = "$1" ] && [ "$output" = "$2" ] && return
    echo "code $code, output $output; expected $1, $2:"
    cat "$folder/page"
    failed=1
}

page() { printf '%s\n' "$@" >"$folder/page"; }

page 'text' '```sh' 'echo one   # a comment' '' '# another' 'x=two' '```' 'echo not' '```c' 'echo not' '```' \
    '```sh' 'echo $x \' '    three' '```'
expect 0 "$(printf 'one\ntwo three')"
page '```sh' 'false   # fails' 'echo no' '```'
expect 1 ''
page '```sh' 'false && true' 'echo no' '```'
expect 1 ''
page '```sh' 'echo one' '```' '```sh' 'no_such_command' 'echo no' '```'
expect 1 one
exit $failed
