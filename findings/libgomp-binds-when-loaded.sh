#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# With OMP_PROC_BIND=true (or OMP_PLACES=cores alone) GCC's OpenMP runtime (libgomp 12.2.0-14+deb12u1 of Debian 12)
# binds the thread that loads it to one CPU in its constructor: no parallel region has run, no function was
# called. From then on sched_getaffinity says one CPU for the whole main thread, and processes and threads that
# it starts inherit that, OpenMP or not. So a Python program that merely imports a package with libgomp
# inside counts one CPU (os.sched_getaffinity, which pools of workers size themselves by) and its workers
# share one core. LLVM's runtime (libomp5-14 1:14.0.6-12), loaded the same way, leaves the mask alone.
# Who counts CPUs by affinity has to do so before libgomp is loaded, or ask OpenMP for its places.
#
# Seen on two CPUs, "before after child": libgomp 2 1 1, libomp 2 2 2; without the variable 2 2 2 for both.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -q -o APT::Sandbox::User=root libgomp1=12.2.0-14+deb12u1 libomp5-14=1:14.0.6-12 >/dev/null
for package in *.deb; do dpkg -x "$package" root; done
cat >load.py <<'PYTHON'
import ctypes
import os
import subprocess
import sys

count = "import os; print(len(os.sched_getaffinity(0)))"
before = len(os.sched_getaffinity(0))
ctypes.CDLL(sys.argv[1])
after = len(os.sched_getaffinity(0))
child = int(subprocess.run([sys.executable, "-c", count], stdout=subprocess.PIPE, check=True).stdout)
print("one" if before == 1 else "all", *("all" if n == before else n for n in (after, child)))
PYTHON
libgomp=$(find "$work/root" -name 'libgomp.so.1' | head -n 1)
libomp=$(find "$work/root" -name 'libomp.so.5' -o -name 'libomp.so' | head -n 1)
plain=$(env -u OMP_PROC_BIND -u OMP_PLACES python3 load.py "$libgomp")
gnu=$(OMP_PROC_BIND=true python3 load.py "$libgomp")
places=$(env -u OMP_PROC_BIND OMP_PLACES=cores python3 load.py "$libgomp")
llvm=$(OMP_PROC_BIND=true python3 load.py "$libomp")
echo "CPUs before, after, of a child: libgomp $gnu (OMP_PLACES: $places), libomp $llvm, libgomp unbound $plain"
[ "${plain%% *}" = all ] || { echo "this machine has one CPU: nothing can be shown"; exit 77; }
[ "$plain" = "all all all" ] && [ "$llvm" = "all all all" ] && [ "$gnu" = "all 1 1" ]
