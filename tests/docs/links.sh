#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every relative link of a page leads to a file of the tree.
set -eu
cd "$(dirname "$0")/../.."
exec python3 - <<'PYTHON'
import os
import re
import sys

links, broken = 0, []
for folder, folders, files in os.walk("."):
    folders[:] = [f for f in folders if not f.startswith((".", "build"))]
    for page in (os.path.join(folder, f) for f in files if f.endswith(".md")):
        with open(page) as file:
            text = re.sub(r"```.*?```|`[^`\n]*`", "", file.read(), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:|#", target):
                continue
            links += 1
            if not os.path.exists(os.path.join(folder, target.split("#")[0])):
                broken.append(f"{page}: {target}")
print(*broken, sep="\n", end="\n" if broken else "")
print(f"links: {links}, {len(broken)} broken")
sys.exit(1 if broken or not links else 0)
PYTHON
