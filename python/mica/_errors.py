# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class for each status of the library, each also what Python calls such a mistake."""

from ._library import abi, lib

# What else they are, by status; all others are RuntimeError.
_ALSO = {
    "MICA_INVALID": ValueError,
    "MICA_UNSUPPORTED": NotImplementedError,
    "MICA_OUT_OF_MEMORY": MemoryError,
    "MICA_OUT_OF_DEVICE_MEMORY": MemoryError,
    "MICA_IO": OSError,
    "MICA_NOT_FOUND": LookupError,
}


class Error(Exception):
    """What mica refused or failed to do. str() is the value and the rule.

    status     the library's name for it, "MICA_INVALID"
    rule       the value and the rule, in words"""

    status = "MICA_INTERNAL"

    def __init__(self, rule=""):
        super().__init__(rule)
        self.rule = rule

    def __str__(self):
        return self.rule


def _class_name(status):
    return "".join(word.capitalize() for word in status[len("MICA_"):].lower().split("_"))


def _make():
    made = {}
    for value in range(1, abi.MICA_STATUS_COUNT):
        status = lib.mica_status_name(value).decode()
        doc = f"{status}: see include/mica/types.h."
        made[value] = type(
            _class_name(status),
            (Error, _ALSO.get(status, RuntimeError)),
            {"status": status, "__doc__": doc, "__module__": "mica"},
        )
    return made


classes = _make()
Invalid = classes[abi.MICA_INVALID]
Unsupported = classes[abi.MICA_UNSUPPORTED]


def fail(status):
    """Raises the exception of a status, with what the library has to say about it."""
    kind = classes.get(status, Error)
    raise kind(lib.mica_error().decode(errors="replace"))


def check(status):
    if status:
        fail(status)
