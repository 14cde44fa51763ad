# SPDX-License-Identifier: Apache-2.0
"""Explaining, tuning, and what the library found on this machine."""

from __future__ import annotations

import sys
from ctypes import c_char_p

from ._context import as_context
from ._errors import Unsupported
from ._library import byref, lib, path, version
from ._plan import plan


def explain(problem: str, context: Context | str = "auto", **fields: Any) -> Explanation:
    """Every engine's answer to a problem line, whether or not one takes it."""
    from ._explain import Explanation

    context = as_context(context)
    made = None
    try:
        made = plan(problem, context=context, **fields)
    except Unsupported:
        if fields:
            raise
    return Explanation(made.line if made else problem, context, made)


def tune(problems: str | Sequence[str], context: Context | str = "auto", measure_ms: int = 2000,
         records: Any = None, progress: bool | None = None) -> list[Plan]:
    """Measures the best engines of each problem line and remembers the fastest, in the context and, if
    named, in a file of records. Ctrl-C ends it; what was measured until then is kept and saved.

    progress: True shows a bar where tqdm is installed, else a line for each problem on stderr; by
    default it does so on a terminal. Returns the plans."""
    problems = [problems] if isinstance(problems, str) else list(problems)
    context = as_context(context)
    if progress is None:
        progress = sys.stderr.isatty()
    plans = []
    try:
        for problem in _shown(problems, progress):
            plans.append(plan(problem, context=context, options={"mode": "measure", "measure_ms": measure_ms}))
    finally:
        if records is not None:
            context.save_records(records)
    return plans


def _shown(problems, progress):
    if not progress:
        return problems
    try:
        from tqdm import tqdm
    except ImportError:
        return _told(problems)
    return tqdm(problems, unit="problem")


def _told(problems):
    for number, problem in enumerate(problems, 1):
        print(f"mica: {number}/{len(problems)} {problem}", file=sys.stderr)
        yield problem


def info() -> dict[str, str]:
    """What was looked for on this machine and found, by name."""
    found = {"python.library": path, "python.version": version}
    key, value = c_char_p(), c_char_p()
    index = 0
    while lib.mica_info(index, byref(key), byref(value)) == 0:
        if key.value:
            found[key.value.decode()] = (value.value or b"").decode(errors="replace")
        index += 1
    return found
