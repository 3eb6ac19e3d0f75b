"""Find the values of a graph that share memory, by a run on fake tensors, and rewrite writes that torch would lose.

To make a graph functional, torch uses the aliases in schemas, and an inverse for each view. Both may be wrong: a
composite op may return its argument without an alias in its schema, and inverses of some views lose elements or round.
If a write would be lost, the call is replaced by an op whose schema declares the alias. Otherwise all values of this
memory become views of one flat tensor.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, fx

from spmdir.core.errors import UnsupportedError
from spmdir.importer.foreach_ops import Entrywise
from spmdir.importer.locations import node_location
from spmdir.importer.running_statistics import written
from spmdir.torch_interop import pytree
from spmdir.torch_interop.dispatch import TorchDispatchMode
from spmdir.torch_interop.fake_tensors import FakeTensor, FakeTensorMode
from spmdir.torch_interop.memory_layouts import Layout, layout_of
from spmdir.torch_interop.ops import HigherOrderOperator, schema_or_none
from spmdir.torch_interop.schemas import is_mutable
from spmdir.torch_interop.symbolic_numbers import is_open

_aten = torch.ops.aten

INVERTED: frozenset[Any] = frozenset({
    _aten.alias.default, _aten.detach.default, _aten.view.default, _aten._reshape_alias.default,
    _aten.slice.Tensor, _aten.select.int, _aten.transpose.int, _aten.t.default, _aten.permute.default,
    _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.unsqueeze.default,
    _aten.split.Tensor, _aten.split_with_sizes.default, _aten.unbind.int, _aten.diagonal.default,
    _aten.as_strided.default, _aten.view_as_real.default, _aten.view_as_complex.default, _aten.view.dtype,
    _aten._conj.default, _aten._neg_view.default, _aten.lift_fresh.default,
})  # fmt: skip
"""Views through which torch writes exactly."""

_DECLARING: dict[Any, Any] = {
    _aten.unsafe_split.Tensor: _aten.split.Tensor,
    _aten.unsafe_split_with_sizes.default: _aten.split_with_sizes.default,
    _aten.unsafe_chunk.default: _aten.chunk.default,
    _aten._unsafe_view.default: _aten.view.default,
}
"""Op whose schema lacks its aliases → equal op whose schema declares them."""

_FILLS = frozenset({_aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default})
"""Writes whose result does not depend on the order of elements."""

_INHERITED = ("stack_trace", "nn_module_stack")


@attrs.define(eq=False)
class _Value:
    """The tensor of a node.

    Attributes:
        made: the time at which its node ran; `used`: the time of its last read.
        root: the first of the values that share its memory according to schemas; None for that value itself.
        is_exact: whether torch writes correctly through the views from the root to this value.
        last: for an input, its layout after the run, which ops such as `t_` may have changed.
    """

    node: fx.Node
    layout: Layout
    made: int
    root: _Value | None
    is_exact: bool
    last: Layout
    used: float = -1.0

    @property
    def group(self) -> _Value:
        return self.root or self


@attrs.frozen
class _Write:
    """A write to a value by a node. `needs_clone`: it writes through strides that torch cannot use as a second view."""

    value: _Value
    by: fx.Node
    time: int
    needs_clone: bool


class _Views(TorchDispatchMode):
    """Collects the view ops, including those inside composite ops."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view:
            self.found.add(func)
        return func(*args, **kwargs or {})


class _Run(Entrywise):
    """Runs a graph on fake tensors, and records shared memory and writes.

    Attributes:
        values: node → its tensor, also for nodes of inner graphs.
        groups: memory → its values, in the order of their creation.
        relaid: (tensor, node) for tensors whose shape, strides or memory the node changed in place.
    """

    def __init__(self, module: fx.GraphModule, outer: _Run | None = None):
        super().__init__(module)
        self.values: dict[fx.Node, _Value] = outer.values if outer else {}
        self.groups: dict[int, list[_Value]] = outer.groups if outer else {}
        self.writes: list[_Write] = outer.writes if outer else []
        self.relaid: list[tuple[Any, fx.Node]] = outer.relaid if outer else []
        self.held: list[Any] = outer.held if outer else []
        self.clock: list[int] = outer.clock if outer else [0]
        self._exact: dict[fx.Node, bool] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.clock[0] += 1
        for node in n.all_input_nodes:
            if node in self.values:
                self.values[node].used = max(self.values[node].used, self.clock[0])
        with _Views() as views:
            value = super().run_node(n)
        self.held.append(value)  # a reference, so that its memory is not reused
        if n.op == "output":
            return value
        self._exact[n] = views.found <= INVERTED and self._is_composable(n)
        is_relaid = torch.Tag.inplace_view in getattr(n.target, "tags", ())
        if is_relaid:
            self.relaid.append((value, n))
        for node in () if is_relaid else written(n.target, n.args, n.kwargs):
            if node in self.values:
                target = self.values[node]
                is_first = target.root is None and target.layout.is_line
                needs_clone = _aten.as_strided.default in views.found and not is_first
                self.writes.append(_Write(target, n, self.clock[0], needs_clone))
        layout = layout_of(value)
        if layout is not None:
            self._keep(n, layout)
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        body = next((a for a in args if isinstance(a, fx.GraphModule)), None)
        if body is None or not isinstance(target, HigherOrderOperator):
            return super().call_function(target, args, kwargs)
        count = len(body.graph.find_nodes(op="placeholder"))
        return _Run(body, self).run(*args[len(args) - count :])

    def _is_composable(self, node: fx.Node) -> bool:
        """Return whether torch can write through `node`.

        An `as_strided` must be the first view, of a contiguous tensor.
        """
        source = self.values.get(node.args[0]) if node.target is _aten.as_strided.default else None  # type: ignore
        return source is None or (source.root is None and source.layout.is_line)

    def _keep(self, node: fx.Node, layout: Layout) -> None:
        maker = _maker(node)
        group = self.groups.setdefault(layout.storage, [])
        sources = [self.values[a] for a in maker.all_input_nodes if a in self.values]
        source = next((s for s in sources if s.layout.storage == layout.storage), None)
        if source is None and group:  # enters or leaves an inner graph
            source = next((v for v in reversed(group) if v.layout == layout), None)
        told = source is not None and _tells(maker)
        exact = self._exact.get(maker, True) and (source is None or source.is_exact)
        root = source.group if source and told else None
        value = self.values[node] = _Value(node, layout, self.clock[0], root, root is None or exact, layout)
        if node.op == "placeholder":
            value.used = math.inf  # the caller reads it after the program
        group.append(value)


def _tells(node: fx.Node) -> bool:
    """Return whether the schema of the target of a node declares that results share memory with arguments."""
    schema = schema_or_none(node.target)
    return schema is None or any(r.alias_info is not None for r in schema.returns)


def with_explicit_aliases(module: fx.GraphModule, held: Sequence[Any]) -> fx.GraphModule:
    """Return `module`, or a copy in which schemas declare all aliases that writes depend on.

    Args:
        held: an example value of each placeholder, with its strides.

    Raises:
        UnsupportedError: the result of a write depends on the order of elements, values of one memory cannot be views
            of one flat tensor, or the shape or memory of an input changes.
    """
    mode = mode_of_symbols(held)
    while True:
        with mode or FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            run = _Run(module)
            inputs = [like(value) for value in held]
            run.run(*inputs)
        for node, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
            if node in run.values:
                run.values[node].last = _last_layout(run, node, value)
        edits, flat = _wanted(run)
        apart = [write for write in run.writes if write.needs_clone]
        if not edits and not flat and not apart:
            return module
        module = _edited(module, edits, apart, [(run.groups[storage], by) for storage, by in flat.items()])


def mode_of_symbols(held: Sequence[Any]) -> FakeTensorMode | None:
    """Return the fake mode of the symbolic sizes of `held`; None if no size is symbolic."""
    fakes = (value for value in held if isinstance(value, FakeTensor))
    return next((value.fake_mode for value in fakes if any(map(is_open, value.shape))), None)


def _last_layout(run: _Run, node: fx.Node, value: Tensor) -> Layout:
    """Return the layout of the input `node` after the run."""
    before, after = run.values[node].layout, layout_of(value)
    if after is not None and before.storage == after.storage and before.has_size_of(after):
        return after
    by = next(by for tensor, by in reversed(run.relaid) if tensor is value)
    raise UnsupportedError(
        f"'{by.name}' calls {by.target}, which leaves the input '{node.name}' with another shape or memory than "
        "it came with; expected inputs to keep theirs: use the op that returns a new tensor, or write to a clone",
        node_location(by),
    )


def like(value: Any) -> Any:
    """Return an empty tensor with the shape and strides of `value`; `value` itself if it is not a tensor."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _wanted(run: _Run) -> tuple[dict[fx.Node, Call], dict[int, fx.Node]]:
    """Return (node → call to replace it, memory to flatten → node that writes to it)."""
    edits: dict[fx.Node, Call] = {}
    flat: dict[int, fx.Node] = {}
    for write in run.writes:
        value, group = write.value, run.groups[write.value.layout.storage]
        if value.layout.repeats() and write.by.target not in _FILLS:
            raise UnsupportedError(
                f"'{write.by.name}' calls {write.by.target} on a view with elements that occur more than once, so that "
                "its meaning depends on the order of writes; write to a clone, or to the tensor behind the view",
                node_location(write.by),
            )
        if not (value.is_exact and all(v.is_exact for v in group if v.node.target is _aten.as_strided.default)):
            flat.setdefault(value.layout.storage, write.by)
        others = (v for v in group if v.group is not value.group and v.made < write.time < v.used)
        if not any(value.layout.meets(other.layout) for other in others):
            continue
        for index, untold in enumerate(group):
            if index and untold.root is None:
                source = next((v for v in group[:index] if v.layout == untold.layout), None)
                maker = _maker(untold.node)
                if source is not None:
                    edits[untold.node] = (_aten.alias.default, (source.node,), {})
                elif maker.target in _DECLARING:
                    edits[maker] = (_DECLARING[maker.target], maker.args, maker.kwargs)
                else:
                    flat.setdefault(untold.layout.storage, write.by)
    return edits, flat


def _edited(
    module: fx.GraphModule,
    edits: dict[fx.Node, Call],
    apart: list[_Write],
    flat: list[tuple[list[_Value], fx.Node]],
) -> fx.GraphModule:
    graph, copies = fx.Graph(), {}
    returned = graph.graph_copy(module.graph, copies)
    old = next(node for node in module.graph.nodes if node.op == "output")
    graph.output(returned).meta = dict(old.meta)
    for node, (target, args, kwargs) in edits.items():
        if node not in copies or any(a not in copies for a in pytree.tree_leaves((args, kwargs)) if _is_node(a)):
            raise _within(node)
        new = copies[node]
        new.target = target
        new.args, new.kwargs = fx.map_arg((args, kwargs), copies.__getitem__)
    for write in apart:
        if write.by not in copies:
            raise _within(write.by)
        _write_to_clone(graph, copies[write.by], copies[write.value.node])
    for group, by in flat:
        _flatten(graph, group, copies, by)
    return fx.GraphModule(module, graph)


def _write_to_clone(graph: fx.Graph, by: fx.Node, written: fx.Node) -> None:
    """Let the in-place op `by` write to a clone of `written`, and copy the clone to `written`."""
    with graph.inserting_before(by):
        clone = graph.call_function(_aten.clone.default, (written,), {"memory_format": torch.contiguous_format})
    by.replace_input_with(written, clone)
    with graph.inserting_after(by):
        copy = graph.call_function(_aten.copy_.default, (written, clone))
    by.replace_all_uses_with(copy)
    clone.meta, copy.meta = dict(by.meta), dict(by.meta)


def _flatten(graph: fx.Graph, group: Sequence[_Value], copies: dict[fx.Node, fx.Node], by: fx.Node) -> None:
    """Make all values of `group` views of one flat tensor, in the order of memory."""
    if any(value.node not in copies for value in group):
        raise _within(by)
    first = group[0].layout
    order = _order(group, by)
    owner = copies[group[0].node]
    at = owner if owner.op != "placeholder" else graph.find_nodes(op="placeholder")[-1]
    made: set[fx.Node] = set()

    def call(target: Any, *args: Any, of: fx.Node, **kwargs: Any) -> fx.Node:
        nonlocal at
        with graph.inserting_after(at):
            at = graph.call_function(target, args, kwargs)
        values = fx.map_arg(args, lambda node: node.meta["val"])
        at.meta = {key: of.meta[key] for key in _INHERITED if key in of.meta}
        at.meta["val"] = values[0] if is_mutable(at.target) else target(*values, **kwargs)
        made.add(at)
        return at

    def part(layout: Layout, of: fx.Node) -> fx.Node:
        return call(_aten.as_strided.default, line, layout.size, layout.stride, layout.offset - first.offset, of=of)

    line = call(_aten.permute.default, owner, order, of=owner)
    line = call(_aten.reshape.default, line, [first.count], of=owner)
    line = call(_aten.clone.default, line, of=owner)
    for value in group:
        node = copies[value.node]
        at = at if node is owner else node
        new = part(value.layout, node)
        node.replace_all_uses_with(new, lambda user: user not in made)
    (end,) = graph.find_nodes(op="output")
    for value in group:
        if value.node.op == "placeholder":
            at = end.prev
            call(_aten.copy_.default, copies[value.node], part(value.last, by), of=by)
    for value in reversed(group):
        node = copies[value.node]
        for unused in dict.fromkeys((node, _maker(node))):
            if unused.op == "call_function" and not unused.users and not is_mutable(unused.target):
                graph.erase_node(unused)


def _order(group: Sequence[_Value], by: fx.Node) -> list[int]:
    first = group[0].layout
    layouts = [value.layout for value in group]
    why = None
    if any(layout.is_open for layout in layouts):
        why = "sizes are symbolic"
    elif any(layout.dtype != first.dtype or layout.is_lazy for layout in layouts):
        why = "some are of another element type, conjugated or negated"
    elif (order := first.order()) is None or any(v.offset < first.offset or v.last > first.last for v in layouts):
        why = "its elements do not lie side by side"
    else:
        return order
    raise UnsupportedError(
        f"'{by.name}' calls {by.target} on memory that other values share in a way that cannot be imported, for "
        f"{why}; write to a clone, or through slices, transposes and reshapes",
        node_location(by),
    )


def _within(node: fx.Node) -> UnsupportedError:
    return UnsupportedError(
        f"'{node.name}' calls {node.target} in a region with its own graph, on memory that other values share; "
        "move the write, or the op that shares memory, out of the region",
        node_location(node),
    )


def _maker(node: Any) -> fx.Node:
    """Return the call whose result `node` is, or is an item of."""
    while node.target is operator.getitem:
        node = node.args[0]
    return node


def _is_node(value: object) -> bool:
    return isinstance(value, fx.Node)
