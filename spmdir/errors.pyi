"""The public names, each with the module that defines it."""

from spmdir.core.errors import CheckError as CheckError
from spmdir.core.errors import DivergenceError as DivergenceError
from spmdir.core.errors import LimitError as LimitError
from spmdir.core.errors import Location as Location
from spmdir.core.errors import ParseError as ParseError
from spmdir.core.errors import PluginError as PluginError
from spmdir.core.errors import RuleError as RuleError
from spmdir.core.errors import ShardingError as ShardingError
from spmdir.core.errors import SpmdirError as SpmdirError
from spmdir.core.errors import SpmdirErrors as SpmdirErrors
from spmdir.core.errors import SpmdirWarning as SpmdirWarning
from spmdir.core.errors import UnsupportedError as UnsupportedError
