# SPDX-License-Identifier: Apache-2.0
"""Why an engine was chosen and what keeps the others out."""

import html
from ctypes import c_char_p, c_double, c_size_t, c_void_p

from ._errors import check
from ._library import abi, byref, lib
from ._tensor import Tensor


class Explanation:
    """engines: for each its name, status, reason, config, predicted_ms; arguments, flop, bytes,
    roofline_ms, chosen, workspace. Printed as text, in a notebook as tables."""

    def __init__(self, line, context, plan=None):
        self.line, self.device = line, context.name
        problem = c_void_p()
        check(lib.mica_problem_from_text(line.encode(), byref(problem)))
        try:
            self._read(problem, context._open())
        finally:
            lib.mica_problem_destroy(problem)
        self.chosen = plan.engine if plan else None
        self.config = plan.config if plan else ""
        self.workspace = self._bookings(plan) if plan else []
        self.workspace_bytes = plan.workspace if plan else None

    def _read(self, problem, context):
        flop, size = c_double(), c_double()
        lib.mica_problem_cost(problem, byref(flop), byref(size))
        self.flop, self.bytes = flop.value, size.value
        self.roofline_ms = lib.mica_problem_roofline(context, problem)
        self.arguments, info = [], abi.mica_arg_info()
        index = 0
        while lib.mica_problem_arg(problem, index, byref(info)) == 0:
            if info.dir != abi.MICA_UNUSED:
                direction = {abi.MICA_IN: "in", abi.MICA_OUT: "out", abi.MICA_INOUT: "in, out"}[info.dir]
                self.arguments.append((info.name.decode(), direction, Tensor.of(info.tensor)))
            index += 1
        self.engines, verdict = [], abi.mica_verdict()
        while lib.mica_problem_verdict(context, problem, len(self.engines), byref(verdict)) == 0:
            self.engines.append({
                name: v.decode() if isinstance(v, bytes) else v
                for name, v in ((name, getattr(verdict, name)) for name, *_ in verdict._fields_)
            })
            self.engines[-1]["status"] = lib.mica_status_name(verdict.status).decode()

    @staticmethod
    def _bookings(plan):
        found, name, offset, size = [], c_char_p(), c_size_t(), c_size_t()
        while lib.mica_plan_booking(plan._handle, len(found), byref(name), byref(offset), byref(size)) == 0:
            found.append((name.value.decode(), size.value))
        return found

    def _rows(self):
        for e in self.engines:
            taken = e["status"] == "MICA_OK"
            yield (
                "*" if e["engine"] == self.chosen else "",
                e["engine"],
                f"{e['predicted_ms']:.4g}" if taken and not e["reference"] else "-",
                (self.config if e["engine"] == self.chosen else e["config"]) if taken else e["reason"],
            )

    def __repr__(self):
        lines = [self.line, "", "arguments"]
        lines += [f"  {name:10} {direction:8} {tensor}" for name, direction, tensor in self.arguments]
        lines += ["", f"cost: {self.flop:.6g} flop, {self.bytes:.6g} bytes, at least {self.roofline_ms:.4g} ms on "
                  f"{self.device}", "", "engines (* is the choice; predicted ms; config, or why not)"]
        lines += [f"{mark:1} {name:16} {ms:>10}  {why}" for mark, name, ms, why in self._rows()]
        if self.workspace_bytes is not None:
            lines += ["", f"workspace: {self.workspace_bytes} bytes"]
            lines += [f"  {name:16} {size}" for name, size in self.workspace]
        return "\n".join(lines)

    def _repr_html_(self):
        def table(head, rows):
            cells = "".join(f"<th>{html.escape(c)}</th>" for c in head)
            body = "".join("<tr>" + "".join(f"<td style='text-align:left'>{html.escape(str(c))}</td>" for c in row)
                           + "</tr>" for row in rows)
            return f"<table><tr>{cells}</tr>{body}</table>"

        parts = [f"<code>{html.escape(self.line)}</code>",
                 table(("argument", "direction", "tensor"), self.arguments),
                 f"<p>{self.flop:.6g} flop, {self.bytes:.6g} bytes, at least {self.roofline_ms:.4g} ms on "
                 f"{html.escape(self.device)}</p>",
                 table(("", "engine", "predicted ms", "config, or why not"), self._rows())]
        if self.workspace_bytes is not None:
            parts.append(f"<p>workspace: {self.workspace_bytes} bytes</p>")
        return "\n".join(parts)
