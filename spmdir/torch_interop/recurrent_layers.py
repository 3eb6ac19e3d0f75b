"""Let torch trace nn.LSTM, nn.GRU and nn.RNN into ops that every device has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import nn
from torch._dynamo import config as dynamo_config

from spmdir.core.errors import UnsupportedError

_KERNELS = tuple(
    overload
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for overload in (getattr(torch.ops.aten, name).input, getattr(torch.ops.aten, name).data)
)


@contextmanager
def recurrent_layers_traced(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Trace recurrent layers on a CPU by torch's C++ decomposition; TorchDynamo captures them.

    AOTAutograd uses a Python decomposition, which omits the dropout between layers. So the Python kernels are removed
    meanwhile. The fused op of oneDNN is disabled, because its backward fails on a traced workspace. TorchDynamo rejects
    recurrent layers by default.

    Raises:
        UnsupportedError: a layer has such a dropout on another device, where the C++ decomposition has special ops.
    """
    with ExitStack() as stack:
        stack.enter_context(dynamo_config.patch(allow_rnn=True))
        if device.type == "cpu":
            stack.enter_context(without_onednn())
            for kernel in _KERNELS:
                stack.callback(kernel._dispatch_cache.clear)
                stack.enter_context(patch.dict(kernel.py_kernels, clear=True))
                kernel._dispatch_cache.clear()
        else:
            _check_dropout(model)
        yield


@contextmanager
def without_onednn() -> Iterator[None]:
    """Trace recurrent layers without the fused op of oneDNN; `torch.backends.mkldnn.flags` warns of other flags.

    A forward that reads `torch.backends.mkldnn.enabled` reads what it was before.
    """
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with patch.object(type(torch.backends.mkldnn), "enabled", was_enabled):
            yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


def _check_dropout(model: nn.Module) -> None:
    """Raise UnsupportedError if a recurrent layer drops values between its layers."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.RNNBase) and layer.training and layer.dropout and layer.num_layers > 1:
            raise UnsupportedError(
                f"torch traces '{name}', a {type(layer).__name__}, without the dropout between its layers; expected "
                "dropout=0: put nn.Dropout between recurrent modules of one layer each"
            )
