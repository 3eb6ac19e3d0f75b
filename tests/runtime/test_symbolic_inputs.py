"""Sizes of arguments that stay open, and examples that contradict what is said of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from spmdir.core.errors import SpmdirError
from spmdir.runtime.symbolic_inputs import make_sizes_symbolic

ROWS = Dim("rows", min=6, max=64)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (({0: ROWS}, {0: ROWS}), "has the example size 4, outside the range of 'rows'; expected 6..64"),
        (({1: Dim("n")}, {1: Dim("n")}), "[1][1] is 'n' with size 8, but another 'n' has size 6; expected one size"),
        (({0: Dim.DYNAMIC},), "expected the structure of the arguments"),
    ],
)
def test_examples_fit_what_is_said_of_the_sizes(spec: Any, message: str) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        values = torch.empty(4, 6), torch.empty(4, 8)
    with pytest.raises(SpmdirError, match=re.escape(message)):
        make_sizes_symbolic(values, spec, mode)
