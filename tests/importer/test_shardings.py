"""Which sharding each argument and each output gets."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx

from spmdir.core.errors import ParseError, ShardingError
from spmdir.importer.importer import import_fx
from tests.importer.imported_programs import MESH, arguments, export, results

X = torch.ones(4, 6)


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return export(lambda s, x, y: (s.a(x), s.b(y).sum(), 3), X, X, a=nn.Linear(6, 4), b=nn.Linear(6, 4))


@pytest.mark.parametrize("value", ["dp: S(0)", {"dp": "S(0)", "tp": "R"}, [Shard(0), Replicate()]], ids=type)
def test_a_sharding_is_text_a_dict_or_dtensor_placements(program, value):
    assert arguments(import_fx(program, MESH, {"a.weight": value}))["a.weight"] == "dp: S(0)"


def test_an_argument_without_sharding_is_open_and_one_with_none_is_replicated(program):
    found = arguments(import_fx(program, MESH, {"a.weight": ""}))
    assert found["a.weight"] == ""
    assert found["a.bias"] is None


@pytest.mark.parametrize("key", ["args_1", "input:1"])
def test_an_input_is_known_by_name_and_by_position(program, key):
    found = arguments(import_fx(program, MESH, {key: "dp: S(0)"}))
    assert {name for name, sharding in found.items() if sharding} == {"args_1"}


def test_an_argument_is_known_by_the_name_of_its_node(program):
    assert arguments(import_fx(program, MESH, {"p_a_weight": "tp: S(1)"}))["a.weight"] == "tp: S(1)"


def test_exact_keys_beat_globs_and_later_globs_earlier_ones(program):
    given = {"a.weight": "tp: S(0)", "*.weight": "dp: S(0)", "b.*": "dp: S(0), tp: ?"}
    found = arguments(import_fx(program, MESH, given))
    assert [found[name] for name in ("a.weight", "b.weight", "b.bias")] == [
        "tp: S(0)",
        "dp: S(0), tp: ?",
        "dp: S(0), tp: ?",
    ]


def test_none_opens_what_an_earlier_glob_gave(program):
    found = arguments(import_fx(program, MESH, {"*.weight": "tp: S(0)", "b.weight": None}))
    assert (found["a.weight"], found["b.weight"]) == ("tp: S(0)", None)


def test_outputs_get_what_they_are_told_in_order(program):
    found = import_fx(program, MESH, {"args_0": "dp: S(0)"}, out_shardings=["like:args_0", "", None])
    assert [sharding for _, sharding in results(found)] == ["dp: S(0)", ""]


def test_an_output_can_be_like_an_open_input(program):
    assert results(import_fx(program, MESH, {}, out_shardings=["like:args_0", None, None]))[0][1] is None


def test_an_output_that_looks_like_an_update_is_not_left_partial():
    program = export(lambda s, x, y: (x - y, x * 2), X, X.clone())
    assert results(import_fx(program, MESH, {"args_0": "dp: S(0)"}))[0][1] == "dp: S(0)"
    assert results(import_fx(program, MESH, {"args_0": "dp: P(sum)"}))[0][1] is None


REJECTED = {
    "unknown name": ({"a.wieght": "tp: S(0)"}, None, r"'a.wieght', which is not an input.*did you mean 'a.weight'\?"),
    "glob without match": ({"c.*": "tp: S(0)"}, None, r"'c.\*', which matches no input.*; its inputs are args_0"),
    "position": ({"input:7": "tp: S(0)"}, None, r"'input:7', but the program has 2 tensor inputs"),
    "axis": ({"a.weight": "ep: S(0)"}, None, r"sharding of 'a.weight' \(4x6xf32\): .*'ep'"),
    "rank": ({"a.bias": "tp: S(1)"}, None, r"sharding of 'a.bias' \(4xf32\): S\(1\) on axis 'tp' shards dimension 1"),
    "text": ({"a.bias": "tp S(1)"}, None, r"sharding of 'a.bias'.*'tp S\(1\)' is not part of a sharding"),
    "count of outputs": ({}, ["dp: S(0)"], r"out_shardings has 1 entries; expected 3, one for each output"),
    "literal output": (
        {},
        [None, None, "dp: S(0)"],
        r"out_shardings\[2\] is for output .*, which is not a tensor; expected None: replace this entry",
    ),
    "rank of output": ({}, [None, "dp: S(0)", None], r"sharding of output 1 \(f32\): S\(0\)"),
    "unknown like": (
        {},
        ["like:args_3", None, None],
        r"'like:args_3'; expected the name of an input; did you mean 'args_",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_shardings_that_fit_nothing_are_rejected(program, case):
    shardings, out_shardings, message = REJECTED[case]
    with pytest.raises((ShardingError, ParseError), match=message):
        import_fx(program, MESH, shardings, out_shardings=out_shardings)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("*.upp.weight", r"'\*.upp.weight', which matches no input, parameter or buffer; its inputs are x_1, w_1$"),
        ("ids", "'ids', which is not an input, parameter or buffer; its inputs are x_1, w_1$"),
        ("w_2", r"'w_2', which is not an input, parameter or buffer; did you mean 'w_1'\?$"),
    ],
)
def test_a_key_that_matches_nothing_is_told_what_inputs_there_are(key: str, message: str) -> None:
    program = make_fx(lambda x, w: x @ w)(torch.ones(4, 4), torch.ones(4, 4))
    with pytest.raises(ShardingError, match=message):
        import_fx(program, MESH, {key: "dp: S(0)"})


def test_a_glob_that_matches_nothing_is_told_what_parameters_there_are(program):
    message = "its inputs are args_0, args_1, and its parameters and buffers are a.weight, a.bias, b.weight, b.bias$"
    with pytest.raises(ShardingError, match=message):
        import_fx(program, MESH, {"layers.*": "dp: S(0)"})


def test_a_glob_with_a_part_that_no_name_has_is_told_the_nearest(program):
    with pytest.raises(ShardingError, match=r"matches no input, parameter or buffer; did you mean '\*.weight'\?$"):
        import_fx(program, MESH, {"*.wieght": "dp: S(0)"})


def test_names_of_dtensor_in_a_sharding_are_told_how_they_are_written() -> None:
    with pytest.raises(ParseError, match=r"unknown placement 'Shard\(0\)'.*; DTensor's Shard is written S\(dim\)$"):
        import_fx(make_fx(torch.sin)(torch.ones(4)), MESH, {"input:0": "dp: Shard(0)"})
