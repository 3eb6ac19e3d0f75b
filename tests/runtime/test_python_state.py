"""What a forward reads or changes beside its tensors is found out, by each of the fronts."""

from typing import Any

import pytest

from tests.lowering.gloo_ranks import on_ranks
from tests.runtime import python_state_cases
from tests.runtime.python_state_cases import ASSIGNED, CHANGED, FRONTS, READ

pytestmark = pytest.mark.gloo


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, Any]:
    """What one rank returns from `python_state_cases.run`."""
    return on_ranks(1, python_state_cases.run, tmp_path_factory.mktemp("ranks"))[0]


@pytest.mark.parametrize("name", READ)
def test_a_module_follows_state_that_its_forward_reads(found, name):
    case = found["read"]["shard_module"][name]
    for mine, alone in (case["before"], case["after"], case["undone"]):
        assert mine == pytest.approx(alone, rel=1e-12)
    assert case["after"][1] != case["before"][1]


@pytest.mark.parametrize("front", ["parallelize", "training_step"])
@pytest.mark.parametrize("name", READ)
def test_a_program_without_variants_refuses_to_run_after_state_has_changed(found, front, name):
    case = found["read"][front][name]
    for mine, alone in (case["before"], case["undone"]):
        assert mine == pytest.approx(alone, rel=1e-12)
    if (front, name) == ("training_step", "grad mode"):  # a step enables gradients itself
        assert case["after"][0] == pytest.approx(case["before"][1], rel=1e-12)
    else:
        assert case["after"][0].startswith("the state that the program was traced with has changed: ")
        assert READ[name][2] in case["after"][0]


def test_state_that_no_code_reads_and_the_grad_mode_make_no_programs(found):
    assert found["unread"] == [1, 1, 2]


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("name", CHANGED)
def test_a_forward_that_changes_python_state_is_an_error_that_names_it(found, front, name):
    assert CHANGED[name][1] in found["changed"][front, name]


@pytest.mark.parametrize("front", FRONTS)
def test_a_buffer_that_the_forward_assigns_has_its_new_value_in_the_next_call(found, front):
    for mine, alone in found["assigned"][front]:
        assert mine == pytest.approx(alone, rel=1e-12)
    assert len({alone for _, alone in found["assigned"][front]}) == 3


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("name", ASSIGNED)
def test_buffers_may_be_written_in_each_way(found, front, name):
    calls = found["assigned by"][front, name]
    for mine, alone in calls:
        assert mine == pytest.approx(alone, rel=1e-12)
    assert len({alone for _, alone in calls}) == (1 if name == "replaced" else 3)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("kind", ["table", "global tables"])
def test_a_table_that_the_first_call_builds_is_no_state(found, front, kind):
    for mine, alone in found[kind][front]:
        assert mine == pytest.approx(alone, rel=1e-12)
