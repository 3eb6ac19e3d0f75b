"""A backend of torch.compile that partitions a graph over the ranks. Calls pass and return global tensors."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch.distributed.device_mesh import DeviceMesh

from spmdir.core.arguments import keyed
from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.pipeline.pipeline import Pipeline
from spmdir.plans.resolve import PlanLike
from spmdir.runtime.parallel import Parallel
from spmdir.runtime.parallel_options import check_names
from spmdir.runtime.parallelize import parallelize
from spmdir.torch_interop.graphs import source_text

Call = Callable[..., Sequence[Tensor]]

_KEY = re.compile(r"\['?([^'\]]+)'?\]")
_STATE = re.compile(r"\._(?:modules|parameters|buffers)\[")


def backend(
    mesh: Mesh | DeviceMesh | None = None,
    plan: PlanLike = None,
    *,
    pipeline: Pipeline | str | None = None,
    cache: str | os.PathLike[str] | None = None,
    compile: bool | Mapping[str, Any] = False,
) -> Callable[[fx.GraphModule, Sequence[Any]], Call]:
    """Return a backend of torch.compile that partitions each graph over the ranks of `mesh` when it is first called.

    Every rank calls the compiled model with the same global arguments and gets the whole outputs. Each rank keeps whole
    parameters, and each call takes the local shards of them, so updates of parameters have an effect. This divides the
    work between ranks, but not the memory of parameters. Gradients are not supported.

    Args:
        mesh: the ranks; all of the default process group along one axis `dp` if None.
        plan: as for `parallelize`; its keys are names of parameters, buffers and arguments.
        pipeline, cache, compile: as in `ParallelOptions`.

    Raises:
        UnsupportedError: at a call of the compiled model: an input requires gradients.
        SpmdirError: at a call: as `parallelize`.

    Example:
        >>> compiled = torch.compile(model, backend="spmdir", options={"mesh": mesh, "plan": {"x": "dp: S(0)"}})
        >>> with torch.no_grad():
        ...     y = compiled(x)
    """

    def partition(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Call:
        """Return the function that runs a graph of Dynamo on the ranks. Its calls partition it, not the examples."""
        axes = {"dp": dist.get_world_size()} if mesh is None and dist.is_initialized() else {"dp": 1}
        options = {"pipeline": pipeline, "cache": cache, "compile": compile}
        return Partitioned(graph, Mesh(axes) if mesh is None else mesh, plan, options)

    return partition


OPTIONS = ("mesh", "plan", "pipeline", "cache", "compile")


def from_options(
    graph: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Call:
    """Return the function for a graph of `torch.compile(model, backend="spmdir", options={"mesh": …, "plan": …})`.

    Raises:
        SpmdirError: an option is not an argument of `backend`.
    """
    keyed("a dict of options by name").optional.check("options", options)
    check_names(options or {}, OPTIONS)
    return backend(**options or {})(graph, example_inputs)


@attrs.define(eq=False)
class Partitioned:
    """A graph of torch.compile, partitioned separately for each choice of input shapes.

    Attributes:
        options: further arguments of `parallelize`, by name.
        _programs: (shape and element type of each tensor, value of each other input) → its partitioned program.
    """

    graph: fx.GraphModule
    mesh: Mesh | DeviceMesh
    plan: PlanLike
    options: Mapping[str, Any]
    _programs: dict[tuple[Any, ...], Parallel] = attrs.field(factory=dict)

    def __call__(self, *args: Any) -> Sequence[Tensor]:
        """Return the outputs of the graph, as global tensors; all ranks must call this.

        The first call with new shapes, element types or numbers partitions the graph.

        Raises:
            UnsupportedError: an input requires a gradient, and gradients are enabled.
            SpmdirError: as `parallelize`.
        """
        if torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
            raise UnsupportedError(
                "the inputs require gradients, which the backend does not compute; expected a call without "
                "gradients: call the model under torch.no_grad(), or train it with "
                "spmdir.shard_module(model, mesh, …) or spmdir.training_step(model, loss, …)"
            )

        def step(state: Any, argument_of_name: Mapping[str, Any]) -> tuple[Sequence[Tensor], Any]:
            """Return (outputs of the graph, unchanged state), in the form that `parallelize` requires."""
            return self.graph(*argument_of_name.values()), state

        argument_of_name = dict(zip(input_names(self.graph), args, strict=True))
        key = tuple((arg.shape, arg.dtype) if isinstance(arg, Tensor) else arg for arg in args)
        if key not in self._programs:
            self._programs[key] = parallelize(step, self.mesh, self.plan, (argument_of_name,), state={}, **self.options)
        return self._programs[key](argument_of_name)


def input_names(graph: fx.GraphModule) -> list[str]:
    """Return the names of the inputs of a graph of Dynamo.

    A parameter or buffer has its name in its module, and an argument its name in the function. If two names are equal,
    they are prefixed with the module. Dynamo's source `L['self']._modules['fc']._parameters['weight']` has the keys
    self, fc and weight; the short name is `fc.weight`, and the full name `self.fc.weight`.
    """
    full_names, short_names = [], []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            source = source_text(node)
            keys = _KEY.findall(source) or [node.name]
            full_names.append(".".join(keys))
            # The first key of a parameter or buffer is the name of its module in the function.
            short_names.append(".".join(keys[1:] if _STATE.search(source) else keys))
    count = Counter(short_names)
    return [short if count[short] == 1 else full for short, full in zip(short_names, full_names, strict=True)]
