#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs what there is of mica from Python on a GPU: the tests beside PyTorch, JAX and CuPy with tensors there, PyTorch's own
# samples, training under torchrun, the cost of a call.
#   MICA_LIBRARY=.../libmica.so.0 PYTHONPATH=build/python bench/python_cuda.sh FOLDER [STEP...]
# Steps: cuda torch gradients jax opinfo (side by side), then distributed (two GPUs or more), calls. Each has a limit
# (LIMIT, 100 seconds). FOLDER gets a log of each, opinfo-cuda.json, and summary.txt.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || {
    sed -n '3,8s/^# \{0,1\}//p' "$0"
    exit 2
}
mkdir -p "$1"
out=$(realpath "$1")
shift
python=${PYTHON:-python3} limit=${LIMIT:-100} peers=python/tests/peers
steps=("$@")
[ $# -gt 0 ] || steps=(cuda torch gradients jax opinfo distributed calls)
: >"$out/summary.txt"

# step NAME COMMAND...: its log, and a line of the summary.
step() {
    local name=$1 start=$SECONDS code
    shift
    case " ${steps[*]} " in *" $name "*) ;; *) return ;; esac
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
    code=$?
    printf '%-12s %-11s %4d s  %s\n' "$name" "$([ $code = 0 ] && echo passed || echo "FAILED $code")" $((SECONDS - start)) \
        "$(grep -E '^(Ran |OK|FAILED|opinfo:|ddp|fsdp2)' "$out/$name.log" | tr '\n' ' ' | cut -c1-150)" >>"$out/summary.txt"
}

torchrun() {
    local engine
    for engine in ddp fsdp2; do
        "$python" -m torch.distributed.run --standalone --nproc-per-node 2 examples/torchrun_transformer.py --engine $engine \
            --losses "$out/$engine.json" || return
    done
    rm -rf "$out/checkpoints"
    "$python" -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1 examples/torchrun_transformer.py \
        --checkpoints "$out/checkpoints" --kill 12 --losses "$out/killed.json" || return
    rm -rf "$out/checkpoints"
    "$python" - "$out" <<'P'
import json, sys
ddp, killed = (json.load(open(f"{sys.argv[1]}/{n}.json")) for n in ("ddp", "killed"))
print("distance of the run that was killed:", max(abs(ddp[n] - killed[n]) for n in ddp))
sys.exit(max(abs(ddp[n] - killed[n]) for n in ddp) > 1e-3)
P
}
export -f torchrun
export python out

export MICA_TEST_DEVICE=cuda XLA_PYTHON_CLIENT_PREALLOCATE=false OMP_NUM_THREADS=1
step cuda "$python" -B $peers/on_a_gpu.py -v &
step torch "$python" -B $peers/test_torch.py -v &
step gradients "$python" -B $peers/test_gradients.py -v &
step jax "$python" -B $peers/test_jax.py -v BesideJax EveryGradient InPlace Refusals Documentation Threads &
step opinfo "$python" -B $peers/opinfo.py --device cuda --share 7/${SHARE:-12} --processes "${PROCESSES:-10}" \
    --seconds $((limit * 6 / 10)) --json "$out/opinfo-cuda.json" &
wait
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())')
if [ "$gpus" -ge 2 ]; then
    step distributed bash -c torchrun
fi
step calls "$python" bench/python.py --device cuda --json "$out/calls.json"
cat "$out/summary.txt"
! grep -q FAILED "$out/summary.txt"
