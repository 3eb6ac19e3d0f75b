"""The modules and parameters that names and globs of a plan mean."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from torch import nn

from spmdir.core.errors import ShardingError, did_you_mean, did_you_mean_glob
from spmdir.core.toml_text import key_location
from spmdir.torch_interop.tied_names import tied_names

Value = TypeVar("Value")


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return name → module, every name of modules that have several."""
    return dict(model.named_modules(remove_duplicate=False))


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return name → parameter, every name of tied ones."""
    return dict(model.named_parameters(remove_duplicate=False))


def first_names(model: nn.Module) -> dict[str, str]:
    """Return name of a parameter → the first of its names, by which a step's state knows it."""
    return {name: names[0] for names in tied_names(parameters_of(model).items()) for name in names}


def is_glob(key: str) -> bool:
    """Return whether `key` means all names that it fits."""
    return any(character in key for character in "*?[")


def matching(key: str, names: Collection[str], base: str = "") -> list[str]:
    """Return the modules that `key` means: one of that name, else those that it fits as a glob.

    Args:
        base: the module within which names count too, as those of a plan of Hugging Face do.

    Raises:
        ShardingError: there is none.
    """
    for tried in (key, f"{base}.{key}") if base else (key,):
        found = [tried] if tried in names else [name for name in names if name and fnmatchcase(name, tried)]
        if found:
            return found
    what, near = ("matches no module", did_you_mean_glob) if is_glob(key) else ("is not a module", did_you_mean)
    raise ShardingError(f"the plan names '{key}', which {what} of the model{near(key, names)}", key_location(key))


def chosen(given: Mapping[str, Value], names: Collection[str], base: str = "") -> dict[str, Value]:
    """Return module → value: an exact key beats a glob, a later glob an earlier one.

    Raises:
        ShardingError: a key means no module.
    """
    found: dict[str, Value] = {}
    for key, value in sorted(given.items(), key=lambda item: not is_glob(item[0])):
        found |= dict.fromkeys(matching(key, names, base), value)
    return found


def with_globs(values: Mapping[str, Value], names: Iterable[str]) -> dict[str, Value]:
    """Return `values` with one glob for the layers of a model, where all layers have the same and no other name fits.

    Args:
        values: name → value.
        names: all names that globs are matched with.
    """
    names = list(names)
    grouped: dict[str, list[str]] = {}
    for name in values:
        grouped.setdefault(_of_any_layer(name), []).append(name)
    found: dict[str, Value] = {}
    for glob, group in grouped.items():
        fitting = [name for name in names if fnmatchcase(name, glob)]
        same = all(values[name] == values[group[0]] for name in group)
        if glob in group or not same or sorted(fitting) != sorted(group):
            found |= {name: values[name] for name in group}
        else:
            found[glob] = values[group[0]]
    return found


def _of_any_layer(name: str) -> str:
    """Return the glob of a name in any layer; that of a layer itself does not fit what is inside it."""
    *parts, last = name.split(".")
    parts = ["*" if part.isdigit() else part for part in parts]
    return ".".join([*parts, "?" * len(last) if last.isdigit() else last])
