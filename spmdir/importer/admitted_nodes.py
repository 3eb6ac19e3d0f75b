"""Reject nodes that no program may have: effects, access to files, numbers read out of tensors."""

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


def iterate_calls(module: fx.GraphModule) -> Iterator[fx.Node]:
    """Yield the calls of a graph and of its inner graphs."""
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            yield from (node for node in inner.graph.nodes if node.op == "call_function")


_ASSERTIONS = re.compile(r"aten\.(_assert_\w+|sym_constrain_range\w*|_linalg_check_errors)")
"""Ops that raise an error or do nothing."""


def reject_effects(module: fx.GraphModule) -> None:
    """Reject a graph with calls that must not run even on fake tensors, whether or not their results are used.

    Raises:
        UnsupportedError: a node opens a file, sends data between ranks, or returns nothing, as `print` does.
            Assertions are accepted.
    """
    for node in iterate_calls(module):
        if not isinstance(node.target, OpOverload):
            continue
        reason = reason_against(node.target)  # such as "gives-nothing"; its first word is the kind of reason
        returns_nothing = reason == "gives-nothing" and not schema_of(node.target).returns
        is_assertion = _ASSERTIONS.match(op_name(node.target)) is not None
        if reason.partition(" ")[0] in NOT_EVEN_TRACED or (returns_nothing and not is_assertion):
            require_admitted_node(node)


def require_admitted_node(node: fx.Node) -> None:
    """Raise UnsupportedError with a location if programs may not call the op of `node`."""
    try:
        require_admitted(node.target)
    except UnsupportedError as error:
        name = op_name(node.target)
        raise UnsupportedError(f"'{node.name}' calls {name}, which {error.message}", node_location(node)) from None


def reject_numbers(nodes: Iterable[fx.Node]) -> None:
    """Reject calls that read a number out of a tensor, as `item` does.

    Raises:
        UnsupportedError: a node is such a call.
    """
    for node in nodes:
        if torch.Tag.data_dependent_output in getattr(node.target, "tags", ()):
            raise UnsupportedError(
                f"'{node.name}' calls {op_name(node.target)}, which reads a number out of a tensor; expected a 0-d "
                "tensor, because ranks could disagree on the number. torch's optimizers keep their step count a tensor "
                "with fused=True, as does spmdir.training_step",
                node_location(node),
            )
