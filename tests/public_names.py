"""The public names of spmdir: those of the package itself, and of its submodules by task."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import spmdir
from spmdir.core.lazy_names import read_stub

SUBMODULES = ("checkpoint", "errors", "placement", "plugins", "report", "rules", "testing")

PACKAGES = ("serving",)
"""The packages with public names that `import spmdir` does not make available."""


def names_of(module: ModuleType) -> list[str]:
    """Return the public names of spmdir or of one of its submodules, without the submodules themselves."""
    names = getattr(module, "__all__", None) or read_stub(str(module.__file__))
    return [name for name in names if name not in SUBMODULES]


def public_names() -> dict[str, object]:
    """Return public name, with its submodule as in `report.explain` → its value."""
    found = {name: getattr(spmdir, name) for name in names_of(spmdir)}
    for submodule in (*SUBMODULES, *PACKAGES):
        module = import_module(f"spmdir.{submodule}")
        found |= {f"{submodule}.{name}": getattr(module, name) for name in names_of(module)}
    return found


def home_of(value: object) -> ModuleType:
    """Return the module that defines a class or a function."""
    return sys.modules[value.__module__]
