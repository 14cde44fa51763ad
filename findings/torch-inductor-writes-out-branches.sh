#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.11.0: torch.compile meets a custom operator for the first time and, before it makes it a call ("Creating
# implicit fallback for"), writes all that the operator's arguments were made of into a text for a log message, whether that
# is shown or not (torch/_inductor/graph.py, call_function). A tensor that two operators use is written twice, what it was
# made of four times, and so on: the text, and the time, grow by some 2.2 for every custom operator in a chain that takes
# one tensor twice. An operator that comes first behind the sixteen residual blocks of a network of custom operators is
# never compiled. One that has come before, near the front, costs nothing, so the order of first uses decides. Registering
# the operator with torch._inductor.lowering.make_fallback beforehand avoids it. In 2.15.0 the text is made when a log wants
# it.
#
# Prints the text's length behind 2, 4, 6 and 8 such operators; fails unless each is at least thrice the one before.
# PYTHON: one that has this PyTorch; without it 3 GB are fetched. A C++ compiler is needed.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv venv
    venv/bin/pip -q install torch==2.11.0
    PYTHON=$work/venv/bin/python
fi
"$PYTHON" -c "import torch; assert torch.__version__.split('+')[0] == '2.11.0', torch.__version__"
cat >chain.py <<'PYTHON'
import sys

import torch
from torch._inductor import exc

library = torch.library.Library("demo", "DEF")
for name, schema, function in (("both", "(Tensor a, Tensor b) -> Tensor", lambda a, b: a + b), ("last", "(Tensor a) -> Tensor", lambda a: a * 2)):
    library.define(name + schema)
    library.impl(name, function, "CPU")
    torch.library.register_fake(f"demo::{name}", lambda a, *rest: torch.empty_like(a), lib=library)

lengths = {}
write = exc.OperatorIssue.operator_str


def measured(target, args, kwargs):
    text = write(target, args, kwargs)
    lengths[str(target)] = len(text)
    return text


exc.OperatorIssue.operator_str = staticmethod(measured)


def chain(x):
    for _ in range(int(sys.argv[1])):
        x = torch.ops.demo.both(x, x)
    return torch.ops.demo.last(x)


torch.compile(chain, fullgraph=True)(torch.ones(4))
print(lengths["demo.last.default"])
PYTHON
before=0
for count in 2 4 6 8; do
    now=$("$PYTHON" chain.py $count 2>/dev/null)
    echo "behind $count operators: $now characters"
    [ "$now" -ge $((3 * before)) ]
    before=$now
done
[ "$before" -ge 100000 ]
