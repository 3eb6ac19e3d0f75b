"""The public names, each with the module that defines it."""

from spmdir.serving.capture_model import capture as capture
from spmdir.serving.programs import program_of as program_of
from spmdir.serving.request_limits import Limits as Limits
from spmdir.serving.request_queue import RequestQueue as RequestQueue
from spmdir.serving.requests import Request as Request
from spmdir.serving.sampling_settings import Sampling as Sampling
from spmdir.serving.served import serve as serve
from spmdir.serving.served_model import Served as Served
