#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The gradient of an embedding in bf16 (PyTorch 2.15.0, CPU) is added up in bf16, one by one: a row that is taken 1000
# times with gradients of 1 has 256, in f16 one taken 4096 times 2048. So it is by F.embedding, dense and sparse, by
# F.embedding_bag and by w[index]; by w.index_select, gather and take_along_dim, which take the same rows, it is 1000 and
# 4096. Of the operations behind them index_add, index_put(accumulate=True), coalesce and segment_reduce stand still (its
# mean of 1000 ones is 0.26), while scatter_add, scatter_reduce and sum add in f32.
# A word as frequent as a comma is taken that often in one batch, and its row has too small a gradient.
#
# Package of PyPI: torch 2.15.0, without NVIDIA's libraries (tools/python/cpu-torch), 0.6 GB to fetch; PYTHON names a
# Python that has this version already.
set -eu
tools=$(cd "$(dirname "$0")/../tools" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$work/venv"
    PYTHON=$work/venv/bin/python
    "$PYTHON" -m pip -q install --no-compile --no-deps --disable-pip-version-check torch==2.15.0
    "$PYTHON" -m pip -q install --no-compile --disable-pip-version-check typing_extensions==4.16.0 sympy==1.14.0 \
        networkx==3.6.1 jinja2==3.1.6 fsspec==2026.9.0 filelock==4.3.1
    "$tools/python/cpu-torch" "$PYTHON"
fi
"$PYTHON" - <<'PYTHON'
import sys
import warnings

warnings.simplefilter("ignore")  # of numpy, where it is missing
import torch
import torch.nn.functional as F

assert torch.__version__.split("+")[0] == "2.15.0", torch.__version__
good = True
for dtype, n, stop in ((torch.bfloat16, 1000, 256), (torch.float16, 4096, 2048), (torch.float32, 4096, 4096)):
    index, ones = torch.zeros(n, dtype=torch.long), torch.ones(n, dtype=dtype)
    columns = index[:, None].expand(n, 4)
    takes = {"embedding": lambda w: F.embedding(index, w), "embedding, sparse": lambda w: F.embedding(index, w, sparse=True),
             "w[index]": lambda w: w[index], "embedding_bag": lambda w: F.embedding_bag(index[:, None], w, mode="sum"),
             "index_select": lambda w: w.index_select(0, index), "gather": lambda w: w.gather(0, columns),
             "take_along_dim": lambda w: torch.take_along_dim(w, columns, 0)}
    found = {}
    for name, take in takes.items():
        w = torch.ones(3, 4, dtype=dtype, requires_grad=True)
        gradient = torch.autograd.grad(take(w).sum(), w)[0]
        found[name] = (gradient.to_dense() if gradient.is_sparse else gradient)[0, 0].item()
    zero = torch.zeros(1, dtype=dtype)
    found |= {"index_add": zero.index_add(0, index, ones), "index_put": zero.index_put((index,), ones, accumulate=True),
              "coalesce": torch.sparse_coo_tensor(index[None], ones, (1,)).coalesce().values(),
              "segment_reduce": torch.segment_reduce(ones, "sum", lengths=torch.tensor([n])),
              "scatter_add": zero.scatter_add(0, index, ones), "scatter_reduce": zero.scatter_reduce(0, index, ones, "sum"),
              "sum": ones.sum()}
    found = {k: float(v) for k, v in found.items()}
    mean = torch.segment_reduce(ones, "mean", lengths=torch.tensor([n])).item()
    print(f"{dtype}, {n} ones: " + ", ".join(f"{k} {v:g}" for k, v in found.items()) + f"; segment_reduce's mean {mean:.3g}")
    still = {"embedding", "embedding, sparse", "w[index]", "embedding_bag", "index_add", "index_put", "coalesce", "segment_reduce"}
    good &= all(v == (stop if k in still else n) for k, v in found.items()) and abs(mean - stop / n) < 0.01
sys.exit(not good)
PYTHON
