"""PyTorch modules as models: any `torch.nn.Module` and a loss."""

from mpidl.errors import UsageError

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError:
    raise UsageError("mpidl.torch: PyTorch isn't installed: pip install 'mpidl[torch]'") from None

from mpidl.torch.model import TorchModel
from mpidl.torch.section import TorchStage, sections

__all__ = ["TorchModel", "TorchStage", "sections"]
