#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/mutants/run has to tell caught from survived from broken: a stand-in for `mica check` ends as
# the mutated kernel's text says.
set -eu
run=$(cd "$(dirname "$0")/../.." && pwd)/tests/mutants/run
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

mkdir -p "$tree/src/ops/x" "$tree/lists"
echo 'return right;' >"$tree/src/ops/x/x.cu"
cat >"$tree/mica" <<'END'
#!/bin/sh
for word; do
    [ "${previous:-}" != --json ] || out=$word
    previous=$word
done
row() { echo "{\"status\":\"$1\",\"text\":\"$2\",\"device\":\"fake\"}" >"$out"; }
[ "$previous" != 'bad line' ] || { row refused 'no engine takes it'; exit 3; }
case $(cat "$MICA_KERNEL_DIR/ops/x/x.cu") in
*wrong*) row mismatch 'y: 1 of 2 elements are wrong'; exit 1 ;;
*syntax*) row mismatch 'compile failed: x.cu(1): error'; exit 1 ;;
*lost*) row mismatch 'device lost: 700'; exit 4 ;;
*slow*) sleep 9 ;;
*) row ok ''; exit 0 ;;
esac
END
chmod +x "$tree/mica"

# expect STATUS REPLACEMENT [WORD...]: one mutant, with further words of its block.
expect() {
    want=$1
    {
        printf 'mutant m\nbreaks b\nfile ops/x/x.cu\n- right\n+ %s\nline a line\n' "$2"
        shift 2
        for word; do echo "$word"; done
    } >"$tree/lists/x.txt"
    code=0
    "$run" check --mica "$tree/mica" --mutants "$tree/lists" --source "$tree/src" --timeout 1 \
        --commit c --json "$tree/results" >"$tree/log" || code=$?
    bad=1
    [ "$want" != caught ] || bad=0
    good='{"mutant":"m","family":"x","file":"ops/x/x.cu","status":"'$want'","commit":"c"'
    case $(cat "$tree/results") in
    "$good"*) [ $code != $bad ] || return 0 ;;
    esac
    echo "$want was expected, exit code $code:"
    cat "$tree/lists/x.txt" "$tree/log" "$tree/results"
    failures=$((failures + 1))
}

expect caught wrong
expect survived harmless
expect broken syntax
expect broken lost
expect caught lost 'expect lost'
expect broken slow
expect caught slow 'expect mismatch timeout'
expect survived harmless race
expect broken wrong 'line bad line'
expect broken right
expect broken wrong 'count 2'
echo 'return right, right;' >"$tree/src/ops/x/x.cu"
expect caught wrong 'count 2'
[ $failures = 0 ]
