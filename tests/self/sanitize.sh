#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/sanitize/run has to tell clean from not: a stand-in for compute-sanitizer says what the lines
# ask for, with the reference engine on the CPU for a GPU. Usage: sanitize.sh MICA
set -u
mica=$1
run=$(cd "$(dirname "$0")/../.." && pwd)/tests/sanitize/run
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failed=0

cat >"$tree/sanitizer" <<'END'
#!/bin/sh
# --tool NAME COMMAND...
tool=$2
shift 2
"$@"
code=$?
case $tool in
memcheck) echo "========= ERROR SUMMARY: ${ERRORS-0} errors" ;;
racecheck) echo "========= RACECHECK SUMMARY: ${ERRORS-0} hazards displayed (${ERRORS-0} errors, 0 warnings)" ;;
synccheck) sleep "${SLEEP-0}"; [ -n "${SILENT-}" ] || echo "========= ERROR SUMMARY: 0 errors" ;;
esac
exit $code
END
chmod +x "$tree/sanitizer"

# expect CODE ARGUMENTS...
expect() {
    want=$1
    shift
    "$run" --mica "$mica" --device cpu --sanitizer "$tree/sanitizer" --lines "$tree/lines" --timeout 5 \
        --json "$tree/json" "$@" >"$tree/out" 2>&1
    got=$?
    [ "$got" = "$want" ] && return
    echo "exit code $got, expected $want: $*"
    cat "$tree/out"
    failed=1
}

printf '# a comment\nsoftmax x=f32:5x7 axis=1\nactivation act=tanh x=f32:5x7\n' >"$tree/lines"
expect 0
[ "$(grep -c '"errors":0,"finished":true' "$tree/json")" = 6 ] || { echo "not six clean rows"; failed=1; }
expect 0 softmax --tools memcheck
expect 1 no_such_family
ERRORS=2 expect 1 --tools memcheck
ERRORS=1 expect 1 --tools racecheck
SILENT=1 expect 1 --tools synccheck
SLEEP=9 expect 1 --tools synccheck softmax
grep -q '"finished":false' "$tree/json" || { echo "a process that hangs counts as finished"; failed=1; }
printf 'softmax x=f32:5x7 axis=9\n' >"$tree/lines"
expect 1
exit $failed
