"""Arguments of the wrong kind are refused by every public function with a SpmdirError that says what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir
from spmdir.call import TensorMeta

MESH = spmdir.Mesh({"dp": 2, "tp": 2})
X = torch.ones(4, 6)
GRAPH = make_fx(lambda x: x + 1)(X)
META = (TensorMeta((4, 6), "f32"),)


def imported(**given: Any) -> Any:
    return spmdir.import_fx(GRAPH, **{"mesh": MESH, **given})


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "axes that are a list of sizes": (lambda: spmdir.Mesh([2, 4]), r"axes \[2, 4\]; expected names and whole sizes"),
    "a size that is no whole number": (lambda: spmdir.Mesh({"dp": 2.5}), "expected names and whole sizes"),
    "an axis that no sharding can name": (lambda: spmdir.Mesh({"dp-1": 2}), "'dp-1' has a name that text cannot give"),
    "a mesh that is a dict": (
        lambda: imported(mesh={"dp": 2}),
        "mesh is {'dp': 2} of type dict; expected a spmdir.Mesh",
    ),
    "shardings that are a list": (lambda: imported(shardings=["dp: S(0)"]), "shardings is .*expected a dict"),
    "a key that is a number": (lambda: imported(shardings={0: "dp: S(0)"}), "a key of shardings is 0 .*'input:N'"),
    "one sharding for all outputs": (lambda: imported(out_shardings="dp: S(0)"), "expected a list with one entry"),
    "a placement that is a number": (lambda: imported(shardings={"x": {"dp": 0}}), "placement 0 has no counterpart"),
    "a dimension below the first": (
        lambda: imported(shardings={"x": [Shard(-3), Replicate()]}),
        r"sharding of 'x_1' \(4x6xf32\): S\(-3\) divides no dimension",
    ),
    "a pipeline that is a list": (lambda: spmdir.run_passes(imported(), ["propagate"]), "expected pass names"),  # type: ignore
    "passes on a graph": (lambda: spmdir.run_passes(GRAPH, "propagate"), "expected a module, as import_fx"),  # type: ignore
    "simulation of a text": (lambda: spmdir.simulate(spmdir.print_ir(imported()), [X]), "expected a module"),
    "a report on a graph": (lambda: spmdir.comm_report(GRAPH), "expected a module"),
    "the text of a graph": (lambda: spmdir.print_ir(GRAPH), "expected a module"),
    "text that is a file": (lambda: spmdir.parse(open), "expected the text of a module"),
    "inputs that are a tensor": (lambda: spmdir.simulate(imported(), X), "expected a list of tensors"),
    "a sparse input": (lambda: spmdir.simulate(imported(), [X.to_sparse()]), "'x_1' has layout torch.sparse_coo"),
    "sizes that are a list": (lambda: spmdir.lower_to_fx(imported(), sizes=[8]), r"sizes is \[8\] .*expected a dict"),  # type: ignore
    "sizes that inputs are given": (lambda: spmdir.simulate(imported(), [X], sizes=8), "sizes is 8 .*expected a dict"),  # type: ignore
    "a size that is a number": (lambda: spmdir.lower_to_fx(imported(), sizes={0: 8}), "name of a size is 0"),  # type: ignore
    "a size of half an element": (lambda: spmdir.lower_to_fx(imported(), sizes={"s0": 0.5}), "size 's0' is 0.5"),  # type: ignore
    "sizes of a program that has none": (lambda: spmdir.simulate(imported(), [X], sizes={"s0": 4}), "no size 's0'"),
    "a rank that is a text": (lambda: spmdir.lower_to_fx(imported(), "0"), "rank '0' is not in a mesh of 4"),  # type: ignore
    "a device mesh that is a mesh": (lambda: spmdir.lower_to_fx(imported(), 0, MESH), "expected a torch DeviceMesh"),
    "a shape with a negative size": (
        lambda: spmdir.plan_reshard((-1, 4), "f32", "", "", MESH),
        "expected sizes from 0",
    ),
    "a shape that is a number": (lambda: spmdir.plan_reshard(4, "f32", "", "", MESH), "shape is 4"),  # type: ignore
    "an axis without ranks": (lambda: spmdir.strategies("aten.relu", META, {}, 0), "axis_size is 0"),
    "operands that are tensors": (
        lambda: spmdir.strategies("aten.relu", (X,), {}, 2),
        "expected one such as TensorMeta",
    ),
    "an op that is no text": (lambda: spmdir.strategies(torch.relu, META, {}, 2), "expected an op's name"),
}


@pytest.mark.parametrize("case", WRONG)
def test_is_refused(case: str):
    call, message = WRONG[case]
    with pytest.raises(spmdir.SpmdirError, match=message):
        call()


def test_dtensor_placements_count_dimensions_from_the_end_too():
    module = imported(shardings={"x": [Shard(-1), Replicate()]}, out_shardings=[{"tp": Shard(-2)}])
    assert "dp: S(1)" in spmdir.print_ir(module)
    assert "tp: S(0)" in spmdir.print_ir(module)
