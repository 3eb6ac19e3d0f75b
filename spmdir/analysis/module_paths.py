"""Find the module of each op and argument of a program, by locations or by the names of parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from spmdir.core.equal_layers import layer_of
from spmdir.dialects.locations import places_of
from spmdir.dialects.reshard_ops import FORMS
from spmdir.dialects.values import signature_kind, signature_name


def module_paths(function: FuncOp) -> dict[Operation | SSAValue, str]:
    """Return op, or argument of `function` → the path of its module, such as `layers.0.mlp`; "" if it is unknown.

    The path of a parameter, or of optimizer state of a parameter, follows from its name. The path of an op is the first
    of these that is known:

    - if some locations contain modules: the module in its location; the module of the parameter that it is computed
      from; for a reshard, the module of its operand; the only module that its users are computed from;
    - if no location contains a module: the layer of the parameter that it uses, or else that of the op before it. A
      parameter outside of layers, such as that of a head, ends the layer.
    """
    ops = list(function.body.block.ops)
    located = {op: paths[0] for op in ops if (paths := places_of(op.location).paths)}
    arguments = _argument_paths(function, {*located.values()})
    path_of: dict[Operation | SSAValue, str] = {**arguments}
    path_of_value = {value: path for value, path in arguments.items() if path}
    layer_count = len({*path_of_value.values()})
    if not located:
        path_of_value.update(
            (value, "")
            for value in function.args
            if value not in path_of_value and _is_outside_layers(function, value, layer_count)
        )
    previous = ""
    for op in ops:
        operand_path = next((path_of_value[value] for value in op.operands if value in path_of_value), None)
        is_reshard = isinstance(op, FORMS)
        if operand_path is not None and (is_reshard or (located and op not in located)):
            path_of_value.update(dict.fromkeys(op.results, operand_path))
        if not located:
            path_of[op] = previous = previous if operand_path is None else operand_path
            continue
        producers = [value.owner for value in op.operands if is_reshard and isinstance(value.owner, Operation)]
        path_of[op] = located.get(op) or operand_path or next(filter(None, map(path_of.__getitem__, producers)), "")
    for op in reversed(ops):
        users = {
            path_of_value.get(result) for value in op.results for use in value.uses for result in use.operation.results
        }
        if located and not path_of[op] and len(users) == 1 and (path := users.pop()):
            path_of[op] = path
            path_of_value.update(dict.fromkeys(op.results, path))
    return path_of


def _is_outside_layers(function: FuncOp, argument: BlockArgument, layers: int) -> bool:
    """Return whether users of an argument that belongs to no layer are outside of layers too.

    That holds for a parameter, by its name or kind. It holds for any other argument that is used in fewer places than
    there are layers; a mask, for example, is used in each layer.
    """
    name, kind = (read(function, "arg_attrs", argument.index) for read in (signature_name, signature_kind))
    return kind in ("parameter", "buffer") or "." in (name or "") or len(list(argument.uses)) < layers


def _argument_paths(function: FuncOp, modules: Collection[str]) -> Mapping[SSAValue, str]:
    """Return argument → the path of its module; the path of its layer if locations of ops contain no modules."""
    names = {argument: signature_name(function, "arg_attrs", argument.index) or "" for argument in function.args}
    all_names, path_of = {*names.values()}, {}
    is_step = any(name.startswith("parameters.") for name in all_names)
    for argument, name in names.items():
        _, _, tail = name.partition(".")
        is_state_of_parameter = f"parameters.{tail}" in all_names  # names in a traced step begin with the kind of state
        parameter = tail if is_state_of_parameter else name
        path, layer = parameter.rpartition(".")[0], layer_of(parameter)
        parts = path.split(".")
        tails = (".".join(parts[begin:]) for begin in range(len(parts)))
        default = path if is_state_of_parameter or not is_step else ""
        module = next((tail for tail in tails if tail in modules), default)
        path_of[argument] = module if modules else layer if layer != parameter else ""
    return path_of
