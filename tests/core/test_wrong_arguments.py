"""Arguments of the wrong kind are rejected by every public function with a SpmdirError that says what is expected."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

import spmdir
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.collectives import SHIPPED
from tests.public_names import public_names

NAMES = public_names()
VALUES: dict[str, Any] = {name.rpartition(".")[2]: value for name, value in NAMES.items()}
MESH = spmdir.Mesh({"dp": 2, "tp": 2})
X = torch.ones(4, 6)
GRAPH = make_fx(lambda x: x + 1)(X)
META = (TensorMeta((4, 6), "f32"),)


def imported(**given: Any) -> Any:
    return spmdir.import_fx(GRAPH, **{"mesh": MESH, **given})


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "axes that are a list of sizes": (lambda: spmdir.Mesh([2, 4]), r"axes \[2, 4\]; expected names and integer sizes"),
    "a size that is not a whole number": (lambda: spmdir.Mesh({"dp": 2.5}), "expected names and integer sizes"),
    "an axis that no sharding can name": (lambda: spmdir.Mesh({"dp-1": 2}), "'dp-1' has an invalid name"),
    "a mesh that is a dict": (
        lambda: imported(mesh={"dp": 2}),
        "mesh is {'dp': 2} of type dict; expected a spmdir.Mesh",
    ),
    "shardings that are a list": (lambda: imported(plan=["dp: S(0)"]), "plan is .*expected a dict"),
    "a key that is a number": (lambda: imported(plan={0: "dp: S(0)"}), "a key of shardings is 0 .*'input:N'"),
    "one sharding for all outputs": (lambda: imported(out_shardings="dp: S(0)"), "expected a list with one entry"),
    "a placement that is a number": (lambda: imported(plan={"x": {"dp": 0}}), "placement 0 has no counterpart"),
    "a dimension below the first": (
        lambda: imported(plan={"x": [Shard(-3), Replicate()]}),
        r"sharding of 'x_1' \(4x6xf32\): invalid dimension in S\(-3\)",
    ),
    "a pipeline that is a list": (lambda: spmdir.run_passes(imported(), ["propagate"]), "expected pass names"),  # type: ignore
    "passes on a graph": (lambda: spmdir.run_passes(GRAPH, "propagate"), "expected a module, as import_fx"),  # type: ignore
    "simulation of a text": (lambda: spmdir.simulate(spmdir.print_ir(imported()), [X]), "expected a module"),
    "a report on a graph": (lambda: spmdir.report.comm_report(GRAPH), "expected a module"),
    "the text of a graph": (lambda: spmdir.print_ir(GRAPH), "expected a module"),
    "text that is a file": (lambda: spmdir.parse(open), "expected the text of a module"),
    "inputs that are a tensor": (lambda: spmdir.simulate(imported(), X), "expected a list of tensors"),
    "a sparse input": (lambda: spmdir.simulate(imported(), [X.to_sparse()]), "'x_1' has layout torch.sparse_coo"),
    "sizes that are a list": (lambda: spmdir.lower_to_fx(imported(), sizes=[8]), r"sizes is \[8\] .*expected a dict"),  # type: ignore
    "sizes that inputs are given": (lambda: spmdir.simulate(imported(), [X], sizes=8), "sizes is 8 .*expected a dict"),  # type: ignore
    "a size that is a number": (lambda: spmdir.lower_to_fx(imported(), sizes={0: 8}), "name of a size is 0"),  # type: ignore
    "a size of half an element": (lambda: spmdir.lower_to_fx(imported(), sizes={"s0": 0.5}), "size 's0' is 0.5"),  # type: ignore
    "sizes of a program that has none": (lambda: spmdir.simulate(imported(), [X], sizes={"s0": 4}), "no size 's0'"),
    "a rank that is a text": (
        lambda: spmdir.lower_to_fx(imported(), "0"),
        "rank is '0' of type str; expected an int",
    ),  # type: ignore
    "a device mesh that is a mesh": (lambda: spmdir.lower_to_fx(imported(), 0, MESH), "expected a torch DeviceMesh"),
    "a shape with a negative size": (
        lambda: spmdir.plan_reshard((-1, 4), "f32", "", "", MESH),
        "expected a sequence of sizes from 0",
    ),
    "a shape that is a number": (lambda: spmdir.plan_reshard(4, "f32", "", "", MESH), "invalid shape 4"),  # type: ignore
    "an axis without ranks": (lambda: spmdir.rules.op_strategies("aten.relu", META, {}, 0), "axis_size is 0"),
    "operands that are tensors": (
        lambda: spmdir.rules.op_strategies("aten.relu", (X,), {}, 2),
        "expected one such as TensorMeta",
    ),
    "a mesh without a name": (lambda: spmdir.Mesh({"a": 2}, None), "name is None .*expected a text"),  # type: ignore
    "entries that are a text": (lambda: spmdir.Sharding("dp: S(0)"), "entries 'dp: S.0.'; expected pairs"),  # type: ignore
    "rules that are a number": (lambda: spmdir.rules.using_rules(0), "path is 0 of type int; expected the path"),  # type: ignore
    "a topology that is a number": (lambda: spmdir.report.comm_report(imported(), 0), "topology is 0 .*one of flat"),  # type: ignore
    "a seed that is a text": (lambda: spmdir.simulate(imported(), [X], seed="x"), "seed is 'x' .*an integer"),  # type: ignore
    "operands of a shape that is a text": (
        lambda: spmdir.rules.op_strategies("aten.relu", (TensorMeta("abc", "f32"),), {}, 2),  # type: ignore
        "expected one such as TensorMeta",
    ),
    "an option that Inductor has not": (
        lambda: spmdir.compile_program(GRAPH, {"reorder": True}),
        "Unexpected optimization option reorder; expected options of Inductor",
    ),
    "an op that is not text": (lambda: spmdir.rules.op_strategies(torch.relu, META, {}, 2), "expected an op's name"),
}


@pytest.mark.parametrize("case", WRONG)
def test_is_rejected(case: str):
    call, message = WRONG[case]
    with pytest.raises(spmdir.SpmdirError, match=message):
        call()


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def right() -> dict[str, dict[str, Any]]:
    """Public name → right arguments; those of `check_rules` and `parallelize` end early, for another reason."""
    module, mesh, model = imported(), {"mesh": MESH}, Linear()
    given = {"plan": None, "out_shardings": None, "missing_rule": "warn"}
    return {
        "Clause": {"keyword": "root", "argument": "root", "kind": "rank"},
        "CollectiveSpec": {
            "name": "scatter", "summary": "", "lower": "mine:scatter", "clauses": SHIPPED[0].clauses, "moves": "axes",
            "before": "replicated", "after": "shard", "check": None, "axes": None, "traffic": SHIPPED[0].traffic,
            "buffers": (), "loads": None, "may_be_async": False, "may_be_bucketed": False, "is_planned": False,
            "if_local": None, "executed": {},
        },
        "Traffic": {
            "wire": len, "copied": len, "packed": len, "kernels": len, "crossing": None, "passes": 0, "rounds": 1,
            "keeps_bounds": False, "sends_at_once": False, "may_use_tree": False, "name": "",
        },
        "Edge": {
            "lower": len, "target": None, "source": None, "by": None, "itemsize": None, "bytes": None, "seconds": None,
            "state": {}, "when": None,
        },
        "ErrorBound": {"factor": 0.0, "norm": "max", "of": "shards"},
        "Mesh": {"axes": {"dp": 2}, "name": "mesh", "intra_node": None, "root": None},
        "P": {"op": "sum"},
        "Pipeline": {"steps": "propagate", "plugins": (), "topology": None, "costs": None, "rewrites": ()},
        "S": {"dim": 0},
        "Sharding": {"entries": (), "mesh": "mesh"},
        "SpmdirError": {"message": "", "location": None},
        "EdgeState": {"shape": None, "dtype": None, "initial": "zeros", "shared": False, "feedback": False},
        "TensorMeta": {"shape": (2, 3), "dtype": "f32"},
        "check_rules": {
            "ops": ("aten.none",), "world_sizes": (), "samples": None, "placements": (), "plugins": (),
            "captured": True, "missing": True, "processes": None, "timeout": 1.0, "progress": None,
        },
        "comm_report": {"module": module, "topology": None, "pipeline": None},
        "compile_program": {"program": GRAPH, "options": None},
        "constrain": {"x": X, "sharding": "dp: S(0)"},
        "diff": {"before": module, "after": module, "pipeline": None},
        "explain": {"module": module, "at": "*", "most": 1, "pipeline": None},
        "import_fx": {"program": GRAPH, **mesh, **given, "example_inputs": None, "fold_views": True, "check": False},
        "load": {"directory": "saved", "state": {"x": X.clone()}, "step": None},
        "load_plugin": {"source": "none.py"},
        "using_rules": {"path": "none.rules"},
        "load_safetensors": {"path": "none.safetensors", "state": {"x": X.clone()}, "names": None, "convert": False},
        "lower_to_fx": {"module": module, "rank": 0, "device_mesh": None, "sizes": None, "pipeline": None},
        "materialize": {"sharded": None, "model": model, "init": "reset_parameters", "device": "cpu"},
        "memory_report": {"module": module, "pipeline": None},
        "cost_table": {
            "module": module, "by": "module", "sort": "time", "rows": 20, "topology": None, "fold": True,
            "pipeline": None, "measured": [],
        },
        "save": {"directory": "saved", "state": {"x": X}, "step": None, "keep": None},
        "save_safetensors": {"directory": "saved", "state": {"x": X}, "names": None, "file_bytes": 10**6},
        "import_ranks": {
            "graph": GRAPH, "mesh": MESH, "in_shardings": None, "groups": None, "rank": None, "example_inputs": None,
            "model": None,
        },
        "check_ranks": {"module": module, "reference": GRAPH, "inputs": None, "seed": 0},
        "expert_report": {"module": module, "pipeline": None},
        "serving_report": {"module": module, "pipeline": None, "length": None},
        "local_map": {"function": torch.sin, "in_shardings": ("dp: S(0)",), "out_shardings": "dp: S(0)", "flops": None},
        "simulate_step": {"module": module, "state": {}, "batch": [X], "pipeline": None, "seed": 0},
        "schedule_report": {"module": module, "topology": None, "pipeline": None},
        "capture": {
            "model": model, "plan": None, "batch": 2, "max_length": 8, "prompt_lengths": [4], "max_top_k": 4,
            "new_tokens": 2, "pages": None, "page_rows": 4, **mesh,
        },
        "serve": {
            "model": model, "plan": None, "batch": 2, "max_length": 8, "prompt_lengths": [4], "max_top_k": 4,
            "new_tokens": 2, "pages": None, "page_rows": 4, **mesh,
        },
        "program_of": {"module": module, "name": "main"},
        "parallelize": {
            "model": Linear(), "example_inputs": (X,), **mesh, **given, "state": None, "device_mesh": None,
            "local_inputs": False, "dynamic_shapes": None, "sync_state": False, "pipeline": None, "cache": None,
            "compile": False,
        },
        "parse_placement": {"text": "S(0)"},
        "parse": {"text": spmdir.print_ir(module), "filename": "", "first_line": 1, "verify_module": True},
        "plan_reshard": {
            "shape": (4, 4), "dtype": "f32", "src": {}, "dst": "dp: S(0)", **mesh, "topology": None, "collectives": (),
        },
        "print_ir": {"module": module, "generic": False, "debuginfo": False},
        "rank_programs": {"sharded": model},
        "run_passes": {
            "module": module, "pipeline": "verify-spmd", "verify_each": False, "context": None,
            "after": lambda name, module: None,
        },
        "simulate": {
            "module": module, "inputs": [X], "state_dict": None, "seed": 0, "sizes": None, "pipeline": None,
            "state": None, "interleavings": 0,
        },
        "shard_module": {
            "model": model, **mesh, "plan": None, "example_inputs": (X,), "example_kwargs": None, "out_shardings": None,
            "device_mesh": None, "local_inputs": False, "dynamic_shapes": None, "sync_state": False,
            "missing_rule": "warn", "pipeline": None, "cache": None, "compile": False,
        },
        "sharding_plan": {"plan": "fsdp", "model": model, **mesh},
        "ShardingPlan": {
            "shardings": {"x": "dp: S(0)"},
            "out_shardings": None,
            "activations": {},
            "keep": ("dp",),
            "pipeline": None,
        },
        "op_strategies": {
            "name": "aten.relu", "operands": META, "arguments": {}, "axis_size": 2, "placements": (), "why": False,
        },
        "tensor_parallel": {
            "program": torch.export.export(Linear(), (X,)), "plan": {"layer": "colwise"}, **mesh, "rank": 0,
            "axis": "tp", "device_mesh": None, "pipeline": None,
        },
        "training_step": {
            "model": model, "loss": lambda model, x: model(x).sum(), "optimizer": torch.optim.SGD(model.parameters()),
            "gradients": None, "clip_grad_norm": 1.0, "compute_dtype": None, "accumulate": 1,
        },
        "UnsupportedError": {"message": "", "location": None},
        "visualize": {"what": "2x3xf32", **mesh, "sharding": "dp: S(0)", "slices": None},
        "Sampling": {"temperature": 1.0, "top_k": 2, "top_p": 0.5, "seed": 1},
        "what_if": {
            "module": module, "shardings": None, "forbid": None, "drop_annotations": (), "pipeline": None,
        },
    }  # fmt: skip


ODD: tuple[Any, ...] = (
    None, 0, -1, 1.5, math.nan, True, 10**5000, "x", "\0", b"x", object(), torch.ones(2),
    [], {}, (0,), [None], {0: 1}, {"x": None}, (("dp", 0),), (TensorMeta("x", "f32"),),  # type: ignore
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_any_value_for_any_argument_gives_a_result_or_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # where some of these values are names of files
    others = {
        "Placement",
        "ShardPlacement",
        "PartialPlacement",
        "PackedPlacement",
        "check_placement",
    }  # have no arguments, or others
    others |= {name.partition(".")[2] for name in NAMES if name.startswith("errors.")} - {"UnsupportedError"}
    others |= {"R", "ShardingLike", "UNKNOWN"}  # are values
    # Are made by functions, or plain.
    others |= {"Difference", "Explanation", "Explanations", "KeepsSource", "PlacementReport", "RuleReport"}
    others |= {"RankPrograms", "JointProgram", "TrainingStep", "OpRule", "RuleSet", "Strategy", "Dropped"}
    others |= {"ON", "DIM", "FROM", "TO", "OP"}  # are values
    # Are made or called by emitters and prices alone.
    others |= {"Sizes", "Site", "Message", "DimPartition", "here", "anywhere", "direct", "ring"}
    others |= {"flat_chunks", "from_flat_chunks", "to_chunk_order", "from_chunk_order"}
    others |= {
        "CommReport",
        "MemoryReport",
        "Parallel",
        "ReshardPlan",
        "Plugin",
        "CostTable",
        "MeasuredStep",
        "RankComparison",
        "ExpertReport",
        "RouterLoad",
        "ScheduleReport",
        "ServingReport",
        "ProgramTime",
        "Served",
        "Limits",
        "Request",
        "RequestQueue",
        "TensorPicture",
        "ParallelOptions",
        "Topology",
    }
    calls = right()
    assert set(calls) | others == {name.rpartition(".")[2] for name in NAMES}
    for name, arguments in calls.items():
        parameters = inspect.signature(VALUES[name]).parameters.values()
        assert {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} <= set(arguments), name
        for parameter in arguments:
            for value in ODD:
                attempt(name, **{**arguments, parameter: value})
    for value in ODD:
        attempt("check_placement", value)


def attempt(function: str, /, *args: Any, **arguments: Any) -> None:
    with contextlib.suppress(spmdir.SpmdirError):
        VALUES[function](*args, **arguments)


def test_dtensor_placements_count_dimensions_from_the_end_too():
    module = imported(plan={"x": [Shard(-1), Replicate()]}, out_shardings=[{"tp": Shard(-2)}])
    assert "dp: S(1)" in spmdir.print_ir(module)
    assert "tp: S(0)" in spmdir.print_ir(module)
