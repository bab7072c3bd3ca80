"""torch.distributed's backend for npu, which is not built yet: asking for it says so."""

import torch.distributed


def refuse_hccl():
    if not torch.distributed.is_available():
        return
    backend = torch.distributed.Backend
    backend.register_backend("hccl", _refuse, devices=["npu"])
    # It is neither available nor what groups of other backends use for npu.
    torch.distributed.is_hccl_available = lambda: False
    del backend.default_device_backend_map["npu"]


def _refuse(store, rank, size, timeout):
    raise NotImplementedError(
        "init_process_group: the backend 'hccl' of device npu is not built yet. Use 'gloo', with tensors on "
        "the CPU: tensor.cpu() before a collective, and .npu() after it."
    )
