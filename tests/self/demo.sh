#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `mica demo`: the command that its report gives repeats its figures. Usage: demo.sh MICA
set -eu
mica=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH=$(dirname "$mica"):$PATH
cd "$work"

figure() { sed -n 's/.*digits read correctly: \([0-9.]* %\) after.*/\1/p' "$1"; }

"$mica" demo --device cpu --quiet --epochs 2 --seed 5 --batch 48 --report "a b.html" >first
command=$(sed -n 's/.*How to repeat it<.*<code>\(.*\)<\/code>.*/\1/p' "a b.html" | sed "s/&lt;/</g; s/&amp;/\&/g")
case $command in
OMP_NUM_THREADS=*" mica demo --device cpu --seed 5 --epochs 2 --batch 48") ;;
*) echo "demo: the command is \"$command\"" && exit 1 ;;
esac
sh -c "$command --quiet --report again.html" >second
[ -n "$(figure first)" ] && [ "$(figure first)" = "$(figure second)" ] ||
    { echo "demo: $(figure first) at first, $(figure second) repeated"; exit 1; }
# Data of one's own, under a name that a shell would take apart.
awk 'BEGIN { for (i = 0; i < 200; i++) { for (k = 0; k < 64; k++) printf "%d,", (k * (i % 10 + 1)) % 17; print i % 10 } }' >"it's \$data.csv"
"$mica" demo --device cpu --quiet --epochs 1 --batch 16 --data "it's \$data.csv" --report own.html >own
command=$(sed -n 's/.*How to repeat it<.*<code>\(.*\)<\/code>.*/\1/p' own.html)
sh -c "$command --quiet --report none" >own-again
[ -n "$(figure own)" ] && [ "$(figure own)" = "$(figure own-again)" ] ||
    { echo "demo: $command: $(figure own) at first, $(figure own-again) repeated"; exit 1; }
