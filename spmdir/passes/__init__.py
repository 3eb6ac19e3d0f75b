"""The passes by name, and the running of a pipeline of them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from spmdir.core.arguments import CALLABLE, FLAG, Kind, accepts, instance, keyed
from spmdir.core.errors import ParseError, did_you_mean, require_type
from spmdir.dialects.arguments import MODULE

if TYPE_CHECKING:
    from xdsl.context import Context
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

PassTable = Mapping[str, "str | type[ModulePass]"]
"""Pass name → the class, or `module:class` where it is loaded from when first asked for."""

PASSES: PassTable = {
    "inline": "spmdir.passes.inline:InlinePass",
    "fold-views": "spmdir.passes.fold_views:FoldViewsPass",
    "propagate": "spmdir.passes.propagate:PropagatePass",
    "bind-sizes": "spmdir.passes.bind_sizes:BindSizesPass",
    "insert-reshard": "spmdir.passes.insert_reshard:InsertReshardPass",
    "lower-reshard": "spmdir.passes.lower_reshard:LowerReshardPass",
    "fuse-collectives": "spmdir.passes.fuse_collectives:FuseCollectivesPass",
    "localize": "spmdir.passes.localize:LocalizePass",
    "verify-spmd": "spmdir.passes.verify_spmd:VerifySpmdPass",
    "print-rules": "spmdir.passes.print_rules:PrintRulesPass",
    "strip-spmd": "spmdir.passes.strip_spmd:StripSpmdPass",
}
"""The passes that come with spmdir, in the order of the whole way."""

Count = Annotated[int, "from 0 on"]
"""The type of an option that is a number of things."""

Amount = Annotated[float, "from 0 on"]
"""The type of an option that is a price or another finite quantity."""

_STEP = re.compile(r"\s*([\w-]+)\s*(?:\{([^{}]*)\}\s*)?(?:,|\Z)")
_OPTION = re.compile(r"\s*([\w-]+)\s*(?:=\s*(?:\"([^\"]*)\"|([^\s\"]+)))?(?=\s|\Z)")


def _is_context(value: object) -> bool:
    from xdsl.context import Context

    return isinstance(value, Context)


@accepts(
    module=MODULE,
    pipeline=instance(str, expected="pass names, as in 'propagate,insert-reshard'"),
    verify_each=FLAG,
    context=Kind(_is_context, "a context, as of spmdir.dialects.ir.context()").optional,
    passes=keyed("a dict of passes by name, as spmdir.passes.PASSES"),
    after=CALLABLE,
)
def run_passes(
    module: ModuleOp,
    pipeline: str,
    verify_each: bool = False,
    *,
    context: Context | None = None,
    passes: PassTable = PASSES,
    after: Callable[[str, ModuleOp], None] = lambda name, module: None,
) -> ModuleOp:
    """Run `pipeline`, e.g. `"propagate,insert-reshard"` or `"propagate{opt=1}"`, on `module` in place.

    Args:
        module: at any stage; it is changed, and is in no defined state after an error.
        pipeline: pass names with options, in order.
        verify_each: verify the module after every pass, not only after the last one.
        context: holds the rules that the passes go by; the standard ones when None.
        passes: the passes that `pipeline` may name.
        after: called with the pass name and the module after every pass.

    Returns: `module`.

    Raises:
        SpmdirError: a pass or option is unknown, or a pass refuses the module.
    """
    from spmdir.dialects import ir

    context = context or ir.context()
    steps = list(parse_pipeline(pipeline, passes))
    with ir.collector_paused():
        for position, step in enumerate(steps, 1):
            step.apply(context, module)
            if verify_each or position == len(steps):
                ir.verify(module)
            after(step.name, module)
    return module


def parse_pipeline(text: str, passes: PassTable = PASSES) -> Iterator[ModulePass]:
    """`a,b{key=value other=1}` → its passes, each made from its options.

    Raises:
        ParseError: the text is no pipeline, or a pass or an option is unknown or has a value of the wrong type.
    """
    require_type("pipeline", text, str, "pass names, as in 'propagate,insert-reshard'")
    end = 0
    while end < len(text.rstrip()):
        step = _STEP.match(text, end)
        if step is None:
            raise ParseError(f"'{text[end:].strip()}' is no pipeline; expected `pass,pass{{option=value}}`")
        yield make_pass(step[1], _options(step[2] or "", step[1]), passes)
        end = step.end()


def load_pass(name: str, passes: PassTable = PASSES) -> type[ModulePass]:
    """The class of the pass `name`.

    Raises:
        ParseError: there is no such pass.
    """
    if name not in passes:
        raise ParseError(f"unknown pass '{name}'; expected one of {', '.join(passes)}{did_you_mean(name, passes)}")
    entry = passes[name]
    if not isinstance(entry, str):
        return entry
    home, _, class_name = entry.partition(":")
    return getattr(import_module(home), class_name)


def make_pass(name: str, options: Mapping[str, str], passes: PassTable = PASSES) -> ModulePass:
    """The pass `name` with `options` given as text; dashes in option names count as underscores.

    Raises:
        ParseError: the pass or an option is unknown, or a value does not have the option's type.
    """
    kind = load_pass(name, passes)
    types_of = pass_options(kind)
    values: dict[str, Any] = {}
    for key, text in options.items():
        field = key.replace("-", "_")
        free = next((name for name, hint in types_of.items() if get_origin(hint) is dict), None)
        if free is not None and field not in types_of:
            given = values.setdefault(free, {})
            given[key] = _number(name, key, text)
            continue
        if field not in types_of:
            known = ", ".join(types_of) or "no options"
            raise ParseError(f"pass '{name}' has no option '{key}'; it has {known}{did_you_mean(field, types_of)}")
        try:
            values[field] = _convert(text, types_of[field])
        except ValueError:
            raise ParseError(
                f"option '{key}' of pass '{name}' cannot be '{text}'; expected {_type_text(types_of[field])}"
            ) from None
    return kind(**values)


def _number(name: str, key: str, text: str) -> int:
    if not text.isdecimal():
        raise ParseError(f"option '{key}' of pass '{name}' cannot be '{text}'; expected an int")
    return int(text)


def pass_options(kind: type[ModulePass]) -> dict[str, Any]:
    """Option name → type, for one pass class."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def describe(name: str, passes: PassTable = PASSES) -> tuple[str, list[str]]:
    """First line of the pass's docstring, and `option: type = default` for each of its options."""
    kind = load_pass(name, passes)
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    options = [
        f"{option.replace('_', '-')}: {_type_text(hint)} = {defaults[option]}"
        if get_origin(hint) is not dict
        else "NAME: int"
        for option, hint in pass_options(kind).items()
    ]
    return (kind.__doc__ or "").strip().partition("\n")[0], options


def _options(text: str, name: str) -> dict[str, str]:
    options, end = {}, 0
    while end < len(text.rstrip()):
        option = _OPTION.match(text, end)
        if option is None:
            raise ParseError(f"'{text[end:].strip()}' is no option of pass '{name}'; expected `key=value key=value`")
        options[option[1]] = next((value for value in option.group(2, 3) if value is not None), "true")
        end = option.end()
    return options


def _convert(text: str, kind: Any) -> Any:
    """`text` as a value of type `kind`; ValueError if it is none."""
    origin, members = get_origin(kind), get_args(kind)
    if origin is Annotated:
        value = _convert(text, members[0])
        if not 0 <= value < math.inf:
            raise ValueError(text)
        return value
    if origin is tuple:
        return tuple(_convert(part, members[0]) for part in filter(None, text.split(",")))
    if origin is Literal:
        return members[[str(member) for member in members].index(text)]
    if origin in (Union, UnionType):
        for member in members:
            with contextlib.suppress(ValueError):
                return _convert(text, member)
        raise ValueError(text)
    if kind is bool:
        return ("false", "true").index(text) == 1
    if kind is NoneType:
        if text != "none":
            raise ValueError(text)
        return None
    return kind(text)


def _type_text(kind: Any) -> str:
    origin, members = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{_type_text(members[0])} {members[1]}"
    if origin is dict:
        return "each by its name, as in {s0=8 s1=5}"
    if origin is tuple:
        return f"{_type_text(members[0])},…"
    if origin is Literal:
        return "|".join(map(str, members))
    if origin in (Union, UnionType):
        return "|".join(map(_type_text, members))
    return {bool: "true|false", NoneType: "none"}.get(kind) or kind.__name__
