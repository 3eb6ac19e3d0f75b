"""The versions of caches, and their verification.

An argument of kind `cache` is a linear value: `cache.write` returns its next version, and no op reads a version after
it was written. So ranks write caches in place, although all values of the program are immutable:

    %k.1 = cache.write(%k, %rows, %positions) : tensor<4x64x8x128xbf16>
    %a = cache.attend(%q, %k.1, %v.1, %positions) : tensor<4x1x32x128xbf16>

The last version is the result of kind `mutation` with the name of the cache. Only torch ops that are not views use
versions, so no collective sends a cache, and no view of an old version exists.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import IntegerAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from spmdir.core.errors import ParseError, ShardingError
from spmdir.core.undeclared_aliases import may_return_operand
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import text_name
from spmdir.dialects.values import sharding_of, signature_kind, signature_name

CACHE_KIND = "cache"
"""The `spmd.kind` of arguments that are caches."""

WRITE = "cache.write"
"""The op that writes its first operand and returns the next version of the cache."""


CALLS = "spmd.calls"
"""The attribute of a function with its number of calls, for as many of other functions that share its arguments."""


def expected_calls(function: FuncOp) -> int:
    """Return the number of calls of a function that `spmd.calls` states; 1 without the attribute.

    Raises:
        ParseError: the attribute is not a positive integer; located.
    """
    attribute = function.attributes.get(CALLS)
    if attribute is None:
        return 1
    if not isinstance(attribute, IntegerAttr) or attribute.value.data < 1:
        raise ParseError(f"{CALLS} is {attribute}; expected a positive integer, as in 200 : i64", location_of(function))
    return attribute.value.data


def is_version(value: SSAValue) -> bool:
    """Return whether a value is a version of a cache."""
    if isinstance(value, BlockArgument):
        return signature_kind(value.owner.parent_op(), "arg_attrs", value.index) == CACHE_KIND
    return isinstance(value, OpResult) and value.op.name == WRITE


def cache_versions(function: FuncOp) -> Iterator[tuple[str, list[SSAValue]]]:
    """Yield (name, versions from first to last) of each cache of a function.

    The list ends at the first version that is not written, or that is written several times.
    """
    for argument in function.args:
        if signature_kind(function, "arg_attrs", argument.index) == CACHE_KIND:
            versions: list[SSAValue] = [argument]
            while len(writes := _writes(versions[-1])) == 1:
                versions.append(writes[0].results[0])
            yield signature_name(function, "arg_attrs", argument.index), versions


def shared_arguments(function: FuncOp, other: FuncOp) -> dict[str, tuple[int, int]]:
    """Return name → (index in `function`, index in `other`) of the parameters, buffers and caches that both have.

    Functions share these arguments if both have a cache with the same name, as a prefill and a decode do. Otherwise the
    result is empty.
    """
    arguments, other_arguments = _state_arguments(function), _state_arguments(other)  # name → (index, kind)
    names = [name for name in arguments if name in other_arguments]
    if not any(arguments[name][1] == other_arguments[name][1] == CACHE_KIND for name in names):
        return {}
    return {name: (arguments[name][0], other_arguments[name][0]) for name in names}


def _state_arguments(function: FuncOp) -> dict[str, tuple[int, str]]:
    """Return name → (index, kind) of the parameters, buffers and caches of a function."""
    kinds = [signature_kind(function, "arg_attrs", index) for index in range(len(function.args))]
    return {
        signature_name(function, "arg_attrs", index): (index, kind)
        for index, kind in enumerate(kinds)
        if kind in ("parameter", "buffer", CACHE_KIND)
    }


def check_shared_arguments(functions: Sequence[FuncOp]) -> None:
    """Raise a located ShardingError unless arguments that functions share have one type and one sharding."""
    for other, function in itertools.combinations(functions, 2):
        for name, (index, other_index) in shared_arguments(function, other).items():
            argument, other_argument = function.args[index], other.args[other_index]
            sharding, other_sharding = sharding_of(argument), sharding_of(other_argument)
            if argument.type != other_argument.type or (sharding and other_sharding and sharding != other_sharding):
                raise ShardingError(
                    f"'{name}' is {argument.type} <{sharding or ''}> in @{function.sym_name.data}, but "
                    f"{other_argument.type} <{other_sharding or ''}> in @{other.sym_name.data}; expected one type and "
                    "sharding of each "
                    "argument that functions with common caches share",
                    location_of(function),
                )


def check_caches(function: FuncOp) -> None:
    """Raise a located ShardingError unless the versions of each cache form a chain that may be written in place.

    Each version is written at most once, and not read after this write. The function returns the last version.
    """
    results = {
        signature_name(function, "res_attrs", index): value
        for index, value in enumerate(_terminator_operands(function))
        if signature_kind(function, "res_attrs", index) == "mutation"
    }
    order: dict[Operation, int] = {}
    for name, versions in cache_versions(function):
        # The order is computed once, and only if the function has a cache.
        order = order or {op: index for index, op in enumerate(function.body.block.ops)}
        for version in versions:
            _check_version(version, name, order)
        if versions[-1] is not results.get(name):
            raise ShardingError(
                f"the last version of cache '{name}' is {text_name(versions[-1])}; expected it as the result with "
                f'spmd.kind = "mutation" and spmd.name = "{name}"',
                location_of(function),
            )


def _check_version(version: SSAValue, name: str, order: dict[Operation, int]) -> None:
    """Raise a located ShardingError unless only torch ops use a version, and none after the only write.

    Args:
        order: the position of each op of the function.
    """
    writes = sorted(_writes(version), key=order.__getitem__)
    if len(writes) > 1:
        raise ShardingError(
            f"{text_name(version)} of cache '{name}' is written again; expected one write of each version: write "
            f"{text_name(writes[0].results[0])}, the version that the first write returns",
            location_of(writes[1]),
        )
    for use in version.uses:
        reader = use.operation
        if not isinstance(reader, ReturnOp) and not _is_read(reader):
            raise ShardingError(
                f"'{reader.name}' uses {text_name(version)} of cache '{name}'; expected a torch op that is not a view: "
                "caches are written in place, and never sent or viewed",
                location_of(reader),
            )
        if writes and reader is not writes[0] and order[reader] > order[writes[0]]:
            raise ShardingError(
                f"'{reader.name}' reads {text_name(version)} of cache '{name}' after its write; expected "
                f"{text_name(writes[0].results[0])}, the version that the write returns",
                location_of(reader),
            )


def _is_read(op: Operation) -> bool:
    """Return whether an op is a torch op whose results are new memory."""
    from spmdir.rules.shapes.views import VIEWS  # programs without caches do not load the rules

    return isinstance(op, AtenOp) and op.name not in VIEWS and not may_return_operand(op.name, len(op.operands))


def _writes(version: SSAValue) -> list[Operation]:
    """Return the ops that write a version."""
    return [use.operation for use in version.uses if use.operation.name == WRITE and use.index == 0]


def _terminator_operands(function: FuncOp) -> tuple[SSAValue, ...]:
    last_op = function.body.block.last_op
    return tuple(last_op.operands) if isinstance(last_op, ReturnOp) else ()
