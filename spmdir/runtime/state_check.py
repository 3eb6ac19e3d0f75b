"""Writes the check of a state as straight-line Python, since it runs at each call: about 40 ns a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class CheckWriter:
    """Writes a function of roots that returns whether all that was written holds.

    Example:
        >>> check = CheckWriter({})
        >>> check.fail_if(f"root0.factor != {check.constant(2.0)}")
        >>> check.compiled(["root0"])(types.SimpleNamespace(factor=2.0))
        True
    """

    def __init__(self, constants: dict[str, Any]):
        """Begin with names that lines may use, beside those of `constant`."""
        self._lines: list[str] = []
        self._values = constants
        self._names: dict[int, str] = {}

    @property
    def place(self) -> int:
        """The number of lines, by which a variable can be told from others."""
        return len(self._lines)

    def constant(self, value: Any) -> str:
        """Return the name of a value in the check; the check keeps it."""
        if id(value) not in self._names:
            self._names[id(value)] = f"c{len(self._names)}"
            self._values[self._names[id(value)]] = value
        return self._names[id(value)]

    def add(self, line: str) -> None:
        """Add a statement."""
        self._lines.append(line)

    def fail_if(self, condition: str) -> None:
        """Let the check return False if `condition` holds."""
        self._lines.append(f"if {condition}: return False")

    def compiled(self, arguments: Sequence[str]) -> Callable[..., bool]:
        """Return the check; what raises in it does not hold."""
        body = "\n  ".join(self._lines)
        text = f"def holds({', '.join(arguments)}):\n try:\n  {body}\n  return True\n except Exception:\n  return False"
        exec(text, self._values)  # lines are those of this package; values are constants, not text
        return self._values.pop("holds")
