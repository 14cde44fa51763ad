#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Measures what docs/performance.md says of a GPU: every set beside its peers, at one commit.
#   [MICA=build/mica] [EXAMPLES=build/tests/examples] [COMMIT=ID] [DEVICE=cuda:0] [PEER_SECONDS=0.4] \
#       bench/all.sh FOLDER [STEP...]
# Step `compile` makes the kernels of those that follow, ahead and in parallel. Without steps all are taken,
# in the order below: about 30 minutes on an H100 with 16 CPU cores. It needs
# cuDNN and cuBLASLt (MICA_CUDNN, MICA_CUBLASLT, or where the linker looks) and a Python with PyTorch
# (PYTHON). FOLDER gets peers.jsonl, torch.jsonl and first.jsonl; `bench/merge FOLDER bench/results/h100`
# puts them in the place of older rows.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || {
    sed -n '3,12s/^# \{0,1\}//p' "$0"
    exit 2
}
mkdir -p "$1"
out=$(realpath "$1")
shift
tool=${MICA:-build/mica}
examples=${EXAMPLES:-build/tests/examples}
commit=${COMMIT:-$(git describe --always --dirty)}
device=${DEVICE:-cuda:0}
python=${PYTHON:-python3}
seconds=${PEER_SECONDS:-0.4}
work=$(mktemp -d) rows=$work/rows
trap 'rm -rf "$work"' EXIT

beside_nvidia=(gemm gemm-decode conv conv_stem conv_fused conv_grouped conv_depthwise conv_nchw resnet50)
beside_torch=(grouped_gemm gemm-blocks grouped_gemm-f8 attention attention-f8 attention-decode rope
    functions-bf16 functions-f32 pointwise pointwise_chains reduce scan loss ctc_loss linear_cross_entropy quantize quantized_gemm
    random softmax sample moe_route moe_permute rnn resize grid_sample im2col
    lrn fake_quantize roi_align moe moe-codes deform_conv nms quantize_rows integer_gemm)

# The problem lines of a set; functions-TYPE has every element function, of 64 M elements.
lines() {
    case $1 in
    functions-*) bench/functions.sh "${1#*-}" 67108864 ;;
    *) sed 's/#.*//; /^ *$/d' "bench/cases/$1.txt" ;;
    esac
}

# Kernels of the steps' sets, so that no measurement waits for a compiler. Of lines that fail it says why.
compile() {
    local set
    for set in "${steps[@]}"; do
        case " ${beside_nvidia[*]} ${beside_torch[*]} " in *" $set "*) lines "$set" ;; esac
        [ "$set" != graphs ] || ls bench/cases/graphs/*.graph
    done | sort -u | xargs -d '\n' -n 1 -P "$(nproc)" bash -c '
        said=$("$0" check --quiet --pick --compile-only --device "$1" "$2" 2>&1) || {
            printf "%s\n%s\n" "$2" "$said"
            exit 1
        }' "$tool" "$device"
}

# keep FILE COMMAND...: what it measured is kept even where a line of it failed.
keep() {
    local file=$1 failed=0
    shift
    : >"$rows"
    "$@" || failed=$?
    cat "$rows" >>"$out/$file"
    return $failed
}

nvidia() {
    keep peers.jsonl "$tool" bench --quiet --device "$device" --pick --engine peer/cudnn,peer/cublaslt --seconds 0.08 \
        --set "$1" --commit "$commit" --json "$rows" "bench/cases/$1.txt"
}

# Sets that memory bounds stand beside a copy, too, and chains beside torch.compile.
torch() {
    local more=()
    case $1 in
    functions-* | pointwise | reduce | quantize | random | moe_route | resize | lrn) more=(--copy) ;;
    pointwise_chains) more=(--copy --compile) ;;
    esac
    lines "$1" >"$work/$1.txt"
    keep torch.jsonl "$python" bench/peers/torch_peer.py --device "$device" --library "$(dirname "$tool")/libmica.so.0" \
        --seconds "$seconds" "${more[@]}" --commit "$commit" --json "$rows" "$work/$1.txt"
}

first() {
    COMMIT=$commit bench/first.sh "$tool" "$out/first.jsonl" \
        "conv x=bf16:64x64x56x56:nhwc w=bf16:64x64x3x3:nhwc pad=1x1" pick peer/cudnn &&
        COMMIT=$commit bench/first.sh "$tool" "$out/first.jsonl" \
            "gemm a=bf16:4096x4096 b=bf16:4096x4096" pick peer/cublaslt
}

# Of an expression that no process has planned before.
first_pointwise() {
    COMMIT=$commit bench/first.sh "$tool" "$out/first.jsonl" \
        "pointwise expr=gelu(x0+x1)*x2 x0=bf16:16384x4096 x1=bf16:4096 x2=bf16:16384x4096" pick
}

# Graphs beside eager calls and torch.compile, whose kernels four processes make ahead.
graphs() {
    local peer=("$python" bench/peers/torch_graphs.py --device "$device" --library "$(dirname "$tool")/libmica.so.0" --compile)
    printf '%s\n' bench/cases/graphs/*.graph | xargs -n 3 -P 4 "${peer[@]}" --warm >"$work/warm" 2>&1 || cat "$work/warm" >&2
    keep torch.jsonl "${peer[@]}" --seconds "$seconds" --commit "$commit" --json "$rows" bench/cases/graphs/*.graph
}

images() {
    keep torch.jsonl "$python" bench/peers/resnet50_torch.py --example "$examples/03_resnet50" \
        --commit "$commit" --json "$rows"
}

steps=("$@")
[ $# -gt 0 ] || steps=(compile "${beside_nvidia[@]}" "${beside_torch[@]}" graphs first first_pointwise images)
status=0
for step in "${steps[@]}"; do
    start=$SECONDS how=ok
    case " ${beside_nvidia[*]} " in
    *" $step "*) nvidia "$step" || how=FAILED ;;
    *)
        case " ${beside_torch[*]} " in
        *" $step "*) torch "$step" || how=FAILED ;;
        *)
            case $step in
            compile | graphs | first | first_pointwise | images) "$step" || how=FAILED ;;
            *)
                echo "all.sh: no step $step; there are compile ${beside_nvidia[*]} ${beside_torch[*]} graphs first first_pointwise images" >&2
                exit 2
                ;;
            esac
            ;;
        esac
        ;;
    esac
    printf '%-16s %-6s %5d s\n' "$step" "$how" $((SECONDS - start))
    [ $how = ok ] || status=1
done
exit $status
