#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cudnn_frontend.py FRONT TESTS [FILE...] [--json FILE] [--processes N] [--limit S] [--commit ID]: cudnn-frontend's own Python
tests on a GPU, with the original cuDNN and with FRONT (build/front/libcudnn.so.9) preloaded in its place.

TESTS: the folder test/python of a checkout of NVIDIA/cudnn-frontend at the tag of the installed package; FILE: only these of its
test_*.py. It needs nvidia-cudnn-frontend, pytest and looseversion beside PyTorch. The package opens cuDNN in its own environment's
folder by path, and only where there is none by name: so the tests run in an empty environment on top of this one.
Each file has a process of its own with either library. A test that passed with the original and not with FRONT is counted by what
it said last. --json: a row for each file, with the tests that differ and why."""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import xml.etree.ElementTree


def outcomes(report):
    """Of each test: passed, failed, error or skipped, and its last words."""
    found = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name, outcome, said = case.get("name"), "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                outcome, said = {"failure": "failed"}.get(child.tag, child.tag), child.get("message") or child.text or ""
        found[name] = outcome, said
    return found


def reason(said):
    """The part of a message that is alike for tests that fail alike."""
    found = re.search(r"(cudnn[A-Z]\w*: [^\n]*)", said) or re.search(r"(AssertionError[^\n]*|\w+Error: [^\n]*|TEST WAIVED[^\n]*)", said)
    return re.sub(r"0x[0-9a-f]+", "0x", (found[1] if found else said.strip().split("\n")[0]))[:200]


def run(python, tests, file, environment, limit, work):
    report = work / f"{file}.{'mica' if 'LD_PRELOAD' in environment else 'original'}.xml"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "--override-ini", "junit_logging=no", file]
    ended = ""
    try:
        done = subprocess.run(command, cwd=tests, env=environment, capture_output=True, text=True, timeout=limit, errors="replace")
        if not report.exists():
            ended = f"exit {done.returncode}: " + (done.stderr or done.stdout).strip()[-400:]
    except subprocess.TimeoutExpired:
        ended = f"no end within {limit:.0f} s"
    return (outcomes(report) if report.exists() else {}), ended


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("front", type=pathlib.Path)
    p.add_argument("tests", type=pathlib.Path)
    p.add_argument("files", nargs="*")
    p.add_argument("--json", type=pathlib.Path)
    p.add_argument("--processes", type=int, default=8)
    p.add_argument("--limit", type=float, default=200, help="seconds for a file with one library")
    p.add_argument("--commit", default="")
    given = p.parse_args()
    files = given.files or sorted(f.name for f in given.tests.glob("test_*.py") if f.name != "test_utils.py")
    rows, bad = [], 0
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", work / "on_top"], check=True)
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), sysconfig.get_path("purelib")]))
        base = dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="2", PYTHONDONTWRITEBYTECODE="1")
        sides = {"original": (sys.executable, base),
                 "mica": (work / "on_top/bin/python", base | {"LD_PRELOAD": str(given.front.resolve()), "CUDNN_LOGLEVEL_DBG": "0"})}
        with concurrent.futures.ThreadPoolExecutor(given.processes) as pool:
            jobs = {(file, side): pool.submit(run, python, given.tests, file, environment, given.limit, work)
                    for file in files for side, (python, environment) in sides.items()}
            for file in files:
                (theirs, their_end), (ours, our_end) = jobs[file, "original"].result(), jobs[file, "mica"].result()
                passed = [t for t, (outcome, _) in theirs.items() if outcome == "passed"]
                both = [t for t in passed if ours.get(t, ("", ""))[0] == "passed"]
                why = collections.Counter(
                    f"{ours[t][0]}: {reason(ours[t][1])}" if t in ours else our_end or "not run" for t in passed if t not in both)
                row = {"file": file, "original_passed": len(passed), "mica_passed_of_them": len(both),
                       "original_skipped": sum(o == "skipped" for o, _ in theirs.values()),
                       "original_failed": sum(o in ("failed", "error") for o, _ in theirs.values()),
                       "original_ended": their_end, "mica_ended": our_end, "why": dict(why.most_common()), "commit": given.commit}
                rows.append(row)
                bad += len(passed) - len(both)
                print(f"{file}: {len(both)} of {len(passed)} that pass with the original {their_end}{' / ' + our_end if our_end else ''}", flush=True)
                for said, count in why.most_common(4):
                    print(f"    {count} x {said[:230]}", flush=True)
    if given.json:
        given.json.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    print(f"{sum(r['mica_passed_of_them'] for r in rows)} of {sum(r['original_passed'] for r in rows)} tests that pass with the original pass on mica")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
