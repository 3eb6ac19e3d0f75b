"""The public names, each with the module that defines it."""

from spmdir.serving.capture_model import capture as capture
from spmdir.serving.programs import program_of as program_of
from spmdir.serving.served import Served as Served
from spmdir.serving.served import serve as serve
