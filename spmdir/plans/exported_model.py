"""The model of an exported program, as recipes need it: names, classes and parameters of modules."""

from __future__ import annotations

import warnings

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
    kinds = _kinds_of(program)
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


def runnable_model(program: torch.export.ExportedProgram) -> nn.Module:
    """Return a module that runs `program`, with its submodules and parameters.

    A module that is never called and has numbered submodules becomes a ModuleList. Recipes find layers in it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch about its own TreeSpec
        model = torch.export.unflatten(program)
    kinds = _kinds_of(program)
    for path, module in list(model.named_modules()):
        if path in kinds:
            module.__class__ = _class(kinds[path], type(module))  # type: ignore[assignment]
        elif path and (children := dict(module.named_children())) and all(name.isdigit() for name in children):
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, nn.ModuleList(children.values()))
    return model


def _kinds_of(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Return the path of each module that the program calls → the full name of its class."""
    kinds: dict[str, str] = {}
    for node in program.graph.nodes:
        for path, kind in node.meta.get("nn_module_stack", {}).values():
            kinds.setdefault(path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}")
    return kinds


def _module(kind: str) -> nn.Module:
    """Return an empty module of the class of `_class`."""
    return _class(kind)()


def _class(kind: str, *bases: type[nn.Module]) -> type[nn.Module]:
    """Return a new class with the name of `kind`; it is a Linear or an Embedding if `kind` is.

    Args:
        kind: the full name of a class.
        bases: further base classes.
    """
    name = kind.rpartition(".")[2]
    name = name if name.isidentifier() else "Module"  # the file may contain any text
    parents = (*bases, _KINDS[kind]) if kind in _KINDS else bases or (nn.Module,)
    return type(name, parents, {"__init__": nn.Module.__init__, "extra_repr": lambda _: ""})
