"""Python of a placement as graph nodes: traced once on fake tensors, then copied into the graph that is emitted."""

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
"""Ops of the tracing itself."""

_NEEDS_VALUES = (fake_tensors.DataDependentOutputException, fake_tensors.DynamicOutputShapeException)


@attrs.frozen(cache_hash=True)
class EdgeCode:
    """The lowering of the edge from one placement to another, as a rank of `group` runs it.

    Attributes:
        states: the names of what the ranks keep for it; each is a [1, …] of what its lowering has on the rank with
            the largest shard.
        largest: the local shape of that rank before.
        group_largest: the largest size of each dimension before, on the ranks of the group.
    """

    source: Placement
    target: Placement
    group: Group
    states: tuple[str, ...] = ()
    largest: tuple[int, ...] = ()
    group_largest: tuple[int, ...] = ()

    def __call__(self, x: torch.Tensor, *held: torch.Tensor) -> Any:
        edge = edge_between(self.source, self.target)
        if edge is None:
            raise SpmdirError(f"neither {self.source} nor {self.target} declares an edge from the one to the other")
        if not edge.state:
            return edge.lower(x, self.group)
        states = edge.states(self.largest, self.group.size)
        shapes = {
            name: states[name].local_shape(self.group_largest if states[name].shared else x.shape, self.group.size)
            for name in self.states
        }
        own = {name: _first(one[0], shapes[name]) for name, one in zip(self.states, held, strict=True)}
        found = edge.lower(x, self.group, own)
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Mapping):
            raise SpmdirError("returns no pair; expected (what a rank holds afterwards, {name: new state})")
        value, new = found
        if set(new) != {*self.states}:
            raise SpmdirError(
                f"returns the states {', '.join(map(str, new)) or 'none'}; expected {', '.join(self.states) or 'none'}"
            )
        for name, shape in shapes.items():
            if tuple(new[name].shape) != shape:
                raise SpmdirError(f"returns the state '{name}' of {[*new[name].shape]}; expected {[*shape]}")
        padded = [_padded(new[name], one.shape[1:])[None] for name, one in zip(self.states, held, strict=True)]
        return (value, *padded) if padded else value

    def __str__(self) -> str:
        return f"the edge from {self.source} to {self.target}"

    @property
    def declaring(self) -> tuple[Placement, ...]:
        return (self.source, self.target)


def _first(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return the first elements along each dimension, as many as `shape` says."""
    return tensor if tuple(tensor.shape) == shape else tensor[tuple(map(slice, shape))]


def _padded(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return `tensor` with zeros behind it along each dimension, up to `shape`."""
    if tensor.shape == torch.Size(shape):
        return tensor
    behind = [(0, wanted - size) for size, wanted in zip(tensor.shape, shape, strict=True)]
    return torch.nn.functional.pad(tensor, [number for pair in reversed(behind) for number in pair])


@attrs.frozen(cache_hash=True)
class BeforeCode:
    """The op on a local partial value before it is reduced."""

    placement: PartialPlacement

    def __call__(self, x: torch.Tensor) -> Any:
        return self.placement.before(x)

    def __str__(self) -> str:
        return f"`before` of {self.placement}"

    @property
    def declaring(self) -> tuple[Placement, ...]:
        return (self.placement,)


@attrs.frozen(cache_hash=True)
class AfterCode:
    """What is done to the reduced value over `count` ranks."""

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
    """A method of a packed placement on the parts of states: `identity`, `combine`, whose states follow one another,
    `finish` or `pack`."""

    placement: PackedPlacement
    method: str

    def __call__(self, *parts: torch.Tensor) -> Any:
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


def inline(emit: Emit, code: Code, x: Node, given: Kind) -> tuple[Node, Kind]:
    """Return the result of `code` on `x`, which is of the kind `given`, and its kind; see `inline_all`."""
    (result,) = inline_all(emit, code, [x], [given])
    return result


def inline_all(emit: Emit, code: Code, values: Sequence[Node], given: Sequence[Kind]) -> list[tuple[Node, Kind]]:
    """Emit the nodes of `code` on `values`, which are of the kinds `given`; return its results and their kinds.

    Raises:
        SpmdirError: the code fails, asks for values, or returns no tensor; at its place in the plug-in.
    """
    program, kinds = _traced(code, tuple(given))
    copies: dict[Node, Any] = {}
    operands = iter(values)
    x = values[0]
    for node in program.graph.nodes:
        if node.op == "placeholder":
            operand = next(operands)
            # Views in the code have been traced on a contiguous tensor.
            copies[node] = emit(aten.contiguous.default, operand) if node.users and not _returned(node) else operand
        elif node.op == "get_attr":
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


def _returned(node: Node) -> bool:
    return all(user.op == "output" for user in node.users)


def _results(output: Node) -> tuple[Any, ...]:
    """Return what a traced program returns, one or several."""
    (returned,) = output.args
    return tuple(returned) if isinstance(returned, (list, tuple)) else (returned,)


@lru_cache(maxsize=1024)
def _traced(code: Code, given: tuple[Kind, ...]) -> tuple[fx.GraphModule, tuple[Kind, ...]]:
    from torch.fx.experimental.proxy_tensor import make_fx  # slow to import

    try:
        with unlogged(FAKE_TENSORS), torch.no_grad(), fake_tensors.FakeTensorMode(allow_non_fake_inputs=True):
            # Functional, since the operand may have other uses and exported programs change nothing in place.
            tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in given]
            program = make_fx(torch.func.functionalize(code))(*tensors)
    except SpmdirError as error:
        raise error.at(_place(code, error), f"{code} fails") from None
    except _NEEDS_VALUES as error:
        raise SpmdirError(
            f"{code} depends on the values of a tensor; it is traced once for all values, so use torch ops whose "
            "result has a fixed shape, as torch.where",
            _place(code, error),
        ) from None
    except (Exception, SystemExit) as error:
        # Code of plug-ins raises whatever it likes; for the user it is one thing: this declaration is wrong.
        raise SpmdirError(
            f"{code} fails on {_kinds_text(given)}: {type(error).__name__}: {first_line(error)}", _place(code, error)
        ) from error
    _drop_updates(program.graph)
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    values = [result.meta.get("val") if isinstance(result, Node) else None for result in _results(output)]
    if not all(isinstance(value, torch.Tensor) for value in values):
        found = type(output.args[0]).__name__
        raise SpmdirError(f"{code} returns {found}; expected {_EXPECTED[type(code)]}", _place(code, None))
    return program, tuple((tuple(value.shape), value.dtype) for value in values)  # type: ignore


_EXPECTED: dict[type, str] = dict.fromkeys((EdgeCode, BeforeCode, AfterCode), "a tensor") | {
    StateCode: "a tensor for each part"
}
"""Class of code → what it has to return."""


def _kinds_text(kinds: Sequence[Kind]) -> str:
    texts = [f"shape {[*shape]} and {dtype}" for shape, dtype in kinds]
    return f"a tensor of {texts[0]}" if len(texts) == 1 else f"tensors of {', of '.join(texts)}"


def _drop_updates(graph: fx.Graph) -> None:
    """Leave out what the code writes into its operand: what it returns is all that counts."""
    for node in list(graph.nodes):
        if node.target is aten.copy_.default and node.args[0].op == "placeholder":
            graph.erase_node(node)
    graph.eliminate_dead_code()


def require_kinds(code: Code, found: Sequence[Kind], expected: Sequence[Kind]) -> None:
    """Raise SpmdirError unless `code` gives as many tensors as it has to, of the kinds that it has to."""
    if len(found) != len(expected):
        raise SpmdirError(f"{code} gives {len(found)} tensors; expected {len(expected)}", _place(code, None))
    for one, wanted in zip(found, expected, strict=True):
        require_kind(code, one, wanted)


def require_kind(code: Code, found: Kind, expected: Kind) -> None:
    """Raise SpmdirError unless `code` gives what it has to."""
    if found != expected:
        (shape, dtype), (wanted, kind) = found, expected
        raise SpmdirError(
            f"{code} gives a tensor of shape {[*shape]} and {dtype}; expected {[*wanted]} and {kind}",
            _place(code, None),
        )


def _place(code: Code, error: BaseException | None) -> Location | None:
    return failing_line(code.declaring, error)
