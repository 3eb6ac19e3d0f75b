"""`import_ranks`: the torch.fx graph of one rank → a module of the IR with global types and shardings.

Example: tp = 2, and the graph `mm(x, w1); relu; mm(w2); all_reduce("sum", tp)` of one rank, on local tensors:

    x: [4, 8] <>       w1: [8, 3] <tp: S(1)>       w2: [3, 8] <tp: S(0)>

The global program has w1: [8, 6] and w2: [6, 8]. Its first product is <tp: S(1)>, the second is <tp: P(sum)>, and the
all-reduce makes the result complete.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.rewriter import Rewriter

from spmdir.core.arguments import COUNT, accepts, instance
from spmdir.core.errors import ShardingError, UnsupportedError
from spmdir.core.mesh import MESH, Mesh, as_mesh
from spmdir.core.placement.sharding import Sharding, ShardingLike
from spmdir.core.placement.sharding_plan import ShardingPlan, as_plan
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.attributes import type_of
from spmdir.dialects.ir import context, verify
from spmdir.dialects.mesh_op import MeshOp
from spmdir.dialects.names import keep_name, make_names_unique
from spmdir.dialects.stage import write_stage
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of, signature_attrs
from spmdir.importer.graph_builder import tensor_meta
from spmdir.importer.locations import node_location
from spmdir.importer.program import Input, Output, Program
from spmdir.importer.read_exported import read_exported
from spmdir.importer.read_traced import read_traced
from spmdir.importer.symbolic_sizes import SymbolTable
from spmdir.importer.user_shardings import match_input_shardings
from spmdir.lowering.process_groups import device_rank
from spmdir.passes.fold_views import FoldViewsPass
from spmdir.read_back.eager_graphs import global_type, is_eager, with_functional_collectives
from spmdir.read_back.global_builder import GlobalBuilder
from spmdir.read_back.group_axes import GroupAxes, GroupTable
from spmdir.read_back.local_ops import RankGraphBuilder
from spmdir.read_back.message_buffers import simplify_buffers
from spmdir.read_back.moved_elements import insert_barriers
from spmdir.rules.rule_set import default


@accepts(
    mesh=MESH,
    example_inputs=instance(list, tuple, expected="a list of the graph's inputs").optional,
    model=instance(nn.Module, expected="the module whose step was traced").optional,
    groups=instance(Mapping, expected="a dict from the name of a process group to mesh axes").optional,
    rank=COUNT.optional,
)
def import_ranks(
    graph: fx.GraphModule | torch.export.ExportedProgram,
    mesh: Mesh,
    in_shardings: Mapping[str, ShardingLike | None] | ShardingPlan | str | None = None,
    *,
    groups: GroupAxes | None = None,
    rank: int | None = None,
    example_inputs: Sequence[Any] | None = None,
    model: nn.Module | None = None,
) -> ModuleOp:
    """Import the program that one rank runs, and infer the global program.

    The graph has local tensors and collectives of `torch.ops._c10d_functional`. Tensor parallel with DTensor, FSDP and
    hand-written collectives give such graphs if they are traced over a real or fake process group. Shards must be even.

    Args:
        graph: the result of make_fx or torch.export on local tensors.
        mesh: a Mesh, or a torch DeviceMesh with named dimensions.
        in_shardings: the sharding of each input, with the keys of `plan` in `import_fx`. Inputs that are not listed are
            replicated.
        groups: name of a process group → its mesh axes. Groups of this process, and names such as `mesh:tp`, are known.
        rank: the position of the rank in the mesh; by default that of this process in a DeviceMesh, or 0.
        example_inputs: local inputs to run the graph on, if its nodes have no shapes.
        model: the module whose parameters and buffers the graph captures, as a step of FSDP2 does. They become the
            first inputs. The shapes and placements of its DTensors are read; the module may be on the meta device.

    Returns:
        A module at the stage `lowered`, with the function `main`.

    Raises:
        ShardingError: no strategy of an op has the placements of its operands, or a collective is not legal on its
            operand; at the line of the op.
        UnsupportedError: the graph has ops that the IR cannot express.

    Example:
        >>> module = spmdir.import_ranks(graph, spmdir.Mesh({"tp": 2}), {"w1": "tp: S(1)", "w2": "tp: S(0)"})
    """
    is_device_mesh = not isinstance(mesh, Mesh)
    ranks = mesh.mesh.flatten().tolist() if is_device_mesh else None  # type: ignore
    position = rank if rank is not None else device_rank(mesh) if is_device_mesh else 0
    mesh = as_mesh(mesh)
    if position >= mesh.world_size:
        raise ShardingError(f"rank is {position}; expected 0 to {mesh.world_size - 1}, a position in the mesh {mesh}")
    table = GroupTable(mesh, groups, ranks or range(mesh.world_size))
    state = {} if model is None else {**dict(model.named_parameters()), **dict(model.named_buffers())}
    program = _read(graph, example_inputs, state)
    plan = as_plan(in_shardings, mesh)
    types = {name: global_type(value) for name, value in state.items()}
    plan = ShardingPlan({name: sharding for name, (_, sharding) in types.items()}).updated_with(plan)
    shapes = {name: shape for name, (shape, _) in types.items()}
    return _Import(program, mesh, plan, table, position, shapes).module()


def _read(graph: Any, example_inputs: Sequence[Any] | None, state: Mapping[str, Tensor]) -> Program:
    """Return the program of a graph; its collectives are kept."""
    if isinstance(graph, torch.export.ExportedProgram):
        return read_exported(graph)
    if isinstance(graph, fx.GraphModule):
        examples = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
        if state or is_eager(graph):
            graph = with_functional_collectives(graph, state)
        return read_traced(graph, example_inputs if None in examples else examples)
    raise UnsupportedError(
        f"cannot import an object of type {type(graph).__name__}; expected an fx.GraphModule or an ExportedProgram: "
        "trace the function of one rank with make_fx"
    )


class _Import:
    """One import: the ops of the graph in a block with local types, and the module with global types.

    Attributes:
        program, mesh, plan, rank: the program of one rank, the mesh, the shardings of inputs, the position of the rank.
        shapes: name of a parameter or buffer → its global shape, if it is known.
        arguments: the inputs that are arguments.
        local_metas, shardings: the local type and the sharding of each of `arguments`.
    """

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        plan: ShardingPlan,
        table: GroupTable,
        rank: int,
        shapes: Mapping[str, tuple[int, ...]],
    ):
        """Read the local types and the shardings of the arguments; `table` has the mesh axes of process groups."""
        self.program, self.mesh, self.plan, self.rank, self.shapes = program, mesh, plan, rank, shapes
        self.symbols = SymbolTable(program.graph, program.ranges)
        self.arguments = [entry for entry in program.inputs if entry.is_argument]
        self.local_metas = [self._meta(entry) for entry in self.arguments]
        self.shardings = self._input_shardings()
        self.builder = GlobalBuilder(mesh, default(), rank, table)

    def module(self) -> ModuleOp:
        """Return the global module: build the local ops, then the global form of each of them."""
        local = Block(arg_types=[type_of(meta) for meta in self.local_metas])
        graph_builder = RankGraphBuilder(self.mesh, self.symbols, local.args)
        outputs = [entry for entry in self._build_local(graph_builder, local) if isinstance(entry[1], SSAValue)]
        metas = [
            self._global_meta(*entry) for entry in zip(self.arguments, self.local_metas, self.shardings, strict=True)
        ]
        block = Block(arg_types=[type_of(meta) for meta in metas])
        function = FuncOp("main", (list(block.arg_types), []), Region(block), arg_attrs=self._argument_attrs(block))
        module = ModuleOp([MeshOp.build(self.mesh), function])
        for local_value, value in zip(local.args, block.args, strict=True):
            self.builder.set_value(local_value, value)
        returned = self._fold_views(graph_builder, local, [local_value for _, local_value in outputs])
        for op in local.ops:
            if isinstance(op, ValueOp):
                self.builder.add(op)
        results = [self.builder.value(local_value) for local_value in returned]
        block.add_ops([*self.builder.ops, ReturnOp(*results)])
        _drop_unused(block)
        make_names_unique(block)
        result_types = [value.type for value in results]
        function.function_type = function.function_type.from_lists(list(block.arg_types), result_types)
        function.res_attrs = ArrayAttr(
            [
                signature_attrs(output.names[0] if output.names else None, output.kind, sharding_of(value))
                for (output, _), value in zip(outputs, results, strict=True)
            ]
        )
        write_stage(function, "lowered")
        verify(module)
        return module

    def _fold_views(self, builder: RankGraphBuilder, local: Block, returned: list[SSAValue]) -> Sequence[SSAValue]:
        """Fold views of the local program into its products, and return its results.

        Then batch, sequence and heads are dimensions of their own, and may be sharded separately. Views that pack or
        unpack a message are not folded.
        """
        end = ReturnOp(*returned)
        local.add_ops([*builder.ops, end])
        types = (list(local.arg_types), [value.type for value in returned])
        _drop_full_slices(local)
        simplify_buffers(local, self.builder.rules)
        barriers = insert_barriers(local)
        FoldViewsPass().apply(context(), ModuleOp([MeshOp.build(self.mesh), FuncOp("main", types, Region(local))]))
        for barrier in barriers:
            barrier.results[0].replace_all_uses_with(barrier.operands[0])
            Rewriter.erase_op(barrier)
        return end.operands

    def _meta(self, entry: Input) -> TensorMeta:
        """Return the local type of an argument."""
        return tensor_meta(entry.node.meta["val"], entry.node, self.symbols, node_location(entry.node))

    def _input_shardings(self) -> list[Sharding]:
        """Return the sharding of each argument; replicated if the user gives none."""
        numbers = itertools.count()
        positions = [next(numbers) if entry.kind == "input" else None for entry in self.arguments]
        # The global sizes are computed from the shardings later. Until then, shardings are checked against the largest
        # possible size: the local size times the number of all ranks.
        largest_metas = [
            TensorMeta(tuple(size * self.mesh.world_size for size in meta.shape), meta.dtype)
            for meta in self.local_metas
        ]
        matched = match_input_shardings(
            self.plan.shardings,
            [entry.names for entry in self.arguments],
            [entry.node.name for entry in self.arguments],
            positions,
            largest_metas,
            self.mesh,
            [entry.label for entry in self.arguments],
        )
        return [sharding or Sharding((), self.mesh.name) for sharding in matched]

    def _global_meta(self, entry: Input, local: TensorMeta, sharding: Sharding) -> TensorMeta:
        """Return the global type of an argument: each local size times the number of ranks that shard the dimension.

        Raises:
            ShardingError: the shard of this rank in that type is not the local type.
        """
        sizes: list[int] = []
        for dim, size in enumerate(local.shape):
            axes = sharding.dim_axes(dim)
            sizes.append(size * self.mesh.refine(axes).group_size(axes))
        meta = TensorMeta(self.shapes.get(entry.names[0], tuple(sizes)), local.dtype)
        fine = self.mesh.refine([axis for axis, _ in sharding.entries])
        if sharding.open_axes or sharding.refined(fine).local_type(meta, fine, fine.coordinate(self.rank)) != local:
            raise ShardingError(
                f"{entry.label} has the sharding <{sharding}>, under which its local tensor does not "
                "determine the global one; expected even shards, replicated or partial values: use sizes "
                "that the ranks divide"
            )
        return meta

    def _build_local(self, builder: RankGraphBuilder, local: Block) -> list[tuple[Output, Any]]:
        """Build the local ops, and return (output, its local value) for the outputs in order, then for mutations."""
        values: dict[fx.Node, Any] = {}
        for entry, argument in zip(self.arguments, local.args, strict=True):
            values[entry.node] = argument
            keep_name(argument, re.sub(r"[^\w.]", "_", entry.names[0]))
        for entry in self.program.inputs:
            if entry.node not in values:
                is_constant = isinstance(entry.value, Tensor) and bool(entry.node.users)
                values[entry.node] = builder.build_constant(entry.node, entry.value) if is_constant else entry.value
        builder.build(self.program.graph, values)
        outputs = [
            (output, values[output.value] if isinstance(output.value, fx.Node) else output.value)
            for output in self.program.outputs
        ]
        for entry in self.program.inputs:
            if entry.node in builder.mutations:
                outputs.append((Output(entry.node, entry.names, "mutation"), builder.mutations[entry.node]))
        return sorted(outputs, key=lambda pair: pair[0].kind == "mutation")

    def _argument_attrs(self, block: Block) -> ArrayAttr[Any]:
        """Return the attributes of the arguments."""
        return ArrayAttr(
            [
                signature_attrs(entry.names[0], entry.kind, sharding, value)
                for value, entry, sharding in zip(block.args, self.arguments, self.shardings, strict=True)
            ]
        )


def _drop_full_slices(block: Block) -> None:
    """Erase the slices of all elements. Their ends are local sizes, which are not the sizes of the global tensor."""
    for op in list(block.ops):
        if op.name == "aten.slice.Tensor" and op.operands[0].type == op.results[0].type:
            op.results[0].replace_all_uses_with(op.operands[0])
            Rewriter.erase_op(op)


def _drop_unused(block: Block) -> None:
    """Erase ops without users, such as those that pack a message; in reverse order, so that their operands go too."""
    for op in reversed(list(block.ops)):
        if not isinstance(op, ReturnOp) and not any(result.uses for result in op.results):
            op.detach()
            op.erase()
