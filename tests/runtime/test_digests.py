"""Digests are equal where values are, in whatever process."""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from spmdir.runtime.agreement import RankGroup
from spmdir.runtime.default_group import check_agreement
from spmdir.runtime.digests import hash_bits, quick_digest, tensor_digest, value_digest


class Progress:
    """A value whose repr has its address."""

    def __init__(self, step: int, of: Any = None):
        self.step, self.of = step, of


def ring() -> Progress:
    """A value that has itself inside."""
    made = Progress(1)
    made.of = [made]
    return made


LONG = torch.zeros(3000)
DIFFERING = torch.zeros(3000).index_fill(0, torch.tensor([1500]), 1.0)
WORD = "".join(["w", "ord"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Progress(1), Progress(1)),
        (float("nan"), float("nan")),
        ({"a": [1, (2.0, None)]}, {"a": [1, (2.0, None)]}),
        ([WORD, WORD], ["word", "".join(["wo", "rd"])]),
        ({"b", "a", "c"}, {"c", "b", "a"}),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        (ring(), ring()),
        (torch.float32, torch.float32),
        (Progress(1, LONG), Progress(1, LONG.clone())),
    ],
)
def test_equal_values_have_one_digest(one: Any, other: Any):
    assert value_digest(one) == value_digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Progress(1), Progress(2)),
        (1, True),
        (0.0, -0.0),
        ([1, 2], (1, 2)),
        ("1", 1),
        ({1: 2}, {2: 1}),
        ([LONG], [DIFFERING]),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (Progress, Progress(1)),
    ],
)
def test_other_values_have_another_digest(one: Any, other: Any):
    assert value_digest(one) != value_digest(other)


def test_what_cannot_be_saved_has_no_digest():
    with pytest.raises(TypeError, match="cannot pickle"):
        value_digest([iter(()), (n for n in ())])


def test_the_ranks_of_the_default_group_join_once(monkeypatch: pytest.MonkeyPatch):
    joined: list[Any] = []
    join = RankGroup.join
    monkeypatch.setattr(RankGroup, "join", lambda members: joined.append(members) or join(members))
    for groups in (1, 2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        for _ in range(3):
            with check_agreement("a test"):
                pass
        dist.destroy_process_group()
        assert len(joined) == groups


@pytest.mark.parametrize("digest", [tensor_digest, quick_digest])
@pytest.mark.parametrize("stride", [(0,), (7,)])
def test_one_element_has_its_digest_whatever_its_stride(digest: Any, stride: tuple[int]) -> None:
    one = torch.full((8,), 2.0, dtype=torch.float64)
    assert digest(one.as_strided((1,), stride)) == digest(one[:1])


QUICK = {
    "equal": lambda x: x.clone(),
    "not contiguous": lambda x: x.t().contiguous().t(),
    "another element": lambda x: x.index_fill(1, torch.tensor([2]), 7),
    "rows in another order": lambda x: x.flip(0),
    "another shape": lambda x: x.reshape(6, 4),
}


@pytest.mark.parametrize("case", QUICK)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.complex128, torch.float8_e4m3fn])
def test_quick_digests_differ_where_shape_or_bits_do(case: str, dtype: torch.dtype) -> None:
    x = torch.arange(24).reshape(4, 6) % 5
    alike = case in ("equal", "not contiguous")
    one, other = quick_digest(x.to(dtype)), quick_digest(QUICK[case](x).to(dtype))
    assert (one == other) == alike


def test_the_hash_of_other_devices_depends_on_values_and_places(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = torch.arange(9, dtype=torch.int32)
    found = [hash_bits(each, 1) for each in (bits, bits.flip(0), bits + 1, bits[:8], torch.cat([bits, bits[:1]]))]
    assert len({*found, hash_bits(bits, 2)}) == 6
    monkeypatch.setattr("spmdir.runtime.digests._CHUNK", 4)
    assert hash_bits(bits, 1) == found[0]
