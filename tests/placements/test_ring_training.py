"""Ring attention on real ranks: beside torch's own context parallelism, and in the training of a small Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.experimental._context_parallel import _attention as peer
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import spmdir
from spmdir.core.placement.sharding import parse_sharding
from spmdir.simulator.distribution import local_tensor
from tests.lowering.gloo_ranks import on_ranks
from tests.placements.causal_llama import CausalLlama, loss
from tests.placements.ring_programs import BACKWARD, FORWARD, Sent, inputs, pipeline, plugin, program

MESH = spmdir.Mesh({"cp": 4})


def _op(name: str) -> Any:
    op = getattr(torch.ops.aten, name.removeprefix("aten.")).default

    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **{"dropout_p": 0.0, **kwargs})

    return call


def _peers_ring(local: list[torch.Tensor], is_balanced: bool) -> list[torch.Tensor]:
    """Return the output and gradients of torch's ring attention on the shards of a rank."""
    peer._cp_options.convert_to_f32 = False
    peer._cp_options.enable_load_balance = is_balanced
    peer.set_rotate_method("alltoall")
    query, key, value, gradient = local
    group = dist.distributed_c10d._get_default_group()
    out, lse, *_ = peer._templated_ring_attention(group, 2, _op(FORWARD), query, key, value, is_causal=True)
    gradients = peer._templated_ring_attention_backward(
        group, 2, _op(BACKWARD), gradient, "grad_out", query, key, value, out, lse, is_causal=True
    )
    return [out, *gradients[:3]]


def _beside_peer(rank: int, path: str, tensors: list[torch.Tensor]) -> list[Any]:
    device_mesh = dist.device_mesh.init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))
    found = []
    for placement, is_balanced in (("S(2)", False), ("ZigZag(2)", True)):
        sharding = parse_sharding(f"cp: {placement}")
        local = [local_tensor(tensor, sharding, MESH, rank) for tensor in tensors]
        with Sent() as theirs:
            wanted = _peers_ring(local, is_balanced)
        module = spmdir.parse(program(tensors, str(sharding)))
        graph = spmdir.lower_to_fx(module, device_mesh=device_mesh, pipeline=pipeline(path))
        with Sent() as ours:
            given = graph(*local)
        found.append(([*given], wanted, ours.bytes, theirs.bytes))
    return found


@pytest.mark.gloo
def test_results_and_bytes_are_those_of_torchs_own_ring_with_and_without_balance(tmp_path: Path) -> None:
    tensors = inputs(32)
    keys = sum(tensor.numel() * tensor.element_size() for tensor in tensors[1:3])
    for of_rank in on_ranks(4, _beside_peer, tmp_path, plugin(), tensors):
        for given, wanted, ours, theirs in of_rank:
            assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-13) for a, b in zip(given, wanted, strict=True))
            assert ours == theirs == keys * (3 + 3 + 4) // 4


def _trained(rank: int, path: str, text: str, leaves: list[torch.Tensor], shardings: list[str]) -> list[torch.Tensor]:
    finish = pipeline(path)
    device_mesh = dist.device_mesh.init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))
    local = [local_tensor(leaf, parse_sharding(held), MESH, rank) for leaf, held in zip(leaves, shardings, strict=True)]
    return [*spmdir.lower_to_fx(spmdir.parse(text), device_mesh=device_mesh, pipeline=finish)(*local)]


def _step(placement: str, arguments: tuple[Any, ...]) -> tuple[Any, list[torch.Tensor], dict[str, str]]:
    """Return a traced step, its flat arguments and their shardings: tokens by `placement`, weights replicated."""
    step, _ = _training(placement)
    leaves = pytree.tree_leaves(arguments)
    tokens = [not leaf.is_floating_point() and leaf.dim() == 2 for leaf in leaves]
    shardings = {f"input:{at}": f"cp: {placement}" if is_token else "cp: R" for at, is_token in enumerate(tokens)}
    return make_fx(step, tracing_mode="fake")(*arguments), leaves, shardings


def _training(placement: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = CausalLlama(f"cp: {placement}").double()
    return spmdir.training_step(model, loss, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


@pytest.mark.gloo
def test_a_llama_is_trained_by_rings_over_zigzag_tokens_simulated_and_on_real_ranks(tmp_path: Path) -> None:
    placement, path = "ZigZag(1)", plugin()
    step, state = _training(placement)
    arguments = (state, torch.randint(0, 32, (2, 64)), torch.randint(0, 32, (2, 64)))
    graph, leaves, shardings = _step(placement, arguments)
    module = spmdir.import_fx(graph, MESH, shardings)
    finish = pipeline(path)
    texts: dict[str, str] = {}
    spmdir.run_passes(module, finish, after=lambda name, current: texts.update({name: spmdir.print_ir(current())}))
    report = spmdir.report.comm_report(module)
    assert report.by_kind["rotate"].count == 2 * (6 + 6 + 8)  # two layers, forward and backward
    wanted = pytree.tree_leaves(step(*arguments))
    found = pytree.tree_leaves(spmdir.simulate(module, leaves, pipeline=finish))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for local in on_ranks(4, _trained, tmp_path, path, texts["insert-reshard"], leaves, [*shardings.values()]):
        torch.testing.assert_close(local[0], wanted[0], rtol=1e-12, atol=1e-12)
