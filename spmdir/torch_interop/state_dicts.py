"""Nested state as flat names: `torch.distributed.checkpoint._nested_dict`, in torch 2.11 to 2.13."""

from torch.distributed.checkpoint._nested_dict import flatten_state_dict as flatten_state_dict
