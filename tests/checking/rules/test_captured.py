"""Calls of torch's own samples."""

from __future__ import annotations

import pickle

from spmdir.checking.rules.captured import capture, opinfo_names

names, problem = opinfo_names()


def test_torchs_samples_can_be_imported():
    """`expecttest`, which they import, is among the requirements of the tests."""
    assert problem is None


def test_forward_and_backward_calls_are_captured():
    found = capture(names.index("log_softmax"), None)
    assert {"aten._log_softmax", "aten._log_softmax_backward_data"} <= {op for op, _, _ in found}


def test_only_what_is_asked_for_is_kept():
    found = capture(names.index("addmm"), frozenset({"aten.addmm"}))
    assert {op for op, _, _ in found} == {"aten.addmm"}
    samples = [pickle.loads(data) for _, _, data in found]
    assert all(len(sample.operands) == 3 for sample in samples)
    assert len(
        {str([tuple(t.shape) for t in s.operands]) + str(s.arguments) + str(s.operands[0].dtype) for s in samples}
    ) == len(samples)


def test_capturing_again_gives_the_same():
    index = names.index("cumsum")
    assert capture(index, None) == capture(index, None)
