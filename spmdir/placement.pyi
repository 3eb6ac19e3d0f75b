"""The public names, each with the module that defines it."""

from spmdir.core.placement.base import PartialPlacement as PartialPlacement
from spmdir.core.placement.base import Placement as Placement
from spmdir.core.placement.base import ShardPlacement as ShardPlacement
from spmdir.core.placement.edge import Edge as Edge
from spmdir.core.placement.edge import EdgeState as EdgeState
from spmdir.core.placement.error import UNKNOWN as UNKNOWN
from spmdir.core.placement.error import ErrorBound as ErrorBound
from spmdir.core.placement.packed import PackedPlacement as PackedPlacement
from spmdir.core.placement.sharding import ShardingLike as ShardingLike
from spmdir.core.placement.sharding_plan import ShardingPlan as ShardingPlan
from spmdir.core.placement.standard import parse_placement as parse_placement
from spmdir.core.placement.tensor import TensorMeta as TensorMeta
from spmdir.plans.resolve import sharding_plan as sharding_plan
from spmdir.reshard.collective_spec import CollectiveSpec as CollectiveSpec
from spmdir.reshard.plan import ReshardPlan as ReshardPlan
from spmdir.reshard.topology import Topology as Topology
from spmdir.reshard.traffic import Traffic as Traffic
