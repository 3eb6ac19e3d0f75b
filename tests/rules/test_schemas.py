import subprocess
import sys

from spmdir.rules import default
from tests.rules.soundness import overload


def test_rules_list_the_parameters_of_the_schema_in_order():
    for rule in default().parse_all():
        schema = overload(rule.op)._schema
        expected = [(a.name, "Tensor" in str(a.type)) for a in schema.arguments]
        assert [(p.name, p.is_tensor) for p in rule.parameters] == expected, rule.op


def test_defaults_are_those_of_the_schema():
    for rule in default().parse_all():
        for parameter, argument in zip(rule.parameters, overload(rule.op)._schema.arguments, strict=True):
            if parameter.default is not None and argument.default_value is not None:
                assert parameter.default.value == argument.default_value, (rule.op, parameter.name)  # type: ignore[union-attr]


def test_the_rules_load_without_torch_and_without_xdsl():
    code = (
        "import sys; from spmdir.rules import default; list(default().parse_all());"
        "assert not {'torch', 'xdsl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
