#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# embedding.sh BUILD: each test that docs/embedding.md names is one of the build's, and no section of promises
# is without one.
set -eu
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
ctest --test-dir "$build" -N | sed -n 's/^ *Test *#[0-9]*: //p' >"$build/embedding.tests"
exec python3 - "$build/embedding.tests" <<'PYTHON'
import re
import sys

known = set(open(sys.argv[1]).read().split())
bad, named = [], 0
for section in open("docs/embedding.md").read().split("\n## ")[1:]:
    title = section.split("\n")[0]
    tests = re.findall(r"`((?:unit|self|lint|install|soak|abi|docs)/[\w-]+)`", section)
    named += len(tests)
    bad += [f"{title}: no test {t}" for t in tests if t not in known]
    bad += [] if tests or re.search(r"`tests/|bench/results/", section) else [f"{title}: names no test"]
print(*bad, sep="\n", end="\n" if bad else "")
print(f"embedding: {named} tests named")
sys.exit(1 if bad or not named else 0)
PYTHON
