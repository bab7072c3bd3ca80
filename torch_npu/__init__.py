"""Device ``npu`` for PyTorch, on the host's CPU.

Importing this module, or ``import torch`` where it is installed, registers the device: afterwards
``torch.npu`` has the habits of ``torch.cuda``, and tensors and modules move with ``.to("npu")``.
"""

# ruff: noqa: E402

from anynpu import _environment

_environment.check()

import torch

_C = _environment.load_native_module()

torch.utils.rename_privateuse1_backend("npu")
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)

from torch_npu import _attention, _choices, _distributed, _dlpack, _exit, _printing, _sharing, npu, profiler
from torch_npu._attention import npu_fusion_attention, npu_fusion_attention_grad
from torch_npu._fallback import (
    fallback_stats,
    get_fallback_mode,
    reset_fallback_stats,
    set_fallback_mode,
)
from torch_npu._formats import (
    Format,
    empty_with_format,
    get_npu_format,
    get_storage_size,
    npu_format_cast,
    npu_format_cast_,
)

npu._register()
_attention.register_gradient()
_choices.choose_as_on_the_cpu()
_sharing.share_storages_and_events()
_distributed.refuse_hccl()
_dlpack.name_device()
_printing.format_on_the_host()
_exit.leave_in_order()

__version__ = _environment.VERSION

__all__ = [
    "Format",
    "empty_with_format",
    "fallback_stats",
    "get_fallback_mode",
    "get_npu_format",
    "get_storage_size",
    "npu",
    "npu_format_cast",
    "npu_format_cast_",
    "npu_fusion_attention",
    "npu_fusion_attention_grad",
    "profiler",
    "reset_fallback_stats",
    "set_fallback_mode",
]
