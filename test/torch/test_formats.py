"""Tensors whose memory is in blocks: their values are those of plain ones, whatever reads or writes them."""

import copy
import io
import itertools
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from formats import DTYPES, EACH, NC1HWC0, NZ, conversions, formatted, random
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedOperatorException
from torch.utils._python_dispatch import TorchDispatchMode

import torch_npu
from torch_npu import Format
from torch_npu import npu_format_cast as cast


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("format, shape", EACH, ids=str)
def test_a_cast_keeps_values_and_looks(format, shape, dtype):
    x = random(shape, dtype)
    ours = cast(x.npu(), format)
    assert torch_npu.get_npu_format(ours) == format
    assert (ours.shape, ours.stride(), ours.dtype) == (x.shape, x.stride(), x.dtype)
    assert ours.untyped_storage().nbytes() == x.untyped_storage().nbytes()
    assert torch.equal(ours.cpu(), x)
    assert torch_npu.get_npu_format(ours) == format  # reading leaves it
    back = cast(ours, Format.ND)
    assert torch_npu.get_npu_format(back) in (Format.ND, Format.NCHW, Format.NCDHW)
    assert torch.equal(back.cpu(), x)


@pytest.mark.parametrize("layout", ["turned", "gaps", "part", "repeated"])
def test_a_cast_takes_any_strides(layout):
    x = random((4, 6, 20, 8))
    x = {
        "turned": x.permute(3, 2, 0, 1),
        "gaps": x[:, :, ::2, 1::3],
        "part": x[1:3],
        "repeated": x[:1].expand(3, -1, -1, -1),
    }[layout]
    assert torch.equal(cast(x.npu(), NC1HWC0).cpu(), x)


def test_memory_is_in_blocks():
    """Of the channels of a position 16 are side by side, and padding is counted."""
    for shape, size in (((2, 32, 5, 7), 2 * 32 * 35), ((3, 5, 4, 6), 3 * 16 * 24)):
        assert torch_npu.get_storage_size(cast(torch.zeros(shape).npu(), NC1HWC0)) == size
    assert torch_npu.get_storage_size(cast(torch.zeros(5, 17).npu(), NZ)) == 16 * 32
    assert torch_npu.get_storage_size(torch.zeros(5, 17).npu()) == 5 * 17


def test_formats_by_number():
    assert torch_npu.get_npu_format(torch.zeros(2, 2).npu()) == Format.ND
    assert torch_npu.get_npu_format(torch.zeros(2, 2, 2, 2).npu()) == Format.NCHW
    assert torch_npu.get_npu_format(torch.zeros(2, 2, 2, 2, 2).npu()) == Format.NCDHW
    x = torch.zeros(2, 2, 2, 2).npu()
    assert cast(x, Format.NCHW) is x
    blocks = cast(x, 3)
    assert cast(blocks, NC1HWC0) is blocks
    with pytest.raises(RuntimeError, match=r"acl_format is 3; of a tensor of 2 dimensions 2 \(ND\), 29"):
        cast(torch.zeros(2, 2).npu(), 3)
    with pytest.raises(RuntimeError, match="npu_format_cast: acl_format is 1"):
        cast(x, Format.NHWC)
    with pytest.raises(RuntimeError, match="npu_format"):
        torch.ops.npu.get_npu_format(torch.zeros(2))


def test_casts_in_place():
    x = random((2, 20, 3, 4)).npu()
    view, wanted = x[:, 3], x.cpu()
    assert torch_npu.npu_format_cast_(x, NC1HWC0) is x
    assert torch_npu.get_npu_format(view) == NC1HWC0
    assert torch.equal(view.cpu(), wanted[:, 3])
    assert torch.equal(x.cpu(), wanted)
    torch_npu.npu_format_cast_(x, Format.NCHW)
    assert torch_npu.get_npu_format(x) == Format.NCHW
    assert torch.equal(x.cpu(), wanted)
    with pytest.raises(RuntimeError, match="contiguous and all of its storage"):
        torch_npu.npu_format_cast_(x[1:], NC1HWC0)


def test_gradients_go_through_casts():
    x = random((2, 20, 3, 4)).npu().requires_grad_()
    cast(cast(x, NC1HWC0) * 3, Format.NCHW).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full(x.shape, 3.0))


def test_modes_of_dispatch_see_casts():
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.append(function)
            return function(*arguments, **(options or {}))

    for x in (random((2, 20, 3, 4)).npu(), random((2, 20, 3, 4)).npu().requires_grad_()):
        with Watch():
            ours = cast(x, NC1HWC0)
        assert torch.ops.npu.npu_format_cast.default in seen and torch.equal(ours.cpu(), x.detach().cpu())
        seen.clear()


def test_fake_tensors_are_not_cast():
    with FakeTensorMode():
        x = torch.empty(2, 20, 3, 4, device="npu")
        for format in (NC1HWC0, Format.NCHW, Format.ND):
            with pytest.raises(UnsupportedOperatorException, match="npu_format_cast"):
                torch.ops.npu.npu_format_cast(x, int(format))


def test_empty_with_format():
    made = torch_npu.empty_with_format((2, 5, 3, 3), dtype=torch.float16, device="npu", acl_format=3)
    assert (torch_npu.get_npu_format(made), made.dtype) == (NC1HWC0, torch.float16)
    assert torch.equal(made.fill_(2).cpu(), torch.full((2, 5, 3, 3), 2.0, dtype=torch.float16))
    assert torch_npu.get_npu_format(torch_npu.empty_with_format((2, 2))) == Format.ND


def test_likes_have_the_format():
    x = random((2, 20, 3, 4))
    ours = formatted(x)
    for made, wanted in (
        (ours.clone(), x),
        (torch.zeros_like(ours), torch.zeros_like(x)),
        (torch.full_like(ours, 3, dtype=torch.float64), torch.full_like(x, 3, dtype=torch.float64)),
        (torch.empty_like(ours).copy_(ours), x),
        (torch.empty_like(ours).copy_(x.npu()), x),
        (torch.empty_like(ours).copy_(x), x),
        (torch.empty_like(ours, dtype=torch.float16).copy_(ours), x.half()),
        (torch.empty_like(ours).copy_(x[:1].npu()), x[:1].expand_as(x)),
    ):
        assert torch_npu.get_npu_format(made) == NC1HWC0
        assert torch.equal(made.cpu(), wanted)
    last = ours.clone(memory_format=torch.channels_last)
    assert torch_npu.get_npu_format(last) == Format.NCHW
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last.cpu(), x)


# What is done to a tensor, or with it; each gives what there is to compare.
USES = {
    "view": lambda x: x.view(-1),
    "part": lambda x: x[:, 3:7, 1],
    "turned": lambda x: x.permute(3, 1, 0, 2),
    "as_strided": lambda x: x.as_strided((3, 4), (5, 2), 7),
    "item": lambda x: x[1, 2, 0, 1].item(),
    "tolist": lambda x: x.tolist(),
    "bits": lambda x: x.view(torch.int32),
    "text": lambda x: str(x.cpu()),
    "sum": lambda x: x.sum((0, 2)),
    "cat": lambda x: torch.cat((x, x), 1),
    "index": lambda x: x[:, [3, 1, 4]],
    "matmul": lambda x: x @ x.mT,
    "sort": lambda x: x.sort(1).values,
    "softmax": lambda x: x.softmax(1),
    "batch norm with a weight of its own": lambda x: F.batch_norm(
        x, None, None, x.view(-1)[:20], x[0, :, 0, 0], training=True
    ),
    "where": lambda x: torch.where(x > 0, x, 0 * x),
    "broadcast": lambda x: x + x[:1, :, :1, :1],
    "where parts are written": lambda x: x[:, 2:5].mul_(3)._base,
    "added in place": lambda x: x.add_(1),
    "added in place to itself": lambda x: x.add_(x),
    "added in place from a view": lambda x: x.add_(x.flip(1)),
    "written by a fallback": lambda x: x.cumsum_(1).index_fill_(1, torch.tensor([1], device=x.device), 5.0),
    "written through a view": lambda x: (x.view(-1).mul_(2), x)[1],
    "as a result": lambda x: torch.mul(x.clone(), 2, out=x),
    "as a result of a fallback": lambda x: torch.logcumsumexp(x.clone(), 1, out=x),
    "as operand and result": lambda x: torch.cumsum(x, 1, out=x),
    "zeroed": lambda x: x.zero_(),
    "filled in part": lambda x: x[1].fill_(3)._base,
    "filled by an operator": lambda x: torch.full_like(x[0], 2, memory_format=torch.contiguous_format),
    "resized": lambda x: x.resize_(2, 20, 2),
    "enlarged": lambda x: x.resize_(60, 20)[: 2 * 12],
    "set": lambda x: torch.empty(0, device=x.device).set_(x.untyped_storage(), 3, (7, 2), (2, 1)),
    "exchanged": lambda x: torch.empty_like(x).set_(x),
    "data": lambda x: torch.empty(0, device=x.device).data.set_(x.data),
    "random": lambda x: x.uniform_(2, 2),
    "list": lambda x: torch._foreach_add([x, x[0]], 2)[1],
    "list in place": lambda x: (torch._foreach_mul_([x, x.clone()], 2), x)[1],
    "norm": lambda x: torch.linalg.vector_norm(x),
    "storage": lambda x: torch.tensor(list(x.cpu().untyped_storage())),
    "copied storage": lambda x: torch.empty(0, device=x.device).set_(x.untyped_storage().clone(), 0, x.shape),
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "half": lambda x: x.half(),
    "to the other device": lambda x: x.to("npu:1") if x.device.type == "npu" else x,
    "dlpack": lambda x: torch.from_dlpack(x),
    "sparse": lambda x: x.to_sparse().coalesce().values(),
    "sparse of it": lambda x: torch.sparse_coo_tensor(torch.arange(20)[None].to(x.device), x).to_dense(),
    "conj": lambda x: torch.view_as_complex(x[..., :2].clone()).conj().resolve_conj(),
    "dropout": lambda x: F.dropout(x, 0.0),
    "pooled without a batch": lambda x: F.max_pool2d(x[0], 2),
    "convolved in groups": lambda x: F.conv2d(x, x[:20, :1, :2, :2], groups=20),
    "unfold": lambda x: x.unfold(3, 2, 1),
    "split": lambda x: x.split(7, 1)[2],
    "pinned": lambda x: x.cpu().pin_memory(),
}


def host(value):
    return value.cpu() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("format", [NC1HWC0, NZ, Format.FRACTAL_Z], ids=str)
@pytest.mark.parametrize("use", USES)
def test_values_are_right_in_every_use(use, format):
    x = random((20, 20, 3, 4))
    plain, ours = x.npu(), formatted(x, format)
    wanted, got = host(USES[use](plain)), host(USES[use](ours))
    if isinstance(wanted, torch.Tensor):
        assert got.shape == wanted.shape and got.dtype == wanted.dtype
        assert torch.equal(got, wanted)
    else:
        assert got == wanted
    assert torch.equal(ours.cpu(), plain.cpu())  # what became of the tensor itself


def test_an_address_makes_memory_plain():
    x = random((2, 20, 3, 4))
    ours = formatted(x)
    torch_npu.reset_fallback_stats()
    address = ours.data_ptr()
    assert address != 0 and ours.data_ptr() == address == ours.untyped_storage().data_ptr()
    assert conversions("data_ptr") == conversions() == 1
    assert torch_npu.get_npu_format(ours) == Format.NCHW
    assert torch.equal(ours.cpu(), x)


def test_files_and_modules():
    x = random((2, 20, 3, 4))
    file = io.BytesIO()
    torch.save({"x": formatted(x)}, file)
    assert torch.equal(torch.load(io.BytesIO(file.getvalue()))["x"].cpu(), x)
    convolution = torch.nn.Conv2d(20, 8, 3, padding=1).npu()
    wanted = convolution(x.npu())
    for parameter in convolution.parameters():
        if parameter.dim() == 4:
            parameter.data = cast(parameter.data, Format.FRACTAL_Z)
    assert torch_npu.get_npu_format(convolution.weight) == Format.FRACTAL_Z
    assert torch.equal(convolution(x.npu()), wanted)
    other = torch.nn.Conv2d(20, 8, 3, padding=1).npu()
    other.load_state_dict(copy.deepcopy(convolution.state_dict()))
    assert torch.equal(other(x.npu()), wanted)
    torch.optim.SGD(convolution.parameters(), 0.1).zero_grad()
    convolution(x.npu()).sum().backward()
    before = convolution.weight.detach().cpu()
    torch.optim.AdamW(convolution.parameters(), 0.1, fused=True).step()
    assert not torch.equal(convolution.weight.detach().cpu(), before)


def test_it_is_converted_once_for_several_readers():
    ours = formatted(random((2, 20, 3, 4)))
    torch_npu.reset_fallback_stats()
    for _ in range(3):
        ours.sum(1), ours[0].cpu()
    assert conversions() == 1
    ours.add_(1)  # in blocks
    assert conversions() == 1
    ours.sum(1)
    assert conversions() == 2
    torch_npu.reset_fallback_stats()
    ours[0].add_(1)
    ours.sum(1)
    assert conversions() == 0 and torch_npu.get_npu_format(ours) == Format.NCHW


def test_streams():
    """A conversion that one stream has made is waited for by others, and memory outlives its readers."""
    x = random((4, 40, 32, 32))
    streams = [torch.npu.Stream() for _ in range(3)]
    for round in range(10):
        ours = formatted(x + round)
        torch.npu.synchronize()
        sums = []
        for stream in streams:
            stream.wait_stream(torch.npu.current_stream())
            with torch.npu.stream(stream):
                sums.append((ours.sum(1), (ours * 2).sum(1)))
        with torch.npu.stream(streams[0]):
            for stream in streams[1:]:
                streams[0].wait_stream(stream)
            ours.view(-1).mul_(0)  # plain, on another stream than its own
            zeros = ours.sum(1)
        torch.npu.synchronize()
        wanted = (x + round).npu().sum(1)
        for once, twice in sums:
            assert torch.equal(once, wanted)
            torch.testing.assert_close(twice, wanted * 2)
        assert torch.equal(zeros.cpu(), torch.zeros(wanted.shape))


def test_threads():
    x = random((4, 40, 16, 16))
    wanted = x.npu().sum(1).cpu()
    for _ in range(20):
        ours, results = formatted(x), [None] * 4
        start = threading.Barrier(len(results))

        def read(i, ours=ours, results=results, start=start):
            start.wait()
            results[i] = ours.sum(1).cpu() if i % 2 else ours.view(4, 40, -1).cpu().view_as(x).sum(1)

        threads = [threading.Thread(target=read, args=(i,)) for i in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            torch.testing.assert_close(result, wanted)
        assert torch_npu.get_npu_format(ours) == NC1HWC0


def test_other_processes(fresh_python):
    """A tensor that is sent to another process becomes plain, which is what that one reads."""
    fresh_python(SENDER)


SENDER = """
import torch, torch_npu
import torch.multiprocessing as mp

def read(queue, answer):
    answer.put(queue.get().cpu().tolist())

if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue, answer = context.Queue(), context.Queue()
    child = context.Process(target=read, args=(queue, answer))
    child.start()
    x = torch.arange(2 * 5 * 2 * 2.0).view(2, 5, 2, 2)
    ours = torch_npu.npu_format_cast(x.npu(), 3)
    queue.put(ours)
    assert answer.get() == x.tolist()
    child.join()
"""


def tensors_in_formats(value):
    """Those on npu with two dimensions or more; views of one storage stay views of one."""
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(tensors_in_formats(each) for each in value)
    if isinstance(value, dict):
        return {key: tensors_in_formats(each) for key, each in value.items()}
    strided = (
        isinstance(value, torch.Tensor) and type(value) is torch.Tensor and value.layout == torch.strided
    )
    if not strided or value.dim() < 2 or value.is_nested or value.is_quantized:
        return value
    format = NC1HWC0 if value.dim() == 4 else NZ
    made = cast(value.detach(), format)
    return made.requires_grad_(value.requires_grad) if value.requires_grad else made


def moved(value):
    if isinstance(value, torch.Tensor):
        return value.detach().npu().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(moved(each) for each in value)
    if isinstance(value, dict):
        return {key: moved(each) for key, each in value.items()}
    return value


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return list(itertools.chain.from_iterable(map(flat, value)))
    return []


def operators():
    from torch.testing._internal.common_methods_invocations import op_db

    return [op for op in op_db if torch.float32 in op.dtypes]


@pytest.mark.parametrize("part", range(8))
def test_operators_of_pytorch(part):
    """Each with formatted tensors gives the bits that it gives with plain ones."""
    compared, failures = 0, []
    for op in operators()[part::8]:
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), 3):
            args, kwargs = moved([sample.input, *sample.args]), moved(sample.kwargs)
            if not any(each.dim() >= 2 for each in flat([args, list(kwargs.values())])):
                continue
            try:
                wanted = results_of(op, copied(args), copied(kwargs))
            except Exception:  # of the CPU too, or not of tensors on npu: the database's own tests say
                continue
            try:
                got = results_of(op, tensors_in_formats(args), tensors_in_formats(kwargs))
            except Exception as error:
                failures.append(f"{op.name} of {sample}: {error}")
                continue
            if op.name in UNINITIALIZED:
                continue
            same = len(got) == len(wanted) and all(map(same_bits, got, wanted))
            if not same:
                failures.append(f"{op.name} of {sample}: {got}, not {wanted}")
            compared += 1
    assert compared > 100
    assert not failures, "\n".join(failures)


def results_of(op, args, kwargs):
    torch.manual_seed(0)
    return [each.detach().to_dense().cpu() for each in flat(op(*args, **kwargs))]


def same_bits(a, b):
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype == torch.complex32:
        a, b = a.to(torch.complex64), b.to(torch.complex64)
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


UNINITIALIZED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


def copied(value):
    return copy.deepcopy(value) if not any(each.grad_fn for each in flat(list(value))) else value
