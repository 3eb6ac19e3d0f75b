"""Training steps that torch's parallelism runs equal one device, and faults in their collectives are named."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir
from benchmarks.rank_models import Decoder, fake_mesh, sharded, train
from benchmarks.read_back import check, faults, trace_step
from spmdir.core.errors import UnsupportedError


@pytest.mark.parametrize(("scheme", "name"), [("fsdp", "gpt2"), ("tp", "llama"), ("fsdp*tp", "llama")])
def test_a_step_of_a_rank_equals_one_device(scheme, name):
    with fake_mesh() as device_mesh:
        step = trace_step(scheme, name, device_mesh)
        module = step.imported(step.graph)
    result = spmdir.check_ranks(module, step.reference, step.inputs)
    assert result.is_equal, result


def test_faults_in_a_step_are_found_and_an_op_is_named():
    with fake_mesh() as device_mesh:
        step = trace_step("hand-written", "llama", device_mesh)
        first = itertools.islice(faults(step), 3)
        dropped, doubled, averaged = (check(step, graph) for _, graph in first)
    assert "'aten.add.Tensor' gets a partial sum over tp" in dropped
    assert "'_c10d_functional.all_reduce' gets a complete value over tp" in doubled
    assert "is that of 'aten.div.Scalar': it is 0.5 times the value" in averaged


def test_uneven_shards_of_fsdp_are_padded():
    with fake_mesh() as device_mesh:
        torch.manual_seed(0)
        model = sharded(Decoder(True, vocabulary=13).double(), device_mesh)
        ids = torch.zeros(2, 6, dtype=torch.long)
        train(model, ids, ids)
        graph = make_fx(lambda *batch: train(model, *batch, device_mesh["dp"].get_group()))(ids, ids)
        module = spmdir.import_ranks(graph, device_mesh, {"input:*": "dp: S(0)"}, model=model)
    assert "tensor<13x16xf64> <dp: S(0)>" in spmdir.print_ir(module)


def test_a_step_that_was_not_run_before_the_trace_is_an_error():
    with fake_mesh() as device_mesh:
        model = sharded(Decoder(True).double(), device_mesh)
        ids = torch.zeros(2, 6, dtype=torch.long)
        graph = make_fx(lambda *batch: train(model, *batch))(ids, ids)
        with pytest.raises(UnsupportedError, match="run the step once, then trace it"):
            spmdir.import_ranks(graph, device_mesh, model=model)
