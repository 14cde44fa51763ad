#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compare.sh SECOND WRONG PROGRAM...: MICA_CUDNN_COMPARE finds no difference between the drop-in and a
# second build of it, and those that a wrong one has, with their place; each program runs its calls.
set -eu
second=$1 wrong=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "compare: $*"; cat "$folder/log"; exit 1; }
run() {
    for program; do
        MICA_CUDNN_LOG=$folder/log "$program" >"$folder/said" 2>&1 || { cat "$folder/said"; fail "$program failed"; }
    done
}

: >"$folder/log"
MICA_CUDNN_COMPARE=$second run "$@"
for call in ConvolutionForward ConvolutionBackwardData ConvolutionBackwardFilter ConvolutionBackwardBias \
    ConvolutionBiasActivationForward PoolingForward PoolingBackward SoftmaxForward SoftmaxBackward ActivationForward \
    ActivationBackward BatchNormalizationForwardInference BatchNormalizationForwardTraining \
    BatchNormalizationForwardTrainingEx BatchNormalizationBackward BatchNormalizationBackwardEx BackendExecute; do
    grep "compare: cudnn$call " "$folder/log" | grep -q ' [1-9][0-9]* compared *0 differ' ||
        fail "cudnn$call was not compared, or differs from itself"
done
grep 'compare: cudnn[A-Za-z0-9]*, ' "$folder/log" && fail "something differs from itself"

: >"$folder/log"
MICA_CUDNN_COMPARE=$wrong run "$@"
grep -q 'compare: cudnnActivationForward, y: 1 of [0-9]* f32 differ .*; most at (0,0[0,]*): ' "$folder/log" ||
    fail "the wrong element is not told"
grep -q 'compare: cudnnActivationForward  *[0-9]* compared *[1-9][0-9]* differ' "$folder/log" || fail "wrong calls are not counted"
grep -q 'compare: cudnnPoolingForward, not compared: CUDNN_STATUS_SUCCESS here, the original CUDNN_STATUS_NOT_SUPPORTED' \
    "$folder/log" || fail "a refusal is not told"
grep -q 'compare: cudnnPoolingForward  *0 compared *0 differ *[1-9]' "$folder/log" || fail "refusals are not counted"
grep -q 'compare: cudnnBackendExecute, t[0-9]*: [0-9]* of ' "$folder/log" || fail "a wrong graph is not told"
grep -q 'compare: cudnnSoftmaxForward  *[1-9][0-9]* compared *0 differ' "$folder/log" || fail "what is right differs"

: >"$folder/log"
MICA_CUDNN_COMPARE=$folder/none run "$1"
grep -q 'MICA_CUDNN_COMPARE: .*none' "$folder/log" || fail "a library that is not there is not told"
