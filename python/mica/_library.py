# SPDX-License-Identifier: Apache-2.0
"""The shared library: where it is, and its functions with their types.

Nothing else in the package loads it. _abi, its structs and prototypes, is made of the public headers
while the library is built."""

import ctypes
import os
import sys
from ctypes import byref, c_char_p, create_string_buffer  # noqa: F401 (used by those who import this)

try:
    from . import _abi as abi
except ImportError as missing:
    raise ImportError(
        f"{os.path.dirname(__file__)} is the source of the package, without what a build makes of the "
        "library's headers: `make wheel` builds dist/mica-*.whl, and a build has the package in build/python"
    ) from missing

HERE = os.path.dirname(os.path.abspath(__file__))
SONAME = f"libmica.so.{abi.MICA_VERSION_MAJOR}"


def _candidates():
    """Paths to try, with where each comes from. MICA_LIBRARY stands alone: what it names, or nothing."""
    named = os.environ.get("MICA_LIBRARY")
    if named:
        return [(named, "MICA_LIBRARY")]
    beside = os.path.join(HERE, "lib", SONAME)
    return [(beside, "beside the package"), (SONAME, "the loader's own search")]


def _load():
    tried = []
    for path, why in _candidates():
        if os.sep in path and not os.path.exists(path):
            tried.append(f"{path} ({why}): no such file")
            continue
        try:
            return ctypes.CDLL(path), path
        except OSError as error:
            tried.append(f"{path} ({why}): {error}")
    raise ImportError("mica's library was not found; tried: " + "; ".join(tried))


lib, path = _load()

for _name, (_result, _arguments) in abi.FUNCTIONS.items():
    try:
        _function = getattr(lib, _name)
    except AttributeError:
        raise ImportError(f"{path} has no {_name}: it is another version than this package") from None
    _function.restype = _result
    _function.argtypes = _arguments

version = lib.mica_version().decode()
_expected = f"{abi.MICA_VERSION_MAJOR}.{abi.MICA_VERSION_MINOR}."
if not version.startswith(_expected):  # before 1.0 a minor version may change the ABI
    raise ImportError(f"{path} is version {version}, this package is for {_expected}x")


def text_of(function, *arguments):
    """What a function that fills a buffer as snprintf does has to say."""
    size = 256
    while True:
        buffer = create_string_buffer(size)
        length = function(*arguments, buffer, size)
        if length < size:
            return buffer.value.decode()
        size = length + 1


def names(function, *arguments):
    """Names that a function gives by index, until it has no more."""
    found = []
    while True:
        name = function(*arguments, len(found))
        if not name:
            return found
        found.append(name.decode())


def tool():
    """The command-line tool that belongs to this library, or None."""
    beside = [os.path.join(HERE, "bin", "mica"), os.path.join(os.path.dirname(path), "mica")]
    beside += [os.path.join(os.path.dirname(path), os.pardir, "bin", "mica")]
    for file in beside:
        if os.path.isfile(file) and os.access(file, os.X_OK):
            return os.path.normpath(file)
    import shutil

    found = shutil.which("mica")
    # The console script of this very package would call itself for ever.
    if found and os.path.dirname(os.path.realpath(found)) != os.path.dirname(os.path.realpath(sys.executable)):
        return found
    return None
