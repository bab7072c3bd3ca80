"""Tensors and events of npu in other processes, through torch.multiprocessing as those of cuda.

What torch pickles for another process comes down to storages, which it knows how to send for the CPU only.
"""

from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing import reductions

from torch_npu import _C
from torch_npu.npu import Event


def share_storages_and_events():
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
    ForkingPickler.register(Event, _reduce_event)
    torch.UntypedStorage.is_shared = _is_shared


def _reduce_storage(storage):
    if storage.device.type != "npu":
        return reductions.reduce_storage(storage)
    index, size = storage.device.index, storage.nbytes()
    if size == 0:
        return _empty_storage, (index,)
    return _borrowed_storage, (_C.lend_storage(storage), index, size)


def _borrowed_storage(key, index, size):
    return _C.borrow_storage(key, index, size)


def _empty_storage(index):
    return torch.UntypedStorage(0, device=torch.device("npu", index))


def _reduce_event(event):
    return Event.from_ipc_handle, (event.device, event.ipc_handle())


def _is_shared(storage):
    """True for npu, as for cuda: every process that a storage is sent to gets its memory."""
    return storage.device.type == "npu" or torch._C.StorageBase.is_shared(storage)
