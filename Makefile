# SPDX-License-Identifier: Apache-2.0
# The short way in. `make demo` and `make test` install what is missing with apt, build and run;
# everything else is CMake's: cmake --list-presets.
#
#   make            build the library and the tool into build/
#   make demo       ... and run the demonstration
#   make test       ... with the tests, and run them all (no GPU and no network needed)
#   make test-onnx  ONNX's own node tests through every engine of the CPU (the package comes from PyPI)
#   make test-grids sampling beside PyTorch, on 300 problems at random (tools/setup python-peers-cpu gets it)
#   make test-resizes  resizing beside PyTorch and, where it is there, ONNX Runtime, on 300 problems at random
#   make test-families  pooling, recurrent nets, CTC and others beside the same, on 300 problems at random of each
#   make wheel      the Python package, into dist/: pip install dist/mica-*.whl
#   make pack       compiled kernels of common problems, into dist/, to be shipped beside the wheel
#   make install    into PREFIX (default /usr/local; DESTDIR is honoured), stripped
#   make lint       formatting and layering
#   make format     reformat the C files

JOBS   ?= $(shell nproc)
PREFIX ?= /usr/local
# Warnings stop our own CI, never a user with a newer compiler.
WERROR ?= $(if $(CI),ON,OFF)
CMAKE_ARGS ?=

CONFIGURE = cmake --preset release -DMICA_WERROR=$(WERROR) $(CMAKE_ARGS)
# Kernels (.cu, .cuh) are laid out by hand: tables of one-line device functions, inline assembly.
FORMATTED = $(shell git ls-files '*.c' '*.h')

.PHONY: all demo test test-onnx test-grids test-resizes test-families wheel pack install lint format clean
all:
	@tools/setup build
	$(CONFIGURE)
	cmake --build build -j $(JOBS) --target product

# Only what the demonstration runs: neither the static library nor the man pages.
demo:
	@tools/setup build
	$(CONFIGURE)
	cmake --build build -j $(JOBS) --target mica
	build/mica demo

test:
	@tools/setup build test
	$(CONFIGURE) -DMICA_TESTS=ON
	cmake --build build -j $(JOBS)
	ctest --test-dir build --output-on-failure --no-tests=error -j $(JOBS) \
		--output-junit junit.xml

# MICA_ONNX, by default ~/.cache/mica/onnx, is where the package is put.
test-onnx:
	@tools/setup build test onnx
	$(CONFIGURE)
	cmake --build build -j $(JOBS) --target product python_package
	PYTHONPATH=build/python MICA_LIBRARY=$(CURDIR)/build/libmica.so $(or $(MICA_ONNX),$(HOME)/.cache/mica/onnx)/bin/python -B \
		tests/onnx/judge.py --compare docs/onnx.md

# MICA_PEERS, by default ~/.cache/mica/python-peers, is where PyTorch is.
test-grids:
	@tools/setup build test
	$(CONFIGURE)
	cmake --build build -j $(JOBS) --target product python_package
	PYTHONPATH=build/python MICA_LIBRARY=$(CURDIR)/build/libmica.so \
		$(or $(MICA_PEERS),$(HOME)/.cache/mica/python-peers)/bin/python -B tests/judges/random_grids.py

test-resizes:
	@tools/setup build test
	$(CONFIGURE)
	cmake --build build -j $(JOBS) --target product python_package
	PYTHONPATH=build/python MICA_LIBRARY=$(CURDIR)/build/libmica.so \
		$(or $(MICA_PEERS),$(HOME)/.cache/mica/python-peers)/bin/python -B tests/judges/resize_random.py

test-families:
	@tools/setup build test
	$(CONFIGURE)
	cmake --build build -j $(JOBS) --target product python_package
	PYTHONPATH=build/python MICA_LIBRARY=$(CURDIR)/build/libmica.so \
		$(or $(MICA_PEERS),$(HOME)/.cache/mica/python-peers)/bin/python -B tests/judges/families_random.py

# One wheel for all Pythons; nothing is compiled where it is installed.
wheel:
	@tools/setup build wheel
	$(CONFIGURE)
	cmake --build build -j $(JOBS) --target wheel
	rm -rf dist && cp -r build/dist dist

# Kernels of packs/common.txt for each generation of GPUs, into dist/: `mica cache unpack` takes the file over
# once it is unpacked by xz. Needs NVRTC, and no GPU.
pack: all
	mkdir -p dist
	build/mica cache build dist/mica-kernels.mica packs/common.txt
	xz -9 -f -T 0 dist/mica-kernels.mica

install: all
	cmake --install build --strip --prefix $(PREFIX)

lint:
	tools/layering
	@command -v clang-format-14 >/dev/null || { \
		echo "make lint: clang-format-14 is not installed, so the formatting was not looked at"; \
		exit 1; }
	@said=$$(printf '%s\n' $(FORMATTED) | xargs -n 32 -P $(JOBS) clang-format-14 --dry-run -Werror 2>&1) || { \
		echo "$$said" | sed 's/^\([^: ]*\):[0-9].*clang-format-violations.*/\1: not as clang-format-14 would have it: make format/' | \
			grep -E 'make format$$|^clang-format|^xargs' | sort -u; exit 1; }

format:
	clang-format-14 -i $(FORMATTED)

clean:
	rm -rf build build-* dist
