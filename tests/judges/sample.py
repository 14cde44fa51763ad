#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the logits processors of transformers leave of rows of logits, and the log-probabilities of it,
for tests/unit/test_sample.c, as tests/judges/sample.h.

    pip install transformers==5.17.0 torch==2.11.0
    tests/judges/sample.py > tests/judges/sample.h

The logits are those of the test: (j * 7919 + 13) % 96 / 8 - 6 of column j, all different. Processors come in
mica's order, vLLM's: bias, repetition, frequency and presence (as OpenAI's API defines these two: transformers
has none of them), temperature, min_p, top_k, top_p."""
import torch
import transformers
from transformers.generation import logits_process as lp

COLUMNS = 96
LINES = [dict(temperature=0.7), dict(top_k=5), dict(top_k=40, temperature=3), dict(top_p=0.1), dict(top_p=0.9),
         dict(top_p=0.9, temperature=2), dict(min_p=0.05), dict(min_p=0.3, temperature=2.5),
         dict(top_k=20, top_p=0.7, temperature=2), dict(top_k=30, top_p=0.8, min_p=0.1, temperature=4),
         dict(repetition=1.5), dict(repetition=0.7, top_k=12), dict(frequency=0.5, presence=0.25, top_p=0.8),
         dict(repetition=1.2, frequency=-0.25, presence=1, top_k=25, temperature=1.5)]


def count_of(j):
    return j % 5 if j % 3 == 0 else 0


def left_by(line):
    j = torch.arange(COLUMNS)
    x = ((j * 7919 + 13) % 96 / 8 - 6).to(torch.float32)[None]
    counts = torch.tensor([[count_of(i) for i in range(COLUMNS)]])
    ids = torch.nonzero(counts[0])[:, 0][None]
    if "repetition" in line:
        x = lp.RepetitionPenaltyLogitsProcessor(float(line["repetition"]))(ids, x)
    x = x - line.get("frequency", 0) * counts - line.get("presence", 0) * (counts > 0)
    if "temperature" in line:
        x = lp.TemperatureLogitsWarper(float(line["temperature"]))(ids, x)
    if "min_p" in line:
        x = lp.MinPLogitsWarper(line["min_p"])(ids, x)
    if "top_k" in line:
        x = lp.TopKLogitsWarper(line["top_k"])(ids, x)
    if "top_p" in line:
        x = lp.TopPLogitsWarper(line["top_p"])(ids, x)
    return torch.log_softmax(x[0].double(), 0)


print("/* SPDX-License-Identifier: Apache-2.0")
print(f" * Written by tests/judges/sample.py: transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}. 1: left out. */")
print("/* clang-format off */")
for line in LINES:
    text = " ".join(f"{k}={v}" for k, v in line.items())
    numbers = ", ".join("1" if v == -torch.inf else f"{v:.8g}" for v in left_by(line).tolist())
    print(f'    {{"{text}", {{{numbers}}}}},')
