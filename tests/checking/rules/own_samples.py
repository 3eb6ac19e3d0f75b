"""Samples for the tool, and ops of our own: one that is right, one that kills its process."""

import os

import torch

from spmdir.checking.rules.samples.sample import Sample, f

library = torch.library.Library("spmdirtest", "FRAGMENT")
library.define("double(Tensor x) -> Tensor")
library.define("crash(Tensor x) -> Tensor")
library.impl("double", lambda x: x * 2, "CPU")
library.impl("crash", lambda x: os.abort() if x.shape[0] < 5 else x.clone(), "CPU")


def samples() -> list[Sample]:
    return [Sample("spmdirtest.double", (f(5, 4),)), Sample("spmdirtest.crash", (f(5, 4),))]
