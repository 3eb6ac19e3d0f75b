"""The modules that the ops and arguments of a program are of: by location, or else by the names of parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from spmdir.core.equal_layers import layer_of
from spmdir.dialects.locations import places_of
from spmdir.dialects.reshard_ops import FORMS
from spmdir.dialects.values import signature_kind, signature_name


def module_paths(function: FuncOp) -> dict[Operation | SSAValue, str]:
    """Return op, or argument of `function` → the path of its module, as `layers.0.mlp`; "" if it is not known.

    Where a location names no module, as that of an op of an optimizer, an op is of the module of the parameter that it
    is computed from, or else of the parameter that all its users are computed from, and a reshard of that of the value.
    Where no location names one, it is of the layer whose parameter it, or an op before it, reads, and of none after one
    that is of no layer, as that of a head. Names tell which module a parameter, or what is kept for one, is of.
    """
    ops = list(function.body.block.ops)
    said = {op: paths[0] for op in ops if (paths := places_of(op.location).paths)}
    arguments = _of_arguments(function, {*said.values()})
    found: dict[Operation | SSAValue, str] = {**arguments}
    held = {one: path for one, path in arguments.items() if path}
    layers = len({*held.values()})
    if not said:
        held.update((one, "") for one in function.args if one not in held and _is_of_none(function, one, layers))
    last = ""
    for op in ops:
        read = next((held[one] for one in op.operands if one in held), None)
        is_reshard = isinstance(op, FORMS)
        if read is not None and (is_reshard or (said and op not in said)):
            held.update(dict.fromkeys(op.results, read))
        if not said:
            found[op] = last = last if read is None else read
            continue
        makers = [one.owner for one in op.operands if is_reshard and isinstance(one.owner, Operation)]
        found[op] = said.get(op) or read or next(filter(None, map(found.__getitem__, makers)), "")
    for op in reversed(ops):
        users = {held.get(result) for one in op.results for use in one.uses for result in use.operation.results}
        if said and not found[op] and len(users) == 1 and (path := users.pop()):
            found[op] = path
            held.update(dict.fromkeys(op.results, path))
    return found


def _is_of_none(function: FuncOp, argument: BlockArgument, layers: int) -> bool:
    """Return whether what reads an argument, which is of no layer, is of none either: a parameter is, as its name or
    kind tells, and what is not read in each of so many `layers`, as a mask is."""
    name, kind = (told(function, "arg_attrs", argument.index) for told in (signature_name, signature_kind))
    return kind in ("parameter", "buffer") or "." in (name or "") or len(list(argument.uses)) < layers


def _of_arguments(function: FuncOp, modules: Collection[str]) -> Mapping[SSAValue, str]:
    """Return argument → the path of its module, or where ops name no `modules` of its layer."""
    names = {argument: signature_name(function, "arg_attrs", argument.index) or "" for argument in function.args}
    known, found = {*names.values()}, {}
    is_step = any(name.startswith("parameters.") for name in known)
    for argument, name in names.items():
        _, _, tail = name.partition(".")
        is_kept = f"parameters.{tail}" in known  # a traced step says first what it keeps
        own = tail if is_kept else name
        path, layer = own.rpartition(".")[0], layer_of(own)
        parts = path.split(".")
        tails = (".".join(parts[first:]) for first in range(len(parts)))
        module = next((one for one in tails if one in modules), path if is_kept or not is_step else "")
        found[argument] = module if modules else layer if layer != own else ""
    return found
