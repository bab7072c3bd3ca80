"""torch.profiler under the names of torch_npu: ``ProfilerActivity.NPU`` are launches and tasks of streams."""

import enum
import functools

import torch.profiler
from torch.profiler import ProfilerAction, schedule, tensorboard_trace_handler

__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]


class ProfilerActivity(enum.Enum):
    """What a profile records: the host's operators, and what device npu did."""

    CPU = torch.profiler.ProfilerActivity.CPU
    NPU = torch.profiler.ProfilerActivity.PrivateUse1


def supported_activities():
    """What can be recorded."""
    return set(ProfilerActivity)


def _torch_activity(activity):
    return activity.value if isinstance(activity, ProfilerActivity) else activity


class profile(torch.profiler.profile):
    """torch.profiler.profile, which see; ``activities`` may be given under the names of this module.

    Without ``activities`` it records all that is supported.
    """

    @functools.wraps(torch.profiler.profile.__init__)
    def __init__(self, *, activities=None, **options):
        wanted = supported_activities() if activities is None else activities
        super().__init__(activities=[_torch_activity(activity) for activity in wanted], **options)
