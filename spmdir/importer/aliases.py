"""Rewrite writes that torch's functionalization would lose.

A run on fake tensors finds the values that share memory. To make a graph functional, torch uses the aliases in schemas,
and an inverse for each view. Both may be wrong: a composite op may return its argument without an alias in its schema,
and the inverses of some views lose elements or round. If a write would be lost, the call is replaced by an op whose
schema declares the alias. If there is no such op, all values of this memory become views of one flat tensor.
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
from spmdir.importer.foreach_ops import EntrywiseInterpreter
from spmdir.importer.locations import node_location
from spmdir.importer.running_statistics import written_leaves
from spmdir.torch_interop import pytree
from spmdir.torch_interop.dispatch import TorchDispatchMode
from spmdir.torch_interop.fake_tensors import FakeTensor, FakeTensorMode
from spmdir.torch_interop.memory_layouts import Layout, layout_of
from spmdir.torch_interop.ops import HigherOrderOperator
from spmdir.torch_interop.schemas import declares_aliases, is_mutable
from spmdir.torch_interop.symbolic_numbers import is_open

_aten = torch.ops.aten

INVERTIBLE_VIEWS: frozenset[Any] = frozenset({
    _aten.alias.default, _aten.detach.default, _aten.view.default, _aten._reshape_alias.default,
    _aten.slice.Tensor, _aten.select.int, _aten.transpose.int, _aten.t.default, _aten.permute.default,
    _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.unsqueeze.default,
    _aten.split.Tensor, _aten.split_with_sizes.default, _aten.unbind.int, _aten.diagonal.default,
    _aten.as_strided.default, _aten.view_as_real.default, _aten.view_as_complex.default, _aten.view.dtype,
    _aten._conj.default, _aten._neg_view.default, _aten.lift_fresh.default,
})  # fmt: skip
"""View ops with an exact inverse: torch writes through them correctly."""

_DECLARING_EQUIVALENTS: dict[Any, Any] = {
    _aten.unsafe_split.Tensor: _aten.split.Tensor,
    _aten.unsafe_split_with_sizes.default: _aten.split_with_sizes.default,
    _aten.unsafe_chunk.default: _aten.chunk.default,
    _aten._unsafe_view.default: _aten.view.default,
}
"""Op whose schema lacks its aliases → equal op whose schema declares them."""

_FILLS = frozenset({_aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default})
"""Writes whose result does not depend on the order of elements."""

_INHERITED_META = ("stack_trace", "nn_module_stack")


@attrs.define(eq=False)
class _Value:
    """The tensor of a node. Times are indices of nodes in the run.

    Attributes:
        created_at: the time at which the node ran.
        root: the first of the values that share its memory according to schemas; None for that first value.
        is_exact: whether torch can write correctly through the views from the root to this value; True for a root.
        final_layout: for an input, its layout after the run. Ops such as `t_` may have changed it.
        last_read_at: the time of the last read.
    """

    node: fx.Node
    layout: Layout
    created_at: int
    root: _Value | None
    is_exact: bool
    final_layout: Layout
    last_read_at: float = -1.0

    @property
    def root_or_self(self) -> _Value:
        """The first of the values that share the memory of this value according to schemas."""
        return self.root or self


@attrs.frozen
class _Write:
    """A write of a node to a value.

    Attributes:
        value: the value that changes.
        writer: the node that writes.
        time: the time at which the node ran.
        needs_clone: whether the node writes through an `as_strided` view of another view, which torch cannot invert.
    """

    value: _Value
    writer: fx.Node
    time: int
    needs_clone: bool


class _ViewCollector(TorchDispatchMode):
    """Collects the view ops that run, including those inside composite ops."""

    def __init__(self) -> None:
        super().__init__()
        self.view_ops: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view:
            self.view_ops.add(func)
        return func(*args, **kwargs or {})


class _AliasTracer(EntrywiseInterpreter):
    """Runs a graph on fake tensors, and records shared memory and writes.

    Attributes:
        values: node → its tensor, including nodes of inner graphs.
        groups: storage → its values, in the order of their creation.
        writes: the writes, in the order of execution.
        layout_changes: (tensor, node) for each tensor whose shape, strides or memory the node changed in place.
        kept_alive: all results. Freed memory could be reused, and would then seem shared.
        clock: a list with one number, the current time. The tracers of inner graphs share the list.
        _is_exact: node → whether torch can write through all view ops that the node ran.
    """

    def __init__(self, module: fx.GraphModule, outer: _AliasTracer | None = None):
        """Start without values. The tracer of an inner graph shares the records of the tracer `outer` around it."""
        super().__init__(module)
        self.values: dict[fx.Node, _Value] = outer.values if outer else {}
        self.groups: dict[int, list[_Value]] = outer.groups if outer else {}
        self.writes: list[_Write] = outer.writes if outer else []
        self.layout_changes: list[tuple[Any, fx.Node]] = outer.layout_changes if outer else []
        self.kept_alive: list[Any] = outer.kept_alive if outer else []
        self.clock: list[int] = outer.clock if outer else [0]
        self._is_exact: dict[fx.Node, bool] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, and record its reads, its writes, and the memory of its result."""
        self.clock[0] += 1
        for node in n.all_input_nodes:
            if node in self.values:
                self.values[node].last_read_at = max(self.values[node].last_read_at, self.clock[0])
        with _ViewCollector() as collector:
            value = super().run_node(n)
        self.kept_alive.append(value)
        if n.op == "output":
            return value
        self._is_exact[n] = collector.view_ops <= INVERTIBLE_VIEWS and self._can_write_through(n)
        changes_layout = torch.Tag.inplace_view in getattr(n.target, "tags", ())
        if changes_layout:
            self.layout_changes.append((value, n))
        for node in () if changes_layout else written_leaves(n.target, n.args, n.kwargs):
            if node in self.values:
                target = self.values[node]
                is_first = target.root is None and target.layout.is_contiguous
                needs_clone = _aten.as_strided.default in collector.view_ops and not is_first
                self.writes.append(_Write(target, n, self.clock[0], needs_clone))
        layout = layout_of(value)
        if layout is not None:
            self._record_value(n, layout)
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run a call. The inner graph of a higher-order op is run and recorded by another tracer with these records."""
        body = next((argument for argument in args if isinstance(argument, fx.GraphModule)), None)
        if body is None or not isinstance(target, HigherOrderOperator):
            return super().call_function(target, args, kwargs)
        count = len(body.graph.find_nodes(op="placeholder"))
        return _AliasTracer(body, self).run(*args[len(args) - count :])

    def _can_write_through(self, node: fx.Node) -> bool:
        """Return whether torch can write through `node`.

        torch inverts an `as_strided` only if it is the first view of a contiguous tensor.
        """
        source = self.values.get(node.args[0]) if node.target is _aten.as_strided.default else None  # type: ignore
        return source is None or (source.root is None and source.layout.is_contiguous)

    def _record_value(self, node: fx.Node, layout: Layout) -> None:
        """Add the tensor of a node to the values of its storage.

        Its root is the value that it is a view of, if the schema of its op declares so. For example, the root of
        `view(permute(x))` is x, and the result of `unsafe_chunk(x)` has no root, although it shares memory with x.
        """
        call = _producing_call(node)
        group = self.groups.setdefault(layout.storage, [])
        inputs = [self.values[operand] for operand in call.all_input_nodes if operand in self.values]
        source = next((value for value in inputs if value.layout.storage == layout.storage), None)
        # The placeholder of an inner graph, or the result of a call of one, has no input with its memory.
        if source is None and group:
            source = next((value for value in reversed(group) if value.layout == layout), None)
        root = source.root_or_self if source is not None and declares_aliases(call.target) else None
        is_exact_view = self._is_exact.get(call, True) and (source is None or source.is_exact)
        value = _Value(node, layout, self.clock[0], root, root is None or is_exact_view, layout)
        self.values[node] = value
        if node.op == "placeholder":
            value.last_read_at = math.inf  # the caller may read it after the program
        group.append(value)


def with_explicit_aliases(module: fx.GraphModule, examples: Sequence[Any]) -> fx.GraphModule:
    """Return `module`, or a copy in which schemas declare all aliases that writes depend on.

    An edit may reveal further undeclared aliases. So the graph runs again after each round of edits, until none is
    needed.

    Args:
        examples: an example value of each placeholder, with its strides.

    Raises:
        UnsupportedError: the result of a write depends on the order of elements, values that share memory cannot be
            views of one flat tensor, or the shape or memory of an input changes.
    """
    mode = symbolic_fake_mode(examples)
    while True:
        with mode or FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            tracer = _AliasTracer(module)
            inputs = [make_empty_like(value) for value in examples]
            tracer.run(*inputs)
        for node, value in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
            if node in tracer.values:
                tracer.values[node].final_layout = _find_final_layout(tracer, node, value)
        edits, flattened = _plan_edits(tracer)
        cloned_writes = [write for write in tracer.writes if write.needs_clone]
        if not edits and not flattened and not cloned_writes:
            return module
        flattened_groups = [(tracer.groups[storage], writer) for storage, writer in flattened.items()]
        module = _apply_edits(module, edits, cloned_writes, flattened_groups)


def symbolic_fake_mode(examples: Sequence[Any]) -> FakeTensorMode | None:
    """Return the fake mode of the symbolic sizes of `examples`; None if no size is symbolic."""
    fakes = (value for value in examples if isinstance(value, FakeTensor))
    return next((value.fake_mode for value in fakes if any(map(is_open, value.shape))), None)


def _find_final_layout(tracer: _AliasTracer, node: fx.Node, value: Tensor) -> Layout:
    """Return the layout of the input `node`, whose tensor is `value`, after the run."""
    before, after = tracer.values[node].layout, layout_of(value)
    if after is not None and before.storage == after.storage and before.has_same_shape(after):
        return after
    changer = next(changer for tensor, changer in reversed(tracer.layout_changes) if tensor is value)
    raise UnsupportedError(
        f"'{changer.name}' calls {changer.target}, which changes the shape or memory of the input '{node.name}'; "
        "expected inputs to keep both: use the op that returns a new tensor, or write to a clone",
        node_location(changer),
    )


def make_empty_like(value: Any) -> Any:
    """Return an empty tensor with the shape and strides of `value`; `value` itself if it is not a tensor."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _plan_edits(tracer: _AliasTracer) -> tuple[dict[fx.Node, Call], dict[int, fx.Node]]:
    """Return (node → call to replace it, storage to flatten → node that writes to it).

    For each write, look for aliases of the written value that no schema declares and that are read later. Each such
    alias becomes an `alias` of an earlier equal value, or the result of an equal op that declares it. Otherwise, its
    storage is flattened. A storage is also flattened if torch cannot write through its views.

    In `y = unsafe_chunk(x, 2)[0]; y.zero_(); return x`, the schema of `unsafe_chunk` does not declare that `y` is a
    view of `x`, so the returned `x` would lack the zeros. The edit calls `chunk`, which declares it.
    """
    edits: dict[fx.Node, Call] = {}
    flattened: dict[int, fx.Node] = {}
    for write in tracer.writes:
        value, group = write.value, tracer.groups[write.value.layout.storage]
        if value.layout.has_repeated_elements() and write.writer.target not in _FILLS:
            raise UnsupportedError(
                f"'{write.writer.name}' calls {write.writer.target} on a view with repeated elements, and the result "
                "depends on the order of writes; expected elements that occur once: write to a clone, or to the base "
                "of the view",
                node_location(write.writer),
            )
        strided_views = [view for view in group if view.node.target is _aten.as_strided.default]
        if not (value.is_exact and all(view.is_exact for view in strided_views)):
            flattened.setdefault(value.layout.storage, write.writer)
        # Values that the write changes, although no schema declares that they share memory with `value`.
        hidden_aliases = [
            alias
            for alias in group
            if alias.root_or_self is not value.root_or_self and alias.created_at < write.time < alias.last_read_at
        ]
        if not any(value.layout.overlaps(alias.layout) for alias in hidden_aliases):
            continue
        for index, undeclared in enumerate(group):
            if index and undeclared.root is None:  # the first value owns the memory, so it has no alias to declare
                source = next((earlier for earlier in group[:index] if earlier.layout == undeclared.layout), None)
                call = _producing_call(undeclared.node)
                if source is not None:
                    edits[undeclared.node] = (_aten.alias.default, (source.node,), {})
                elif call.target in _DECLARING_EQUIVALENTS:
                    edits[call] = (_DECLARING_EQUIVALENTS[call.target], call.args, call.kwargs)
                else:
                    flattened.setdefault(undeclared.layout.storage, write.writer)
    return edits, flattened


def _apply_edits(
    module: fx.GraphModule,
    edits: dict[fx.Node, Call],
    cloned_writes: list[_Write],
    flattened: list[tuple[list[_Value], fx.Node]],
) -> fx.GraphModule:
    """Return a copy of `module` with calls replaced, writes to clones, and flattened memory.

    Args:
        flattened: (values of one storage, the node that writes to it).
    """
    graph, copies = fx.Graph(), {}
    returned = graph.graph_copy(module.graph, copies)
    old_output = next(node for node in module.graph.nodes if node.op == "output")
    graph.output(returned).meta = dict(old_output.meta)
    for node, (target, args, kwargs) in edits.items():
        operands = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, fx.Node)]
        if any(used_node not in copies for used_node in (node, *operands)):
            raise _region_error(node)
        edited_copy = copies[node]
        edited_copy.target = target
        edited_copy.args, edited_copy.kwargs = fx.map_arg((args, kwargs), copies.__getitem__)
    for write in cloned_writes:
        if write.writer not in copies:
            raise _region_error(write.writer)
        _write_to_clone(graph, copies[write.writer], copies[write.value.node])
    for group, writer in flattened:
        _flatten(graph, group, copies, writer)
    return fx.GraphModule(module, graph)


def _write_to_clone(graph: fx.Graph, writer: fx.Node, target: fx.Node) -> None:
    """Redirect the in-place op `writer` to a clone of `target`, then copy the clone to `target`."""
    with graph.inserting_before(writer):
        clone = graph.call_function(_aten.clone.default, (target,), {"memory_format": torch.contiguous_format})
    writer.replace_input_with(target, clone)
    with graph.inserting_after(writer):
        copy = graph.call_function(_aten.copy_.default, (target, clone))
    writer.replace_all_uses_with(copy)
    clone.meta, copy.meta = dict(writer.meta), dict(writer.meta)


def _flatten(graph: fx.Graph, group: Sequence[_Value], copies: dict[fx.Node, fx.Node], writer: fx.Node) -> None:
    """Replace all values of `group`, which share memory, by views of one flat tensor with the elements in memory order.

    For x of shape [2, 3] and its view y, whose writes would be lost, the graph becomes:

        flat = clone(reshape(permute(x, [0, 1]), [6]))
        x, y = as_strided(flat, …), as_strided(flat, …)           in place of x and y; torch writes through them
        …
        copy_(x, as_strided(flat, …))                             at the end, if x is an input
    """
    if any(value.node not in copies for value in group):
        raise _region_error(writer)
    first_layout = group[0].layout
    order = _memory_order(group, writer)
    owner = copies[group[0].node]
    insertion_point = owner if owner.op != "placeholder" else graph.find_nodes(op="placeholder")[-1]
    new_nodes: set[fx.Node] = set()

    def insert_call(target: Any, *args: Any, origin: fx.Node, **kwargs: Any) -> fx.Node:
        """Insert a call after the last inserted one; it gets the location and other metadata of `origin`."""
        nonlocal insertion_point
        with graph.inserting_after(insertion_point):
            insertion_point = graph.call_function(target, args, kwargs)
        values = fx.map_arg(args, lambda node: node.meta["val"])
        insertion_point.meta = {key: origin.meta[key] for key in _INHERITED_META if key in origin.meta}
        insertion_point.meta["val"] = values[0] if is_mutable(insertion_point.target) else target(*values, **kwargs)
        new_nodes.add(insertion_point)
        return insertion_point

    def insert_view(layout: Layout, origin: fx.Node) -> fx.Node:
        """Insert the view of the flat tensor that has the elements of `layout`."""
        # The flat tensor starts at the first element of the group, not at the start of the storage.
        strides = layout.size, layout.stride, layout.offset - first_layout.offset
        return insert_call(_aten.as_strided.default, flat_tensor, *strides, origin=origin)

    flat_tensor = insert_call(_aten.permute.default, owner, order, origin=owner)
    flat_tensor = insert_call(_aten.reshape.default, flat_tensor, [first_layout.element_count], origin=owner)
    flat_tensor = insert_call(_aten.clone.default, flat_tensor, origin=owner)
    for value in group:
        node = copies[value.node]
        insertion_point = insertion_point if node is owner else node
        view = insert_view(value.layout, node)
        node.replace_all_uses_with(view, lambda user: user not in new_nodes)
    (output_node,) = graph.find_nodes(op="output")
    for value in group:
        if value.node.op == "placeholder":
            insertion_point = output_node.prev
            insert_call(_aten.copy_.default, copies[value.node], insert_view(value.final_layout, writer), origin=writer)
    for value in reversed(group):
        node = copies[value.node]
        for unused in dict.fromkeys((node, _producing_call(node))):
            if unused.op == "call_function" and not unused.users and not is_mutable(unused.target):
                graph.erase_node(unused)


def _memory_order(group: Sequence[_Value], writer: fx.Node) -> list[int]:
    """Return the dimensions of the first value of `group`, from the outermost to the innermost in memory.

    Raises:
        UnsupportedError: the values of `group` cannot be views of one flat tensor.
    """
    base = group[0].layout
    layouts = [value.layout for value in group]
    if any(layout.is_open for layout in layouts):
        reason = "symbolic sizes"
    elif any(layout.dtype != base.dtype or layout.is_lazy for layout in layouts):
        reason = "another element type, or are conjugated or negated"
    else:
        order = base.dims_outermost_first()
        are_inside = all(
            base.offset <= layout.offset and layout.last_position <= base.last_position for layout in layouts
        )
        if order is not None and are_inside:
            return order
        reason = "gaps between their elements"
    raise UnsupportedError(
        f"'{writer.name}' calls {writer.target} on memory shared with values that have {reason}; expected dense views "
        "of one tensor: write to a clone, or through slices, transposes and reshapes",
        node_location(writer),
    )


def _region_error(node: fx.Node) -> UnsupportedError:
    """Return the error of a call in an inner graph, which cannot be edited."""
    return UnsupportedError(
        f"'{node.name}' calls {node.target} in an inner graph, on memory shared with other values; expected "
        "memory of its own: move the write, or the op that shares the memory, out of the inner graph",
        node_location(node),
    )


def _producing_call(node: Any) -> fx.Node:
    """Return `node`, or for an item of a tuple the call that returns the tuple."""
    while node.target is operator.getitem:
        node = node.args[0]
    return node
