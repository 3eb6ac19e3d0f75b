"""Wrap each private name of torch in one place, and share torch helpers among the packages from `lowering` on.

The helpers concern schemas, element types and memory layouts.

May import: core, placements; torch.
Start with schemas.py and dtypes.py. A test lists every private name of torch that spmdir uses. Other packages use these
names through the files here, so a change of another torch version is made here.
"""

import torch

from spmdir.torch_interop.supported_versions import require_supported

require_supported(torch.__version__)
