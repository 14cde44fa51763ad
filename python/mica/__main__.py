# SPDX-License-Identifier: Apache-2.0
"""python -m mica: the command-line tool."""

import os
import sys


def main():
    from ._library import path, tool

    program = tool()
    if program is None:
        sys.exit(f"mica: the tool lies neither in the package nor beside {path} nor on PATH; "
                 "the wheel brings it, `make` builds it")
    environment = dict(os.environ)
    # The tool finds the library beside itself; where it lies elsewhere, it is told.
    folder = os.path.dirname(path)
    if folder and folder != os.path.dirname(program):
        found = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = folder + (os.pathsep + found if found else "")
    os.execve(program, ["mica", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
