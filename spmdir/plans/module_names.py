"""Resolution of names and globs of a plan to modules and parameters."""

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
    """Return name → module, including all names of modules with several."""
    return dict(model.named_modules(remove_duplicate=False))


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return name → parameter, including all names of tied parameters."""
    return dict(model.named_parameters(remove_duplicate=False))


def first_names(model: nn.Module) -> dict[str, str]:
    """Return name of a parameter → the first of its names. The state of a step has a tied parameter under the first."""
    return {name: names[0] for names in tied_names(parameters_of(model).items()) for name in names}


def is_glob(key: str) -> bool:
    """Return whether `key` is a glob."""
    return any(character in key for character in "*?[")


def find_names(key: str, names: Collection[str], base: str = "") -> list[str]:
    """Return the name `key`; if it is not among `names`, the names that match it as a glob, or [] if there are none.

    The model itself, whose name is empty, matches no glob.

    Args:
        base: a module. Names may also be relative to it.
    """
    for candidate in (key, f"{base}.{key}") if base else (key,):
        if candidate in names:
            return [candidate]
        matches = [name for name in names if name and fnmatchcase(name, candidate)]
        if matches:
            return matches
    return []


def find_modules(key: str, names: Collection[str], base: str = "", parameters: Collection[str] = ()) -> list[str]:
    """Return the names of the modules that `key` names, as `find_names` does, else those of `parameters`.

    Args:
        names: the names of all modules.
        base: a module. Names may also be relative to it, as in a plan of Hugging Face.
        parameters: names that are used if `key` matches no module.

    Raises:
        ShardingError: there is no such module or parameter.
    """
    if matches := find_names(key, names, base) or find_names(key, parameters, base):
        return matches
    problem, hint = ("matches no module", did_you_mean_glob) if is_glob(key) else ("is not a module", did_you_mean)
    raise ShardingError(
        f"the plan names '{key}', which {problem} of the model; expected a name or glob of model.named_modules()"
        f"{hint(key, names)}",
        key_location(key),
    )


def values_by_module(
    value_by_key: Mapping[str, Value], names: Collection[str], base: str = "", parameters: Collection[str] = ()
) -> dict[str, Value]:
    """Return module → value. Exact keys take precedence over globs, and later globs over earlier ones.

    Args:
        base, parameters: as for `find_modules`.

    Raises:
        ShardingError: a key matches no module.
    """
    value_by_module: dict[str, Value] = {}
    for key, value in sorted(value_by_key.items(), key=lambda item: not is_glob(item[0])):
        value_by_module |= dict.fromkeys(find_modules(key, names, base, parameters), value)
    return value_by_module


def with_globs(values: Mapping[str, Value], names: Iterable[str]) -> dict[str, Value]:
    """Merge equal values of all layers under one glob, if the glob matches only their names.

    {"layers.0.up.weight": v, "layers.1.up.weight": v} becomes {"layers.*.up.weight": v}. Other names are kept.

    Args:
        values: name → value.
        names: all names that a glob could match.
    """
    names = list(names)
    grouped: dict[str, list[str]] = {}
    for name in values:
        grouped.setdefault(_glob_of_any_layer(name), []).append(name)
    merged: dict[str, Value] = {}
    for glob, group in grouped.items():
        matches = [name for name in names if fnmatchcase(name, glob)]
        are_equal = all(values[name] == values[group[0]] for name in group)
        if glob in group or not are_equal or sorted(matches) != sorted(group):
            merged |= {name: values[name] for name in group}
        else:
            merged[glob] = values[group[0]]
    return merged


def _glob_of_any_layer(name: str) -> str:
    """Return a glob for this name in all layers, such as `layers.*.up` for `layers.0.up`.

    A number at the end becomes `?` for each digit, because `layers.*` would also match names inside the layers.
    """
    *parts, last_part = name.split(".")
    parts = ["*" if part.isdigit() else part for part in parts]
    return ".".join([*parts, "?" * len(last_part) if last_part.isdigit() else last_part])
