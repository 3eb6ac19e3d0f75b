"""Parts of torch.fx and torch.export that have no public name in torch 2.11 to 2.13."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.export import ExportedProgram
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule


def generate_code(program: Any) -> None:
    """Generate the Python code of a `LazyGraphModule` now, not at its first call.

    A `GraphModule` of another class has its code already.
    """
    LazyGraphModule.force_recompile(program)


def rename(node: fx.Node, name: str) -> None:
    """Name a node; a number is added if its graph has the name already."""
    node._rename(name)


def pytree_info(graph: fx.Graph) -> Any:
    """Return the description of the pytrees of the inputs and outputs of a graph; None if it has none."""
    return getattr(graph._codegen, "pytree_info", None)


def copy_pytrees(source: fx.Graph, target: fx.Graph) -> None:
    """Let `target` take and return the pytrees of `source`."""
    target.set_codegen(source._codegen)


def source_text(node: fx.Node) -> str:
    """Return the Python expression that TorchDynamo reads a placeholder by; the name of the node if it gives none."""
    name = getattr(getattr(node, "_dynamo_source", None), "name", node.name)
    return str(name() if callable(name) else name)  # a method up to 2.12


def with_graph(exported: ExportedProgram, module: fx.GraphModule, signature: Any) -> ExportedProgram:
    """Return an exported program with another graph and the signature of that."""
    return exported._update(module, signature)


AUTOCAST_CALLS = ("wrap_with_autocast", "_enter_autocast")
"""Names of functions that nodes call where a graph computes under autocast."""

MODE_CALLS = ("_enter_autocast", "_exit_autocast", "_set_grad_enabled")
"""Names of functions that nodes call and that change how later calls run."""
