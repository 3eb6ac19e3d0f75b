"""The forward and the backward of a module as one traced program, and how the module is called."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from spmdir.core.errors import UnsupportedError
from spmdir.core.sharding_plan import ShardingPlan
from spmdir.importer.program import Program
from spmdir.importer.read_joint import ARGUMENT, read_joint
from spmdir.importer.torch_errors import torch_errors
from spmdir.plans.activations import constrained_activations
from spmdir.runtime.capture import Capture, Convention
from spmdir.torch_interop import joint_export


@attrs.frozen(eq=False)
class JointCapture:
    """A traced module with its gradients.

    Attributes:
        program: what `import_fx` takes.
        capture: how it is called; what it returns are the outputs, then the gradients.
        outputs: how many of these are outputs, numbers among them.
        gradients: what each gradient is of, by the names of arguments.
    """

    program: Program
    capture: Capture
    outputs: int
    gradients: tuple[str, ...]


def bound_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the arguments of a call as the forward of `model` takes them, positions before names.

    Raises:
        TypeError: the forward takes no such arguments.
    """
    bound = _bound(model, args, kwargs)
    return bound.args[1:], bound.kwargs


def _bound(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    """Return the arguments of the forward of the class of `model`, the model first."""
    return inspect.signature(type(model).forward).bind(model, *args, **kwargs)


def capture_joint(
    model: nn.Module,
    example_args: tuple[Any, ...],
    example_kwargs: Mapping[str, Any],
    device: torch.device,
    plan: ShardingPlan,
    asked: Set[int] | None = None,
    dynamic_shapes: Any = None,
) -> JointCapture:
    """Return the forward and backward of a module on fake tensors of `device`; the module is left as it is.

    What `plan` says of activations is in the program.

    Args:
        asked: places of the inputs that have a gradient, among the leaves of the bound arguments; by default of the
            examples that require one.
        dynamic_shapes: as in torch.export.export.

    Raises:
        UnsupportedError: torch cannot trace it whole, or it writes to its inputs.
    """
    args, kwargs = bound_arguments(model, example_args, example_kwargs)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv() if dynamic_shapes else None)
    traced, originals = _fake_module(model, mode, device)
    leaves, in_spec = pytree.tree_flatten((args, dict(kwargs)))
    fakes = [_fake(leaf, mode, device) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    for place, fake in enumerate(fakes):
        if isinstance(fake, Tensor) and asked is not None:
            fake.requires_grad_(place in asked)
    fake_args, fake_kwargs = pytree.tree_unflatten(fakes, in_spec)
    with ExitStack() as stack:
        stack.enter_context(torch_errors("the module cannot be captured"))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(constrained_activations(traced, plan))
        constraints = joint_export.constraints(traced, fake_args, fake_kwargs, dynamic_shapes)
        capture = joint_export.capture_graph(traced, constraints=constraints, dynamic_shapes=dynamic_shapes)
        graph = capture(*fake_args, **fake_kwargs)
        _name_parameters(traced, graph)
        stack.enter_context(_tracing(graph))
        joint = joint_export.export_joint(stack, graph, fake_args, fake_kwargs)
        aliases = [at for at, info in enumerate(joint._aot_state.fw_metadata.output_info) if _shares_memory(info)]
        if aliases:
            _clone_outputs(graph, aliases)
            joint = joint_export.export_joint(stack, graph, fake_args, fake_kwargs)
    module = joint.graph_module
    _name_inputs(module, _paths(model, args, kwargs))
    program = read_joint(module)
    for entry in program.inputs:
        if entry.kind in ("parameter", "buffer") and entry.names[0] not in originals:
            raise UnsupportedError(
                f"the module has the tensor '{entry.names[0]}', which is no parameter or buffer; make it one, as by "
                "register_buffer(name, tensor, persistent=False)"
            )
    for output in program.outputs:
        if output.kind == "mutation" and output.names[0] not in originals:
            raise UnsupportedError(f"the module writes to its input '{output.names[0]}'; expected it to be left alone")
    returned = [output for output in program.outputs if output.kind == "output"]
    gradients = tuple(output.like for output in returned if output.like is not None)
    examples = tuple("a tensor" if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    convention = Convention(examples, in_spec, joint.out_spec)  # type: ignore  # a spec
    capture = Capture(module, convention, [], originals, [output.value for output in returned])
    return JointCapture(program, capture, len(returned) - len(gradients), gradients)


def _fake_module(model: nn.Module, mode: FakeTensorMode, device: torch.device) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return a copy with fake parameters and buffers, without hooks of its own; and name → original."""
    originals = dict((*model.named_parameters(), *model.named_buffers()))
    traced = copy.deepcopy(model, {id(tensor): _fake(tensor, mode, device) for tensor in originals.values()})
    traced._forward_hooks.clear()
    traced._forward_pre_hooks.clear()
    return traced, originals


def _fake(tensor: Tensor, mode: FakeTensorMode, device: torch.device) -> Tensor:
    with mode:
        fake = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, tensor.requires_grad)
    return fake.requires_grad_(tensor.requires_grad)


def _name_parameters(model: nn.Module, graph: fx.GraphModule) -> None:
    """Call the parameters and buffers of a captured graph as `model` does; those that it does not use are added."""
    joint_export.restore_names(model, graph)
    known = {id(tensor) for tensor in (*graph.parameters(), *graph.buffers())}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in known:
            joint_export.assign_attribute(tensor, graph, name)


@contextmanager
def _tracing(graph: fx.GraphModule) -> Iterator[None]:
    """Trace in the fake mode that `graph` was captured in."""
    context = graph.meta.get("tracing_context") or joint_export.TracingContext(graph.meta["fake_mode"])
    with joint_export.tracing(context):
        yield


def _shares_memory(info: Any) -> bool:
    kinds = joint_export.OutputType
    return info.output_type not in (kinds.non_alias, kinds.custom_function_view)


def _clone_outputs(graph: fx.GraphModule, places: Sequence[int]) -> None:
    """Let a captured graph return copies of the outputs at `places`, which share memory with inputs or each other."""
    end = next(node for node in graph.graph.nodes if node.op == "output")
    leaves, spec = pytree.tree_flatten(end.args)
    with graph.graph.inserting_before(end):
        for at in places:
            leaves[at] = graph.graph.call_function(torch.clone, (leaves[at],))
    end.args = pytree.tree_unflatten(leaves, spec)
    graph.recompile()


def _paths(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """Return what the leaves of a call are called: by the arguments of the forward, and keys inside them."""
    bound = _bound(model, args, kwargs)
    by_name: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = bound.signature.parameters[name].kind
        by_name |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    paths = []
    for name, value in by_name.items():
        for path, _ in pytree.tree_flatten_with_path(value)[0]:
            inner = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
            paths.append("_".join([name, *inner]))
    return paths


def _name_inputs(module: fx.GraphModule, paths: Sequence[str]) -> None:
    """Call the placeholders of user inputs by their paths."""
    for node in module.graph.nodes:
        descriptor = node.meta.get("desc")
        if node.op == "placeholder" and isinstance(descriptor, joint_export.descriptors.PlainAOTInput):
            path = node.meta[ARGUMENT] = paths[descriptor.idx]
            node._rename(path)
            node.target = node.name
