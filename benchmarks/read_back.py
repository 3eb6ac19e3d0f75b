"""Import training steps of one rank, compare them with one device, and find faults in their collectives.

The steps are those of FSDP2, of DTensor's tensor parallelism, of both, and of hand-written collectives, for decoders
with the structure of Llama and of GPT-2. Each fault changes one collective: it is dropped, doubled, on another axis, of
another reduction, in another order, or scaled. A fault is found if the import or the comparison fails. It is named if
the message contains an op.

    python -m benchmarks.read_back --faults 20
"""

from __future__ import annotations

import argparse
import operator
import re
from collections.abc import Iterator
from typing import Any

import attrs
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.dialects.builtin import ModuleOp

import spmdir
from benchmarks import rank_models
from benchmarks.rank_models import BATCH, SEQUENCE, Decoder
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import as_sharding
from spmdir.read_back.eager_graphs import with_functional_collectives

SCHEMES = ("fsdp", "tp", "fsdp*tp", "hand-written")
MODELS = ("llama", "gpt2")
_COLLECTIVES = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")
_FUNCTIONAL = torch.ops._c10d_functional
_ATEN = torch.ops.aten
_ROW = "{:22} {:>11} {:>8} {:>9} {:>6} {:>8} {:>6} {:>5}"
"""A row: the outputs are those that are proved, and those that are tested."""


@attrs.frozen(eq=False)
class RankStep:
    """The traced step of a rank.

    Attributes:
        graph: the step, with functional collectives.
        mesh: a mesh or DeviceMesh.
        arguments: the other arguments of `import_ranks`.
        reference: the step on one device.
        inputs: the global inputs of both.
    """

    graph: fx.GraphModule
    mesh: Any
    arguments: dict[str, Any]
    reference: fx.GraphModule
    inputs: list[Tensor]

    def imported(self, graph: fx.GraphModule) -> ModuleOp:
        """Return the global program of a graph."""
        return spmdir.import_ranks(graph, self.mesh, **self.arguments)


def trace_step(scheme: str, name: str, device_mesh: Any) -> RankStep:
    """Trace the step of rank 0."""
    torch.manual_seed(0)
    is_llama, is_fsdp = name == "llama", "fsdp" in scheme
    single = Decoder(is_llama).double()
    ids = torch.randint(0, 12, (BATCH, SEQUENCE))
    state = {key: value.detach() for key, value in single.named_parameters()}
    inputs = [*state.values(), ids, ids.flip(1)]
    reference = make_fx(lambda state, *batch: _step(single, state, *batch))(state, *inputs[-2:])
    batch = [part[: BATCH // 2] if is_fsdp else part for part in inputs[-2:]]
    if scheme == "hand-written":
        mesh = Mesh({"dp": 2, "tp": 2})
        model, shardings = rank_models.hand_written(is_llama)
        local = {
            key: torch.zeros(
                as_sharding(shardings.get(key, ""), mesh).local_shape(value.shape, mesh, mesh.coordinate(0))
            )
            for key, value in state.items()
        }
        local = {key: value.double() for key, value in local.items()}
        model.double()
        graph = make_fx(lambda state, *batch: _step(model, state, *batch), tracing_mode="fake")(local, *batch)
        keys = {f"input:{list(state).index(key)}": sharding for key, sharding in shardings.items()}
        return RankStep(graph, mesh, {"in_shardings": keys}, reference, inputs)
    model = Decoder(is_llama).double()
    if "tp" in scheme:
        rank_models.tensor_parallel(model, device_mesh)
    if is_fsdp:
        rank_models.sharded(model, device_mesh)
        rank_models.train(model, *batch)  # FSDP2 creates its buffers in the first step
    group = device_mesh["dp"].get_group() if is_fsdp else None
    graph = make_fx(lambda *batch: rank_models.train(model, *batch, group))(*batch)
    placements = {"input:0": "dp: S(0)", "input:1": "dp: S(0)"} if is_fsdp else {}
    return RankStep(graph, device_mesh, {"in_shardings": placements, "model": model}, reference, inputs)


def _step(model: nn.Module, state: dict[str, Tensor], *batch: Tensor) -> tuple[Tensor, Any]:
    """Return the loss and the gradients of a step on these parameters."""
    parameters = {name: value.detach().requires_grad_() for name, value in state.items()}
    loss = torch.func.functional_call(model, parameters, batch)
    return loss.detach(), torch.autograd.grad(loss, list(parameters.values()))


def faults(step: RankStep) -> Iterator[tuple[str, fx.GraphModule]]:
    """Yield (description, graph with one fault), in an order that mixes collectives and kinds."""
    is_eager = "model" in step.arguments
    state = dict(step.arguments["model"].named_parameters()) if is_eager else {}
    functional = with_functional_collectives(step.graph, state)
    count = len(list(_collectives(functional)))
    pairs = [(number, kind) for kind in FAULTS for number in range(count)]
    for position in range(len(pairs)):
        number, kind = pairs[position * 7 % len(pairs)] if len(pairs) % 7 else pairs[position]
        graph = with_functional_collectives(step.graph, state)
        node = list(_collectives(graph))[number]
        if FAULTS[kind](graph.graph, node, step):
            graph.recompile()
            yield f"{node.name} {kind}", graph


def _collectives(graph: fx.GraphModule) -> Iterator[fx.Node]:
    for node in graph.graph.nodes:
        if str(node.target).startswith("_c10d_functional.") and _kind(node) in _COLLECTIVES:
            yield node


def _kind(node: fx.Node) -> str:
    return str(node.target).split(".")[1]


def _replace_result(graph: fx.Graph, node: fx.Node, function: Any) -> bool:
    """Replace the received tensor by a function of it."""
    (wait,) = node.users
    with graph.inserting_after(wait):
        marker = graph.call_function(_ATEN.alias.default, (wait,))
    wait.replace_all_uses_with(marker, delete_user_cb=lambda user: user is not marker)
    with graph.inserting_before(marker):
        marker.replace_all_uses_with(function(wait))
    graph.erase_node(marker)
    return True


def _drop(graph: fx.Graph, node: fx.Node, _: RankStep) -> bool:
    source: Any = node.args[0]
    (wait,) = node.users
    with graph.inserting_before(wait):
        if _kind(node) == "all_gather_into_tensor":
            local = graph.call_function(_ATEN.cat.default, ([source] * int(node.args[1]),))  # type: ignore
        elif _kind(node) == "reduce_scatter_tensor":
            chunks = graph.call_function(_ATEN.chunk.default, (source, node.args[2]))
            local = graph.call_function(operator.getitem, (chunks, 0))
        else:
            local = source
        wait.args = (local,)
        wait.replace_all_uses_with(local)
    graph.erase_node(wait)
    graph.erase_node(node)
    return True


def _double(graph: fx.Graph, node: fx.Node, _: RankStep) -> bool:
    if _kind(node) != "all_reduce":
        return False

    def reduced(wait: fx.Node) -> fx.Node:
        return graph.call_function(
            _FUNCTIONAL.wait_tensor.default,
            (graph.call_function(node.target, (wait, *node.args[1:])),),  # type: ignore
        )

    return _replace_result(graph, node, reduced)


def _move(graph: fx.Graph, node: fx.Node, step: RankStep) -> bool:
    own = str(node.args[-1])
    is_dp = own == ("mesh:dp" if isinstance(step.mesh, Mesh) else step.mesh["dp"].get_group().group_name)
    node.args = (*node.args[:-1], "mesh:tp" if is_dp else "mesh:dp")
    return True


def _reduce_by(reduction: str) -> Any:
    def change(_: fx.Graph, node: fx.Node, __: RankStep) -> bool:
        if _kind(node) == "all_gather_into_tensor":
            return False
        node.args = (node.args[0], reduction, *node.args[2:])
        return True

    return change


def _reverse(graph: fx.Graph, node: fx.Node, _: RankStep) -> bool:
    if _kind(node) == "all_reduce":
        return False

    def reversed_chunks(value: Any) -> fx.Node:
        chunks = graph.call_function(_ATEN.chunk.default, (value, 2))
        return graph.call_function(
            _ATEN.cat.default, ([graph.call_function(operator.getitem, (chunks, i)) for i in (1, 0)],)
        )

    if _kind(node) == "all_gather_into_tensor":
        return _replace_result(graph, node, reversed_chunks)
    with graph.inserting_before(node):
        node.args = (reversed_chunks(node.args[0]), *node.args[1:])
    return True


def _scale(factor: float) -> Any:
    def change(graph: fx.Graph, node: fx.Node, _: RankStep) -> bool:
        return _replace_result(graph, node, lambda wait: graph.call_function(_ATEN.mul.Tensor, (wait, factor)))

    return change


FAULTS: dict[str, Any] = {
    "dropped": _drop,
    "doubled": _double,
    "on another axis": _move,
    "averaged": _reduce_by("avg"),
    "maximum": _reduce_by("max"),
    "reversed": _reverse,
    "scaled by 2": _scale(2.0),
    "scaled by 0.5": _scale(0.5),
}
"""Fault → function that changes a collective in a graph, and returns whether the fault applies to it."""


def check(step: RankStep, graph: fx.GraphModule) -> str:
    """Return "" if a graph equals one device, else the message."""
    try:
        module = step.imported(graph)
        result = spmdir.check_ranks(module, step.reference, step.inputs)
    except SpmdirError as error:
        return f"rejected: {error}"
    return "" if result.is_equal else str(result)


def main() -> None:
    """Print a row for each scheme and model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--faults", type=int, default=20, help="faults for each step (default: 20)")
    parser.add_argument("--verbose", action="store_true", help="print the message for each fault")
    options = parser.parse_args()
    print(
        _ROW.format("step", "collectives", "outputs", "modelled", "faults", "rejected", "differ", "named"), flush=True
    )
    for scheme in options.schemes.split(","):
        for name in options.models.split(","):
            with rank_models.fake_mesh() as device_mesh:
                print(
                    _row(scheme, name, trace_step(scheme, name, device_mesh), options.faults, options.verbose),
                    flush=True,
                )


def _row(scheme: str, name: str, step: RankStep, most: int, is_verbose: bool) -> str:
    module = step.imported(step.graph)
    result = spmdir.check_ranks(module, step.reference, step.inputs)
    report = spmdir.report.comm_report(module)
    messages = []
    for description, graph in faults(step) if most else ():
        message = check(step, graph)
        messages.append(message)
        if is_verbose:
            print(f"  {description}: {message or 'NOT FOUND'}")
        if len(messages) == most:
            break
    found = [message for message in messages if message]
    rejected = sum(message.startswith("rejected") for message in found)
    named = sum(bool(re.search(r"'(aten|_c10d_functional|spmd)\.", message)) for message in found)
    outputs = f"{len(result.proved)}+{len(result.tested)}" if result.is_equal else "differ"
    modelled = f"{report.seconds * 1e6:.1f} µs"
    differ = len(found) - rejected
    return _ROW.format(f"{scheme} {name}", report.count, outputs, modelled, len(messages), rejected, differ, named)


if __name__ == "__main__":
    main()
