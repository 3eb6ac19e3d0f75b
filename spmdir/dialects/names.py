"""Names of values. Passes keep the names of the text, and name a new value after its source: `%x.all_gather`.

xDSL drops some names, so names are stored in another form. `keep_name` stores a name and `full_name` reads it:

* a number, as in `%2`, is stored as `.2`, because xDSL does not store numbers;
* `x_1` is stored as `x_1$`, because xDSL cuts `_1` off the names that it copies.
"""

from __future__ import annotations

import re

from xdsl.ir import Block, OpResult, SSAValue

_NUMBER = re.compile(r"\.[0-9]{1,9}", re.ASCII)
_CUT_SUFFIX = re.compile(r"(_[0-9]+|\$)\Z", re.ASCII)


def keep_name(value: SSAValue, name: str) -> None:
    """Name a value `name`, as in the text after the `%`. An invalid name, such as one with letters beyond ASCII, is not
    stored."""
    name = f".{name}" if name[:1].isdigit() and is_number(f".{name}") else name
    if name.isascii() and SSAValue.is_valid_name(name):  # xDSL prints other letters, but cannot parse them
        value.name_hint = f"{name}$" if _CUT_SUFFIX.search(name) else name


def full_name(value: SSAValue) -> str | None:
    """Return the name of a value, a number as `.2`; None if it has none."""
    name = value.name_hint
    return name[:-1] if name is not None and name.endswith("$") else name


def copy_name(value: SSAValue, source: SSAValue) -> None:
    """Name a value like `source`, which it replaces."""
    value.name_hint = source.name_hint


def is_number(name: str) -> bool:
    """Return whether a stored name is a number in the text."""
    return _NUMBER.fullmatch(name) is not None


def name_of(value: SSAValue) -> str | None:
    """Return the name of a value; None if it has none or a number."""
    name = full_name(value)
    return None if name is None or is_number(name) else name


def text_name(value: SSAValue) -> str:
    """Return the name of a value in the text, as `%x` or `%2`; `%` if it has none."""
    hint = full_name(value) or ""
    return f"%{hint[1:] if is_number(hint) else hint}"


def make_names_unique(block: Block) -> None:
    """Make the names of the values of `block` unique.

    Of values with one name, the first keeps it, and the others get a number: x, x, y become x, x_1, y. If the name is
    itself a number, as in `%2`, the others get the next unused numbers.
    """
    values = [*block.args, *(result for op in block.ops for result in op.results)]
    names = {full_name(value) for value in values}
    next_number = max((int(name[1:]) + 1 for name in names if name and is_number(name)), default=0)
    assigned_names: set[str] = set()
    numbers: dict[str, int] = {}
    for value in values:
        original_name = full_name(value)
        if original_name is None:
            continue
        name = original_name
        if name not in assigned_names:
            assigned_names.add(name)
            continue
        if is_number(original_name):
            name, next_number = f".{next_number}", next_number + 1
        while name in assigned_names or name in names:
            numbers[original_name] = number = numbers.get(original_name, 0) + 1
            name = f"{original_name}_{number}"
        assigned_names.add(name)
        keep_name(value, name)


class Names:
    """The names of the values of a block, and unused names for new values."""

    def __init__(self, block: Block):
        values = [*block.args, *(result for op in block.ops for result in op.results)]
        self._used_names = {full_name(value) for value in values}

    def assign_name(self, value: SSAValue, source: SSAValue, suffix: str) -> None:
        """Name `value` after its `source`: `%mul_3.all_gather` for source `%mul_3`, `%_2.all_gather` for `%2`.

        If the name is used, a number is added: `%mul_3.all_gather_1`.
        """
        source_name = full_name(source) or ""
        if is_number(source_name):
            source_name = f"_{source_name[1:]}"
        elif isinstance(source, OpResult):
            # If the source is itself inserted, such as %x.slice, use the name of the original value.
            source_name = source_name.rpartition(".")[0] or source_name
        name = base_name = f"{source_name}.{suffix}"
        number = 0
        while name in self._used_names:
            number += 1
            name = f"{base_name}_{number}"
        self._used_names.add(name)
        keep_name(value, name)
