"""A `python` that runs a script or a module in a process forked from one that has imported torch already."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run `FILE ARGUMENTS` or `-m MODULE ARGUMENTS`; what it raises goes on to the caller."""
    is_module = arguments[0] == "-m"
    sys.argv = list(arguments[is_module:])
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(sys.argv[0])))
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
    return 0
