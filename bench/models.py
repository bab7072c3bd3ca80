"""Models with random weights, of the shapes that people run, for the demo and the benchmarks."""

import torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.squeeze, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.expand, self.norm3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = F.relu(self.norm1(self.squeeze(x)))
        y = F.relu(self.norm2(self.conv(y)))
        return F.relu(self.norm3(self.expand(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """He et al. 2015, arXiv:1512.03385, with the stride in the 3 by 3 convolutions."""

    def __init__(self, classes=1000):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for count, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
            for i in range(count):
                blocks.append(Bottleneck(inputs, width, stride if i == 0 else 1))
                inputs = 4 * width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(2048, classes)

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


class LlamaLayer(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.v = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin):
        y = self.norm1(x)
        q, k = (
            rotate(self.split(self.q(y), self.heads), cos, sin),
            rotate(self.split(self.k(y), self.kv_heads), cos, sin),
        )
        v = self.split(self.v(y), self.kv_heads)
        repeats = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attention.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def split(self, x, heads):
        return x.view(*x.shape[:2], heads, self.head_width).transpose(1, 2)


def rotate(x, cos, sin):
    """Rotary position embedding: Su et al. 2021, arXiv:2104.09864."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Llama(nn.Module):
    """Llama-shaped decoder without a cache; about 0.2 billion parameters unless told otherwise."""

    def __init__(
        self, vocabulary=32000, width=1024, depth=8, heads=16, kv_heads=4, hidden=2816, longest=2048
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, kv_heads, hidden) for _ in range(depth))
        self.norm, self.head = RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        head_width = width // heads
        frequency = 1e4 ** (-torch.arange(0, head_width, 2).float() / head_width)
        angle = torch.outer(torch.arange(longest).float(), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        length = tokens.shape[1]
        cos, sin = self.cos[:length].to(x.dtype), self.sin[:length].to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


class FeedForward(nn.Module):
    def __init__(self, width=1024, depth=12):
        super().__init__()
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Linear(width, 4 * width),
                    nn.ReLU(),
                    nn.LayerNorm(4 * width),
                    nn.Linear(4 * width, width),
                )
                for _ in range(depth)
            )
        )

    def forward(self, x):
        return self.blocks(x)


MODELS = {
    "resnet50": lambda: (ResNet50(), torch.randn(4, 3, 224, 224)),
    "llama": lambda: (Llama(), torch.randint(0, 32000, (1, 256))),
    "llama_decode": lambda: (Llama(), torch.randint(0, 32000, (1, 1))),
    "small_mlp": lambda: (FeedForward(128), torch.randn(8, 128)),
}


def make(name, dtype=torch.float32, seed=0):
    """The model in evaluation mode and an input for it, both on the CPU."""
    torch.manual_seed(seed)
    model, x = MODELS[name]()
    return model.eval().to(dtype), x.to(dtype) if x.is_floating_point() else x
