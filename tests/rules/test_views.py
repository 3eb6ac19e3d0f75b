"""The table of views, beside what torch's schemas say."""

from __future__ import annotations

import transformers.integrations.moe  # noqa: F401  # registers the ops of libraries.rules

from spmdir.rules.rule_set import default
from spmdir.rules.shapes.views import VIEWS
from spmdir.torch_interop.schemas import torch_op


def test_the_ops_that_may_share_memory_are_those_whose_schemas_say_so() -> None:
    shared = {
        name
        for name in default().names
        for returned in torch_op(name)._schema.returns
        if returned.alias_info is not None and not returned.alias_info.is_write
    }
    assert shared | {"aten._unsafe_view"} == VIEWS
