"""Find the node of a rank's graph that failed, and make the error for the user."""

from __future__ import annotations

import linecache
import re

from torch import fx

from spmdir.core.errors import SpmdirError
from spmdir.lowering.process_groups import AXES
from spmdir.lowering.site import IS_COMPUTED, WAIT

_ASSIGNMENT = re.compile(r"\s*(\w+)(?:\s*:[^=]*)? = ")


def run_failure(node: fx.Node | None, error: Exception, rank: int, reports: str) -> SpmdirError:
    """Return the error of a failed run on `rank`, with its location in the model.

    Args:
        node: the `failing_node`.
        error: the exception of the run.
        reports: the errors of other ranks, from `RankGroup.reported_errors`. They are the cause, so they come first.
    """
    error = getattr(error, "inner_exception", error)  # the cause inside an exception of torch.compile
    reason = str(error).strip().partition("\n")[0]
    if node is None:
        return SpmdirError(f"the program fails on rank {rank}: {reports}{type(error).__name__}: {reason}")
    source = node.args[0] if node.target is WAIT else node
    if not isinstance(source, fx.Node) or AXES not in source.meta:
        message = f"'{node.name}'{_module_text(node)}, {node.target}, fails on rank {rank}: {reports}{reason}"
        return SpmdirError(message, node.meta.get("location"))
    value, located_node = _sent_value(source), _node_with_location(source)
    message = (
        f"{source.target.__name__.partition('.')[0]} of '{value.name}'{_module_text(located_node)} on mesh axes "  # type: ignore
        f"[{', '.join(source.meta[AXES])}] fails on rank {rank}: "
        f"{reports or 'another rank of its group has ended, hangs, or runs another program; '}{reason}"
    )
    return SpmdirError(message, located_node.meta.get("location"))


def _sent_value(node: fx.Node) -> fx.Node:
    """Return the argument or computed value that the collective `node` sends; `node` itself if it has no inputs.

    Between the value and the collective are nodes that pack the value for the message. They lack the mark IS_COMPUTED.
    """
    inputs = node.all_input_nodes
    while inputs and not node.meta.get(IS_COMPUTED):
        node, inputs = inputs[0], inputs[0].all_input_nodes
    return node


def _node_with_location(node: fx.Node) -> fx.Node:
    """Return a node with a source location for the collective `node`.

    This is the node of the value that the collective sends, else the first user of the collective with a location.
    Without a location, it is the last node of the chain of first users.
    """
    value = _sent_value(node)
    if "location" in value.meta:
        return value
    while "location" not in node.meta and node.users:
        node = next(iter(node.users))
    return node


def _module_text(node: fx.Node) -> str:
    """Return ` in 'MODULE'` for a node; an empty text if the module is unknown."""
    modules = node.meta.get("nn_module_stack")
    return f" in '{next(reversed(modules))}'" if modules else ""


def is_collective(node: fx.Node | None) -> bool:
    """Return whether a node needs other ranks."""
    return node is not None and (node.target is WAIT or AXES in node.meta)


def failing_node(graph: fx.GraphModule, error: Exception) -> fx.Node | None:
    """Return the node of `graph` that raised `error`; None if the error is not from the code of the graph.

    The failing line of the generated code, such as `add_1 = torch.ops.aten.add.Tensor(x, y)`, has the name of the node.
    """
    code, trace = type(graph).forward.__code__, error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    if trace is None:
        return None
    line = linecache.getline(code.co_filename, trace.tb_lineno, trace.tb_frame.f_globals)
    match = _ASSIGNMENT.match(line)
    return next((node for node in graph.graph.nodes if match and node.name == match[1]), None)
