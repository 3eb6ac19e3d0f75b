"""Choose the function that is decided first, for functions that share parameters and caches.

Each function is decided under the shardings that earlier ones gave to the shared arguments. The first function in the
text is decided first, unless the other order takes less time for the expected calls, `spmd.calls`. For example, with
one call of `@prefill` for 200 of `@decode`:

    order                @decode    @prefill    1 · @prefill + 200 · @decode
    decode, prefill       1.0 ms      90 ms      290 ms     ← chosen
    prefill, decode       1.6 ms      40 ms      360 ms
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.dialects.caches import expected_calls, shared_arguments

Decide = Callable[[ModuleOp, FuncOp], float]
"""Function that annotates a function of a module, and returns the modelled seconds of a call."""

_GAIN = 1e-3
"""The smallest part of the time that another order must save."""


def shares_arguments(module: ModuleOp) -> bool:
    """Return whether a module has functions that share parameters and caches."""
    functions = ir.functions(module)
    return any(shared_arguments(functions[0], other) for other in functions[1:])


def decide_together(module: ModuleOp, decide: Decide, trial: Decide) -> None:
    """Decide all functions of a module, in the better of two orders.

    The other order starts with the function that takes most of the time of all calls after the first one.

    Args:
        decide: for the decision that is kept.
        trial: the same, without output.

    Raises:
        SpmdirError: no order has a decision. The error is that of the order of the text.
    """
    original = module.clone()
    names = [function.sym_name.data for function in ir.functions(module)]
    calls = {function.sym_name.data: expected_calls(function) for function in ir.functions(module)}
    error: SpmdirError | None = None
    seconds: dict[str, float] = {}
    try:
        for name in names:
            seconds[name] = decide(module, _function(module, name))
    except SpmdirError as failure:
        error = failure
    # A function without a time, because the first order failed, counts as 1 second.
    leader = max(names[1:], key=lambda name: calls[name] * seconds.get(name, 1.0))
    order = list(dict.fromkeys([leader, *names]))
    if error is None and not _is_faster(original, order, trial, calls, seconds):
        return
    try:
        for name in order:
            decide(original, _function(original, name))
    except SpmdirError as failure:
        raise error or failure from None
    _replace_body(module, original)


def _is_faster(
    original: ModuleOp, order: Sequence[str], trial: Decide, calls: Mapping[str, int], seconds: Mapping[str, float]
) -> bool:
    """Return whether an order takes less time for the expected calls than a decision with times `seconds`.

    The trial ends as soon as its time cannot be less: no order decides the first function of the text for less time.
    """
    copy = original.clone()
    limit = (1 - _GAIN) * sum(calls[name] * seconds[name] for name in order)
    first = next(iter(seconds))
    times = {first: seconds[first]}  # a lower bound for the first function, replaced once the order decides it
    for name in order:
        try:
            times[name] = trial(copy, _function(copy, name))
        except SpmdirError:
            return False
        if sum(calls[decided] * time for decided, time in times.items()) >= limit:
            return False
    return True


def _function(module: ModuleOp, name: str) -> FuncOp:
    """Return the function of a name."""
    return next(function for function in ir.functions(module) if function.sym_name.data == name)


def _replace_body(module: ModuleOp, other: ModuleOp) -> None:
    """Move the ops of another module into a module, in place of its ops."""
    for op in list(module.body.block.ops):
        op.detach()
        op.erase()
    for op in list(other.body.block.ops):
        op.detach()
        module.body.block.add_op(op)
