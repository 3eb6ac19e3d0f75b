"""Lazy imports of public names, which keep the import of their package fast.

The stub `__init__.pyi` next to `__init__.py` lists the names, as one `from MODULE import NAME as NAME` per line. Type
checkers read the same stub, so each name is listed once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def lazy_names(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose stub lists its public names.

    `__getattr__` imports the module of a name on first use, and stores the value in the package.

    Args:
        package: the `__name__` of the package.
        file: the `__file__` of the package.

    Example:
        >>> __getattr__, __dir__ = lazy_names(__name__, __file__)
    """
    module_of_name = read_stub(file)
    module = sys.modules[package]

    def get(name: str) -> object:
        """Import and return the value of a public name."""
        from importlib import import_module

        if name not in module_of_name:
            raise AttributeError(f"module '{package}' has no attribute '{name}'{_hint(name, module_of_name)}")
        module_name = module_of_name[name]
        value = (
            import_module(f"{module_name}.{name}")
            if module_name == package
            else getattr(import_module(module_name), name)
        )
        setattr(module, name, value)
        return value

    return get, lambda: sorted({*module_of_name, *(name for name in vars(module) if name.startswith("__"))})


def _hint(name: str, module_of_name: dict[str, str]) -> str:
    """Return the end of the message for an unknown name: the public module that has it, or a similar name.

    Args:
        module_of_name: the public names of the package in which it was looked up.
    """
    from spmdir.core.errors import did_you_mean

    package = Path(__file__).parents[1]
    stubs = [*package.glob("*.pyi"), *package.glob("*/__init__.pyi")]
    for stub in sorted(stubs):
        if name in read_stub(str(stub.with_suffix(".py"))):
            module = ".".join(stub.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
            return f"; it is {module}.{name}"
    return did_you_mean(name, module_of_name)


def read_stub(file: str) -> dict[str, str]:
    """Return public name → module that defines it, from the stub next to a Python file.

    If the module is the package itself, the name is a submodule.
    """
    with open(f"{file.removesuffix('.py')}.pyi", encoding="utf-8") as stub:
        lines = [line.split() for line in stub]
    return {words[3]: words[1] for words in lines if words[:1] == ["from"]}
