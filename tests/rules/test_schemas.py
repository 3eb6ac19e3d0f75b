import subprocess
import sys
from pathlib import Path

import pytest
import transformers.integrations.moe  # noqa: F401  # registers the ops of libraries.rules

import spmdir.torch_interop.cache_ops  # registers the ops of cache.rules
import spmdir.torch_interop.expert_ops  # registers the ops of experts.rules
import spmdir.torch_interop.sampling_ops  # noqa: F401  # registers the ops of sampling.rules
from spmdir.checking.rules.schema import check_schema
from spmdir.core.errors import ParseError
from spmdir.rules.language.argument_types import KINDS
from spmdir.rules.language.syntax_tree import Constant
from spmdir.rules.rule_set import default
from spmdir.torch_interop.schemas import resolve, torch_op


def test_rules_list_the_parameters_of_the_schema_in_order():
    for rule in default().parse_all():
        assert resolve(rule.op)
    for op in default().names:
        check_schema(op, default())


@pytest.mark.parametrize("parameters", ["a: *, b: *, alpha=1", "self: *, alpha=1, other: *", "self: *, other: *"])
def test_a_rule_with_other_parameters_than_the_schema_is_an_error_at_its_place(tmp_path: Path, parameters: str):
    own = tmp_path / "own.rules"
    own.write_text(f"\naten.add.Tensor({parameters}) -> *\n")
    with pytest.raises(ParseError, match=r"schema, in order: self: …, other: …, alpha$") as e:
        check_schema("aten.add.Tensor", default().with_file(own))
    assert str(e.value.location) == f"{own}:2:1"


def test_defaults_are_those_of_the_schema():
    for rule in default().parse_all():
        for parameter, argument in zip(rule.parameters, torch_op(rule.op)._schema.arguments, strict=True):
            if isinstance(parameter.default, Constant) and argument.default_value is not None:
                assert parameter.default.value == argument.default_value, (rule.op, parameter.name)


def test_the_rules_load_without_torch_and_without_xdsl():
    code = (
        "import sys; from spmdir.rules.rule_set import default; list(default().parse_all());"
        "assert not {'torch', 'xdsl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


SCHEMA_TYPES = {
    "true or false": {"bool"},
    "a list of true and false": {"List[bool]"},
    "an integer": {"int"},
    "a list of integers": {"List[int]"},
    "an integer or a list of integers": {"int", "List[int]"},
    "a real number": {"float"},
    "a list of real numbers": {"List[float]"},
    "a number": {"number", "int", "float", "bool"},
    "a string": {"str"},
    "a string or an integer": {"str", "int"},
    'integers, "valid" or "same"': {"List[int]", "str"},
    "an element type": {"ScalarType"},
}
TORCHS_OWN = {"Device", "Layout", "MemoryFormat", "Generator"}


def test_every_argument_has_the_kind_that_its_schema_says():
    kinds = {name: kind for kind, names in KINDS.items() for name in names.split()}
    for rule in default().parse_all():
        types = {a.name: str(a.real_type) for a in torch_op(rule.op)._schema.arguments}
        for parameter in (p for p in rule.parameters if not p.is_tensor):
            type_ = types[parameter.name].removeprefix("Optional[").removesuffix("]" * types[parameter.name].count("O"))
            expected = SCHEMA_TYPES[kinds[parameter.name]] if parameter.name in kinds else TORCHS_OWN
            assert type_ in expected, (rule.op, parameter.name)
