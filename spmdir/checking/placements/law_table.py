"""List all laws in the order of the check: later laws rely on earlier ones."""

from __future__ import annotations

from spmdir.checking.placements.declaration_laws import DECLARATION_LAWS
from spmdir.checking.placements.edge_state_laws import EDGE_STATE_LAWS
from spmdir.checking.placements.packed_laws import PACKED_LAWS
from spmdir.checking.placements.partial_laws import PARTIAL_LAWS
from spmdir.checking.placements.process_laws import PROCESS_LAWS
from spmdir.checking.placements.rule_laws import RULE_LAWS
from spmdir.checking.placements.shard_laws import PARTITION_LAWS, SHARD_LAWS
from spmdir.checking.placements.step_laws import STEP_LAWS
from spmdir.checking.placements.value_laws import VALUE_LAWS

LAWS = (
    *DECLARATION_LAWS,
    *PARTITION_LAWS,
    *VALUE_LAWS,
    *PARTIAL_LAWS,
    *PACKED_LAWS,
    *SHARD_LAWS,
    *STEP_LAWS,
    *EDGE_STATE_LAWS,
    *RULE_LAWS,
    *PROCESS_LAWS,
)
