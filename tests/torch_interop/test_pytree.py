"""Leaves of nested containers."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn

from spmdir.torch_interop import pytree
from spmdir.torch_interop.fake_tensors import FakeTensorMode

Pair = namedtuple("Pair", "a b")
X = torch.ones(2)


@pytest.mark.parametrize(
    "values",
    [
        (),
        (X, nn.Parameter(X), FakeTensorMode().from_tensor(X)),
        (1, True, 2.0, 1j, "text", None, torch.float32, torch.device("cpu"), torch.strided, torch.channels_last),
        ([X, [1, (2, ())], {"b": X, "a": [None]}], {}),
        (Pair(X, [1]), OrderedDict(b=1, a=(X,)), torch.Size([2, 3]), slice(1, 2), len),
    ],
)
def test_leaves_of_values_are_those_of_a_list_of_them(values):
    found, expected = pytree.leaves_of(values), pytree.tree_leaves(list(values))
    assert len(found) == len(expected)
    assert all(one is other for one, other in zip(found, expected, strict=True))
