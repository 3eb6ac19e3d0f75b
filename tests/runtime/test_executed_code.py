"""Which files belong to libraries, whose state no program depends on."""

import sysconfig
from pathlib import Path

import attrs
import torch
import typing_extensions

from spmdir.runtime.executed_code import is_library_file


def test_files_of_torch_and_of_what_it_imports_are_of_libraries():
    assert all(map(is_library_file, (torch.__file__, attrs.__file__, typing_extensions.__file__)))


def test_layers_and_other_installed_packages_are_of_the_program():
    packages = Path(sysconfig.get_path("purelib"))
    assert not is_library_file(torch.nn.modules.linear.__file__)
    assert not is_library_file(str(packages / "transformers" / "modeling_utils.py"))
    assert not is_library_file(str(packages / "module.py"))
