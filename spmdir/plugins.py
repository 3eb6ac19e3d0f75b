"""Load plug-ins: `.rules`, `.rewrites` and `.py` files, modules and installed packages.

A plug-in in Python is executed once, and again if its file has changed. The class of a value in it decides its use:
each `ModulePass` is a pass, each `Topology` a machine, each `RewriteCondition` a condition of rewrites. The variable
`PLUGIN_FILES` lists further files. If NAME.py defines placements, NAME.rules in the same folder is also loaded.

Loaded placements and collectives can be named in any text of the process, because texts are parsed without a pipeline.
All other effects are limited to pipelines with the plug-in, such as its rules and its collectives in plans.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import attrs

from spmdir.core.errors import (
    Location,
    ParseError,
    PluginError,
    SpmdirError,
    SpmdirErrors,
    did_you_mean,
    raise_all,
    require_type,
    warn,
)
from spmdir.core.placement.base import Placement
from spmdir.core.placement.packed import PackedPlacement
from spmdir.core.placement.unusable_edges import instance_of, unusable_edges
from spmdir.core.plugin_code import IS_PLUGIN
from spmdir.core.text_file import file_beside, read_text_file
from spmdir.reshard.collectives import register_collectives

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

    from spmdir.rules.language.records import Records
    from spmdir.rules.rule_set import RuleSet

__all__ = ["Plugin", "load_plugin"]

GROUP = "spmdir.plugins"
"""The entry-point group by which installed packages offer plug-ins: name → module."""

FILES = "PLUGIN_FILES"
"""The name in a Python plug-in that lists further files, `.rules` and `.rewrites`, relative to its folder."""

_PACKAGE = os.path.realpath(os.path.dirname(__file__))
_SOURCE = "__spmdir_source__"
"""The attribute of a plug-in's module with the text that was executed."""

_RULES = "__spmdir_rules__"
"""The attribute of a plug-in's module with the text of its NAME.rules."""

_WARNED = "__spmdir_warned__"
"""The attribute of a plug-in's module that is True after warnings about it have been issued."""

_EXPECTED = "expected a .rules, .rewrites or .py file, or a package"

Kind = TypeVar("Kind")


@attrs.frozen(eq=False)
class TextFile:
    """A file of a plug-in: its path, and its text when it was loaded."""

    path: str
    text: str


@attrs.frozen(repr=False)
class Plugin:
    """The contents of a plug-in. `load_plugin` makes it.

    Two plug-ins are equal if they have the same name and digest.

    Attributes:
        name: the path or the name that `load_plugin` received.
        digest: the digest of all of its text; ranks compare it.
        rules: op → its rules. They replace the shipped rules.
        strategies: op → the strategies that apply to every program: those of its files, and those of packed placements
            and of placements that are `offered`.
        rewrites: the files of rewrites for fuse-collectives.
        passes: pass name → class.
        module: the module of a plug-in in Python.
    """

    name: str
    digest: str
    rules: Records = attrs.field(factory=dict, eq=False)
    strategies: Records = attrs.field(factory=dict, eq=False)
    rewrites: tuple[TextFile, ...] = attrs.field(default=(), eq=False)
    passes: Mapping[str, type[ModulePass]] = attrs.field(factory=dict, eq=False)
    module: ModuleType | None = attrs.field(default=None, eq=False)

    def __repr__(self) -> str:
        contents = {
            "rules of": self.rules,
            "strategies of": self.strategies,
            "rewrites": [file.path for file in self.rewrites],
            "passes": self.passes,
        }
        description = "; ".join(f"{kind} {', '.join(names)}" for kind, names in contents.items() if names)
        return f"<Plugin '{self.name}': {description}>" if description else f"<Plugin '{self.name}'>"

    def values(self, kind: type[Kind]) -> tuple[Kind, ...]:
        """Return the values of class `kind` that the plug-in defines, in order."""
        defined = vars(self.module).values() if self.module is not None else ()
        return tuple(value for value in defined if isinstance(value, kind))

    def classes(self, base: type[Kind]) -> tuple[type[Kind], ...]:
        """Return the classes derived from `base` that the plug-in defines, in order."""
        return tuple(_defined_classes(self.module, base)) if self.module is not None else ()


def load_plugin(source: str | os.PathLike[str] | Plugin) -> Plugin:
    """Load a plug-in.

    Args:
        source: the path of a `.rules`, `.rewrites` or `.py` file, the name of an installed plug-in (entry-point group
            `spmdir.plugins`), or the dotted name of a module. A Plugin is returned unchanged.

    Returns: a value for `Pipeline(plugins=[...])`. Its placements can be used from now on.

    Raises:
        SpmdirError: the plug-in cannot be found or read, is malformed or fails. The error has the location in it.

    Example:
        >>> pipeline = spmdir.Pipeline("propagate,count", plugins=[spmdir.plugins.load_plugin("count.py")])
    """
    if isinstance(source, Plugin):
        return source
    require_type("plugin", source, (str, os.PathLike), "the path of a file, or the name of an installed plug-in")
    name = os.fspath(source)
    load_file = _LOADERS.get(os.path.splitext(name)[1])
    if load_file is not None:
        return load_file(name)
    if os.sep in name or os.path.exists(name):
        raise SpmdirError(f"'{name}' is not a plug-in; {_EXPECTED}")
    module_name = _find_module(name)
    module = _run_plugin_code(name, lambda: import_module(module_name))
    # An error in a submodule is located in the plug-in too, so all modules of the package are marked.
    for loaded_name, loaded_module in list(sys.modules.items()):
        if loaded_name == module_name or loaded_name.startswith(f"{module_name}."):
            setattr(loaded_module, IS_PLUGIN, True)
    return _load_from_module(name, module)


def load_plugins(sources: Sequence[str | os.PathLike[str] | Plugin]) -> tuple[Plugin, ...]:
    """Load plug-ins in order, each once. A plug-in may refer to ops whose rules are in an earlier plug-in."""
    plugins: list[Plugin] = []
    for source in dict.fromkeys(sources):
        with extended_rules(plugins):
            plugins.append(load_plugin(source))
    return tuple(plugins)


def extended_rules(plugins: Sequence[Plugin]) -> RuleSet:
    """Return the default rules, extended by those of `plugins`."""
    from spmdir.rules.rule_set import default  # takes 50 ms; tools that only read and print need no rules

    rules = default()
    for plugin in plugins:
        if plugin.rules or plugin.strategies:
            rules = rules.extended(plugin.rules, plugin.strategies)
    return rules


def installed_plugins() -> tuple[Plugin, ...]:
    """Load the plug-ins of all installed packages. This is slow, because it reads the metadata of all packages."""
    return load_plugins(sorted(_entry_points()))


def _entry_points() -> Mapping[str, str]:
    """Return name of a plug-in → its module, for the installed packages."""
    from importlib.metadata import entry_points  # takes 84 ms with the call; paths do not need it

    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def _find_module(name: str) -> str:
    """Return the module of the installed plug-in `name`, or `name` itself if such a module exists."""
    offered = _entry_points()
    if name in offered:
        return offered[name]
    try:
        exists = find_spec(name) is not None
    except (ImportError, ValueError):
        exists = False
    if not exists:
        installed = f"; installed are {', '.join(sorted(offered))}" if offered else ""
        raise SpmdirError(f"found no plug-in '{name}'; {_EXPECTED}{installed}{did_you_mean(name, offered)}")
    return name


def _load_rules(path: str) -> Plugin:
    """Load a `.rules` file, and check it together with the default rules."""
    from spmdir.rules.language.records import read, read_strategies
    from spmdir.rules.rule_set import default

    text = read_text_file(path, f"rules from '{path}'")
    rules, strategies = read(text, path), read_strategies(text, path)
    default().extended(rules, strategies).check(rules, strategies)
    return Plugin(path, _digest(text), rules, strategies)


def _load_rewrites(path: str) -> Plugin:
    """Load a `.rewrites` file."""
    text = read_text_file(path, f"rewrites from '{path}'")
    return Plugin(path, _digest(text), rewrites=(TextFile(path, text),))


def _load_python(path: str) -> Plugin:
    """Load a `.py` file."""
    return _load_from_module(path, load_module(path))


_LOADERS: dict[str, Callable[[str], Plugin]] = {".rules": _load_rules, ".rewrites": _load_rewrites, ".py": _load_python}
"""File extension → function that loads such a plug-in."""


def _load_from_module(name: str, module: ModuleType) -> Plugin:
    """Return the contents of a plug-in in Python, with the files that it lists and its NAME.rules.

    As side effects, its collectives are registered, and its first load warns about edges that no plan can use.

    Raises:
        SpmdirError: a strategy, collective or pass of the plug-in is invalid.
    """
    from spmdir.rules.language.records import merge_records

    folder = Path(module.__file__ or ".").parent
    placements = tuple(_defined_classes(module, Placement))
    rules_file = file_beside(module.__file__, ".rules") if placements else None
    listed_files = [str(folder / file) for file in getattr(module, FILES, ())]
    files = load_plugins([*listed_files, str(rules_file)] if rules_file else listed_files)
    if any(kind.rules for kind in placements):
        _run_plugin_code(name, lambda: _check_strategies(placements, files))
    if not vars(module).get(_WARNED):
        for kind in placements:
            _run_plugin_code(name, lambda kind=kind: _warn_about_unusable_edges(kind))
        setattr(module, _WARNED, True)
    passes = {kind.name: kind for kind in _pass_classes(name, module)}
    _run_plugin_code(name, lambda: register_collectives(vars(module).values(), module.__name__, _dialect_names()))
    # The strategies in NAME.rules belong to the placements. They apply to programs that name such a placement.
    listed_strategies = [file.strategies for file in files if rules_file is None or file.name != str(rules_file)]
    strategies: Records = {}
    for records in (*listed_strategies, *_strategies_for_every_program(placements)):
        strategies = merge_records(strategies, records)
    return Plugin(
        name,
        _digest(*_read_sources(module), *(file.digest for file in files)),
        {op: records for file in files for op, records in file.rules.items()},
        strategies,
        tuple(text for file in files for text in file.rewrites),
        passes,
        module,
    )


def _strategies_for_every_program(placements: Sequence[type[Placement]]) -> list[Records]:
    """Return the strategies of the packed and the offered classes in `placements`.

    Their strategies also apply to programs that do not name the placement: the search may choose an offered placement,
    and a packed placement may occur only inside local forms.
    """
    from spmdir.rules.strategies.placement_texts import texts_of

    return [texts_of(kind) for kind in placements if issubclass(kind, PackedPlacement) or kind.offered]


def _check_strategies(placements: Sequence[type[Placement]], files: Sequence[Plugin]) -> None:
    """Raise SpmdirError unless the strategies that placements declare as text are valid for their ops.

    Args:
        files: the plug-ins whose rules may define these ops.
    """
    from spmdir.rules.strategies.placement_texts import texts_of

    rules = extended_rules(files)
    raise_all([error for kind in placements for error in rules.errors((), texts_of(kind))])


def _warn_about_unusable_edges(kind: type[Placement]) -> None:
    """Warn about each edge of a placement class that no plan can use.

    Classes without a text of their own or without edges, and classes without an example, are skipped.
    """
    if "text" not in vars(kind) or kind.edges is Placement.edges:
        return
    placement = instance_of(kind)
    if placement is None:
        return
    for edge, reason in unusable_edges(placement):
        warn(f"no plan can use this edge of {kind.__name__}: {reason}", edge.place)


def _dialect_names() -> frozenset[str]:
    """Return the names of the ops of the `spmd` dialect, without `spmd.`."""
    from spmdir.dialects.spmd import Spmd

    return frozenset(op.name.removeprefix("spmd.") for op in Spmd.operations)


def _pass_classes(name: str, module: ModuleType) -> Iterator[type[ModulePass]]:
    """Yield the pass classes that a plug-in defines."""
    from xdsl.passes import ModulePass

    for value in _defined_classes(module, ModulePass):
        if not isinstance(getattr(value, "name", None), str):
            raise SpmdirError(
                f"the pass {value.__name__} of plug-in '{name}' has no name; expected one: add `name = \"…\"` to the "
                "class"
            )
        yield value


def _defined_classes(module: ModuleType, base: type[Kind]) -> Iterator[type[Kind]]:
    """Yield the classes derived from `base` that the module, or a module of its package, defines."""
    for value in dict.fromkeys(value for value in vars(module).values() if isinstance(value, type)):
        if issubclass(value, base) and f"{value.__module__}.".startswith(f"{module.__name__}."):
            yield value


def _read_sources(module: ModuleType) -> Iterator[str]:
    """Yield the source text of the module, or of all modules of the package."""
    if hasattr(module, "__path__"):
        yield from (file.read_text() for folder in module.__path__ for file in sorted(Path(folder).rglob("*.py")))
    elif module.__file__:
        yield Path(module.__file__).read_text()


def _digest(*texts: str) -> str:
    """Return the digest of several texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def load_module(path: str) -> ModuleType:
    """Return the module of the Python file at `path`.

    The file is executed at the first call, and again if it or the `.rules` file next to it has changed since. A file of
    spmdir itself is imported under its usual name.

    Raises:
        SpmdirError: the file cannot be read, is malformed or fails. The error has the location in it.
    """
    real_path = os.path.realpath(path)
    root, is_inside = os.path.split(_PACKAGE)[0] + os.sep, real_path.startswith(_PACKAGE + os.sep)
    if is_inside and os.path.isfile(real_path):
        return import_module(real_path.removeprefix(root).removesuffix(".py").replace(os.sep, "."))
    source, loaded = _read(path), _find_loaded(real_path)
    rules_file = file_beside(real_path, ".rules")
    rules = _read(str(rules_file)) if rules_file else b""
    if loaded is not None and vars(loaded).get(_SOURCE, source) == source and vars(loaded).get(_RULES, rules) == rules:
        return loaded
    module = _execute(path, real_path, source)
    setattr(module, _RULES, rules)
    return module


def _find_loaded(real_path: str) -> ModuleType | None:
    """Return the loaded module of the file at `real_path`; None if there is none."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        # Names are compared first: realpath reads the file system, and there are thousands of modules.
        if os.path.basename(file) == os.path.basename(real_path) and os.path.realpath(file) == real_path:
            return module
    return None


def module_name(real_path: str) -> str:
    """Return the name of the module of a plug-in file, such as `spmdir_plugin__tmp_a_py` for `/tmp/a.py`.

    The name for a folder is a prefix of the names for its files.
    """
    return "spmdir_plugin_" + re.sub(r"\W", "_", real_path)


def _execute(path: str, real_path: str, source: bytes) -> ModuleType:
    """Execute the source of a plug-in as a new module, and register the module in `sys.modules` unless it fails."""
    spec = spec_from_file_location(module_name(real_path), real_path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    setattr(module, IS_PLUGIN, True)
    # Dataclasses, such as passes, look up their module in this table while it is still being executed.
    sys.modules[spec.name] = module
    try:
        _run_plugin_code(path, lambda: exec(compile(source, real_path, "exec"), vars(module)))
    except SpmdirError:
        del sys.modules[spec.name]
        raise
    setattr(module, _SOURCE, source)
    return module


def _read(path: str) -> bytes:
    """Return the content of a file of a plug-in."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise SpmdirError(
            f"cannot read plug-in '{path}': {error.strerror}; expected a readable file: correct the path"
        ) from None


def _run_plugin_code(path: str, body: Callable[[], Kind]) -> Kind:
    """Return the result of `body`, which runs code of the plug-in at `path`.

    Any exception becomes an SpmdirError, located at the innermost line of the plug-in, or at line 1 if the plug-in is
    not in the traceback. An SpmdirError keeps the location that it has.
    """
    try:
        return body()
    except SyntaxError as error:
        raise ParseError(
            f"plug-in: {error.msg}; expected the syntax of Python: correct this line",
            Location(path, error.lineno or 1, error.offset or 1),
        ) from None
    except SpmdirError as error:
        if error.location is None and not isinstance(error, SpmdirErrors) and (line := line_in(path, error)):
            error.location = Location(path, line, 1)
        if error.location is not None and error.location.file == os.path.realpath(path):
            error.location = attrs.evolve(error.location, file=path)  # the path that the user passed
        raise
    except (Exception, SystemExit) as error:
        place = Location(path, line_in(path, error) or 1, 1)
        raise PluginError(
            f"plug-in failed: {type(error).__name__}: {error}; expected a file that Python can import: correct "
            "this line",
            place,
        ) from error


def line_in(path: str, error: BaseException) -> int | None:
    """Return the innermost line of the file at `path` in the traceback of `error`; None if the file is not in it."""
    frames, real_path = reversed(traceback.extract_tb(error.__traceback__)), os.path.realpath(path)
    return next((frame.lineno for frame in frames if frame.filename == real_path), None)
