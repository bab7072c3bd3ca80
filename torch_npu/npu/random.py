"""Random numbers: a generator is a seed and an offset, and each call of a random operator moves the offset on
by 4. The numbers of a call follow from the two alone.
"""

from torch_npu import _C
from torch_npu.npu._utils import _get_device_index
from torch_npu.npu.devices import current_device, device_count

default_generators = tuple(_C.default_generator(index) for index in range(device_count()))


def get_rng_state(device="npu"):
    """The state of a device's default generator, as a ByteTensor on the CPU: its seed, then its offset."""
    return default_generators[_get_device_index(device, optional=True)].get_state()


def get_rng_state_all():
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state, device="npu"):
    default_generators[_get_device_index(device, optional=True)].set_state(new_state)


def set_rng_state_all(new_states):
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _get_rng_state_offset(device="npu"):
    """The offset of a device's default generator."""
    return default_generators[_get_device_index(device, optional=True)].get_offset()


def _set_rng_state_offset(offset, device="npu"):
    default_generators[_get_device_index(device, optional=True)].set_offset(offset)


def manual_seed(seed):
    """Seeds the current device's default generator."""
    default_generators[current_device()].manual_seed(int(seed))


def manual_seed_all(seed):
    """Seeds the default generators of all devices."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed():
    """Seeds the current device's default generator with a random number."""
    default_generators[current_device()].seed()


def seed_all():
    """Seeds the default generators of all devices with one random number."""
    first, *others = default_generators
    common = first.seed()
    for generator in others:
        generator.manual_seed(common)


def initial_seed():
    """The seed of the current device's default generator."""
    return default_generators[current_device()].initial_seed()
