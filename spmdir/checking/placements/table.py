"""All laws, in the order in which they are tried: the later ones build on the earlier."""

from __future__ import annotations

from spmdir.checking.placements.packed_laws import JOINT_LAWS
from spmdir.checking.placements.partial_laws import PARTIAL_LAWS
from spmdir.checking.placements.process_laws import PROCESS_LAWS
from spmdir.checking.placements.rule_laws import RULE_LAWS
from spmdir.checking.placements.shard_laws import PARTITION_LAWS, SHARD_LAWS
from spmdir.checking.placements.state_laws import STATE_LAWS
from spmdir.checking.placements.step_laws import STEP_LAWS
from spmdir.checking.placements.text_laws import TEXT_LAWS
from spmdir.checking.placements.value_laws import VALUE_LAWS

LAWS = (
    *TEXT_LAWS,
    *PARTITION_LAWS,
    *VALUE_LAWS,
    *PARTIAL_LAWS,
    *JOINT_LAWS,
    *SHARD_LAWS,
    *STEP_LAWS,
    *STATE_LAWS,
    *RULE_LAWS,
    *PROCESS_LAWS,
)
