"""The model of an exported program, as recipes need it: names, classes and parameters of modules."""

from __future__ import annotations

import torch
from torch import nn

_KINDS: dict[str, type[nn.Module]] = {
    "torch.nn.modules.linear.Linear": nn.Linear,
    "torch.nn.modules.sparse.Embedding": nn.Embedding,
}
"""Name of a class in an exported program → the class for recipes."""


def exported_model(program: torch.export.ExportedProgram) -> nn.Module:
    """Return a module with the submodules and parameters of `program`. It cannot be called.

    A program does not contain lists of layers, or attributes of the model such as `tp_plan`.
    """
    kinds: dict[str, str] = {}  # path of a module → full name of its class
    for node in program.graph.nodes:
        for path, kind in node.meta.get("nn_module_stack", {}).values():
            kinds.setdefault(path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}")
    modules = {"": _module(kinds.get("", "Model"))}

    def module(path: str) -> nn.Module:
        """Return the module at `path`; add it and its parents if they are new."""
        if path not in modules:
            parent, _, name = path.rpartition(".")
            modules[path] = _module(kinds.get(path, "Module"))
            module(parent).add_module(name, modules[path])
        return modules[path]

    parameters: dict[int, nn.Parameter] = {}  # id of a tensor → its parameter, because tied parameters share one tensor
    for name in program.graph_signature.parameters:
        path, _, parameter_name = name.rpartition(".")
        tensor = program.state_dict[name]
        module(path).register_parameter(parameter_name, parameters.setdefault(id(tensor), nn.Parameter(tensor, False)))
    return modules[""]


def _module(kind: str) -> nn.Module:
    """Return an empty module of a new class with the name of `kind`; it is a Linear or an Embedding if `kind` is."""
    name = kind.rpartition(".")[2]
    name = name if name.isidentifier() else "Module"  # the file may contain any text
    return type(name, (_KINDS.get(kind, nn.Module),), {"__init__": nn.Module.__init__})()
