from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spmdir.core.dtype import DTYPES
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import as_sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.runtime.rank_calls import check_input, copy_shared
from spmdir.runtime.signature import Argument


def test_gradients_that_are_separate_parts_of_one_message_are_not_copied():
    message = torch.arange(12.0)
    first, second = copy_shared([message[:4], message[4:].reshape(2, 4)], [])
    assert first.data_ptr() == message.data_ptr() and second.data_ptr() == message[4:].data_ptr()


def test_gradients_that_share_elements_are_copied():
    held, message, row = torch.ones(3), torch.arange(12.0), torch.ones(1, 4)
    results = [message[:4], message[3:6], message.view(3, 4)[:, 1], row.expand(3, 4), held[1:], row]
    found = copy_shared(results, [held])
    for result, expected in zip(found, results, strict=True):
        assert torch.equal(result, expected)
    for index, result in enumerate(found):
        before = [other.clone() for other in (*found[:index], *found[index + 1 :], held)]
        result.fill_(7)
        assert all(map(torch.equal, (*found[:index], *found[index + 1 :], held), before))


@pytest.mark.parametrize(
    ("shape", "is_local", "message"),
    [
        ([8, 32], True, "; if [8, 32] is the shard of one rank, give an example of [16, 32]"),
        ([3, 32], True, ", as in the example inputs: give dynamic_shapes for calls with other sizes"),
        ([8], True, ", as in the example inputs"),
        ([8, 32, 1], False, "expected the global shape [8, 32], as in the example inputs"),
        ([4, 32], False, ", as in the example inputs: give dynamic_shapes for calls with other sizes"),
    ],
)
def test_an_input_of_another_shape_is_an_error_with_the_cure_for_it(
    shape: list[int], is_local: bool, message: str
) -> None:
    meta = TensorMeta((8, 32), DTYPES["f32"])
    argument = Argument("input_ids", meta, meta.shape, as_sharding("dp: S(0)", Mesh({"dp": 2})), is_state=False)
    ranks: Any = SimpleNamespace(mesh=Mesh({"dp": 2}), index=0)
    with pytest.raises(SpmdirError) as raised:
        check_input(argument, torch.zeros(shape), ranks, is_local=is_local)
    assert raised.value.message.endswith(message)
