"""Trace the forward and the backward of a module as one program, and record how the module is called."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.node import map_arg

from spmdir.core.errors import UnsupportedError
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.core.progress import say
from spmdir.importer.program import Output, Program
from spmdir.importer.read_joint import ARGUMENT, read_joint
from spmdir.importer.torch_errors import torch_errors
from spmdir.plans.activations import constrained_activations
from spmdir.runtime.capture import Capture, Convention
from spmdir.runtime.dry_run import DryRun, dry_run_module, write_assignments
from spmdir.runtime.guards import reads_grad_mode
from spmdir.runtime.joint_call import JointCall
from spmdir.runtime.model_copies import fake, fake_copy
from spmdir.runtime.module_checks import check_traceable
from spmdir.runtime.output_trees import without_unknown, without_unknown_outputs
from spmdir.torch_interop import joint_export, pytree
from spmdir.torch_interop.fake_tensors import FakeTensorMode
from spmdir.torch_interop.graphs import rename
from spmdir.torch_interop.modules import clear_hooks
from spmdir.torch_interop.recurrent_layers import recurrent_layers_traced


@attrs.frozen(eq=False)
class JointCapture:
    """A traced module with its gradients.

    Attributes:
        program: the program for the importer.
        capture: the trace. Its results are the outputs, then the gradients.
        call: the calling convention.
    """

    program: Program
    capture: Capture
    call: JointCall


def call_convention(call: tuple[Any, Any], output: Any) -> Convention:
    """Return the calling convention of a module for bound arguments and an output like `output`."""
    leaves, in_spec = pytree.tree_flatten((call[0], dict(call[1])))
    return Convention(_leaf_constants(leaves), in_spec, pytree.tree_structure(without_unknown(output)))


def _leaf_constants(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Return `Convention.examples` for the leaves of a call: the leaves, with a mark in place of each tensor."""
    return tuple("a tensor" if isinstance(leaf, Tensor) else leaf for leaf in leaves)


def bound_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return (positional, keyword) arguments of a call, bound to the forward of `model`.

    Raises:
        TypeError: the arguments do not fit the forward.
    """
    bound = _bind(model, args, kwargs)
    return bound.args[1:], bound.kwargs


def arguments_by_name(model: nn.Module, call: tuple[Any, Any]) -> Mapping[str, Any]:
    """Return parameter name of the forward of `model` → argument of a call."""
    return dict(list(_bind(model, *call).arguments.items())[1:])


def _bind(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    """Return the arguments of the forward of the class of `model`, the model first."""
    return inspect.signature(type(model).forward).bind(model, *args, **kwargs)


def capture_joint(
    model: nn.Module,
    example_inputs: tuple[Any, ...],
    example_kwargs: Mapping[str, Any],
    device: torch.device,
    plan: ShardingPlan,
    differentiated: Set[int] | None = None,
    dynamic_shapes: Any = None,
    dry_run: DryRun | None = None,
) -> JointCapture:
    """Trace the forward and backward of a module on fake tensors of `device`. The module does not change.

    TorchDynamo traces the forward to a graph of torch functions. Then AOTAutograd traces that graph and its backward to
    one graph of aten ops. The program contains the activation shardings of `plan`. A forward that reads the grad mode
    is traced in the present mode.

    Args:
        differentiated: the indices of inputs with a gradient, among the leaves of the bound arguments. By default, the
            example tensors that require a gradient.
        dynamic_shapes: as in torch.export.export.
        dry_run: the result of a dry run of the forward with these arguments; if None, the dry run takes place now.

    Raises:
        UnsupportedError: torch cannot trace the whole module, a hook or a name; or the forward writes to its inputs or
            changes state other than buffers.
    """
    args, kwargs = bound_arguments(model, example_inputs, example_kwargs)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv() if dynamic_shapes else None)
    originals = dict((*model.named_parameters(), *model.named_buffers()))
    check_traceable(model)
    # Copy the module and its arguments to fake tensors.
    traced = fake_copy(model, mode, device)
    clear_hooks(traced)
    leaves, in_spec = pytree.tree_flatten((args, dict(kwargs)))
    fakes = [fake(leaf, mode, device) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    for index, leaf in enumerate(fakes):
        if isinstance(leaf, Tensor) and differentiated is not None:
            leaf.requires_grad_(index in differentiated)
    fake_args, fake_kwargs = pytree.tree_unflatten(fakes, in_spec)
    dry_run = dry_run or dry_run_module(model, args, kwargs, device)
    with collector_paused(), ExitStack() as stack:
        stack.enter_context(torch_errors("the module cannot be captured"))
        stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled() or not reads_grad_mode(dry_run.code)))
        stack.enter_context(recurrent_layers_traced(traced, device))
        stack.enter_context(constrained_activations(traced, plan))
        stack.enter_context(write_assignments(traced, dry_run.assigned))
        stack.enter_context(without_unknown_outputs(traced, dry_run.output))
        stack.callback(dry_run.caches.remove_fakes)
        # TorchDynamo traces the forward to a graph of torch functions.
        constraints = joint_export.constraints(traced, fake_args, fake_kwargs, dynamic_shapes)
        capture = joint_export.capture_graph(traced, constraints, dynamic_shapes)
        say("tracing the forward of {}", type(model).__name__)
        graph = capture(*fake_args, **fake_kwargs)
        _name_parameters(traced, graph)
        _return_constants(graph, fakes)
        # AOTAutograd traces that graph with its backward to a graph of aten ops.
        stack.enter_context(_trace_in_fake_mode(graph))
        # AOTAutograd would turn integers into symbolic sizes. The graph has their values as constants, so any number
        # of another type may replace them.
        fake_args, fake_kwargs = pytree.tree_map_only(int, float, (fake_args, fake_kwargs))
        say("tracing forward and backward of {}", type(model).__name__)
        joint = joint_export.export_joint(stack, graph, fake_args, fake_kwargs)
        aliases = joint_export.outputs_with_aliases(joint)
        if aliases:
            _clone_outputs(graph, aliases)
            joint = joint_export.export_joint(stack, graph, fake_args, fake_kwargs)
    module = joint.graph_module
    _name_inputs(module, leaf_names(model, args, kwargs))
    program = read_joint(module)
    kinds = {entry.names[0]: entry.kind for entry in program.inputs}
    mutations = [output for output in program.outputs if output.kind == "mutation"]
    _check_state(kinds, mutations, originals)
    # An output of the kind "output" without `like` is an output of the forward. With `like`, it is the gradient of the
    # parameter or input `like`.
    returned = [output for output in program.outputs if output.kind == "output"]
    gradient_outputs = [output for output in returned if output.like is not None]
    gradients = tuple(output.like for output in gradient_outputs if output.like)
    late_mutations = [output for output in mutations if kinds[output.names[0]] == "late_buffer"]
    convention = Convention(_leaf_constants(leaves), in_spec, joint.out_spec)  # type: ignore  # a spec
    capture = Capture(module, convention, [], originals, [output.value for output in returned])
    sources = tuple(output.sources for output in (*gradient_outputs, *late_mutations))
    call = JointCall(len(returned), len(returned) - len(gradients), gradients, sources, convention)
    return JointCapture(program, capture, call)


def _check_state(kinds: Mapping[str, str], mutations: Sequence[Output], originals: Mapping[str, Tensor]) -> None:
    """Raise UnsupportedError if a program has a tensor that the module does not register, or writes to an input.

    Args:
        kinds: name of an input of the program → its kind.
        mutations: the outputs of the program that are new values of its inputs.
        originals: the parameters and buffers of the module.
    """
    for name, kind in kinds.items():
        if kind in ("parameter", "buffer") and name not in originals:
            raise UnsupportedError(
                f"the module has the tensor '{name}', which is not a parameter or buffer; expected "
                "registered tensors only: register it, such as with register_buffer(name, tensor, "
                "persistent=False)"
            )
    for output in mutations:
        if kinds[output.names[0]] not in ("parameter", "buffer", "late_buffer"):
            raise UnsupportedError(
                f"the module writes to its input '{output.names[0]}'; expected inputs that do not change: "
                "write to a clone"
            )


def _name_parameters(model: nn.Module, graph: fx.GraphModule) -> None:
    """Give the parameters and buffers of a captured graph their names in `model`, and add unused ones."""
    joint_export.restore_names(model, graph)
    ids_in_graph = {id(tensor) for tensor in (*graph.parameters(), *graph.buffers())}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in ids_in_graph:
            joint_export.assign_attribute(tensor, graph, name)


def _return_constants(graph: fx.GraphModule, leaves: Sequence[Any]) -> None:
    """Replace returned arguments of a captured graph that are not tensors by their values in `leaves`.

    Dynamo inserts such values as constants into ops, but not into the returned values: for a forward that returns
    `(x * n, n)` with n = 3, the graph computes `x * 3`, but returns the placeholder of n.
    """
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    values = {
        node: leaf
        for node, leaf in zip(placeholders, leaves, strict=True)
        if not isinstance(leaf, Tensor) and node.users
    }
    if not values:
        return
    output_node = next(node for node in graph.graph.nodes if node.op == "output")
    output_node.args = map_arg(output_node.args, lambda node: values.get(node, node))
    graph.recompile()


@contextmanager
def _trace_in_fake_mode(graph: fx.GraphModule) -> Iterator[None]:
    """Trace in the fake mode in which `graph` was captured."""
    context = graph.meta.get("tracing_context") or joint_export.TracingContext(graph.meta["fake_mode"])
    with joint_export.tracing(context):
        yield


def _clone_outputs(graph: fx.GraphModule, indices: Sequence[int]) -> None:
    """Insert a clone of each output with one of these `indices` into a captured graph, and return it instead.

    These outputs share memory with inputs or with each other.
    """
    output_node = next(node for node in graph.graph.nodes if node.op == "output")
    leaves, spec = pytree.tree_flatten(output_node.args)
    with graph.graph.inserting_before(output_node):
        for index in indices:
            leaves[index] = graph.graph.call_function(torch.clone, (leaves[index],))
    output_node.args = pytree.tree_unflatten(leaves, spec)
    graph.recompile()


def leaf_names(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the names of the leaves of a call: the parameter of the forward, and the keys inside the argument.

    `forward(x, masks={"left": m})` gives ["x", "masks_left"].
    """
    bound = _bind(model, args, kwargs)
    argument_of_parameter: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = bound.signature.parameters[name].kind
        argument_of_parameter |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    paths = []
    for name, value in argument_of_parameter.items():
        for path, _ in pytree.tree_flatten_with_path(value)[0]:
            keys = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
            paths.append("_".join([name, *keys]))
    return paths


def _name_inputs(module: fx.GraphModule, paths: Sequence[str]) -> None:
    """Rename the placeholder of user input N of a joint graph to `paths[N]`, and store this name as `ARGUMENT`."""
    for node in module.graph.nodes:
        descriptor = node.meta.get("desc")
        if node.op == "placeholder" and isinstance(descriptor, joint_export.descriptors.PlainAOTInput):
            path = node.meta[ARGUMENT] = paths[descriptor.idx]
            rename(node, path)
            node.target = node.name
