"""Rewrite the graph of a rank that runs eagerly, such as that of FSDP2, to functional collectives on its parameters.

Three parts of such a graph are not functional:

- A collective writes its result into a buffer, as `c10d._allgather_base_(buffer, shard, group)` does.
- The graph captures tensors. Tensors with the same memory are views of one shard of a parameter, or of one buffer.
- FSDP2 packs and unpacks messages with ops of its own namespace `fsdp`.

Each op of the first and third kind has a form by other ops in one table. A captured tensor becomes a view of a
parameter or of an empty buffer. The importer then removes the writes to views, as it does in any other graph.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.distributed.tensor import DTensor, Shard
from torch.fx.proxy import GraphAppendingTracer, Proxy

from spmdir.core.errors import ShardingError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, as_sharding
from spmdir.importer.locations import node_location
from spmdir.importer.program import plain_tensor
from spmdir.importer.running_statistics import written_leaves
from spmdir.torch_interop import pytree
from spmdir.torch_interop.dtensors import StridedShard, inner_tensor
from spmdir.torch_interop.graphs import copy_pytrees
from spmdir.torch_interop.group_registry import boxed_group, boxed_reduction
from spmdir.torch_interop.tensors import storage_key

_ATEN = torch.ops.aten
_FUNCTIONAL = torch.ops._c10d_functional
_PREFIXES = ("c10d.", "fsdp.")
_DROPPED = "profiler."
_KEPT_META = ("stack_trace", "nn_module_stack")


def is_eager(graph: fx.GraphModule) -> bool:
    """Return whether a graph has collectives that write their results into buffers."""
    return any(str(node.target).startswith(_PREFIXES) for node in graph.graph.nodes if node.op == "call_function")


def with_functional_collectives(graph: fx.GraphModule, state: Mapping[str, Tensor]) -> fx.GraphModule:
    """Return a copy of a graph with functional collectives, whose first inputs are the local tensors of `state`.

    Args:
        state: name → parameter or buffer of the module whose step was traced, as a DTensor or a local tensor.

    Raises:
        UnsupportedError: a collective has no functional form, or a captured tensor is another view of its memory.
    """
    return _Rewriter(graph, state).rewrite()


def local_tensor(value: Tensor) -> Tensor:
    """Return the local tensor of a parameter or buffer."""
    return inner_tensor(value) if isinstance(value, DTensor) else value


def global_type(value: Tensor) -> tuple[tuple[int, ...], Sharding]:
    """Return (global shape, sharding) of a parameter or buffer; a plain tensor is replicated.

    DTensor nests the axes of one dimension in mesh order. A strided shard whose split factor is the number of shards of
    later axes is nested inside of them: FSDP on a tensor-parallel weight gives dp: StridedShard(0, split_factor=2) and
    tp: Shard(0), which is <tp: S(0), dp: S(0)>.
    """
    if not isinstance(value, DTensor):
        return tuple(value.shape), Sharding(())
    names, sizes = value.device_mesh.mesh_dim_names, value.device_mesh.shape
    if names is None:
        raise ShardingError(
            "a parameter is on a DeviceMesh without names; expected names of its dimensions: pass "
            "mesh_dim_names= to init_device_mesh"
        )
    nested: dict[int, list[int]] = {}
    unsharded: list[tuple[str, Any]] = []
    for index, placement in reversed(list(enumerate(value.placements))):
        if not isinstance(placement, (Shard, StridedShard)):
            unsharded.append((names[index], placement))
            continue
        # `axes` has the later axes of this dimension, outermost first. The first `outer` of them are outside this axis.
        axes, outer = nested.setdefault(placement.dim, []), 0
        while math.prod(sizes[axis] for axis in axes[:outer]) < getattr(placement, "split_factor", 1):
            outer += 1
        axes.insert(outer, index)
    shards = [(names[axis], f"S({dim})") for dim, axes in sorted(nested.items()) for axis in axes]
    mesh = Mesh(dict(zip(names, sizes, strict=True)))
    text = ", ".join(f"{axis}: {placement}" for axis, placement in shards)
    sharding = as_sharding(text, mesh, value.dim())
    return tuple(value.shape), Sharding([*sharding.entries, *as_sharding(dict(unsharded), mesh, value.dim()).entries])


class _Rewriter:
    """One rewrite of a graph to a new graph.

    Attributes:
        module: the original graph, whose attributes are the captured tensors.
        root, graph: the new module, and its graph.
        state: name → local tensor of a parameter or buffer.
        flat: storage → a vector of its elements in the new graph.
        whole: layout of a tensor of `state` → the tensor in the new graph.
        buffers: storage that the original graph writes to → its number of elements.
    """

    def __init__(self, module: fx.GraphModule, state: Mapping[str, Tensor]):
        """Start with an empty graph."""
        self.module, self.root, self.graph = module, nn.Module(), fx.Graph()
        self.tracer = GraphAppendingTracer(self.graph)
        self.state = {name: local_tensor(value).detach() for name, value in state.items()}
        self.flat: dict[int, Proxy] = {}
        self.whole: dict[tuple[Any, ...], Proxy] = {}
        self.buffers = _written_storages(module)

    def rewrite(self) -> fx.GraphModule:
        """Return the new graph: copies of all nodes, with each collective of eager mode replaced by its form."""
        values: dict[fx.Node, Any] = {}
        for name, tensor in self.state.items():
            self._add_state(name, tensor)
        for node in self.module.graph.nodes:
            name = str(node.target)
            if node.op == "get_attr":
                values[node] = self._read(node)
            elif node.op == "call_function" and name.startswith(_PREFIXES):
                values[node] = self._call_form(node, values)
            elif node.target is operator.getitem and isinstance(values[node.args[0]], (list, tuple)):
                values[node] = values[node.args[0]][node.args[1]]
            elif node.op != "call_function" or not name.startswith(_DROPPED):
                copy = self.graph.node_copy(node, lambda operand: values[operand].node)
                if node.op == "call_function":
                    copy.meta.pop("val", None)  # the importer computes it again, for all nodes
                values[node] = Proxy(copy, self.tracer)
        copy_pytrees(self.module.graph, self.graph)
        return fx.GraphModule(self.root, self.graph)

    def _add_state(self, name: str, tensor: Tensor) -> None:
        """Add a parameter or a buffer as an attribute that the graph reads first, and record its memory.

        A captured tensor may be a view of this memory beyond the parameter, such as of padding. So the vector of its
        elements is padded to the size of the memory.
        """
        value = self._attribute(name, nn.Parameter(tensor, requires_grad=False))
        self.whole.setdefault(_layout(tensor), value)
        if tensor.is_contiguous() and not tensor.storage_offset():
            flat = _ATEN.view.default(value, [-1])
            padding = _capacity(tensor) - tensor.numel()
            flat = _ATEN.constant_pad_nd.default(flat, [0, padding]) if padding else flat
            self.flat.setdefault(storage_key(tensor.untyped_storage()), flat)

    def _attribute(self, name: str, value: Tensor) -> Proxy:
        """Return a read of an attribute of the new module, which gets the value."""
        *path, leaf = name.split(".")
        owner = self.root
        for part in path:
            if not hasattr(owner, part):
                owner.add_module(part, nn.Module())
            owner = getattr(owner, part)
        if isinstance(value, nn.Parameter):
            owner.register_parameter(leaf, value)
        else:
            owner.register_buffer(leaf, value)
        return Proxy(self.graph.get_attr(name), self.tracer)

    def _read(self, node: fx.Node) -> Any:
        """Return the new value of a captured object that `node` reads.

        A captured tensor is a parameter or buffer of `state`, a view of the memory of one, a view of a buffer that the
        graph writes to, or a constant.
        """
        name = str(node.target)
        value = operator.attrgetter(name)(self.module)
        if not isinstance(value, Tensor):
            return value
        if _layout(value) in self.whole:
            return self.whole[_layout(value)]
        key = storage_key(value.untyped_storage())
        if key in self.buffers and key not in self.flat:
            self.flat[key] = self._empty(self.buffers[key], value.dtype)
        if key not in self.flat:
            if value.numel() and not value.untyped_storage().nbytes():
                raise UnsupportedError(
                    f"the graph captures '{name}', a parameter that FSDP2 gathered into a buffer which the graph "
                    "creates; expected a buffer that exists before the trace: run the step once, then trace it"
                )
            return self._attribute(name, plain_tensor(value))
        if value.is_contiguous() and not value.storage_offset():
            part = _ATEN.slice.Tensor(self.flat[key], 0, 0, value.numel())
            return _ATEN.view.default(part, list(value.shape))
        return _ATEN.as_strided.default(self.flat[key], list(value.shape), list(value.stride()), value.storage_offset())

    def _empty(self, size: int, dtype: torch.dtype) -> Proxy:
        """Return an uninitialised vector of `size` elements, as a buffer of the new graph."""
        target: Any = _ATEN.empty.memory_format
        return Proxy(self.graph.call_function(target, ([size],), {"dtype": dtype, "device": "cpu"}), self.tracer)

    def _call_form(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        """Call the form in `FORMS` of the op of `node`, and return its results.

        Args:
            values: node of the original graph → its value in the new graph.
        """
        name = str(node.target).removesuffix(".default")
        if name not in FORMS:
            raise UnsupportedError(
                f"'{node.name}' calls {name}, which has no counterpart in the IR; expected one of {', '.join(FORMS)}, "
                "or functional collectives such as _c10d_functional.all_reduce",
                node_location(node),
            )
        before = set(self.graph.nodes)
        args = fx.map_arg(node.args, values.__getitem__)
        results = FORMS[name](*args, **fx.map_arg(node.kwargs, values.__getitem__))
        for new_node in self.graph.nodes:
            if new_node not in before:
                new_node.meta.update({key: node.meta[key] for key in _KEPT_META if key in node.meta})
        return results


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key of the layout of a tensor in memory; tensors with equal keys have the same elements."""
    return storage_key(tensor.untyped_storage()), tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _capacity(tensor: Tensor) -> int:
    """Return the number of elements in the memory of a tensor, at least those that it reads."""
    last = sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = int(tensor.storage_offset()) + last + 1 if tensor.numel() else 0
    return max(needed, tensor.untyped_storage().nbytes() // tensor.element_size())


def _written_storages(module: fx.GraphModule) -> dict[int, int]:
    """Return storage → its number of elements, for captured tensors that the graph writes to."""
    storages: dict[fx.Node, int] = {}
    sizes: dict[int, int] = {}
    written: set[int] = set()
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(module)
            if isinstance(value, Tensor):
                storages[node] = key = storage_key(value.untyped_storage())
                sizes[key] = max(sizes.get(key, 0), _capacity(value))
        elif node.op == "call_function":
            source = node.args[0] if node.args else None
            if isinstance(source, fx.Node) and source in storages and getattr(node.target, "is_view", False):
                storages[node] = storages[source]
            outputs = written_leaves(node.target, node.args, node.kwargs)
            if str(node.target).startswith("c10d."):
                outputs = pytree.tree_leaves(node.args[0])
            written |= {storages[output] for output in outputs if output in storages}
    return {storage: size for storage, size in sizes.items() if storage in written}


def _all_gather_copy_in(inputs: Sequence[Any], output: Any, sizes: Any, count: int, rank: int) -> Any:
    """Copy the inputs of an all-gather into the part of `rank`, of `count` elements; return (the part, the buffer)."""
    part = _ATEN.slice.Tensor(output, 0, rank * count, (rank + 1) * count)
    _ATEN.copy_.default(part, _ATEN.cat.default(list(inputs)))
    return part, output


def _split_with_sizes_copy(source: Any, sizes: Sequence[int], dim: int = 0, *, out: Sequence[Any]) -> None:
    """Copy consecutive parts of `source` of these sizes into the tensors `out`."""
    start = 0
    for size, output in zip(sizes, out, strict=True):
        _ATEN.copy_.default(output, _ATEN.slice.Tensor(source, dim, start, start + size))
        start += size


def _chunk_cat(tensors: Sequence[Any], dim: int, count: int, *, out: Any) -> None:
    """Cut each tensor into `count` chunks, padded, and write the chunks for each rank one after the other to `out`."""
    _ATEN.copy_.default(out, _ATEN._chunk_cat.default(list(tensors), dim, count))


def _all_gather(output: Any, source: Any, group: Any, *_: Any) -> Any:
    """Gather `source` into `output`. As all ops of `c10d` do, return (output, work); None for the work to wait for."""
    name, size = boxed_group(group)
    gathered = _FUNCTIONAL.all_gather_into_tensor.default(source, size, name)
    return _ATEN.copy_.default(output, _FUNCTIONAL.wait_tensor.default(gathered)), None


def _reduce_scatter(output: Any, source: Any, group: Any, reduction: Any, *_: Any) -> Any:
    """Reduce and scatter `source` into `output`; return (output, None) as `_all_gather` does."""
    name, size = boxed_group(group)
    scattered = _FUNCTIONAL.reduce_scatter_tensor.default(source, boxed_reduction(reduction), size, name)
    return _ATEN.copy_.default(output, _FUNCTIONAL.wait_tensor.default(scattered)), None


def _all_reduce(tensors: Sequence[Any], group: Any, reduction: Any, *_: Any) -> Any:
    """Reduce each of the tensors in place; return (tensors, None) as `_all_gather` does."""
    name, _size = boxed_group(group)
    reduced = [_FUNCTIONAL.all_reduce.default(tensor, boxed_reduction(reduction), name) for tensor in tensors]
    waited = [_FUNCTIONAL.wait_tensor.default(value) for value in reduced]
    return [_ATEN.copy_.default(tensor, value) for tensor, value in zip(tensors, waited, strict=True)], None


FORMS: dict[str, Callable[..., Any]] = {
    "c10d._allgather_base_": _all_gather,
    "c10d._reduce_scatter_base_": _reduce_scatter,
    "c10d.allreduce_": _all_reduce,
    "fsdp.all_gather_copy_in": _all_gather_copy_in,
    "fsdp.chunk_cat": _chunk_cat,
    "fsdp.split_with_sizes_copy": _split_with_sizes_copy,
}
"""Op → its form, which calls other ops on the same operands and returns its results."""
