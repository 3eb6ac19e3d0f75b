"""Elementwise ops of a DTensor run on its shards where that gives what DTensor gives; all else is left to DTensor."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from spmdir.torch_interop.elementwise_dtensor import ElementwiseDTensor, elementwise


@pytest.fixture(scope="module")
def device_mesh() -> Iterator[Any]:
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


def made(device_mesh: Any, seed: int = 0) -> DTensor:
    local = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return DTensor.from_local(local, device_mesh, (Shard(0), Replicate()), run_check=False)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "rate": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1, dtype=torch.float64), foreach=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_plain_tensors(device_mesh: Any, name: str) -> None:
    sharded = [elementwise(nn.Parameter(made(device_mesh, seed=seed))) for seed in range(2)]
    plain = [nn.Parameter(p._local_tensor.clone()) for p in sharded]
    optimizers = [OPTIMIZERS[name](sharded), OPTIMIZERS[name](plain)]
    for turn in range(3):
        for seed, (p, q) in enumerate(zip(sharded, plain, strict=True)):
            gradient = made(device_mesh, seed=10 * turn + seed + 5)
            p.grad, q.grad = gradient, gradient._local_tensor.clone()
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(sharded, plain, strict=True):
        assert torch.equal(p._local_tensor, q)


def test_what_ops_give_is_laid_out_as_dtensor_says(device_mesh: Any) -> None:
    first, second = made(device_mesh), made(device_mesh, seed=1)
    rows, local = elementwise(made(device_mesh)), torch.ones(6, 2, dtype=torch.float64)
    columns = elementwise(DTensor.from_local(local, device_mesh, (Replicate(), Shard(1)), run_check=False))
    ops: dict[str, Callable[[Any], Tensor]] = {
        "mul": lambda x: x * second,
        "add": lambda x: x.add(second, alpha=2.0),
        "sqrt": lambda x: x.abs().sqrt(),
        "like": torch.zeros_like,
        "type": lambda x: torch.zeros_like(x, dtype=torch.float32),
        "sum": lambda x: x.sum(0),
        "transpose": lambda x: x.t(),
        "shape": lambda x: x * second.sum(1, keepdim=True),
        "less": lambda x: x < 0,
    }
    with torch.no_grad():
        for name, op in ops.items():
            found, expected = op(rows), op(first)
            assert isinstance(found, DTensor)
            assert isinstance(expected, DTensor)
            assert (found.placements, found.dtype, found.shape) == (
                expected.placements,
                expected.dtype,
                expected.shape,
            ), name
            assert torch.equal(found._local_tensor, expected._local_tensor), name
        assert type(rows * second) is ElementwiseDTensor
        assert type(rows.sum()) is DTensor
        with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
            rows.add_(torch.ones(3, 4, dtype=torch.float64))
        assert type(rows.mul(columns)) is DTensor


def test_autograd_sees_what_is_written_to(device_mesh: Any) -> None:
    parameter = elementwise(nn.Parameter(made(device_mesh)))
    with pytest.raises(RuntimeError, match="leaf Variable"):
        parameter.mul_(2)
    loss = (parameter * parameter).sum()
    with torch.no_grad():
        parameter.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    version = parameter._version
    with torch.no_grad():
        parameter.detach().mul_(2)
    assert parameter._version > version


def test_copies_are_alike_and_files_have_a_dtensor(device_mesh: Any) -> None:
    parameter = elementwise(nn.Parameter(made(device_mesh)))
    for copied in (copy.deepcopy(parameter), nn.Parameter(parameter)):
        assert type(copied) is ElementwiseDTensor
        assert isinstance(copied, nn.Parameter)
        assert torch.equal(copied._local_tensor, parameter._local_tensor)
    file = io.BytesIO()
    torch.save(parameter, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded) is DTensor
    assert type(parameter) is ElementwiseDTensor
