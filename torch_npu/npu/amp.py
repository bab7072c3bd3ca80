"""Automatic mixed precision: torch.amp with device npu filled in."""

import functools

import torch

custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="npu")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="npu")


class autocast(torch.amp.autocast_mode.autocast):
    """torch.autocast("npu", ...)."""

    def __init__(self, enabled=True, dtype=torch.float16, cache_enabled=True):
        super().__init__("npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler("npu", ...)."""

    def __init__(
        self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, enabled=True
    ):
        super().__init__("npu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def amp_definitely_not_available():
    return not torch.npu.is_available()


def get_amp_supported_dtype():
    return [torch.float16, torch.bfloat16, torch.float32]


is_autocast_enabled = functools.partial(torch.is_autocast_enabled, "npu")
set_autocast_enabled = functools.partial(torch.set_autocast_enabled, "npu")
get_autocast_dtype = functools.partial(torch.get_autocast_dtype, "npu")
set_autocast_dtype = functools.partial(torch.set_autocast_dtype, "npu")
