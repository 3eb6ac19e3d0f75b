"""Which input an output is the new value or the gradient of, so that it can take that input's sharding.

What says so, the surest first: the graph's signature; the place in the pytrees (a new state is built like the
old one, gradients are keyed as their parameters are); a subtraction from a placeholder, as optimizers do; and,
after a scalar loss, trailing outputs that have the shapes of consecutive inputs, as `torch.autograd.grad` gives.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, fx

from spmdir.importer.program import Input, Output, Program
from spmdir.torch_interop.symbolic_numbers import plain

_CARRIES = frozenset({"mul.Tensor", "mul.Scalar", "clone", "detach", "alias", "copy", "_to_copy", "to.dtype"})
_SUBTRACTS = frozenset({"sub.Tensor", "addcdiv", "addcmul", "lerp.Scalar", "lerp.Tensor"})


def updated_inputs(program: Program) -> list[Input | None]:
    """For each output the input that it is the new value or the gradient of, if any; shapes are equal."""
    inputs = [entry for entry in program.inputs if entry.is_argument]
    by_name = {name: entry for entry in reversed(inputs) for name in entry.names}
    by_node = {entry.node: entry for entry in inputs}
    found = [
        _by_signature(output, by_name) or _by_path(output, inputs) or _by_update(output, by_node)
        for output in program.outputs
    ]
    return found if any(found) else _by_shapes(program.outputs, inputs)


def _by_signature(output: Output, by_name: dict[str, Input]) -> Input | None:
    return by_name.get(output.like) if output.like else None


def _by_path(output: Output, inputs: Sequence[Input]) -> Input | None:
    if not isinstance(output.value, fx.Node):
        return None
    candidates = (entry for name in output.names for entry in inputs if name in entry.names)
    return next((entry for entry in candidates if _shape(entry.node) == _shape(output.value)), None)


def _by_update(output: Output, by_node: dict[fx.Node, Input]) -> Input | None:
    """Follow the first operands of an update such as `p * (1 - lr * decay) - lr * g` to `p`."""
    node, subtracted = output.value, False
    while isinstance(node, fx.Node) and node.op == "call_function" and node.args:
        op = str(node.target).removeprefix("aten.").removesuffix(".default")
        subtracts = op in _SUBTRACTS or (op == "add.Tensor" and "alpha" in node.kwargs)
        if not subtracts and op not in _CARRIES:
            return None
        subtracted = subtracted or subtracts
        node = node.args[0]
    entry = by_node.get(node) if subtracted and isinstance(node, fx.Node) else None
    return entry if entry and _shape(entry.node) == _shape(output.value) else None


def _by_shapes(outputs: Sequence[Output], inputs: Sequence[Input]) -> list[Input | None]:
    shapes = [_shape(output.value) for output in outputs]
    loss = max((index for index, shape in enumerate(shapes) if shape == ()), default=len(shapes))
    wanted = shapes[loss + 1 :]
    nothing: list[Input | None] = [None] * len(outputs)
    if not wanted or None in wanted:
        return nothing
    for start in range(len(inputs) - len(wanted) + 1):
        run = inputs[start : start + len(wanted)]
        if [_shape(entry.node) for entry in run] == wanted:
            return [*nothing[: loss + 1], *run]
    return nothing


def _shape(node: object) -> tuple[int, ...] | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(map(plain, value.shape)) if isinstance(value, Tensor) else None
