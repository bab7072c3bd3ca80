"""What the demo runs: models with their seeds and sizes, and the stages whose results are compared."""

import dataclasses
import hashlib
import itertools
import pathlib
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from bench.models import Llama, ResNet50

TEXT = (pathlib.Path(__file__).parent / "data" / "texts.txt").read_text()
ALPHABET = sorted(set(TEXT))
PROMPT = "When in the "
F32_TOLERANCE, AMP_TOLERANCE = 1e-4, 2e-2


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one step gave, and what the device counted since the stage began."""

    values: list
    seconds: float
    peak_bytes: int = 0
    native_launches: int = 0
    fallbacks: int = 0


@dataclasses.dataclass(frozen=True)
class Stage:
    """Steps over a workload's model. Each gives losses (floats, relatively within ``tolerance`` of the CPU's)
    or, where that is None, tokens (all equal)."""

    title: str
    steps: Callable  # (model, device, quick) -> generator that yields a list of values for each step
    count: int
    quick_count: int = 2
    tolerance: float | None = None
    show: Callable | None = None  # makes a text of the last step's tokens

    def turns(self, quick):
        return self.quick_count if quick else self.count


class Workload:
    """A model, built on the CPU by ``build(quick)``, and the stages that use it one after the other."""

    def __init__(self, build, *stages):
        self.build, self.stages = build, stages


def tensor_of_text(text):
    place = {letter: i for i, letter in enumerate(ALPHABET)}
    return torch.tensor([place[letter] for letter in text])


def text_of_tokens(tokens):
    return "".join(ALPHABET[token] for token in tokens)


# ---- training steps, for every model alike


def train(model, optimizer, batches, loss_of, device, dtype=None):
    """One optimiser step for each batch. ``dtype`` is what autocast computes in; float16 scales gradients."""
    scaler = torch.amp.GradScaler(device.type, init_scale=1024, enabled=dtype == torch.float16)
    model.train()
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            loss = loss_of(model, *(part.to(device) for part in batch))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield [loss.item()]


def resnet50(quick):
    """The last normalisation of each block starts at zero (Goyal et al. 2017, arXiv:1706.02677). Without it
    the gradient of a fresh network magnifies rounding errors 10,000 times, which no comparison survives."""
    model = ResNet50(10)
    for block in model.blocks:
        nn.init.zeros_(block.norm3.weight)
    return model


def train_images(dtype):
    def steps(model, device, quick):
        batch, size = (4, 32) if quick else (8, 96)
        generator = torch.Generator().manual_seed(1)
        labels = torch.arange(batch) % 10
        images = torch.randn(batch, 3, size, size, generator=generator) + labels.view(-1, 1, 1, 1) / 5
        optimizer = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9)
        batches = itertools.repeat((images, labels))
        return train(model, optimizer, batches, lambda m, x, y: F.cross_entropy(m(x), y), device, dtype)

    return steps


def crops(text, length, batch):
    """Endless random pieces of the text; each comes with itself shifted by one."""
    generator = torch.Generator().manual_seed(2)
    while True:
        starts = torch.randint(len(text) - length - 1, (batch,), generator=generator)
        pieces = torch.stack([text[start : start + length + 1] for start in starts])
        yield pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


def text_llama(quick):
    width, depth = (64, 2) if quick else (128, 3)
    return Llama(len(ALPHABET), width, depth, heads=4, kv_heads=2, hidden=4 * width, longest=512)


def train_text(dtype):
    def steps(model, device, quick):
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        batches = crops(tensor_of_text(TEXT), length=32 if quick else 64, batch=4 if quick else 12)
        return train(
            model,
            optimizer,
            batches,
            lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten()),
            device,
            dtype,
        )

    return steps


def continue_text(model, device, quick):
    """Greedy: some of the most likely letters in each step."""
    model.eval()
    tokens = tensor_of_text(PROMPT).to(device)[None]
    with torch.no_grad():
        while True:
            for _ in range(5 if quick else 20):
                tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), 1)
            yield tokens[0].tolist()


# ---- transformers


def transformers_llama(quick):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=64 if quick else 256,
        intermediate_size=128 if quick else 688,
        num_hidden_layers=2 if quick else 4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
        initializer_range=0.2,  # wide enough that the most likely token changes from place to place
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def generate(**options):
    """Continues three prompts of different lengths, padded on the left; other prompts in each step."""

    def steps(model, device, quick):
        generator = torch.Generator().manual_seed(3)
        model.eval()
        while True:
            prompts = torch.randint(1, 1000, (3, 12), generator=generator)
            mask = (torch.arange(12) >= torch.tensor([[0], [3], [7]])).long()
            prompts = prompts * mask
            tokens = model.generate(
                prompts.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=8 if quick else 32,
                do_sample=False,
                **options,
            )
            yield tokens[:, 12:].flatten().tolist()

    return steps


def train_transformers(model, device, quick):
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(1, 1000, (4, 16 if quick else 64), generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    return train(model, optimizer, itertools.repeat((tokens,)), lambda m, x: m(x, labels=x).loss, device)


WORKLOADS = {
    "resnet50_f32": Workload(
        resnet50,
        Stage("ResNet-50, train f32", train_images(None), 8, tolerance=F32_TOLERANCE),
    ),
    "resnet50_bf16": Workload(
        resnet50,
        Stage("ResNet-50, train AMP bf16", train_images(torch.bfloat16), 8, tolerance=AMP_TOLERANCE),
    ),
    "text_f32": Workload(
        text_llama,
        Stage("Llama on text, train f32", train_text(None), 150, 8, F32_TOLERANCE),
        Stage("Llama on text, continue it, greedy", continue_text, 8, show=text_of_tokens),
    ),
    "text_f16": Workload(
        text_llama,
        Stage("Llama on text, train AMP f16", train_text(torch.float16), 10, 8, AMP_TOLERANCE),
    ),
    "transformers_train": Workload(
        transformers_llama,
        Stage("transformers, train f32", train_transformers, 12, tolerance=F32_TOLERANCE),
    ),
    "transformers_generate": Workload(
        transformers_llama,
        Stage("transformers, generate() greedy", generate(), 3),
        Stage("transformers, generate() 4 beams", generate(num_beams=4), 2),
    ),
}


# ---- running a workload on one device


class Meter:
    """Peak memory, native launches and fallbacks of a device since the meter was made; a CPU has none."""

    def __init__(self, device):
        self.on_npu = device.type == "npu"
        if self.on_npu:
            import torch_npu

            self.stats = torch_npu.fallback_stats
            torch_npu.reset_fallback_stats()
            torch.npu.reset_peak_memory_stats()

    def read(self):
        if not self.on_npu:
            return {}
        counts = self.stats()
        return {
            "peak_bytes": torch.npu.max_memory_allocated(),
            "native_launches": counts["native_launches"],
            "fallbacks": counts["fallbacks"],
        }


def digest(model):
    """A hash of all weights and buffers."""
    total = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        total.update(name.encode())
        total.update(tensor.numpy().tobytes())
    return total.hexdigest()


@torch.no_grad()
def sabotage(model):
    """Adds a real amount to one weight: the first of the last matrix, which scores the first class."""
    *_, last = (weight for weight in model.parameters() if weight.dim() == 2)
    last[0, 0] += 10


def run(device, name, quick, sabotaged):
    """A generator: the digest of the weights on the CPU, then a Turn for each step of each stage."""
    workload, device = WORKLOADS[name], torch.device(device)
    torch.manual_seed(0)
    model = workload.build(quick)
    yield digest(model)
    model.to(device)
    if sabotaged:
        sabotage(model)
    for stage in workload.stages:
        meter = Meter(device)
        steps = stage.steps(model, device, quick)
        for _ in range(stage.turns(quick)):
            start = time.perf_counter()
            values = next(steps)
            yield Turn(values, time.perf_counter() - start, **meter.read())
