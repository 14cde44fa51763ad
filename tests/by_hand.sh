#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# by_hand.sh RESNET50 TRAINING [DEVICE]: a training step as one graph (examples/08_training.c) beside the one that is
# written plan by plan (examples/03_resnet50.c): the same losses, no more launches and no more memory.
set -eu
device=${3:-cpu}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" "$device" f32 4 32 3 >"$work/hand" || true
"$2" resnet50 "$device" f32 4 32 3 >"$work/graph"
cat "$work/hand" "$work/graph"
value() { sed -n "s/.*$2.*/\\1/p" "$work/$1" | head -1; }
for what in 'loss \([0-9.]*\) ->' 'loss [0-9.]* -> \([0-9.]*\)'; do
    a=$(value hand "$what") b=$(value graph "$what")
    # printed with three digits; sums in other orders move the last of them
    awk -v a="$a" -v b="$b" 'BEGIN { exit !(a > 0 && a - b < 0.0021 + a / 1000 && b - a < 0.0021 + a / 1000) }' ||
        { echo "by_hand: loss $a by hand, $b of the graph"; exit 1; }
done
launches=$(value hand ', \([0-9]*\) of them for training') own=$(value graph ' \([0-9]*\) launches')
bytes=$(value hand 'training, \([0-9.]*\) MB') most=$(value graph 'launches, \([0-9.]*\) MB')
awk -v a="$launches" -v b="$own" -v c="$bytes" -v d="$most" 'BEGIN { exit !(b > 0 && b <= a && d > 0 && d <= c) }' ||
    { echo "by_hand: $launches launches and $bytes MB by hand, $own and $most of the graph"; exit 1; }
