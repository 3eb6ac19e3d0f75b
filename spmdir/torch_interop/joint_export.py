"""Capture forward and backward as one graph, by private functions of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from spmdir.core.admitted_ops import VERSIONS
from spmdir.core.errors import UnsupportedError

try:
    import torch._dynamo.functional_export as functional_export
    from torch._export.utils import _compiling_state_context
    from torch._functorch._aot_autograd import descriptors as descriptors
    from torch._functorch._aot_autograd.schemas import OutputType
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors as export_joint
    from torch._guards import TracingContext as TracingContext
    from torch._guards import tracing as tracing
    from torch.export._trace import _restore_state_dict as restore_names
    from torch.export.dynamic_shapes import _check_dynamic_shapes, _combine_args, _process_dynamic_shapes
    from torch.fx.graph_module import _assign_attr as assign_attribute
except ImportError as error:
    raise UnsupportedError(
        f"torch {torch.__version__} cannot capture forward and backward together as spmdir asks for it: {error}; "
        f"expected torch {VERSIONS[0]} to {VERSIONS[-1]}"
    ) from error

__all__ = [
    "TracingContext",
    "assign_attribute",
    "capture_graph",
    "compiling",
    "constraints",
    "descriptors",
    "export_joint",
    "outputs_with_aliases",
    "restore_names",
    "tracing",
]


def capture_graph(
    model: nn.Module, constraints: list[Any] | None, dynamic_shapes: Any
) -> Callable[..., torch.fx.GraphModule]:
    """Return a function that captures a call of the module, with the arguments of the function, as a graph.

    Dynamo makes guards of a capture only to compare them with `dynamic_shapes`, which takes a third of its time for a
    module with many layers. Without dynamic shapes there is nothing to compare.

    Args:
        constraints: as `constraints` returns them.
    """
    capture = functional_export._dynamo_graph_capture_for_export(
        model, constraints=constraints, dynamic_shapes=dynamic_shapes
    )
    return capture if dynamic_shapes is not None else _without_guards(capture)


def _without_guards(capture: Callable[..., torch.fx.GraphModule]) -> Callable[..., torch.fx.GraphModule]:
    """Return `capture` without the comparison of guards and dynamic shapes."""

    def capture_without_guards(*args: Any, **kwargs: Any) -> torch.fx.GraphModule:
        """Call `capture` while torch's function that compares guards does nothing."""
        suggest_or_raise = functional_export._suggest_or_raise_constraint_violation
        functional_export._suggest_or_raise_constraint_violation = lambda *_: None
        try:
            return capture(*args, **kwargs)
        finally:
            functional_export._suggest_or_raise_constraint_violation = suggest_or_raise

    return capture_without_guards


def constraints(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> list[Any] | None:
    """Return the constraints of `dynamic_shapes` on the arguments of a call, as torch.export.export computes them.

    Raises:
        torch._dynamo.exc.UserError: the structure of `dynamic_shapes` differs from that of the arguments.
    """
    if dynamic_shapes is None:
        return None
    combined = _combine_args(model, args, kwargs)
    _check_dynamic_shapes(combined, dynamic_shapes)
    return _process_dynamic_shapes(combined, dynamic_shapes)


@contextmanager
def compiling() -> Iterator[None]:
    """Run code as if it was compiled: `torch.compiler.is_compiling()` is true, and `torch.compile` does nothing."""
    with _compiling_state_context(), torch.compiler.set_stance("force_eager"):
        yield


def outputs_with_aliases(joint: Any) -> list[int]:
    """Return the numbers of the outputs of a joint graph that share memory with inputs or with each other."""
    separate = (OutputType.non_alias, OutputType.custom_function_view)
    infos = joint._aot_state.fw_metadata.output_info
    return [number for number, info in enumerate(infos) if info.output_type not in separate]
