"""Recurrent layers are traced without oneDNN, and the program that is traced does not see it."""

from __future__ import annotations

import torch

from spmdir.torch_interop.recurrent_layers import without_onednn


def test_a_forward_reads_the_flag_of_onednn_that_the_user_has() -> None:
    before = torch.backends.mkldnn.enabled
    with without_onednn():
        assert torch.backends.mkldnn.enabled == before
        assert not torch._C._get_mkldnn_enabled()
    assert torch.backends.mkldnn.enabled == before == torch._C._get_mkldnn_enabled()
