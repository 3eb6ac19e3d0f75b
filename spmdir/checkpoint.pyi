"""The public names, each with the module that defines it."""

from spmdir.runtime.checkpoint import load as load
from spmdir.runtime.checkpoint import save as save
from spmdir.runtime.materialize import materialize as materialize
from spmdir.runtime.safetensors_slices import load_safetensors as load_safetensors
from spmdir.runtime.safetensors_slices import save_safetensors as save_safetensors
