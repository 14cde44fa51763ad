#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# F.cosine_embedding_loss of f16 (PyTorch 2.15.0, CPU) multiplies the two sums of squares in f16 before the root: from
# norms of 16 on the product is infinite, the cosine 0, and the gradient 0. Eight rows of 768 normal numbers, as
# embeddings have, give 1 for equal pairs and 1 for opposite ones (0 and 2 in f32), and 0 as different pairs (1 in f32).
# Small ones lose the digits below: rows of norm 0.02 are 0.05 apart from themselves, of 0.01 minus infinity, and at right
# angles NaN. F.cosine_similarity has the right cosine of all of these, and under autocast the loss is right, being taken
# in f32; so it is a model brought to f16 by .half() that learns nothing, with a loss that looks like one at its start.
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
torch.manual_seed(0)
good = True
x = torch.randn(8, 768).half()


def losses(v):
    same, other = torch.ones(len(v)), -torch.ones(len(v))
    return [round(F.cosine_embedding_loss(a, b, t).item(), 2) for a, b, t in ((v, v, same), (v, -v, same), (v, v, other))]


for dtype, expected in ((torch.float16, [1, 1, 0]), (torch.bfloat16, [0, 2, 1]), (torch.float32, [0, 2, 1])):
    cosine = F.cosine_similarity(x.to(dtype), -x.to(dtype)).mean().item()
    print(f"{dtype}: equal, opposite, equal as different {losses(x.to(dtype))}, cosine of opposite ones {cosine:.3f}")
    good &= losses(x.to(dtype)) == expected and abs(cosine + 1) < 0.01
v, w = x.clone().requires_grad_(), torch.randn(8, 768).half()
slope = torch.autograd.grad(F.cosine_embedding_loss(v, w, torch.ones(8)), v)[0].abs().max().item()
u = x.float().requires_grad_()
slope_f32 = torch.autograd.grad(F.cosine_embedding_loss(u, w.float(), torch.ones(8)), u)[0].abs().max().item()
print(f"largest gradient: f16 {slope}, f32 {slope_f32:.2g}")
good &= slope == 0 and slope_f32 > 1e-4
with torch.autocast("cpu", torch.float16):
    good &= losses(x) == [0, 2, 1]
for norm, low, high in ((15.5, -0.01, 0.01), (16, 1, 1), (100, 1, 1), (0.1, -0.01, 0.01), (0.02, 0.03, 0.1), (0.01, -torch.inf, -torch.inf)):
    v = torch.tensor([[norm, 0]]).half()
    loss = F.cosine_embedding_loss(v, v, torch.ones(1)).item()
    across = F.cosine_embedding_loss(v, v.flip(1), torch.ones(1)).item()
    print(f"norm {norm}: equal {loss:.3f}, at right angles {across}, cosine {F.cosine_similarity(v, v).item()}")
    good &= low <= loss <= high and F.cosine_similarity(v, v).item() == 1 and (across != across) == (norm == 0.01)
sys.exit(not good)
PYTHON
