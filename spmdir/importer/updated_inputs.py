"""Find the input whose new value or gradient an output is. The output gets the sharding of this input.

The evidence, the strongest first:

1. the signature of the graph;
2. equal paths in the pytrees: a new state has the structure of the old one, gradients have the keys of parameters;
3. a subtraction from a placeholder, as in the update of an optimizer;
4. after a scalar loss, trailing outputs with the shapes of consecutive inputs, as of `torch.autograd.grad`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, fx

from spmdir.importer.program import Input, Output, Program
from spmdir.torch_interop.symbolic_numbers import comparable_number

_PASS_THROUGH = frozenset({"mul.Tensor", "mul.Scalar", "clone", "detach", "alias", "copy", "_to_copy", "to.dtype"})
_UPDATES = frozenset({"sub.Tensor", "addcdiv", "addcmul", "lerp.Scalar", "lerp.Tensor"})


def find_updated_inputs(program: Program) -> list[Input | None]:
    """Return, for each output, the input whose new value or gradient it is; None if no input is.

    The weakest evidence, number 4 in the module docstring, counts only if no output has other evidence.
    """
    inputs = [entry for entry in program.inputs if entry.is_argument]
    by_name = {name: entry for entry in reversed(inputs) for name in entry.names}
    by_node = {entry.node: entry for entry in inputs}
    update_sources = [
        _find_by_signature(output, by_name) or _find_by_path(output, inputs) or _find_by_update(output, by_node)
        for output in program.outputs
    ]
    return update_sources if any(update_sources) else _find_by_shapes(program.outputs, inputs)


def _find_by_signature(output: Output, by_name: dict[str, Input]) -> Input | None:
    """Return the input that the signature of the graph names for an output."""
    return by_name.get(output.like) if output.like else None


def _find_by_path(output: Output, inputs: Sequence[Input]) -> Input | None:
    """Return the first input that has a name of the output, and the shape of the output; None if there is none."""
    if not isinstance(output.value, fx.Node):
        return None
    candidates = (entry for name in output.names for entry in inputs if name in entry.names)
    return next((entry for entry in candidates if _shape(entry.node) == _shape(output.value)), None)


def _find_by_update(output: Output, by_node: dict[fx.Node, Input]) -> Input | None:
    """Follow the first operands of an update such as `p * (1 - lr * decay) - lr * g` to `p`, and return this input.

    Returns None unless the first operands contain an update and lead to an input of the same shape.
    """
    node, is_updated = output.value, False
    while isinstance(node, fx.Node) and node.op == "call_function" and node.args:
        op = str(node.target).removeprefix("aten.").removesuffix(".default")
        is_update = op in _UPDATES or (op == "add.Tensor" and "alpha" in node.kwargs)
        if not is_update and op not in _PASS_THROUGH:
            return None
        is_updated = is_updated or is_update
        node = node.args[0]
    entry = by_node.get(node) if is_updated and isinstance(node, fx.Node) else None
    return entry if entry and _shape(entry.node) == _shape(output.value) else None


def _find_by_shapes(outputs: Sequence[Output], inputs: Sequence[Input]) -> list[Input | None]:
    """Match the outputs after the last scalar with the first consecutive inputs that have the same shapes.

    The scalar is taken for the loss, and the outputs after it for gradients. Outputs of shapes [], [4, 8] and [8] match
    the parameters w and b of the shapes [4, 8] and [8]. Without a scalar, without such inputs, or if an output is not a
    tensor, nothing is matched: all entries are None.
    """
    shapes = [_shape(output.value) for output in outputs]
    loss = max((index for index, shape in enumerate(shapes) if shape == ()), default=len(shapes))
    gradient_shapes = shapes[loss + 1 :]
    no_inputs: list[Input | None] = [None] * len(outputs)
    if not gradient_shapes or None in gradient_shapes:
        return no_inputs
    for start in range(len(inputs) - len(gradient_shapes) + 1):
        consecutive = inputs[start : start + len(gradient_shapes)]
        if [_shape(entry.node) for entry in consecutive] == gradient_shapes:
            return [*no_inputs[: loss + 1], *consecutive]
    return no_inputs


def _shape(node: object) -> tuple[int, ...] | None:
    """Return the shape of a node's tensor, with symbolic sizes as numbers that compare; None without a tensor."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(map(comparable_number, value.shape)) if isinstance(value, Tensor) else None
