"""`tensor_parallel`: partition an exported program by styles of its linear layers, and export a rank's program."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import fx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.arguments import INTEGER, TEXT, accepts, instance, keyed
from spmdir.core.errors import ShardingError, UnsupportedError, did_you_mean, shown
from spmdir.core.mesh import MESH, Mesh, as_mesh
from spmdir.core.placement.sharding import Sharding, ShardingLike
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.dialects import ir
from spmdir.dialects.size_ops import open_sizes
from spmdir.importer.importer import import_fx
from spmdir.importer.read_exported import exported_with_explicit_aliases
from spmdir.importer.retrace import needs_retrace
from spmdir.importer.torch_errors import torch_errors
from spmdir.lowering.emit import emit
from spmdir.lowering.process_groups import GroupName, device_groups, device_rank, symbolic_group
from spmdir.pipeline.pipeline import PIPELINE, Pipeline
from spmdir.pipeline.remaining_passes import localize
from spmdir.plans.styles import as_style, linear_placements, style_axis
from spmdir.runtime.default_pipeline import running_pipeline
from spmdir.runtime.exported import rank_program, user_outputs
from spmdir.runtime.rank_mesh import given_device_mesh

aten = torch.ops.aten

_TRANSPOSES = (aten.t.default, aten.transpose.int, aten.permute.default, aten.numpy_T.default)
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.matmul.default, aten.bmm.default)


@accepts(
    program=instance(ExportedProgram, expected="a program of torch.export.export"),
    mesh=MESH,
    plan=keyed("""a dict of styles by FQN or glob, as in {"layers.*.wq": "colwise"}"""),
    rank=INTEGER,
    axis=TEXT.optional,
    pipeline=PIPELINE,
)
def tensor_parallel(
    program: ExportedProgram,
    mesh: Mesh | DeviceMesh,
    plan: Mapping[str, str | ParallelStyle],
    rank: int,
    *,
    axis: str | None = None,
    device_mesh: DeviceMesh | None = None,
    pipeline: Pipeline | str | None = None,
) -> ExportedProgram:
    """Return the exported program of one rank: replicated inputs and outputs, and the rank's shards of the weights.

    Ranks that differ along other axes than `axis` are independent, so they may have different inputs. Sharded weights
    are not gathered. The compiler decides where other values are gathered or reduced.

    Args:
        program: a program of torch.export.
        mesh: a Mesh, or a torch DeviceMesh with named axes, which then is also `device_mesh`.
        plan: FQN or glob of layers → "colwise" (weight and bias sharded by output features), "rowwise"
            (weight sharded by input features), another style of Hugging Face's `tp_plan`, or a style of torch. Layers
            are linear layers and embeddings.
        rank: the rank of the program, in mesh order.
        axis: the mesh axis that shards the weights; "tp" or the only axis if None.
        device_mesh: a torch DeviceMesh with the axes of `mesh`. Collectives run in its process groups. If None, the
            collectives refer to groups by the name `mesh:<axis>`, and the program can be made for any rank, saved and
            loaded. Before a process runs it, call `spmdir.lowering.process_groups.connect(program, device_mesh)`.
        pipeline: the passes to run. If None, the standard pipeline and `schedule`, for the topology `cpu-gloo` if the
            device mesh is of CPUs, else for the default topology.

    Raises:
        SpmdirError: a layer, style, axis or rank is unknown; a key names a module that is neither a linear layer nor
            an embedding; a style sets the layout of an input or output; or the program cannot be partitioned.

    Example:
        >>> styles = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}
        >>> program = spmdir.tensor_parallel(torch.export.export(model, (x,)), mesh, styles, rank=0)
    """
    device_mesh = given_device_mesh(mesh, device_mesh)
    mesh = as_mesh(mesh)
    axis = style_axis(mesh, axis)
    if not 0 <= rank < mesh.world_size:
        raise ShardingError(
            f"rank {shown(rank)} is not in a mesh of {mesh.world_size}; expected 0 to {mesh.world_size - 1}"
        )
    if device_mesh is not None and device_rank(device_mesh) != rank:
        raise ShardingError(
            f"rank is {rank}, but this process is rank {device_rank(device_mesh)} of the device mesh; "
            "expected equal ranks: pass the rank of this process"
        )
    group_name = symbolic_group if device_mesh is None else device_groups(mesh, device_mesh)
    if needs_retrace(program.graph_module):
        with torch_errors("the exported program cannot be made functional"):
            program = exported_with_explicit_aliases(program).run_decompositions({})
    axis_mesh, index_on_axis = Mesh(((axis, mesh.sizes[axis]),), mesh.name), mesh.coordinate(rank)[axis]
    shardings = {"*": "", **_weight_shardings(program, plan, axis)}
    outputs = ["" if isinstance(spec.arg, TensorArgument) else None for spec in user_outputs(program.graph_signature)]
    pipeline = running_pipeline(pipeline, None if device_mesh is None else device_mesh.device_type)
    with pipeline.rules:
        module = import_fx(program, axis_mesh, ShardingPlan(shardings, keep=(axis,)), out_shardings=outputs)
        return _lower_for_rank(program, module, pipeline, index_on_axis, group_name)


def _lower_for_rank(
    program: ExportedProgram, module: ModuleOp, pipeline: Pipeline, index_on_axis: int, group_name: GroupName
) -> ExportedProgram:
    """Lower the imported `module` for the rank at `index_on_axis`, and return it with the signature of `program`."""
    if open_sizes(module).symbols:
        raise UnsupportedError(
            "the program has symbolic sizes; expected fixed sizes in the program of one rank: export "
            "without dynamic_shapes, or use parallelize, which lowers the program again for new sizes"
        )
    module = localize(module, pipeline)
    graph = emit(ir.main_function(module), ir.mesh(module), index_on_axis, group_name)
    return rank_program(program, module, graph, index_on_axis)


def _weight_shardings(
    program: ExportedProgram, styles: Mapping[str, str | ParallelStyle], axis: str
) -> dict[str, ShardingLike]:
    """Return parameter name → sharding, for the layers that have a style."""
    layers = _layers(program)
    shardings: dict[str, ShardingLike] = {}
    for key, value in styles.items():
        style = as_style(key, value)
        if style.inputs or style.outputs:
            raise UnsupportedError(
                f"the style of '{key}' sets the layout of an input or output of the module, but an exported "
                "program has no modules; expected a style without layouts: use one, such as 'colwise', and "
                "export within spmdir.plans.activations.constrained_activations(model, plan) to set the "
                "layouts"
            )
        matching_layers = [key] if key in layers else [name for name in layers if fnmatchcase(name, key)]
        if not matching_layers and f"{key}.weight" in program.state_dict:
            raise ShardingError(
                f"'{key}' is not a linear layer; expected styles of linear layers and embeddings only: remove this one"
            )
        if not matching_layers:
            raise ShardingError(
                f"a style is given for '{key}', which is not a linear layer; expected the name or glob of "
                f"one{did_you_mean(key, layers)}"
            )
        for name in matching_layers:
            tensors = {part: program.state_dict.get(f"{name}.{part}") for part in ("weight", "bias")}
            dims = {part: tensor.dim() for part, tensor in tensors.items() if tensor is not None}
            for part, placement in linear_placements(style, dims, layers[name]).items():
                if f"{name}.{part}" in program.graph_signature.parameters:
                    shardings[f"{name}.{part}"] = Sharding([(axis, placement)])
    return shardings


def _layers(program: ExportedProgram) -> dict[str, bool]:
    """Return FQN of a linear layer or embedding → whether it is a linear layer, with a weight of shape (out, in).

    A module counts as a linear layer or embedding if the program uses its weight in such an op. A module whose weight
    is unused counts as a linear layer.
    """
    parameters = program.graph_signature.inputs_to_parameters
    nodes = {parameters[node.name]: node for node in program.graph.nodes if node.name in parameters}
    layers: dict[str, bool] = {}
    for name in nodes:
        layer, _, tensor_name = name.rpartition(".")
        if tensor_name != "weight" or not layer:
            continue
        # A tied weight has a node for each of its names. An op belongs to the layer of its module.
        tied_names = [tied_name for tied_name in nodes if program.state_dict[tied_name] is program.state_dict[name]]
        other_layers = {tied_name.rpartition(".")[0] for tied_name in tied_names} - {layer}
        uses = [(nodes[tied_name], user) for tied_name in tied_names for user in nodes[tied_name].users]
        layer_uses = [(weight, user) for weight, user in uses if _module_of_node(user) not in other_layers]
        is_embedding = any(_is_lookup(weight, user) for weight, user in layer_uses)
        if not uses or is_embedding or any(_is_linear(weight, user) for weight, user in layer_uses):
            layers[layer] = not is_embedding
    return layers


def _is_lookup(weight: fx.Node, user: fx.Node) -> bool:
    """Return whether `user` is an embedding with this weight."""
    return user.target is aten.embedding.default and user.args[0] is weight


def _is_linear(weight: fx.Node, user: fx.Node) -> bool:
    """Return whether `user` is a linear layer with this weight, or transposes the weight for a product."""
    if user.target is aten.linear.default:
        return user.args[1] is weight
    return user.target in _TRANSPOSES and any(product.target in _PRODUCTS for product in user.users)


def _module_of_node(node: fx.Node) -> str | None:
    """Return the FQN of the module whose code created a node; None if unknown."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return stack[-1][0] if stack else None
