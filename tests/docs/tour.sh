#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tour is what a newcomer reads in one go, at most 14 KB, and the files and folders that it names
# are there. Details belong on the pages that it leads to.
set -eu
cd "$(dirname "$0")/../.."
exec python3 - <<'PYTHON'
import glob
import os
import re
import sys

MOST = 14 * 1024
text = open("docs/tour.md").read()
faults, named = [], 0
if len(text.encode()) > MOST:
    faults.append(f"{len(text.encode())} bytes, at most {MOST}")
for name in re.findall(r"`((?:src|include|tests|cli|data|bench|docs)/[\w./*-]*)`", text):
    named += 1
    if not glob.glob(name.replace("FAMILY", "*")):
        faults.append(f"there is no {name}")
print(*faults, sep="\n", end="\n" if faults else "")
print(f"tour: {len(text.encode())} bytes, {named} names, {len(faults)} faults")
sys.exit(1 if faults or not named else 0)
PYTHON
