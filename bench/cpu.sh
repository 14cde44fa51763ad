#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Sets of a CPU beside PyTorch on as many threads as there are cores, which should have nothing else to do.
#   [LIBRARY=build/libmica.so.0] [COMMIT=ID] [PYTHON=python3] [THREADS=2] bench/cpu.sh [--short] FOLDER [SET...]
# FOLDER gets torch.jsonl, for `bench/merge FOLDER bench/results/epyc-2core`. All sets take about ten minutes on two
# cores; --short every fourth line, in two minutes, which says where things stand and is no result to keep.
set -euo pipefail
cd "$(dirname "$0")/.."
every=1 seconds=${PEER_SECONDS:-0.3}
if [ "${1:-}" = --short ]; then
    every=4 seconds=0.02
    shift
fi
[ $# -gt 0 ] || {
    sed -n '3,6s/^# \{0,1\}//p' "$0"
    exit 2
}
mkdir -p "$1"
out=$(realpath "$1")
shift
sets=("$@")
[ $# -gt 0 ] || sets=(pointwise pointwise_chains reduce loss scan random softmax quantize graphs)
threads=${THREADS:-$(nproc)}
options=(--device cpu --threads "$threads" --library "${LIBRARY:-build/libmica.so.0}"
    --commit "${COMMIT:-$(git describe --always --dirty)}" --seconds "$seconds" --json "$out/torch.jsonl")
export OMP_NUM_THREADS=$threads
files=()
for set in "${sets[@]}"; do
    if [ "$set" = graphs ]; then
        "${PYTHON:-python3}" bench/peers/torch_graphs.py "${options[@]}" bench/cases/graphs-cpu/*.graph
    else
        files+=("bench/cases/$set-cpu.txt")
    fi
done
[ ${#files[@]} -eq 0 ] ||
    "${PYTHON:-python3}" bench/peers/torch_peer.py "${options[@]}" --every "$every" "${files[@]}"
