"""Tensors for other processes: memory of npu is private to its process, so they are refused."""

import functools
import multiprocessing.queues
from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing import reductions
from torch.utils._pytree import tree_leaves

from torch_npu import _C

_REFUSAL = (
    "an npu tensor cannot be sent to another process: the memory of device npu is private to its process. "
    "Send tensor.cpu() and move it to npu in the receiving process."
)


def refuse_npu_tensors():
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
    # A queue pickles in a thread of its own, whose errors the caller of put() never sees while the receiver
    # waits for ever.
    multiprocessing.queues.Queue.put = _checked(multiprocessing.queues.Queue.put)


def _reduce_storage(storage):
    if storage.device.type == "npu":
        raise RuntimeError(_REFUSAL)
    return reductions.reduce_storage(storage)


def _checked(put):
    @functools.wraps(put)
    def checked_put(self, obj, *args, **kwargs):
        if _C.is_initialized() and any(map(_on_npu, tree_leaves(obj))):
            raise RuntimeError(_REFUSAL)
        return put(self, obj, *args, **kwargs)

    return checked_put


def _on_npu(leaf):
    if isinstance(leaf, torch.nn.Module):
        return any(tensor.is_npu for tensor in (*leaf.parameters(), *leaf.buffers()))
    return isinstance(leaf, torch.Tensor) and leaf.is_npu
