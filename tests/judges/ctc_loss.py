#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CTC as PyTorch 2.15.0 has it on a CPU, and by adding up every alignment, for tests/unit/test_ctc_loss.c:

    pip install torch==2.15.0
    tests/judges/ctc_loss.py > tests/judges/ctc_loss.h

torch.nn.functional.ctc_loss and its gradient in f64, of 12 steps, 3 sequences and 5 classes, with lengths, repeated
labels, none, and more than steps can say. What PyTorch says of few steps is compared here with the sum over all
classes**steps alignments, which nobody's recurrences have part in."""
import itertools
import random

import torch

if torch.__version__.split("+")[0] != "2.15.0":
    raise SystemExit(f"torch is {torch.__version__}, the numbers are those of 2.15.0")

STEPS, BATCH, CLASSES, MOST = 12, 3, 5, 6
random.seed(7)
torch.manual_seed(7)


def all_alignments(probs, labels, blank):
    """The probability of what reads as labels once repeats are merged and blanks dropped."""
    total = 0.0
    for path in itertools.product(range(probs.shape[1]), repeat=probs.shape[0]):
        if [c for c, _ in itertools.groupby(path) if c != blank] == labels:
            p = 1.0
            for t, c in enumerate(path):
                p *= probs[t, c].item()
            total += p
    return total


def numbers(tensor):
    return "{" + ", ".join("NAN" if v != v else "INFINITY" if v == float("inf") else f"{v:.17g}"
                           for v in tensor.reshape(-1).tolist()) + "}"


def padded(labels):
    return [row + [-1] * (MOST - len(row)) for row in labels]


CASES = [  # labels, steps of each, blank
    ([[1, 2, 3], [2, 2, 4, 4], [3]], [12, 11, 9], 0),
    ([[0, 1, 0, 1], [], [2, 2, 2, 2, 2]], [10, 12, 12], 4),
    ([[4, 4, 3, 4], [1, 1, 1], [3, 4, 1, 0, 1, 3]], [6, 4, 7], 2),  # the second has no alignment
]

print("""/* SPDX-License-Identifier: Apache-2.0
 * Written by tests/judges/ctc_loss.py with PyTorch 2.15.0: blank, zero_infinity; labels, their
 * lengths, steps; log-probabilities; losses; gradients of the losses' sum weighted with 1, 2, 3;
 * mean, its gradient. */
/* clang-format off */""")
for labels, steps, blank in CASES:
    for zero in (False, True):
        logits = 2 * torch.randn(STEPS, BATCH, CLASSES, dtype=torch.float64)
        log_probs = logits.log_softmax(2).requires_grad_()
        lengths = [len(row) for row in labels]

        def losses(reduction):
            return torch.nn.functional.ctc_loss(log_probs, torch.tensor(padded(labels)), torch.tensor(steps),
                                                torch.tensor(lengths), blank, reduction, zero_infinity=zero)
        each = losses("none")
        for b, row in enumerate(labels):
            if steps[b] <= 7 and not (zero and each[b] == 0):
                sums = all_alignments(log_probs[:steps[b], b].exp(), row, blank)
                assert abs(sums - (-each[b]).exp().item()) <= 1e-13 * sums, (sums, each[b])
        weighted, = torch.autograd.grad(each, log_probs, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
        mean = losses("mean")
        of_mean, = torch.autograd.grad(mean, log_probs)
        print(f"{{{blank}, {int(zero)},")
        print("    {" + ", ".join(str(v) for row in padded(labels) for v in row) + "},")
        print("    {" + ", ".join(map(str, lengths)) + "}, {" + ", ".join(map(str, steps)) + "},")
        for tensor in (log_probs, each, weighted, mean, of_mean):
            print(f"    {numbers(tensor.detach())},")
        print("},")
