"""Emit the Python code of a placement: trace it once on fake tensors, then copy the nodes into the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs
import torch
from torch import fx
from torch.fx import Node

from spmdir.core.errors import Location, SpmdirError
from spmdir.core.placement.base import PartialPlacement, edge_between
from spmdir.core.placement.packed import PackedPlacement
from spmdir.core.placement.standard import Placement
from spmdir.lowering.group import Group
from spmdir.lowering.plugin_lines import failing_line, first_line
from spmdir.lowering.ranges import Emit, aten
from spmdir.lowering.site import Kind
from spmdir.torch_interop import fake_tensors
from spmdir.torch_interop.logs import FAKE_TENSORS, unlogged

_SAME = (aten.lift_fresh_copy.default, aten.detach.default)
"""Ops that only tracing adds. Each returns the value of its operand."""

_NEEDS_VALUES = (fake_tensors.DataDependentOutputException, fake_tensors.DynamicOutputShapeException)


@attrs.frozen(cache_hash=True)
class EdgeCode:
    """The lowering of the edge from one placement to another, on one rank of `group`.

    Attributes:
        states: the names of its edge states. The tensor of each is [1, …], padded to the shape on the rank with the
            largest shard.
        largest: the local shape before the edge on the rank with the largest shard.
        group_largest: the largest size of each dimension before the edge, over the ranks of the group.
    """

    source: Placement
    target: Placement
    group: Group
    states: tuple[str, ...] = ()
    largest: tuple[int, ...] = ()
    group_largest: tuple[int, ...] = ()

    def __call__(self, x: torch.Tensor, *padded_states: torch.Tensor) -> Any:
        """Return the local tensor after the edge. If the edge has states, return a tuple that ends with the new states.

        The lowering of the edge gets each state without its padding and without the leading dimension of size 1. The
        new states are padded again like `padded_states`.

        Args:
            x: the local tensor before the edge.
            padded_states: the tensor of each name in `states`.

        Raises:
            SpmdirError: no placement declares the edge, or its lowering returns something else than declared.
        """
        edge = edge_between(self.source, self.target)
        if edge is None:
            raise SpmdirError(
                f"neither {self.source} nor {self.target} declares an edge from {self.source} to {self.target}; "
                "expected an edge in `edges` of one of these placements"
            )
        if not edge.state:
            return edge.lower(x, self.group)
        states = edge.states(self.largest, self.group.size)
        shapes = {
            name: states[name].local_shape(self.group_largest if states[name].shared else x.shape, self.group.size)
            for name in self.states
        }
        local_states = {
            name: _leading_part(padded_state[0], shapes[name])
            for name, padded_state in zip(self.states, padded_states, strict=True)
        }
        returned = edge.lower(x, self.group, local_states)
        if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
            raise SpmdirError("does not return a pair; expected (local tensor after the edge, {name: new state})")
        value, new_states = returned
        if set(new_states) != {*self.states}:
            raise SpmdirError(
                f"returns the states {', '.join(map(str, new_states)) or 'none'}; "
                f"expected {', '.join(self.states) or 'none'}"
            )
        for name, shape in shapes.items():
            if tuple(new_states[name].shape) != shape:
                raise SpmdirError(f"returns the state '{name}' of {[*new_states[name].shape]}; expected {[*shape]}")
        padded = [
            _pad_end(new_states[name], padded_state.shape[1:])[None]
            for name, padded_state in zip(self.states, padded_states, strict=True)
        ]
        return (value, *padded) if padded else value

    def __str__(self) -> str:
        return f"the edge from {self.source} to {self.target}"

    @property
    def declaring(self) -> tuple[Placement, ...]:
        """Return the placements whose classes may declare the code."""
        return (self.source, self.target)


def _leading_part(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the leading part of `tensor` that has this shape."""
    return tensor if tuple(tensor.shape) == shape else tensor[tuple(map(slice, shape))]


def _pad_end(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return `tensor` padded with zeros at the end of each dimension, to this shape."""
    if tensor.shape == torch.Size(shape):
        return tensor
    # `pad` takes (before, after) for each dimension, the last dimension first.
    padding = [(0, padded_size - size) for size, padded_size in zip(tensor.shape, shape, strict=True)]
    return torch.nn.functional.pad(tensor, [number for pair in reversed(padding) for number in pair])


@attrs.frozen(cache_hash=True)
class BeforeCode:
    """`before` of a placement, which prepares a local partial value for the reduction."""

    placement: PartialPlacement

    def __call__(self, x: torch.Tensor) -> Any:
        return self.placement.before(x)

    def __str__(self) -> str:
        return f"`before` of {self.placement}"

    @property
    def declaring(self) -> tuple[Placement, ...]:
        """Return the placements whose classes may declare the code."""
        return (self.placement,)


@attrs.frozen(cache_hash=True)
class AfterCode:
    """`after` of a placement, on the value reduced over `count` ranks."""

    placement: PartialPlacement
    count: int

    def __call__(self, x: torch.Tensor) -> Any:
        return self.placement.after(x, self.count)

    def __str__(self) -> str:
        return f"`after` of {self.placement}"

    @property
    def declaring(self) -> tuple[Placement, ...]:
        return (self.placement,)


@attrs.frozen(cache_hash=True)
class StateCode:
    """A method of a packed placement on the parts of states: `identity`, `combine`, `finish` or `pack`.

    `combine` takes the parts of one state, then those of the other.
    """

    placement: PackedPlacement
    method: str

    def __call__(self, *parts: torch.Tensor) -> Any:
        """Return the result of the method on the parts of its states, each part as one tensor."""
        if self.method == "combine":
            half = len(self.placement.parts)
            return self.placement.combine(parts[:half], parts[half:])
        if self.method == "pack":
            return self.placement.pack(*parts)
        if self.method == "finish":
            return self.placement.finish(parts)
        return self.placement.identity(*parts)

    def __str__(self) -> str:
        return f"`{self.method}` of {type(self.placement).__name__}"

    @property
    def declaring(self) -> tuple[Placement, ...]:
        return (self.placement,)


Code = EdgeCode | BeforeCode | AfterCode | StateCode


def inline(emit: Emit, code: Code, x: Node, kind: Kind) -> tuple[Node, Kind]:
    """Return the result of `code` on `x` of this kind, and the kind of the result; see `inline_all`."""
    (result,) = inline_all(emit, code, [x], [kind])
    return result


def inline_all(
    emit: Emit, code: Code, values: Sequence[Node], kinds_of_values: Sequence[Kind]
) -> list[tuple[Node, Kind]]:
    """Emit the nodes of `code` on `values` of these kinds; return its results and their kinds.

    The code is traced once for its kinds, and the nodes of the trace are copied into the graph. New tensors in it are
    created on the device of the first value.

    Raises:
        SpmdirError: the code fails, depends on values of tensors, or does not return tensors; located in the plug-in.
    """
    program, kinds = _trace(code, tuple(kinds_of_values))
    copies: dict[Node, Any] = {}
    operands = iter(values)
    x = values[0]
    for node in program.graph.nodes:
        if node.op == "placeholder":
            operand = next(operands)
            # The code was traced on a contiguous tensor, so its views require one.
            is_computed_with = bool(node.users) and not _is_only_returned(node)
            copies[node] = emit(aten.contiguous.default, operand) if is_computed_with else operand
        elif node.op == "get_attr":  # a constant tensor, which later ops must not share
            copies[node] = emit(aten.clone.default, getattr(program, str(node.target)))
        elif node.target in _SAME:
            copies[node] = copies[node.args[0]]
        elif node.op == "output":
            return list(zip((copies[result] for result in _results(node)), kinds, strict=True))
        else:
            args, kwargs = fx.map_arg((node.args, node.kwargs), copies.__getitem__)
            if isinstance(kwargs.get("device"), torch.device):
                kwargs = {**kwargs, "device": emit(getattr, x, "device")}
            copies[node] = emit(node.target, *args, **kwargs)
    raise AssertionError("a traced program has an output")


def _is_only_returned(node: Node) -> bool:
    """Return whether the traced program returns `node`, and uses it in no op."""
    return all(user.op == "output" for user in node.users)


def _results(output: Node) -> tuple[Any, ...]:
    """Return the results of a traced program as a tuple."""
    (returned,) = output.args
    return tuple(returned) if isinstance(returned, (list, tuple)) else (returned,)


@lru_cache(maxsize=1024)
def _trace(code: Code, kinds: tuple[Kind, ...]) -> tuple[fx.GraphModule, tuple[Kind, ...]]:
    """Trace `code` on fake tensors of these kinds; return the program and the kinds of its results.

    Raises:
        SpmdirError: see `inline_all`.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # slow to import

    try:
        with unlogged(FAKE_TENSORS), torch.no_grad(), fake_tensors.FakeTensorMode(allow_non_fake_inputs=True):
            # The operand may have other users, so writes to it become functional ops.
            tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in kinds]
            program = make_fx(torch.func.functionalize(code))(*tensors)
    except SpmdirError as error:
        raise error.at(_place(code, error), f"{code} fails") from None
    except _NEEDS_VALUES as error:
        raise SpmdirError(
            f"{code} depends on the values of a tensor, but is traced once for all values; expected one "
            "computation for all values: use torch ops whose result has a fixed shape, such as torch.where",
            _place(code, error),
        ) from None
    except (Exception, SystemExit) as error:
        # Plug-in code may raise anything. For the user, all of it means that this declaration is wrong.
        raise SpmdirError(
            f"{code} fails on {_kinds_text(kinds)}: {type(error).__name__}: {first_line(error)}; expected a "
            "result for these tensors: correct this line",
            _place(code, error),
        ) from error
    _drop_updates(program.graph)
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    values = [result.meta.get("val") if isinstance(result, Node) else None for result in _results(output)]
    if not all(isinstance(value, torch.Tensor) for value in values):
        type_name = type(output.args[0]).__name__
        raise SpmdirError(f"{code} returns {type_name}; expected {_EXPECTED[type(code)]}", _place(code, None))
    return program, tuple((tuple(value.shape), value.dtype) for value in values)  # type: ignore


_EXPECTED: dict[type, str] = dict.fromkeys((EdgeCode, BeforeCode, AfterCode), "a tensor") | {
    StateCode: "a tensor for each part"
}
"""Class of code → its expected result, for error messages."""


def _kinds_text(kinds: Sequence[Kind]) -> str:
    """Return `a tensor of shape [2] and torch.float32` for an error, or `tensors of …, of …`."""
    texts = [f"shape {[*shape]} and {dtype}" for shape, dtype in kinds]
    return f"a tensor of {texts[0]}" if len(texts) == 1 else f"tensors of {', of '.join(texts)}"


def _drop_updates(graph: fx.Graph) -> None:
    """Erase writes of the code into its operands, and nodes without users. Only the results of the code matter."""
    for node in list(graph.nodes):
        if node.target is aten.copy_.default and node.args[0].op == "placeholder":
            graph.erase_node(node)
    graph.eliminate_dead_code()


def require_kinds(code: Code, kinds: Sequence[Kind], expected: Sequence[Kind]) -> None:
    """Raise SpmdirError unless `code` returns tensors of the expected kinds."""
    if len(kinds) != len(expected):
        raise SpmdirError(
            f"{code} returns {len(kinds)} tensors; expected {len(expected)}, with the new states: return one "
            "tensor for each",
            _place(code, None),
        )
    for kind, expected_kind in zip(kinds, expected, strict=True):
        require_kind(code, kind, expected_kind)


def require_kind(code: Code, kind: Kind, expected: Kind) -> None:
    """Raise SpmdirError unless `code` returns a tensor of the expected kind."""
    if kind != expected:
        (shape, dtype), (expected_shape, expected_dtype) = kind, expected
        raise SpmdirError(
            f"{code} returns a tensor of shape {[*shape]} and {dtype}; "
            f"expected {[*expected_shape]} and {expected_dtype}",
            _place(code, None),
        )


def _place(code: Code, error: BaseException | None) -> Location | None:
    """Return the line of the plug-in that raised `error`; without one, the line of the class that declares `code`."""
    return failing_line(code.declaring, error)
