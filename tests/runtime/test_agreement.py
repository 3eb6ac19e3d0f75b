"""Ranks that differ, or of which one has an error, ends or stalls: all of them say why."""

import pickle

import pytest
import torch

import spmdir
from spmdir.core.placement.sharding import parse_sharding
from spmdir.runtime.agreement import COMPARED, compare_statuses
from spmdir.runtime.local_state import LocalShard
from tests.lowering.gloo_ranks import on_ranks
from tests.runtime import agreement_cases


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return on_ranks(2, agreement_cases.run, folder, str(folder))


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("case", "bad", "message"),
    [
        ("import", 1, "sharding is given for 'nope'"),
        ("trace", 0, "'item' calls aten.item, which reads a number"),
    ],
)
def test_an_error_on_one_rank_is_raised_on_all(ranks, case, bad, message):
    own, others = ranks[bad]["agreement"][case], ranks[1 - bad]["agreement"][case]
    assert own.startswith(message)
    assert others == f"rank {bad}: {own}"


@pytest.mark.gloo
def test_an_error_that_is_not_spmdirs_is_told_to_the_others_and_stays_what_it_is(ranks):
    assert [result["agreement"]["raw"] for result in ranks] == [
        "rank 1: MemoryError: no memory for it",
        "own: no memory for it",
    ]


@pytest.mark.gloo
def test_programs_are_compiled_when_calls_first_need_them(ranks):
    for result in ranks:
        assert result["agreement"]["programs"] == [1, 1, 2, 3]


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("mesh", "ranks 0 and 1 pass the meshes <tp = 2> and <dp = 2>"),
        ("program", "ranks 0 and 1 of the mesh would run different programs"),
        ("placements", "ranks 0 and 1 get different shards of 'Unsteady(0)' from the code of this placement"),
        ("weights", "ranks 0 and 1 start with different values of 'up.weight'"),
        ("meta", "ranks 0 and 1 differ: only one has 'down.bias' on the meta device"),
        ("sync_state", "ranks 0 and 1 pass sync_state=False and sync_state=True"),
        ("local_inputs", "ranks 0 and 1 pass local_inputs=False and local_inputs=True"),
        ("compile", "ranks 0 and 1 pass different options of compile"),
        (
            "deeper",
            "the parameter 'extra.weight' is absent on rank 0 and float32[4, 4] (trainable) on rank 1",
        ),
        (
            "shallower",
            "the parameter 'extra.weight' is float32[4, 4] (trainable) on rank 0 and absent on rank 1",
        ),
        ("activated", "model.extra is absent on rank 0 and a torch.nn.modules.activation.ReLU on rank 1"),
        (
            "narrow",
            "the parameter 'up.bias' is float64[8] (trainable) on rank 0 and float32[8] (trainable) on rank 1",
        ),
        (
            "frozen",
            "the parameter 'down.weight' is float64[4, 8] (trainable) on rank 0 and float64[4, 8] on rank 1",
        ),
        (
            "tied",
            "the parameter 'down.weight' is the same as 'up.weight' on rank 0 and float64[4, 4] (trainable) on",
        ),
        ("plan", '"up.weight" in the [shardings] of the plan is "tp: S(0)" on rank 0 and absent on rank 1'),
        ("example", "argument 0 is float64[3, 4] on rank 0 and float64[2, 4] on rank 1"),
        ("class", "Scaled.factor is 1.0 on rank 0 and 2.0 on rank 1"),
        ("constant", "op 6 of the forward is "),
        ("reversed", "op 6 of the forward is aten.sub.Tensor(%"),
        ("global", "agreement_cases.SCALE is 1.0 on rank 0 and 2.0 on rank 1"),
        ("backward", "agreement_cases.SCALE is 1.0 on rank 0 and 2.0 on rank 1"),
    ],
)
def test_ranks_that_differ_are_an_error_on_all(ranks, case, message):
    for result in ranks:
        assert message in result["agreement"][case]


@pytest.mark.gloo
def test_weights_of_the_first_rank_and_device_meshes_can_be_asked_for(ranks):
    for result in ranks:
        found = result["agreement"]
        for name in ("synchronised", "device mesh", "again"):
            torch.testing.assert_close(found[name], found["expected"])


@pytest.mark.gloo
def test_the_first_ranks_state_has_all_tied_names_and_comes_in_one_buffer(ranks):
    for result in ranks:
        found = result["tied"]
        torch.testing.assert_close(found["state"], dict(found["expected"]), rtol=0, atol=0)
        assert found["places"] == 1


@pytest.mark.gloo
def test_a_rank_that_waits_to_place_the_state_is_told_why(ranks):
    own, others = ranks[1]["placing"], ranks[0]["placing"]
    assert own == "no place for it"
    assert others.startswith("the broadcast of 'up.weight' from the first rank on mesh axes [tp] fails on rank 0: ")
    assert "fails on rank 0: rank 1: no place for it; " in others


@pytest.mark.gloo
def test_an_error_of_the_first_rank_with_new_sizes_is_raised_on_all(ranks):
    assert [result["sizes"]["rejected"] for result in ranks] == ["no program for it", "rank 0: no program for it"]


@pytest.mark.gloo
def test_arguments_of_another_precision_are_an_error(ranks):
    for result in ranks:
        assert "has dtype torch.float32; expected torch.float64" in result["agreement"]["precision"]


@pytest.mark.gloo
def test_sizes_are_compared_whenever_they_change(ranks):
    for result in ranks:
        found = result["sizes"]
        assert "call with the sizes s0 = 3 and s0 = 2" in found["known"]
        assert "call with the sizes s0 = 7 and s0 = 8" in found["one is new"]
        torch.testing.assert_close(found["outputs"], found["expected"])


DIFFERENT = "ranks 0 and 1 pass different values of the input "


@pytest.mark.gloo
def test_inputs_that_differ_between_ranks_are_an_error_on_all(ranks):
    for result in ranks:
        found = result["inputs"]
        for case, name in (("model", "x"), ("module", "x"), ("step", "arg1")):
            assert (
                found[case].startswith(f"{DIFFERENT}'{name}'; expected the same global batch")
                and "local_inputs" in found[case]
            )
        assert found["later"][0] == "no error" and found["later"][1].startswith(DIFFERENT)
        assert all(error.startswith(DIFFERENT) for error in found["retried"])
        assert found["shards"].startswith(f"{DIFFERENT}'x', of which they have the same shard")
        assert 'pass num_replicas=mesh["dp"].size()' in found["shards"]


@pytest.mark.gloo
def test_local_inputs_may_differ_and_have_local_shapes(ranks):
    for result in ranks:
        assert result["inputs"]["own"] == "no error"
        local = "'x' has shape [3, 4]; expected the local shape [2, 4], this rank's shard of [4, 4]"
        assert result["inputs"]["own shape"].startswith(local)


@pytest.mark.gloo
def test_no_program_of_another_mode_is_made_for_a_shape_that_none_takes(ranks):
    for result in ranks:
        found = result["inputs"]
        assert "the global shape [4, 4], as in the example inputs: give dynamic_shapes" in found["another mode"]
        assert found["programs"] == 1


@pytest.mark.gloo
def test_an_input_that_fits_on_some_ranks_alone_is_an_error_on_all_at_once(ranks):
    own, other = (result["inputs"]["one shape"] for result in reversed(ranks))
    assert own.startswith("'x' has shape [3, 4]; expected the global shape [4, 4]")
    assert other == f"rank 1: {own}"


@pytest.mark.gloo
def test_the_first_rank_decides_once_and_keeps_the_program(ranks):
    assert [result["decision"]["counts"] for result in ranks] == [(1, 0), (0, 0)]
    for result in ranks:
        found = result["decision"]
        assert found["name"].startswith("Model-") and found["name"].endswith(".mlir")
        assert found["text"].startswith("// Decided for Model on the mesh <tp = 2>")
        assert "loc(" not in found["text"]
        assert found["modules"] == [ranks[0]["decision"]["modules"][0]] * 2
        assert 'loc("agreement_cases.py":' in found["modules"][0]
        for output in found["outputs"]:
            torch.testing.assert_close(output, found["expected"])


@pytest.mark.gloo
def test_an_error_of_the_first_rank_where_it_decides_is_raised_on_all(ranks):
    assert [result["decision"]["failed"] for result in ranks] == ["no decision", "rank 0: no decision"]
    own, other = (result["decision"]["rejected"] for result in ranks)
    assert "Max" in own and own == other.removeprefix("rank 0: ")
    own, other = (result["decision"]["edited"] for result in ranks)
    assert "aten.neg" in own
    assert other == f"rank 0: {own}"


PLACE = "all_gather_into_tensor of 'down_bias' in 'down' on mesh axes [tp] fails on rank 0: "


@pytest.mark.gloo
def test_a_rank_that_waits_for_one_with_an_error_is_told_of_it(ranks):
    assert ranks[1]["call"].startswith("'x' has shape [2, 4]; expected the global shape [3, 4]")
    assert ranks[0]["call"].startswith(f"{PLACE}rank 1: {ranks[1]['call']}; ")


@pytest.mark.gloo
def test_a_rank_that_waits_in_vain_is_told_where(ranks):
    assert ranks[0]["stall"].startswith(PLACE)
    assert "has ended, hangs, or runs another program" in ranks[0]["stall"]


@pytest.mark.gloo
def test_a_rank_that_does_not_come_to_agree_is_named_with_what_it_said(ranks):
    message = "rank 1 has not reached a run with new sizes within 2 s, the timeout of the process group"
    assert ranks[0]["absence"].startswith(f"rank 1: {ranks[1]['absence']}; {message}")


@pytest.mark.gloo
def test_a_rank_that_ends_is_an_error_on_the_others_with_the_place(ranks):
    assert ranks[0]["death"].startswith(PLACE)


@pytest.mark.parametrize("field", COMPARED)
def test_the_first_thing_that_differs_is_named(field):
    values = {
        "pipeline": [{"text": "a", "digest": "1"}, {"text": "a", "digest": "2"}],
        "placements": [{"Own(0)": "1"}, {"Own(0)": "2"}],
        "state": [{"w": "1", "v": "1"}, {"w": "1", "v": "2"}],
        "saved": [{"w": "1", "v": "1"}, {"w": "1", "v": "2"}],
        "sizes": [{"s0": 1}, {"s0": 2}],
        "inputs": [{"x": 1}, {"x": 2}],
        "shards": [{"x": 1}, {"x": 2}],
    }
    before = dict.fromkeys(list(COMPARED)[: list(COMPARED).index(field)], "same")
    one, other = values.get(field, ["one", "other"])
    verdict = compare_statuses([{**before, field: one}, {**before, field: one}, {**before, field: other}], (0, 2, 4))
    assert verdict["message"].startswith("ranks 0 and 4 ")
    failed = compare_statuses([{field: one}, {field: other}, {"error": {"message": "m"}}], (0, 2, 4))
    assert failed == {"message": "m", "rank": 4}


def test_what_is_no_part_of_a_tensor_cannot_be_saved():
    held = LocalShard("w", torch.zeros(2), parse_sharding("tp: P(sum)"), (4,), "a partial value")
    with pytest.raises(spmdir.SpmdirError, match=r"'w' has the sharding <tp: P\(sum\)>: a partial value"):
        pickle.dumps(held)
