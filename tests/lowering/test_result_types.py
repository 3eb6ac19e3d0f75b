"""What torch says of the results of a call is asked once for all calls that are alike."""

from __future__ import annotations

from spmdir.core.dtype import F32
from spmdir.core.placement.tensor import TensorMeta
from spmdir.lowering.result_types import check_results


def test_torch_is_asked_once_about_equal_calls_and_again_where_a_number_has_another_type() -> None:
    asked = []

    def target(x: object, number: object) -> object:
        asked.append(number)
        return x

    meta = TensorMeta((3, 5), F32)
    for number in (1, 1, True, 1.0, 1, 1.0):
        check_results(target, (meta, number), (), (meta,))
    assert [repr(number) for number in asked] == ["1", "True", "1.0"]
