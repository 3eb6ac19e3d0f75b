"""`local_map`: a user's function on local shards, as one op with declared shardings."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor, fx

from spmdir.core.errors import ShardingError, SpmdirError, shown, wrong_argument
from spmdir.core.placement.declaration import SUM
from spmdir.core.placement.sharding import Sharding, ShardingLike, parse_sharding
from spmdir.importer.function_identity import (
    LITERALS,
    captured_values,
    definition_of,
    is_same_function,
    module_of,
    op_name,
    read_globals,
)
from spmdir.importer.function_ops import call_op, find_op, register, registered_function
from spmdir.importer.local_function import LocalFunction
from spmdir.torch_interop.ops import OpOverload


def local_map(
    function: Callable[..., Any],
    in_shardings: Sequence[ShardingLike | None],
    out_shardings: ShardingLike | Sequence[ShardingLike],
    *,
    flops: float | Callable[..., float] | None = None,
) -> Callable[..., Any]:
    """Return a function that ranks run on their local shards, as one op with the declared shardings.

    On one device, it calls `function` on whole tensors. Traces record one op for a call, and one for its gradient. On
    ranks, the op calls `function` on local shards. `spmd-run --check` tests whether both agree.

    Args:
        function: takes tensors, numbers and texts, and returns a tensor or a tuple of tensors. It has no side effects,
            collectives or random numbers, and captures no tensors. Its gradient is that of torch.autograd.
        in_shardings: for each argument, the sharding of a tensor, as in `"dp: S(0), tp: S(1)"`; None for another
            argument.
        out_shardings: the sharding of the result, or a tuple with one for each result. `P(sum)` is a result that is the
            sum of the results of the ranks.
        flops: the floating-point operations of a call on one rank, or a function that returns them for the local shape
            of each tensor argument; the gradient then costs three times as much. By default, both are counted by the
            formulas of torch's FlopCounterMode.

    Raises:
        SpmdirError: an argument has the wrong type, or the wrong number of shardings.
        ParseError, ShardingError: a sharding is malformed, open, lossy, or partial with another reduction than a sum.
        UnsupportedError: `function` captures a tensor, or another function has the same name and shardings.

    Example:
        >>> heads = "dp: S(0), tp: S(1)"  # [batch, heads, sequence, head_dim]
        >>> attention = spmdir.local_map(flash_attention, (heads, heads, heads), heads)
        >>> y = attention(q, k, v)
    """
    if not callable(function) or not hasattr(function, "__qualname__") or inspect.ismethod(function):
        raise wrong_argument("function", function, "a function with a name; wrap a method or a partial in `def`")
    if isinstance(in_shardings, (str, Mapping)) or not isinstance(in_shardings, Sequence):
        raise wrong_argument("in_shardings", in_shardings, "a tuple with one sharding for each argument")
    names, defaults = _read_parameters(function, len(in_shardings))
    inputs = [
        None if value is None else _check(value, f"in_shardings[{index}]") for index, value in enumerate(in_shardings)
    ]
    is_single = isinstance(out_shardings, (str, Mapping, Sharding))
    if not is_single and not isinstance(out_shardings, Sequence):
        raise wrong_argument("out_shardings", out_shardings, "a sharding, or a tuple with one for each result")
    listed_outputs: Any = [out_shardings] if is_single else out_shardings
    outputs = [_check(value, f"out_shardings[{index}]") for index, value in enumerate(listed_outputs)]
    tensors = tuple(sharding is not None for sharding in inputs)
    texts = [sharding for sharding in inputs if sharding is not None], outputs
    name, module = op_name(function, texts, tensors), module_of(function)[1]
    local = LocalFunction(function, name, module, tensors, len(outputs), flops, definition_of(function))
    _reject_captured_tensors(local)
    op = _register_once(local)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        """Call the op of the function with its tensors as operands, and all other arguments as text."""
        values = _bind(local, names, defaults, args, kwargs)
        operands = [value for value, is_tensor in zip(values, tensors, strict=True) if is_tensor]
        literals = [value for value, is_tensor in zip(values, tensors, strict=True) if not is_tensor]
        for operand in operands:
            if not isinstance(operand, (Tensor, fx.Proxy)):
                raise local.error(
                    f"is called with {shown(operand)} in place of a tensor; expected a tensor: pass one, or "
                    "give None in in_shardings"
                )
        results = call_op(op, operands, (_literal_text(local, literals), *texts, module, 0.0))
        return results[0] if is_single else tuple(results)

    return call


def _read_parameters(function: Callable[..., Any], count: int) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the parameters of a function, and the defaults of those that have one.

    The names are [] if the function has no signature, or a parameter such as `*args`.

    Raises:
        SpmdirError: the function has another number of parameters than `count`.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return [], {}
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters):
        return [], {}
    names = [parameter.name for parameter in parameters]
    if len(names) != count:
        raise SpmdirError(
            f"in_shardings has {count} entries, but '{function.__qualname__}' has {len(names)} parameters: "
            f"{', '.join(names)}; expected one entry for each, None for an argument that is not a tensor"
        )
    return names, {p.name: p.default for p in parameters if p.default is not p.empty}


def _check(value: object, where: str) -> str:
    """Return the canonical text of a sharding.

    Args:
        where: the argument that has the sharding, such as `in_shardings[0]`, for errors.

    Raises:
        ParseError, ShardingError: it is malformed, open, lossy, or partial with another reduction than a sum.
    """
    if isinstance(value, Mapping):
        value = ", ".join(f"{axis}: {placement}" for axis, placement in value.items())
    if not isinstance(value, (str, Sharding)):
        raise wrong_argument(where, value, 'a sharding such as "dp: S(0)"')
    try:
        sharding = parse_sharding(str(value))
    except SpmdirError as error:
        raise error.at(None, where) from None
    for axis, placement in sharding.entries:
        is_allowed = placement == SUM or (placement.trait == "shard" and not placement.error)
        if not is_allowed:
            raise ShardingError(
                f"{where} has {placement} on axis '{axis}'; expected R, P(sum) or an exact shard: use one of them"
            )
    return str(sharding)


def _bind(
    local: LocalFunction, names: list[str], defaults: Mapping[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """Return the value of each parameter of the function for a call with `args` and `kwargs`, in order.

    Args:
        names: the names of the parameters; [] if they are unknown. Then a call has only positional arguments.
        defaults: name → default value.

    Raises:
        UnsupportedError: an argument is missing, unknown or surplus.
    """
    values = list(args)
    for name in names[len(args) :]:
        if name in kwargs:
            values.append(kwargs[name])
        elif name in defaults:
            values.append(defaults[name])
    is_known = set(kwargs) <= set(names[len(args) :])
    if len(values) != len(local.tensors) or not is_known:
        described = f": {', '.join(names)}" if names else ""
        raise local.error(
            f"is called with {len(args)} positional and {len(kwargs)} keyword arguments; "
            f"expected {len(local.tensors)} arguments{described}"
        )
    return values


def _literal_text(local: LocalFunction, values: list[Any]) -> str:
    """Return the arguments that are not tensors as text.

    Raises:
        UnsupportedError: an argument is a tensor or another object, or depends on a symbolic size.
    """
    for value in values:
        if isinstance(value, Tensor):
            raise local.error(
                "is called with a tensor where in_shardings has None; expected a sharding for each tensor: add "
                "it to in_shardings"
            )
        if type(value) not in LITERALS or (isinstance(value, float) and not math.isfinite(value)):
            raise local.error(
                f"is called with the argument {shown(value)} of type {type(value).__name__}; expected a tensor, a "
                "finite number, a text or None: compute other values inside the function"
            )
    return repr(tuple(values))


def _reject_captured_tensors(local: LocalFunction) -> None:
    """Raise UnsupportedError if the function captures a tensor or a module, in a closure, a default or a global."""
    for name, value in {**read_globals(local.function), **captured_values(local.function)}.items():
        if isinstance(value, (Tensor, torch.nn.Module)):
            noun = "tensor" if isinstance(value, Tensor) else "module"
            raise local.error(
                f"captures the {noun} '{name}'; expected its tensors as arguments, so that they have shardings and "
                "gradients"
            )


def _register_once(local: LocalFunction) -> OpOverload:
    """Register the ops of a function, or return the op of an equal function.

    Raises:
        UnsupportedError: another function has the same name and shardings.
    """
    op = find_op(local.name)
    if op is None:
        return register(local)
    registered = registered_function(op)
    if registered is None or not _is_same(registered[0], local):
        place = f" at {registered[0].location}" if registered and registered[0].location else ""
        raise local.error(
            f"has the name and shardings of another one{place}; expected one function for each name: rename one of "
            "them, or start a new process after an edit"
        )
    return op


def _is_same(left: LocalFunction, right: LocalFunction) -> bool:
    """Return whether two local maps have functions of equal code, capture the same values, and declare equal costs."""
    has_same_cost = left.flops == right.flops or (
        callable(left.flops) and callable(right.flops) and is_same_function(left.flops, right.flops)
    )
    return has_same_cost and is_same_function(left.function, right.function)
