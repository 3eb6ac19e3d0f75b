"""What the packages above share of torch: op schemas, element types and values, memory layouts.

May import: core; torch.
Start with schemas.py and dtypes.py.
"""

import torch

from spmdir.torch_interop.supported_versions import require_supported

require_supported(torch.__version__)
