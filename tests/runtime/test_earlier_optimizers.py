"""An optimizer of the parameters that a sharded module replaces is warned of."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from spmdir.core.errors import SpmdirWarning
from spmdir.runtime.earlier_optimizers import warn_about_earlier_optimizers


def test_an_optimizer_that_was_made_before_is_warned_of() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(SpmdirWarning, match="the optimizer SGD was made from the parameters of the model before"):
        warn_about_earlier_optimizers(model)
    del optimizer


def test_optimizers_of_other_modules_are_not_warned_of() -> None:
    other = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about_earlier_optimizers(nn.Linear(2, 2))
    del optimizer
