"""The public names, each with the module that defines it."""

from spmdir import checkpoint as checkpoint
from spmdir import errors as errors
from spmdir import placement as placement
from spmdir import plugins as plugins
from spmdir import report as report
from spmdir import rules as rules
from spmdir import testing as testing
from spmdir.core.errors import SpmdirError as SpmdirError
from spmdir.core.mesh import Mesh as Mesh
from spmdir.core.placement.sharding import Sharding as Sharding
from spmdir.core.placement.standard import P as P
from spmdir.core.placement.standard import R as R
from spmdir.core.placement.standard import S as S
from spmdir.dialects.ir import parse as parse
from spmdir.dialects.ir import print_ir as print_ir
from spmdir.importer.constrain import constrain as constrain
from spmdir.importer.importer import import_fx as import_fx
from spmdir.importer.local_map import local_map as local_map
from spmdir.lowering.compile_program import compile_program as compile_program
from spmdir.lowering.emit import lower_to_fx as lower_to_fx
from spmdir.pipeline.pipeline import Pipeline as Pipeline
from spmdir.pipeline.pipeline import run_passes as run_passes
from spmdir.read_back.check_ranks import RankComparison as RankComparison
from spmdir.read_back.check_ranks import check_ranks as check_ranks
from spmdir.read_back.import_ranks import import_ranks as import_ranks
from spmdir.reshard.plan import plan_reshard as plan_reshard
from spmdir.runtime.parallel import Parallel as Parallel
from spmdir.runtime.parallel_options import ParallelOptions as ParallelOptions
from spmdir.runtime.parallelize import parallelize as parallelize
from spmdir.runtime.shard_module import shard_module as shard_module
from spmdir.runtime.tensor_parallel import tensor_parallel as tensor_parallel
from spmdir.runtime.training import TrainingStep as TrainingStep
from spmdir.runtime.training import training_step as training_step
from spmdir.simulator.simulate import simulate as simulate

__version__: str
