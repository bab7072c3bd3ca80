"""What npu generators are held to: Philox, and the CPU generator from which a random operator draws."""

import math
import struct

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

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


DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


class NativeDraws(TorchDispatchMode):
    """The CPU's uniform_() and bernoulli_() with the numbers that npu's kernels of these draw; tensors of f64
    are in place of ``double``."""

    def __init__(self, seed, double=torch.float64):
        super().__init__()
        self.double = double
        self.manual_seed(seed)

    def manual_seed(self, seed):
        self.seed, self.offset = seed, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if (
            func in (aten.uniform_.default, aten.bernoulli_.float)
            and args[0].dtype in DIGITS
            and args[0].numel()
        ):
            return self.fill(func, *args, **{name: v for name, v in kwargs.items() if name != "generator"})
        composite = torch._C.DispatchKey.CompositeExplicitAutograd
        if torch.Tag.nondeterministic_seeded in func.tags and func.has_kernel_for_dispatch_key(composite):
            with self:
                return func._op_dk(composite, *args, **kwargs)
        return func(*args, **kwargs)

    def fill(self, func, tensor, *numbers, **named):
        uniform = func is aten.uniform_.default
        dtype = self.double if tensor.dtype == torch.float64 else tensor.dtype
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        drawn = uniforms(self.seed, self.offset, tensor.numel(), DIGITS[dtype if uniform else wide]).to(wide)
        self.offset += 4
        if uniform:
            low, high = numbers or (named.get("from", 0.0), named.get("to", 1.0))
            values = drawn * torch.tensor(high, dtype=wide).sub(low) + low
        else:
            (p,) = numbers or (named.get("p", 0.5),)
            values = (drawn < torch.tensor(p, dtype=wide)).to(wide)
        span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        dense = math.prod(tensor.shape) == span
        if dense:  # in the order of memory
            tensor.as_strided((tensor.numel(),), (1,)).copy_(values)
            return tensor
        return tensor.copy_(values.view(tensor.shape))
