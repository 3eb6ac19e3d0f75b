"""Names of values: kept as written; what passes insert is named after the value that it is made of and what it does.

A number, as in `%2`, is how text spells a value without a name; it is kept too, as `.2`, which xDSL takes for a name.
xDSL cuts `_1` off a name that it copies, so `x_1` is kept as `x_1$`. `full_name` reads what `keep_name` writes.
"""

from __future__ import annotations

import re

from xdsl.ir import Block, OpResult, SSAValue

_NUMBER = re.compile(r"\.[0-9]{1,9}", re.ASCII)
_CUT = re.compile(r"(_[0-9]+|\$)\Z", re.ASCII)


def keep_name(value: SSAValue, name: str) -> None:
    """Name a value by all of `name`, as text spells it after the `%`."""
    name = f".{name}" if name[:1].isdigit() and is_number(f".{name}") else name
    if name.isascii() and SSAValue.is_valid_name(name):  # xDSL takes letters of all scripts and reads ASCII alone
        value.name_hint = f"{name}$" if _CUT.search(name) else name


def full_name(value: SSAValue) -> str | None:
    """Return the name of a value, a number as `.2`; None if it has none."""
    name = value.name_hint
    return name[:-1] if name is not None and name.endswith("$") else name


def take_name(value: SSAValue, other: SSAValue) -> None:
    """Give a value the name of another one, which it stands for from now on."""
    value.name_hint = other.name_hint


def is_number(name: str) -> bool:
    """Return whether the name of a value, as xDSL has it, is a number of the text."""
    return _NUMBER.fullmatch(name) is not None


def name_of(value: SSAValue) -> str | None:
    """Return the name of a value; None if it has none or a number."""
    name = full_name(value)
    return None if name is None or is_number(name) else name


def text_name(value: SSAValue) -> str:
    """Return how text names a value, as `%x` or `%2`; `%` if nothing has named it yet."""
    hint = full_name(value) or ""
    return f"%{hint[1:] if is_number(hint) else hint}"


def distinguish(block: Block) -> None:
    """Let no two values of `block` have one name: of several the first keeps it, others get a number, as in text."""
    values = [*block.args, *(result for op in block.ops for result in op.results)]
    names = {full_name(value) for value in values}
    unnamed = max((int(name[1:]) + 1 for name in names if name and is_number(name)), default=0)
    seen: set[str] = set()
    numbers: dict[str, int] = {}
    for value in values:
        first = full_name(value)
        if first is None:
            continue
        name = first
        if name not in seen:
            seen.add(name)
            continue
        if is_number(first):
            name, unnamed = f".{unnamed}", unnamed + 1
        while name in seen or name in names:
            numbers[first] = number = numbers.get(first, 0) + 1
            name = f"{first}_{number}"
        seen.add(name)
        keep_name(value, name)


class Names:
    """The names of the values of a block, all taken; gives new values names of their own."""

    def __init__(self, block: Block):
        values = [*block.args, *(result for op in block.ops for result in op.results)]
        self._taken = {full_name(value) for value in values}

    def give(self, value: SSAValue, source: SSAValue, does: str) -> None:
        """Name `value`, made of `source` by what it `does`: `%mul_3.all_gather`, or `%_2.all_gather` of `%2`."""
        origin = full_name(source) or ""
        if is_number(origin):
            origin = f"_{origin[1:]}"
        elif isinstance(source, OpResult):
            # What is made of an inserted value comes from the same value of the program.
            origin = origin.rpartition(".")[0] or origin
        name = first = f"{origin}.{does}"
        number = 0
        while name in self._taken:
            number += 1
            name = f"{first}_{number}"
        self._taken.add(name)
        keep_name(value, name)
