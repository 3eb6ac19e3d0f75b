"""A global order of a step: each fault is found, at its entry."""

from __future__ import annotations

import pytest

from spmdir.pipelined.actions import Action, StageMap, parse_entry
from spmdir.pipelined.global_order import UpdateRounds, find_order_faults, required_entries, with_updates
from spmdir.pipelined.kinds import KINDS, make_order
from spmdir.pipelined.times import equal_stages

UPDATES = UpdateRounds((2, 1), {Action(0, "U", 1): (Action(1, "U", 0),)})
ORDER = "0F0 0F0>1 1F0 1B0 1B0>0 0B0 0F1 0F1>1 1F1 1B1 1B1>0 0B1 0U0 1U0 1U0>0 0U1"


def faults(text: str, updates: UpdateRounds = UPDATES) -> list[str]:
    entries = [entry for word in text.split() if (entry := parse_entry(word))]
    return [f"{place}: {message}" for place, message in find_order_faults(StageMap((0, 1)), 2, False, updates, entries)]


def test_an_order_without_faults_is_accepted() -> None:
    assert faults(ORDER) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("0F1>1 1F1", "1F1 0F1>1", "7: 1F1 comes before 0F1>1; expected it after that, whose result it uses"),
        ("0F0 0F0>1", "0F0>1 0F0", "0: 0F0>1 comes before 0F0; expected it after that, which computes what it sends"),
        (" 1B1>0", "", "None: the order has no 1B1>0; expected it after 1B1: coordinate 0 uses its results"),
        ("0B1", "0B1 0B1", "12: 0B1 is in the order twice; expected each action and each message once: remove it"),
        (" 1F1 1B1", " 1B1", "None: the order has no 1F1; expected each action of each micro-batch once"),
        ("0B1 0U0", "0U0 0B1", "11: 0U0 comes before 0B1; expected it after that, because an update uses the sums"),
        ("0F0 0F0>1", "0F2 0F0 0F0>1", "0: 0F2 names micro-batch 2; expected one from 0 to 1"),
        ("0F0 0F0>1", "2F0 0F0 0F0>1", "0: 2F0 names stage 2; expected a stage from 0 to 1"),
        ("0B0", "0B0 0B0>1", "6: 0B0>1 sends nothing that coordinate 1 uses; remove it"),
        ("0F0 0F0>1", "0I0 0F0 0F0>1", "0: the step has no action 0I0; expected actions of the kinds F, B and U"),
        ("1U0>0 0U1", "0U1 1U0>0", "14: 0U1 comes before 1U0>0; expected it after that, whose result it uses"),
        ("0F0 0F0>1 1F0 1B0 1B0>0 0B0 0F1", "0F1 0F0 0F0>1 1F0 1B0 1B0>0 0B0", "0: 0F1 comes before 0F0; expected it"),
    ],
)
def test_each_fault_is_found_at_its_entry(old: str, new: str, expected: str) -> None:
    assert old in ORDER
    assert any(fault.startswith(expected) for fault in faults(ORDER.replace(old, new)))


@pytest.mark.parametrize("kind", KINDS)
def test_orders_of_all_kinds_have_no_faults_with_a_link_across_stages(kind: str) -> None:
    split = kind in ("zb", "zbv")
    backward = "I" if split else "B"
    links = {((s, "F"), (s + 1, "F")) for s in range(3)} | {((s + 1, backward), (s, backward)) for s in range(3)}
    links |= {((0, "F"), (3, "F")), ((3, backward), (0, backward))}
    known = StageMap((0, 1, 0, 1), frozenset(links), split)  # type: ignore[arg-type]
    order = make_order(kind, 2, 4, equal_stages(4, 1, 1, 1), stages=known)
    updates = UpdateRounds((1, 1, 1, 1), {})
    entries = with_updates(order, updates)
    assert [*find_order_faults(order.stage_map, 4, order.is_split, updates, entries)] == []
    assert sorted(map(str, entries)) == sorted(map(str, required_entries(order.stage_map, 4, order.is_split, updates)))
