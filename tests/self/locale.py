#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""In the library numbers with a decimal point are read and written by base/format.h alone: the C
library's functions follow the locale of the program that mica is loaded into."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
READS = re.compile(r"(?<![a-z_])(strto[df]|strtold|atof|wcstod)\s*\(")
CALLS = re.compile(r'(?<![a-z_])(v?s?n?f?d?printf|f?s?scanf)\s*\((?:[^;"]|"(?:[^"\\]|\\.)*")*;', re.S)
FLOATS = re.compile(r"%[-+ #0-9.*]*[lL]?[aefgAEFG]")


def faults(text):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    found = [m.group(0) for m in READS.finditer(text)]
    for call in CALLS.finditer(text):
        strings = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', call.group(0))).replace("%%", "")
        if FLOATS.search(strings):
            found.append(" ".join(call.group(0).split())[:90])
    return found


def main():
    planted = 'x = strtod(s, &e); snprintf(t, 9, "%d of " "%.3g", 1, y); sscanf(s, "%lf", &v);'
    assert len(faults(planted)) == 3, faults(planted)
    assert not faults('snprintf(t, 9, "%s %% f", a); mica_format(t, 9, "%g", y); /* strtod( */')
    bad = 0
    for path in sorted((ROOT / "src").rglob("*.[ch]")):
        if path.name in ("format.c", "format.h"):
            continue
        for fault in faults(path.read_text()):
            print(f"{path.relative_to(ROOT)}: {fault}: see base/format.h")
            bad += 1
    return bad != 0


sys.exit(main())
