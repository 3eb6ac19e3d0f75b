"""Public names that are imported when they are first used, so that importing their package stays cheap.

The stub next to the package (`__init__.pyi` next to `__init__.py`) lists them, one `from MODULE import NAME as NAME` a
line. Type checkers read the same lines, so each name is listed once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def lazy_names(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package whose stub lists its public names.

    Args:
        package: its `__name__`.
        file: its `__file__`.

    Example:
        >>> __getattr__, __dir__ = lazy_names(__name__, __file__)
    """
    homes = read_stub(file)
    module = sys.modules[package]

    def get(name: str) -> object:
        from importlib import import_module

        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'{_hint(name, homes)}")
        home = homes[name]
        value = import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)
        setattr(module, name, value)
        return value

    return get, lambda: sorted({*homes, *(name for name in vars(module) if name.startswith("__"))})


def _hint(name: str, homes: dict[str, str]) -> str:
    """Return where a name is that the package does not have: in another public module, or spelt otherwise."""
    from spmdir.core.errors import did_you_mean

    package = Path(__file__).parents[1]
    stubs = [*package.glob("*.pyi"), *package.glob("*/__init__.pyi")]
    for stub in sorted(stubs):
        if name in read_stub(str(stub.with_suffix(".py"))):
            module = ".".join(stub.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
            return f"; it is {module}.{name}"
    return did_you_mean(name, homes)


def read_stub(file: str) -> dict[str, str]:
    """Return public name → the module that defines it, from the stub next to a Python file.

    A name whose module is the package itself is one of its submodules.
    """
    with open(f"{file.removesuffix('.py')}.pyi", encoding="utf-8") as stub:
        lines = [line.split() for line in stub]
    return {words[3]: words[1] for words in lines if words[:1] == ["from"]}
