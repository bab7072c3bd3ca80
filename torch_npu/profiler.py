"""torch.profiler under the names of torch_npu: ``ProfilerActivity.NPU`` are launches and tasks of streams.

What a card measures of its cores and buses is not recorded, because nothing here stands for it: asking for it
is a warning. The tables of ``key_averages()`` know device times as ``npu_time_total``,
``self_npu_time_total`` and so on, like the names of cuda.
"""

import enum
import functools
import operator
import warnings

import torch.profiler
from torch.autograd.profiler_util import FunctionEvent, FunctionEventAvg
from torch.profiler import ProfilerAction, schedule

__all__ = [
    "AiCMetrics",
    "ExportType",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerLevel",
    "profile",
    "schedule",
    "supported_activities",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
    "tensorboard_trace_handler",
]


class ProfilerActivity(enum.Enum):
    """What a profile records: the host's operators, and what device npu did."""

    CPU = torch.profiler.ProfilerActivity.CPU
    NPU = torch.profiler.ProfilerActivity.PrivateUse1


class ProfilerLevel(enum.Enum):
    """How much is recorded of npu: from Level0 on launches and tasks; more than that there is not."""

    Level_none = "Level_none"
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"


class AiCMetrics(enum.Enum):
    """What a card counts in its AI cores; only AiCoreNone is supported."""

    AiCoreNone = "AiCoreNone"
    PipeUtilization = "PipeUtilization"
    ArithmeticUtilization = "ArithmeticUtilization"
    Memory = "Memory"
    MemoryL0 = "MemoryL0"
    MemoryUB = "MemoryUB"
    MemoryAccess = "MemoryAccess"
    ResourceConflictRatio = "ResourceConflictRatio"
    L2Cache = "L2Cache"


class ExportType(enum.Enum):
    """The form of what a trace handler writes; only Text, which is JSON, is supported."""

    Text = "Text"
    Db = "Db"


def supported_activities():
    """What can be recorded."""
    return set(ProfilerActivity)


def supported_profiler_level():
    """The levels that differ in nothing but their name are among them."""
    return set(ProfilerLevel)


def supported_ai_core_metrics():
    return {AiCMetrics.AiCoreNone}


def supported_export_type():
    return {ExportType.Text}


def _checked(name, value, kind):
    if not isinstance(value, kind):
        raise TypeError(
            f"_ExperimentalConfig: {name} is {value!r}; a {kind.__name__} of torch_npu.profiler is accepted"
        )
    return value


class _ExperimentalConfig:
    """Options of ``profile`` for npu. Warns where what is asked for is not recorded here.

    ``export_type`` may be one or a list. ``data_simplification`` is about raw data, of which
    there is none.
    """

    def __init__(
        self,
        *,
        profiler_level=ProfilerLevel.Level0,
        aic_metrics=AiCMetrics.AiCoreNone,
        export_type=ExportType.Text,
        data_simplification=True,
        l2_cache=False,
        record_op_args=False,
        op_attr=False,
        msprof_tx=False,
        mstx=False,
        host_sys=(),
        sys_io=False,
        sys_interconnection=False,
        gc_detect_threshold=None,
    ):
        self.profiler_level = _checked("profiler_level", profiler_level, ProfilerLevel)
        self.export_type = export_type if isinstance(export_type, (list, tuple)) else [export_type]
        if any(_checked("export_type", kind, ExportType) is ExportType.Db for kind in self.export_type):
            raise ValueError("_ExperimentalConfig: export_type holds Db; ExportType.Text is accepted")
        not_recorded = {
            "aic_metrics": _checked("aic_metrics", aic_metrics, AiCMetrics) is not AiCMetrics.AiCoreNone,
            "l2_cache": l2_cache,
            "record_op_args": record_op_args,
            "op_attr": op_attr,
            "msprof_tx": msprof_tx,
            "mstx": mstx,
            "host_sys": host_sys,
            "sys_io": sys_io,
            "sys_interconnection": sys_interconnection,
            "gc_detect_threshold": gc_detect_threshold is not None,
        }
        if asked := [name for name, value in not_recorded.items() if value]:
            warnings.warn(
                f"torch_npu.profiler does not record what {', '.join(asked)} asks for: device npu is the "
                "host's CPU here",
                stacklevel=2,
            )


def _torch_activity(activity):
    return activity.value if isinstance(activity, ProfilerActivity) else activity


class profile(torch.profiler.profile):
    """torch.profiler.profile, which see; ``activities`` may be given under the names of this module.

    Without ``activities`` it records all that is supported. ``experimental_config`` is that of this module or
    of torch.profiler.
    """

    @functools.wraps(torch.profiler.profile.__init__)
    def __init__(self, *, activities=None, experimental_config=None, **options):
        wanted = {
            _torch_activity(activity)
            for activity in (supported_activities() if activities is None else activities)
        }
        if isinstance(experimental_config, _ExperimentalConfig):
            if experimental_config.profiler_level is ProfilerLevel.Level_none:
                wanted.discard(ProfilerActivity.NPU.value)
            experimental_config = None
        super().__init__(activities=wanted, experimental_config=experimental_config, **options)


def tensorboard_trace_handler(dir_name=".", worker_name=None, analyse_flag=True, async_mode=False):
    """For ``on_trace_ready``: writes each trace to a JSON file in that folder, which TensorBoard reads.

    The trace is whole when the handler returns: nothing is left that ``analyse_flag`` could put off, or
    ``async_mode`` do meanwhile.
    """
    return torch.profiler.tensorboard_trace_handler(dir_name, worker_name)


# Tables are sorted by attributes of these classes.
for _kind in (FunctionEvent, FunctionEventAvg):
    for _name in (
        "device_time",
        "device_time_total",
        "self_device_time_total",
        "device_memory_usage",
        "self_device_memory_usage",
    ):
        setattr(_kind, _name.replace("device", "npu"), property(operator.attrgetter(_name)))
