"""What npu generators are held to: Philox, and the CPU generator from which a random operator draws."""

import struct

import torch

WORDS = 624  # of the state of PyTorch's CPU generator


def philox(key, counter):
    """Philox 4x32-10 (Salmon et al. 2011): four 32-bit numbers."""
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    c0, c1, c2, c3 = (counter >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96))
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & 0xFFFFFFFF, p0 >> 32 ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def engine_state(seed, offset):
    """The state of the CPU generator from which a random operator draws at that seed and offset.

    It stands after its first word, and is first twisted when the others are used up.
    """
    words = [word for block in range(WORDS // 4) for word in philox(seed, offset // 4 << 64 | block)]
    packed = struct.pack(f"<QiiQ{WORDS}Qdddi4xf?3x", seed, WORDS, 1, 1, *words, 0, 0, 0, 0, 0, False)
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


def generator_of_call(seed, offset=0):
    """That CPU generator, for tests that draw from one."""
    generator = torch.Generator()
    generator.set_state(engine_state(seed, offset))
    return generator
