"""Tensors with a shape and no values: `torch._subclasses.fake_tensor`, in torch 2.11 to 2.13."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException as UnsupportedFakeTensorException
from torch._subclasses.fake_tensor import UnsupportedOperatorException as UnsupportedOperatorException

_CHECKED = {torch.ops.aten.select.int: torch.ops.aten.select_copy.int}


def checked(op: Any) -> Any:
    """Return an op with results of the same shapes and types that rejects the calls that `op` rejects with values.

    Up to torch 2.12, `aten.select.int` takes any index of a fake tensor.
    """
    return _CHECKED.get(op, op)
