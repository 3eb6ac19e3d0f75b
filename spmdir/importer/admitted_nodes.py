"""Errors for graphs with nodes that no program may have: effects, files, numbers read out of tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch
from torch import fx

from spmdir.core.admitted_ops import NOT_EVEN_TRACED
from spmdir.core.errors import UnsupportedError
from spmdir.importer.fx_arguments import op_name
from spmdir.importer.locations import node_location
from spmdir.torch_interop.ops import OpOverload, schema_of
from spmdir.torch_interop.schemas import reason_against, require_admitted


def calls(module: fx.GraphModule) -> Iterator[fx.Node]:
    """Yield the calls of a graph and of the graphs that its nodes are given."""
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            yield from (node for node in inner.graph.nodes if node.op == "call_function")


_CHECKS = re.compile(r"aten\.(_assert_\w+|sym_constrain_range\w*|_linalg_check_errors)")
"""Ops that raise an error or do nothing."""


def reject_effects(module: fx.GraphModule) -> None:
    """Reject a graph that calls what may not even run on fake tensors, used or not.

    Raises:
        UnsupportedError: a node opens a file, sends data between ranks, or gives nothing at all, as what prints does;
            assertions may.
    """
    for node in calls(module):
        if not isinstance(node.target, OpOverload):
            continue
        reason = reason_against(node.target)
        is_silent = reason == "gives-nothing" and not schema_of(node.target).returns
        if reason.partition(" ")[0] in NOT_EVEN_TRACED or (is_silent and not _CHECKS.match(op_name(node.target))):
            require_admitted_node(node)


def require_admitted_node(node: fx.Node) -> None:
    """Raise UnsupportedError, located, if no program may call the op of `node`."""
    try:
        require_admitted(node.target)
    except UnsupportedError as error:
        name = op_name(node.target)
        raise UnsupportedError(f"'{node.name}' calls {name}, which {error.message}", node_location(node)) from None


def reject_numbers(nodes: Iterable[fx.Node]) -> None:
    """Reject a call that gives a number out of a tensor.

    Raises:
        UnsupportedError: a node is such a call.
    """
    for node in nodes:
        if torch.Tag.data_dependent_output in getattr(node.target, "tags", ()):
            raise UnsupportedError(
                f"'{node.name}' calls {op_name(node.target)}, which reads a number out of a tensor; keep it a tensor, "
                "since ranks could disagree on it: torch's optimizers do with fused=True, as does spmdir.training_step",
                node_location(node),
            )
