#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# torchrun of PyTorch 2.15.0 keeps one TCPStore over restarts of its workers, and init_process_group gives their keys no
# prefix for the attempt (torch/distributed/rendezvous.py: "We create a new TCPStore for every retry so no need to add
# prefix", which holds with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 alone). What the dead workers wrote is still there. With
# gloo a rank of the second start may so read the address that a rank of the first one had, where nobody listens: it
# retries for half a minute, fails with "Gloo connectFullMesh failed ... Connection refused", and the others
# wait; it depends on who comes first. --max-restarts then works on some days. A worker's way out is a
# store of its own for each start:
#     store, rank, world = next(dist.rendezvous("env://"))
#     store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
#     dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
#
# PYTHON: one that has this PyTorch; without it 3 GB are fetched.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv venv
    venv/bin/pip -q install torch==2.15.0
    PYTHON=$work/venv/bin/python
fi
"$PYTHON" -c "import torch; assert torch.__version__.split('+')[0] == '2.15.0', torch.__version__"
cat >worker.py <<'PYTHON'
import os
import sys

import torch.distributed as dist

store, rank, world = next(dist.rendezvous("env://"))
start = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"start {start} finds", "a key of a former one" if store.check(["key"]) else "nothing", flush=True)
store.set("key", "")
sys.exit(start == "0")
PYTHON
run() { "$@" "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node 1 --max-restarts 1 worker.py 2>/dev/null; }
shared=$(run env -u TORCH_DISABLE_SHARE_RDZV_TCP_STORE)
apart=$(run env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1)
echo "by default:"
echo "$shared"
echo "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1:"
echo "$apart"
[ "$shared" = "start 0 finds nothing
start 1 finds a key of a former one" ] && [ "$apart" = "start 0 finds nothing
start 1 finds nothing" ]
