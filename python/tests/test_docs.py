# SPDX-License-Identifier: Apache-2.0
"""The programs of README.md and docs/python.md run; those that need PyTorch where it is."""

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
import unittest

import judge
import mica


def programs(page):
    return re.findall(r"^```python\n(.*?)^```", (judge.ROOT / page).read_text(), re.M | re.S)


class Pages(unittest.TestCase):
    def run_page(self, page, least):
        blocks = programs(page)
        self.assertGreaterEqual(len(blocks), least)
        names = {}
        for block in sorted(blocks, key=lambda b: "import mica\n" not in b):  # what introduces the names comes first
            if "mica.torch" in block or "mica.jax" in block:  # tests/peers run the latter
                compile(block, page, "exec")
                continue
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block, page, "exec"), names)
        return names

    def test_readme(self):
        self.assertEqual(self.run_page("README.md", 2)["plan"].op, "conv")

    def test_python(self):
        names = self.run_page("docs/python.md", 3)
        self.assertEqual(names["y"].shape, (2, 8, 32, 32))

    def test_notebook(self):
        """Cell after cell; what a cell ends with is shown as a notebook would."""
        book = json.loads((judge.ROOT / "examples" / "tour.ipynb").read_text())
        names, shown = {}, 0
        for cell in book["cells"]:
            if cell["cell_type"] != "code":
                continue
            self.assertEqual(cell["outputs"], [], "a notebook is kept without its outputs")
            code = ast.parse("".join(cell["source"]))
            last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(code, "tour.ipynb", "exec"), names)
                if last:
                    try:
                        value = eval(compile(ast.Expression(last.value), "tour.ipynb", "eval"), names)
                    except mica.NoCompiler as error:  # a GPU's plan, where no NVRTC is
                        print("SKIPPED a cell:", str(error).split(":")[0], file=sys.stderr)
                        continue
                    shown += "<table>" in getattr(value, "_repr_html_", lambda: "")()
        self.assertGreater(shown, 0)

    def test_training_is_what_was_measured(self):
        """The table of docs/python.md says what bench/training.py left in its result file."""
        rows = [json.loads(line) for line in (judge.ROOT / "bench/results/epyc-2core/training.jsonl").read_text().splitlines()]
        page, models = (judge.ROOT / "docs/python.md").read_text(), 0
        for exact, theirs, ours in zip(*(rows[i::3] for i in range(3))):
            apart = [max(abs(a - b) / b for a, b in zip(one["loss"], exact["loss"])) for one in (theirs, ours)]
            self.assertEqual([r["engine"] for r in (exact, theirs, ours)], ["peer/torch", "peer/torch", "mica.torch"])
            self.assertIn(f"| {ours['line'].split()[0]} | {ours['replaced']}, {ours['left']} | {ours['loss'][0]:.3f}, "
                          f"{ours['loss'][-1]:.3f} | {apart[0]:.1e} | {apart[1]:.1e} |", page)
            models += 1
        self.assertEqual(models, 4)

    def test_tables_are_what_was_measured(self):
        found = subprocess.run([sys.executable, judge.ROOT / "bench/python_page.py", "--check"], capture_output=True, text=True)
        self.assertEqual(found.returncode, 0, found.stderr)

    def test_commands_are_the_makefiles(self):
        commands = re.findall(r"^make (\w+)", (judge.ROOT / "docs/python.md").read_text(), re.M)
        makefile = (judge.ROOT / "Makefile").read_text()
        self.assertTrue(commands)
        for command in commands:
            self.assertRegex(makefile, rf"(?m)^{command}:")


if __name__ == "__main__":
    unittest.main()
