"""The public names, each with the module that defines it."""

from spmdir.explanation.difference import Difference as Difference
from spmdir.explanation.difference import diff as diff
from spmdir.explanation.explain import explain as explain
from spmdir.explanation.explanation_results import Explanation as Explanation
from spmdir.explanation.explanation_results import Explanations as Explanations
from spmdir.explanation.undecided_program import KeepsSource as KeepsSource
from spmdir.explanation.what_if import what_if as what_if
from spmdir.pictures.visualize import TensorPicture as TensorPicture
from spmdir.pictures.visualize import visualize as visualize
from spmdir.report.communication import CommReport as CommReport
from spmdir.report.communication import comm_report as comm_report
from spmdir.report.expert_load import ExpertReport as ExpertReport
from spmdir.report.expert_load import RouterLoad as RouterLoad
from spmdir.report.expert_load import expert_report as expert_report
from spmdir.report.grouped_costs import CostTable as CostTable
from spmdir.report.grouped_costs import cost_table as cost_table
from spmdir.report.measured_step import MeasuredStep as MeasuredStep
from spmdir.report.memory import MemoryReport as MemoryReport
from spmdir.report.memory import memory_report as memory_report
from spmdir.report.schedule import ScheduleReport as ScheduleReport
from spmdir.report.schedule import schedule_report as schedule_report
from spmdir.runtime.joint_program import JointProgram as JointProgram
from spmdir.runtime.rank_programs import RankPrograms as RankPrograms
from spmdir.runtime.sharded_module import rank_programs as rank_programs
