"""Compare the parameters of a rule with the schema of its op."""

from __future__ import annotations

from spmdir.core.errors import ParseError
from spmdir.rules import RuleSet
from spmdir.torch_interop.ops import schema_of
from spmdir.torch_interop.schemas import resolve


def check_schema(op: str, rules: RuleSet) -> None:
    """Raise unless the rules of `op` list the parameters of its schema in order.

    An op that is not registered is not compared; its samples will not run.

    Raises:
        ParseError: the names, their order, or the kinds of parameters differ; located at the rule.
    """
    target = resolve(op)
    if target is None:
        return
    schema = [_form(argument.name, "Tensor" in str(argument.type)) for argument in schema_of(target).arguments]
    for rule in rules.alternatives(op):
        listed = [_form(parameter.name, parameter.is_tensor) for parameter in rule.parameters]
        if listed != schema:
            raise ParseError(
                f"the rule of {op} has the parameters {', '.join(listed) or 'none'}; expected those of the op's "
                f"schema, in order: {', '.join(schema) or 'none'}",
                rule.location,
            )


def _form(name: str, is_tensor: bool) -> str:
    """Return a parameter as rules write it: `x: …` for a tensor, `dim` for another."""
    return f"{name}: …" if is_tensor else name
