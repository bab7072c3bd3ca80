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


def uniforms(seed, offset, count, digits=24):
    """What kernels of our own draw at that seed and offset: numbers in [0, 1), of so many digits."""
    counters, each = (count // 2, 2) if digits > 32 else (count // 4, 4)
    words = [philox(seed, counter << 64 | offset // 4) for counter in range(counters + 1)]
    if each == 2:
        words = [(low | high << 32, more | most << 32) for low, high, more, most in words]
    drawn = [words[i % counters][i // counters] for i in range(each * counters)]
    drawn += words[counters][: count - len(drawn)]
    shift = (64 if each == 2 else 32) - digits
    return torch.tensor([(bits >> shift) * 2.0**-digits for bits in drawn], dtype=torch.float64)


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
