"""What inductor takes from torch.npu by name: it has no code generator for the device, and using one says so.

Importing this imports inductor, so only inductor's look-ups in torch.npu do it.
"""

from torch._inductor.codegen import wrapper
from torch._inductor.codegen.common import DeviceOpOverrides, register_device_op_overrides

register_device_op_overrides("npu", DeviceOpOverrides())  # looked up before any of the code generators


def Scheduling(*_):
    raise NotImplementedError(
        "torch.compile: its default backend, inductor, cannot generate code for device npu yet. "
        'Use backend="aot_eager" or backend="eager".'
    )


class PythonWrapperCodegen(wrapper.PythonWrapperCodegen):
    create = staticmethod(Scheduling)


CppWrapperCodegen = WrapperFxCodegen = PythonWrapperCodegen
