"""Products, convolutions, their neighbours and attention beside PyTorch's CPU; products beside oneDNN too."""

import ctypes
import functools
import math
import os
import statistics
import sys
import time
from pathlib import Path

from rich.progress import Progress

from bench import report
from bench.interleave import Side, take_turns
from bench.report import table_of

# Rows, depth and columns: squares, and what vit_b16, llama, ffn_mlp and small_mlp multiply.
SHAPES = (
    *((n, n, n) for n in (512, 1024, 2048, 4096)),
    *((394, 768, 3072), (394, 3072, 768), (256, 1024, 2816), (64, 1024, 4096), (8, 512, 512)),
)
VECTORS = ((1, 1024, 2816), (1, 4096, 4096))
AIMS = {  # at least: times the faster oneDNN, times F.linear
    "float32": (0.97, 1.8),
    "bfloat16": (0.97, None),
    "float16": (None, 6),
    "int8": (None, None),
}
VECTOR_TYPES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes
SYSTEM_ONEDNN = Path(__file__).parents[1] / "build" / "release" / "bench" / "libbench_onednn.so"
COPY_SHARE = 0.9  # of a matrix times a vector
# Channels, size, outputs, taps along a side, stride, and how often a model has it: ResNet-50 and MobileNetV2.
CONVOLUTIONS = (
    (3, 224, 64, 7, 2, 1),
    *((64, 56, 64, 1, 1, 1), (64, 56, 64, 3, 1, 3), (64, 56, 256, 1, 1, 4), (256, 56, 64, 1, 1, 2)),
    *((256, 56, 128, 1, 1, 1), (128, 56, 128, 3, 2, 1), (128, 28, 512, 1, 1, 4), (256, 56, 512, 1, 2, 1)),
    *((512, 28, 128, 1, 1, 3), (128, 28, 128, 3, 1, 3), (512, 28, 256, 1, 1, 1), (256, 28, 256, 3, 2, 1)),
    *((256, 14, 1024, 1, 1, 6), (512, 28, 1024, 1, 2, 1), (1024, 14, 256, 1, 1, 5), (256, 14, 256, 3, 1, 5)),
    *((1024, 14, 512, 1, 1, 1), (512, 14, 512, 3, 2, 1), (512, 7, 2048, 1, 1, 3), (1024, 14, 2048, 1, 2, 1)),
    *((2048, 7, 512, 1, 1, 2), (512, 7, 512, 3, 1, 2)),
)
DEPTHWISE = (
    *((32, 112, 32, 3, 1, 1), (96, 112, 96, 3, 2, 1), (144, 56, 144, 3, 1, 1), (144, 56, 144, 3, 2, 1)),
    *((192, 28, 192, 3, 1, 2), (192, 28, 192, 3, 2, 1), (384, 14, 384, 3, 1, 4), (576, 14, 576, 3, 1, 2)),
    *((576, 14, 576, 3, 2, 1), (960, 7, 960, 3, 1, 3)),
)
# Channels, size, and how often: the batch normalizations of ResNet-50.
NORMALIZATIONS = (
    *((64, 112, 1), (64, 56, 6), (256, 56, 4), (128, 56, 1), (128, 28, 7), (512, 28, 5), (256, 28, 1)),
    *((256, 14, 11), (1024, 14, 7), (512, 14, 1), (512, 7, 5), (2048, 7, 4)),
)
# Channels, size, width, stride, and how often: the blocks of ResNet-50.
BOTTLENECKS = (
    *((64, 56, 64, 1, 1), (256, 56, 64, 1, 2), (256, 56, 128, 2, 1), (512, 28, 128, 1, 3)),
    *((512, 28, 256, 2, 1), (1024, 14, 256, 1, 5), (1024, 14, 512, 2, 1), (2048, 7, 512, 1, 2)),
)
POOLED = ((64, 112, 1), (2048, 7, 1))  # by 3 x 3 windows, and as a whole
IMAGES = 8
LAYER_AIM = 1.0  # times CPU, in total
TOKENS = (256, 1024, 2048, 8192)
HEADS, HEAD_WIDTH = 8, 64
ATTENTION_AIM = 1.3  # times CPU
ATTENTION_TYPES = ("float32", "bfloat16")
AVX2_ALONE = {  # of anynpu, oneDNN, MKL and PyTorch
    "ANYNPU_MAX_ISA": "avx2",
    "ONEDNN_MAX_CPU_ISA": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}
ROUNDS = 9
MOST_OF_INT8, ROUNDS_OF_INT8 = 2**31, 3  # products; the CPU's are a plain loop
TURN = 0.05  # seconds, about


def linear(device, shape, dtype):
    """F.linear, as eager models call it; of int8 the product whose sums are int32."""
    import torch

    x, weight = operands(device, shape, dtype)
    if dtype == "int8":
        return lambda: torch._int_mm(x, weight.t())
    return lambda: torch.nn.functional.linear(x, weight)


def packed_linear(device, shape, dtype):
    """oneDNN's linear, with the weight in the layout that it picks for this shape."""
    import torch

    x, weight = operands(device, shape, dtype)
    supported = {
        "bfloat16": torch.ops.mkldnn._is_mkldnn_bf16_supported,
        "float16": torch.ops.mkldnn._is_mkldnn_fp16_supported,
        "int8": lambda: False,
    }
    if not supported.get(dtype, lambda: True)():
        return None
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, shape[0])
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def system_linear(device, shape, dtype):
    """The same of the system's oneDNN (cpp/onednn.cpp), in a process without torch, which has its own."""
    if not SYSTEM_ONEDNN.exists():
        return None
    onednn = ctypes.CDLL(str(SYSTEM_ONEDNN))
    onednn.onednn_linear.restype = ctypes.c_void_p
    made = onednn.onednn_linear(*map(ctypes.c_int64, shape), dtype.encode())
    return made and functools.partial(onednn.onednn_run, ctypes.c_void_p(made))


def copy(device, shape, dtype):
    """Of a tensor like the weight."""
    import torch

    _, weight = operands(device, shape, dtype)
    out = torch.empty_like(weight)
    return lambda: out.copy_(weight)


def convolution(device, shape, dtype, layout="plain"):
    """Of tensors as models have them: what formats a device computes in is its own work."""
    import torch

    x, weight, options = of_convolution(device, shape, dtype, layout)
    return lambda: torch.nn.functional.conv2d(x, weight, **options)


def convolution_gradients(device, shape, dtype, layout="plain"):
    """Those of the images and of the weight."""
    import torch

    x, weight, options = of_convolution(device, shape, dtype, layout)
    gradient = laid_out(torch.ones_like(torch.nn.functional.conv2d(x, weight, **options)), layout)
    stride, padding, groups = options["stride"], options["padding"], options["groups"]
    geometry = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, [True, True, False])
    return lambda: torch.ops.aten.convolution_backward(gradient, x, weight, None, *geometry)


def laid_out(x, layout):
    """A batch of images, plain, with their channels last, or on npu in NC1HWC0."""
    import torch

    if layout == "channels_last":
        return x.to(memory_format=torch.channels_last)
    if layout == "NC1HWC0" and x.device.type == "npu":
        return torch.ops.npu.npu_format_cast(x, 3)
    return x


def of_convolution(device, shape, dtype, layout):
    import torch

    (channels, size, outputs, taps, stride, _), is_depthwise = shape, shape in DEPTHWISE
    groups = channels if is_depthwise else 1
    make = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(sizes, generator=make).to(getattr(torch, dtype)).to(device)
        for sizes in ((IMAGES, channels, size, size), (outputs, channels // groups, taps, taps))
    )
    return laid_out(x, layout), weight, {"stride": stride, "padding": taps // 2, "groups": groups}


def operands(device, shape, dtype):
    import torch

    rows, depth, columns = shape
    make = torch.Generator().manual_seed(0)
    scale = 20 if dtype == "int8" else 1
    return (
        (torch.randn(size, generator=make) * scale).to(getattr(torch, dtype)).to(device)
        for size in ((rows, depth), (columns, depth))
    )


def heads(device, tokens, dtype, count):
    """Queries, keys, values and so on: one batch of HEADS heads."""
    import torch

    make = torch.Generator().manual_seed(0)
    shape = (1, HEADS, tokens, HEAD_WIDTH)
    return [
        torch.randn(shape, generator=make).to(getattr(torch, dtype)).to(device).requires_grad_()
        for _ in range(count)
    ]


def attention(device, shape, dtype):
    import torch

    tokens, causal = shape
    inputs = [x.detach() for x in heads(device, tokens, dtype, 3)]
    return lambda: torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)


def attention_backward(device, shape, dtype):
    import torch

    tokens, causal = shape
    *inputs, grad = heads(device, tokens, dtype, 4)
    out = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)
    return lambda: torch.autograd.grad(out, inputs, grad.detach(), retain_graph=True)


def attention_memory(device, tokens, dtype):
    """A generator: the bytes that forward and backward need at most beside their inputs."""
    import torch

    *inputs, grad = heads(device, tokens, dtype, 4)
    while True:
        torch.npu.synchronize()
        torch.npu.reset_peak_memory_stats()
        before = torch.npu.memory_allocated()
        out = torch.nn.functional.scaled_dot_product_attention(*inputs)
        torch.autograd.grad(out, inputs, grad.detach())
        torch.npu.synchronize()
        yield torch.npu.max_memory_allocated() - before


def fastest(device, make, shape, dtype):
    """A generator: for each turn the fastest of the calls that fit it, in seconds, each waited for."""
    run = make(device, shape, dtype)
    while run is None:  # this processor has no such call
        yield math.nan
    wait = sys.modules["torch"].npu.synchronize if device == "npu" else lambda: None
    while True:
        times, end = [], time.perf_counter() + TURN
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            run()
            wait()
            times.append(time.perf_counter() - start)
        yield min(times)


def measure(sides, makers, shape, dtype, rounds=ROUNDS):
    """The medians of the sides, and by how many times the first one is faster, turn by turn."""
    for side, make in zip(sides, makers, strict=True):
        side.start(fastest, make, shape, dtype)
    list(take_turns(sides, 1))
    turns = list(take_turns(sides, rounds))
    seconds = [statistics.median(column) for column in zip(*turns, strict=True)]
    gains = [statistics.median(turn[i] / turn[0] for turn in turns) for i in range(1, len(sides))]
    return seconds, gains


def judged(gain, aim):
    if math.isnan(gain):
        return "none"
    if aim is None:
        return f"{gain:.2f}"
    return f"{gain:.2f} [{'green' if gain >= aim else 'red'}]({'met' if gain >= aim else 'missed'}: {aim})[/]"


def measure_products(dtype, sides, advance):
    table = table_of(
        f"F.linear, {dtype}",
        *("rows x depth x columns", "npu", "times PyTorch's oneDNN packed", "the system's", "times CPU"),
    )
    found = {}
    makers = (linear, packed_linear, system_linear, linear)
    most, rounds = (MOST_OF_INT8, ROUNDS_OF_INT8) if dtype == "int8" else (math.inf, ROUNDS)
    for shape in (shape for shape in SHAPES if math.prod(shape) <= most):
        seconds, (*onednn, cpu) = measure(sides, makers, shape, dtype, rounds)
        found[str(shape)] = {"seconds": seconds, "onednn": onednn, "cpu": cpu}
        speed = 2e-9 * shape[0] * shape[1] * shape[2] / seconds[0]
        of_onednn, of_cpu = AIMS[dtype]
        row = (f"{speed:.0f} GFLOP/s", *(judged(gain, of_onednn) for gain in onednn), judged(cpu, of_cpu))
        table.add_row(" x ".join(map(str, shape)), *row)
        advance()
    return table, found


def measure_vectors(dtype, sides, advance):
    """Bytes of the weight a second, beside those that copy_ on npu reads and writes."""
    table = table_of(
        f"one row, {dtype}",
        *("depth x columns", "npu", "of copy", "times PyTorch's oneDNN packed", "the system's", "times CPU"),
    )
    found = {}
    makers = (linear, packed_linear, system_linear, linear)
    for shape in VECTORS:
        npu = sides[0]
        seconds, gains = measure(sides, makers, shape, dtype)
        npu.start(fastest, copy, shape, dtype)
        copied = statistics.median(value for (value,) in take_turns([npu], ROUNDS))
        share = copied / 2 / seconds[0]
        found[str(shape)] = {"seconds": seconds, "gains": gains, "of_copy": share}
        size = VECTOR_TYPES[dtype] * shape[1] * shape[2]
        row = (f"{size / seconds[0] * 1e-9:.1f} GB/s", judged(share, COPY_SHARE))
        row += tuple(judged(gain, None) for gain in gains)
        table.add_row(f"{shape[1]} x {shape[2]}", *row)
        advance()
    return table, found


def measure_layers(title, make, shapes, dtype, sides, advance):
    """Each, and all that a model has of them."""
    table = table_of(f"{title}, {IMAGES} images, {dtype}", "layer", "npu", "CPU", "times CPU")
    found, totals = {}, [0, 0]
    for shape in shapes:
        channels, size, *window, count = shape
        npu, *_, cpu = sides
        seconds, (gain,) = measure((npu, cpu), (make, make), shape, dtype)
        totals = [total + count * one for total, one in zip(totals, seconds, strict=True)]
        found[str(shape)] = {"seconds": seconds, "cpu": gain}
        name = f"{count} x {channels} x {size} x {size}"
        if window:
            outputs, taps, stride = window
            name += f" to {outputs}, {taps} x {taps} / {stride}"
        table.add_row(name, *(f"{one * 1e3:.2f} ms" for one in seconds), judged(gain, None))
        advance()
    found["total"] = totals
    times = (f"{total * 1e3:.0f} ms" for total in totals)
    table.add_row("in total", *times, judged(totals[1] / totals[0], LAYER_AIM))
    return table, found


def of_normalization(device, shape, dtype):
    """Images, then weight, bias, running mean and variance."""
    import torch

    channels, size, _ = shape
    make = torch.Generator().manual_seed(0)
    x = torch.randn((IMAGES, channels, size, size), generator=make).to(getattr(torch, dtype)).to(device)
    return x, [torch.ones(channels, device=device) for _ in range(4)]


def normalization(training, device, shape, dtype):
    import torch

    x, (weight, bias, mean, variance) = of_normalization(device, shape, dtype)
    return lambda: torch.nn.functional.batch_norm(x, mean, variance, weight, bias, training)


def normalization_gradients(device, shape, dtype):
    import torch

    x, given = of_normalization(device, shape, dtype)
    weight, _, mean, variance = given
    _, *kept = torch.ops.aten.native_batch_norm(x, *given, True, 0.1, 1e-5)
    backward, wanted = torch.ops.aten.native_batch_norm_backward, [True] * 3
    return lambda: backward(x, x, weight, mean, variance, *kept, True, 1e-5, wanted)


def pooling(device, shape, dtype):
    import torch

    x, _ = of_normalization(device, shape, dtype)
    pool = torch.nn.functional
    return lambda: pool.adaptive_avg_pool2d(x, 1) if shape == POOLED[1] else pool.max_pool2d(x, 3, 2, 1)


def pooling_gradients(device, shape, dtype):
    import torch

    x = of_normalization(device, shape, dtype)[0].requires_grad_()
    pool = torch.nn.functional
    y = pool.adaptive_avg_pool2d(x, 1) if shape == POOLED[1] else pool.max_pool2d(x, 3, 2, 1)
    gradient = torch.ones_like(y)
    return lambda: torch.autograd.grad(y, x, gradient, retain_graph=True)


def bottleneck(in_blocks, trains, device, shape, dtype):
    """A block of ResNet-50, of an image as the block before it gives it: plain, or in NC1HWC0."""
    import torch

    from bench.models import Bottleneck

    channels, size, width, stride, _ = shape
    torch.manual_seed(0)
    block = Bottleneck(channels, width, stride).to(device).train(trains)
    x = torch.randn((IMAGES, channels, size, size)).to(getattr(torch, dtype)).to(device)
    x = laid_out(x, "NC1HWC0" if in_blocks else "plain")
    if not trains:

        def forward():
            with torch.no_grad():
                block(x)

        return forward
    x.requires_grad_()
    gradient = torch.ones_like(block(x).detach())
    return lambda: torch.autograd.backward(block(x), gradient)


def measure_formats(title, trains, dtype, sides, advance):
    """Blocks of layers in NC1HWC0 beside plain memory and the CPU."""
    table = table_of(
        f"{title}, {IMAGES} images, {dtype}", "block", "NC1HWC0", "plain", "CPU", "times plain", "times CPU"
    )
    makers = [functools.partial(bottleneck, in_blocks, trains) for in_blocks in (True, False, False)]
    found, totals = {}, [0, 0, 0]
    npu, *_, cpu = sides
    with Side("npu") as plain:
        for shape in BOTTLENECKS:
            channels, size, width, stride, count = shape
            seconds, gains = measure((npu, plain, cpu), makers, shape, dtype)
            totals = [total + count * one for total, one in zip(totals, seconds, strict=True)]
            found[str(shape)] = {"seconds": seconds, "plain": gains[0], "cpu": gains[1]}
            times = (f"{one * 1e3:.2f} ms" for one in seconds)
            name = f"{count} x {channels} x {size} x {size}, {width} / {stride}"
            table.add_row(name, *times, *(judged(gain, None) for gain in gains))
            advance()
    found["total"] = totals
    times = (f"{total * 1e3:.0f} ms" for total in totals)
    table.add_row("in total", *times, *(judged(total / totals[0], LAYER_AIM) for total in totals[1:]))
    return table, found


FORMAT_PARTS = (
    ("blocks of ResNet-50, inference", False),
    ("blocks of ResNet-50, training", True),
)
NORMALIZATION_PARTS = (
    ("batch normalization of ResNet-50, training", functools.partial(normalization, True), NORMALIZATIONS),
    ("batch normalization of ResNet-50, inference", functools.partial(normalization, False), NORMALIZATIONS),
    ("gradients of batch normalization of ResNet-50", normalization_gradients, NORMALIZATIONS),
    ("pooling of ResNet-50: maxima, mean of all", pooling, POOLED),
    ("gradients of pooling of ResNet-50", pooling_gradients, POOLED),
)
CONVOLUTION_PARTS = (
    ("convolutions of ResNet-50", convolution, CONVOLUTIONS),
    ("gradients of convolutions of ResNet-50", convolution_gradients, CONVOLUTIONS),
    *(
        (f"{title} of MobileNetV2, {layout}", functools.partial(make, layout=layout), DEPTHWISE)
        for layout in ("plain", "channels_last", "NC1HWC0")
        for title, make in (
            ("depthwise convolutions", convolution),
            ("gradients of depthwise convolutions", convolution_gradients),
        )
    ),
)


def measure_attention(dtype, sides, advance):
    """Forward and backward, with all keys seen and causal; and the memory of both on npu."""
    table = table_of(
        f"attention, {HEADS} heads of {HEAD_WIDTH}, {dtype}",
        "tokens",
        "npu",
        "times CPU",
        "MiB beside inputs",
    )
    found = {}
    npu, *_, cpu = sides
    for tokens in TOKENS:
        npu.start(attention_memory, tokens, dtype)
        ((memory,),) = take_turns([npu], 1)
        for name, make, products in (("forward", attention, 2), ("backward", attention_backward, 5)):
            for causal in (False, True):
                # Rivals take minutes for the longest.
                rounds = ROUNDS if tokens <= 2048 else 3
                seconds, (gain,) = measure((npu, cpu), (make, make), (tokens, causal), dtype, rounds)
                label = f"{tokens}, {name}{', causal' if causal else ''}"
                found[label] = {"seconds": seconds, "cpu": gain, "bytes": memory}
                work = 2e-9 * products * HEADS * HEAD_WIDTH * tokens**2 / (2 if causal else 1)
                speed = f"{work / seconds[0]:.0f} GFLOP/s"
                table.add_row(label, speed, judged(gain, ATTENTION_AIM), f"{memory / 2**20:.1f}")
                advance()
    return table, found


# What is measured of which types.
PARTS = {
    "products": (tuple(AIMS), {"products": measure_products}),
    "one row": (tuple(VECTOR_TYPES), {"one row": measure_vectors}),
    "attention": (ATTENTION_TYPES, {"attention": measure_attention}),
    **{
        name: (
            ("float32",),
            {title: functools.partial(measure_layers, title, *rest) for title, *rest in parts},
        )
        for name, parts in (("convolution", CONVOLUTION_PARTS), ("normalization", NORMALIZATION_PARTS))
    },
    "formats": (
        ("float32",),
        {title: functools.partial(measure_formats, title, trains) for title, trains in FORMAT_PARTS},
    ),
}


def main():
    parser = report.parser_of("cube", __doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="this part; may be repeated")
    parser.add_argument("--dtype", action="append", choices=AIMS, help="this type; may be repeated")
    parser.add_argument("--avx2", action="store_true", help="mask what the processor has beyond AVX2")
    options = parser.parse_args()
    if options.avx2:
        os.environ.update(AVX2_ALONE)
    console = report.console()
    found = {}
    with (
        Progress(console=console, transient=True) as bar,
        Side("npu") as npu,
        Side("cpu") as onednn,
        Side("cpu") as system,
        Side("cpu") as cpu,
    ):
        task = bar.add_task("cube", total=None)
        for part in options.only or PARTS:
            dtypes, measures = PARTS[part]
            for dtype in (dtype for dtype in dtypes if dtype in (options.dtype or AIMS)):
                for name, measured in measures.items():
                    table, figures = measured(dtype, (npu, onednn, system, cpu), lambda: bar.advance(task))
                    console.print(table)
                    found[f"{name} {dtype}"] = figures
    report.finish(console, options, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
