#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In a process whose numbers have commas the tool reads case files and writes JSON, digests and explanations as
# everywhere. Usage: locale.sh MICA COMMA_SO
set -eu
mica=$1 comma=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 - <<'END' # bare systems have only C and C.UTF-8
with open("charmap", "w") as f:
    f.write("<code_set_name> ASCII\n<comment_char> %\n<escape_char> /\n<mb_cur_min> 1\n<mb_cur_max> 1\nCHARMAP\n")
    f.writelines(f"<U{c:04X}> /x{c:02x}\n" for c in range(128))
    f.write("END CHARMAP\n")
with open("comma", "w") as f:
    f.write('comment_char %\nescape_char /\nLC_NUMERIC\ndecimal_point "<U002C>"\nthousands_sep "<U002E>"\ngrouping 3;3\n'
            "END LC_NUMERIC\n")
END
localedef -c -f ./charmap -i ./comma ./comma_XX >localedef.txt 2>&1 || true
export LOCPATH="$work"
with() { LD_PRELOAD=$comma "$@"; }
# Python itself would call setlocale where no locale is set.
[ "$(PYTHONCOERCECLOCALE=0 with python3 -c 'import locale; print(locale.localeconv()["decimal_point"])')" = , ] || {
    echo "no locale with a comma could be made:"
    cat localedef.txt
    exit 1
}
cat >lines.txt <<'END'
norm kind=rms x=f32:4x8 eps=0.001
activation act=clip act_a=-0.25 act_b=0.5 x=f32:1000
pointwise expr=x0*0.125+1e-3 x0=f32:10
END
for host in plain comma; do
    run=$mica
    [ $host = plain ] || run="with $mica"
    # shellcheck disable=SC2086
    {
        $run check -q -d cpu --fill exact,random --json $host.check --digest=$host.digest lines.txt
        $run explain -d cpu --json $host.explain lines.txt
        $run explain -d cpu "$(head -n 1 lines.txt)" >$host.text
        $run list --json $host.list norm
        $run bench -q -d cpu --engine cpu --hot --seconds 0 --runs 1 --json $host.bench lines.txt
    }
done
status=0
for what in check digest explain list; do
    cmp plain.$what comma.$what || status=1
done
python3 - <<'END' || status=1
import json

plain, comma = ([json.loads(line) for line in open(f"{host}.bench")] for host in ("plain", "comma"))
assert [row["line"] for row in plain] == [row["line"] for row in comma] and plain
assert all(isinstance(row["ms"], float) for row in comma)
assert "0.001" in open("comma.text").read()
END
exit $status
