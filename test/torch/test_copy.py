"""Copies between npu and host and within npu, against the same copy on the CPU."""

import itertools

import pytest
import torch
from conformance.compare import Call, difference, observe

import torch_npu

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip

# Types that kernels of our own have no numbers of: their elements are moved as integers of that size.
MOVED_ONLY = [
    torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip

LAYOUTS = {
    "contiguous": lambda make: make(4, 6),
    "transposed": lambda make: make(6, 4).t(),
    "stepped": lambda make: make(8, 12)[::2, 1::2],
    "offset": lambda make: make(6, 6)[2:],
    "column": lambda make: make(2, 12).t()[:4, :1],
    "expanded": lambda make: make(1, 6).expand(4, 6),
}


def values(*shape, dtype=torch.float32):
    numbers = torch.arange(torch.Size(shape).numel()) % 13 - 4
    numbers = numbers if dtype.is_signed else numbers.abs()
    x = numbers.to(dtype)
    return (x + 0.5j * x if dtype.is_complex else x).view(shape)


def placed(x, place):
    """A tensor of the same values and strides as `x` on npu:0, npu:1, the host, or in pinned memory."""
    base = x.new_empty(0).set_(x.untyped_storage())
    base = base.pin_memory() if place == "pinned" else base.to(place, copy=True)
    return base.as_strided(x.shape, x.stride(), x.storage_offset())


PLACES = ["npu:0", "npu:1", "cpu", "pinned"]
ROUTES = [
    pair for pair in itertools.product(PLACES, PLACES) if any(place.startswith("npu") for place in pair)
]


@pytest.mark.parametrize("non_blocking", [False, True], ids=["blocking", "non-blocking"])
@pytest.mark.parametrize("route", ROUTES, ids="{0[0]} to {0[1]}".format)
def test_every_layout_arrives(route, non_blocking):
    for (source_name, source), (target_name, target) in itertools.product(LAYOUTS.items(), LAYOUTS.items()):
        if target_name == "expanded":
            continue
        from_, to = source(values), target(torch.zeros)
        if from_.numel() != to.numel() and from_.dim() != to.dim():
            continue
        if from_.shape != to.shape:
            from_ = from_[:, :1] if to.shape[1] == 1 else from_.expand(to.shape)
        expected = to.clone().copy_(from_)
        ours = placed(to, route[1])
        ours.copy_(placed(from_, route[0]), non_blocking=non_blocking)
        torch.npu.synchronize(0)
        torch.npu.synchronize(1)
        assert torch.equal(ours.cpu(), expected), (source_name, target_name)
        assert ours.stride() == to.stride()


@pytest.mark.parametrize(
    "route", [("npu", "npu"), ("cpu", "npu"), ("npu", "cpu")], ids="{0[0]} to {0[1]}".format
)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_every_pair_of_types_converts_as_on_the_cpu(route):
    for source, target in itertools.product(DTYPES, DTYPES):
        x = values(5, 3, dtype=source)
        expected = torch.zeros(5, 3, dtype=target).copy_(x)
        ours = torch.zeros(5, 3, dtype=target, device=route[1]).copy_(x.to(route[0]))
        assert torch.equal(ours.cpu(), expected), (source, target)


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_large_and_small_copies_agree(size):
    x = torch.randn(size)
    y = x.npu()
    assert torch.equal(y.cpu(), x)
    assert torch.equal(y.view(-1, 4).t().contiguous().cpu(), x.view(-1, 4).t())
    assert torch.equal(y.double().cpu(), x.double())


def test_broadcasting_and_its_errors_are_the_cpu_s():
    x = torch.zeros(3, 4, device="npu")
    assert torch.equal(x.copy_(torch.arange(4.0)).cpu(), torch.arange(4.0).expand(3, 4))
    for source in (torch.ones(5), torch.ones(2, 3, 4)):
        with pytest.raises(RuntimeError) as ours:
            x.copy_(source.npu())
        with pytest.raises(RuntimeError) as expected:
            torch.zeros(3, 4).copy_(source)
        assert str(ours.value) == str(expected.value)


def test_a_source_in_pageable_memory_may_change_after_the_call():
    torch.npu.synchronize()
    source = torch.ones(1 << 20)
    target = torch.empty_like(source, device="npu").copy_(source, non_blocking=True)
    source.zero_()
    assert target.sum().item() == 1 << 20


def busy(stream):
    """Makes `stream` busy for some time: copies that only the compute thread may run."""
    with torch.npu.stream(stream):
        x = torch.zeros(1 << 22, device="npu")
        for _ in range(8):
            x = x.view(2, -1).t().contiguous().view(-1)
    return x


def test_a_pinned_copy_returns_before_it_is_done_and_keeps_its_memory():
    stream = torch.npu.Stream()
    keep = busy(stream)
    source = torch.full((1 << 16,), 3.0).pin_memory()
    target = torch.zeros(1 << 16).pin_memory()
    with torch.npu.stream(stream):
        on_device = torch.empty(1 << 16, device="npu").copy_(source, non_blocking=True)
        target.copy_(on_device, non_blocking=True)
        early = not stream.query()
        place = source.data_ptr()
        del source
        others = [torch.zeros(1 << 16).pin_memory() for _ in range(3)]
        assert not early or all(other.data_ptr() != place for other in others)
    stream.synchronize()
    assert early, "the copies were done when the call returned"
    assert torch.equal(target, torch.full((1 << 16,), 3.0))
    assert keep.sum().item() == 0


def test_a_copy_to_the_host_waits_for_the_work_before_it():
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        x = busy(stream).add_(2)
        assert torch.equal(x.cpu(), torch.full((1 << 22,), 2.0))
        x.fill_(5)
        assert x[-1].item() == 5


def test_copies_between_devices_keep_the_order_of_both_streams():
    a, b = torch.zeros(1 << 20, device="npu:0"), torch.zeros(1 << 20, device="npu:1")
    for step in range(1, 6):
        a.fill_(step)
        b.copy_(a, non_blocking=True)
        a.copy_(b.fill_(-step), non_blocking=True)
        a.mul_(2)
    assert torch.equal(a.cpu(), torch.full((1 << 20,), -10.0))
    assert torch.equal(b.cpu(), torch.full((1 << 20,), -5.0))


def test_conjugate_and_negative_views_are_resolved():
    x = values(4, 6, dtype=torch.complex64)
    y = x.npu()
    assert torch.equal(y.conj().cpu(), x.conj())
    assert torch.equal(y.conj().imag.cpu(), x.conj().imag)
    assert torch.equal(torch.empty_like(y).copy_(y.t().contiguous().conj().t()).cpu(), x.conj())
    assert torch.equal(torch.zeros_like(y).conj().copy_(x).cpu(), x)


def test_overlapping_memory_is_refused():
    x = torch.arange(6.0, device="npu")
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        x[:1].expand(4).copy_(x[:4])
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to"):
        x[1:].copy_(x[:-1])
    assert torch.equal(x.copy_(x).cpu(), torch.arange(6.0))


def test_empty_tensors_and_scalars():
    assert torch.empty(0, 3, device="npu").copy_(torch.empty(0, 3)).cpu().shape == (0, 3)
    assert torch.zeros((), device="npu").copy_(torch.tensor(4.0)).item() == 4
    assert torch.tensor(True).npu().item() is True
    assert torch.tensor(2**62 + 1).npu().item() == 2**62 + 1


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [*DTYPES, *MOVED_ONLY], ids=str)
def test_fill_writes_every_element_and_nothing_else(dtype):
    for layout, make in LAYOUTS.items():
        for value in (0, 1, 5, *([1 - 2.5j] if dtype.is_complex else [])):
            for given in (value, torch.tensor(value))[: 1 if layout == "expanded" else 2]:
                x = make(lambda *shape: torch.zeros(shape, dtype=dtype))
                ours = placed(x, "npu")
                base = ours.new_empty(0).set_(ours.untyped_storage())
                x.fill_(given)
                torch_npu.reset_fallback_stats()
                ours.fill_(given)
                assert torch_npu.fallback_stats()["fallbacks"] == 0
                whole = x.new_empty(0).set_(x.untyped_storage())
                assert torch.equal(base.cpu().view(torch.uint8), whole.view(torch.uint8)), (layout, given)


@pytest.mark.parametrize("view", [torch.Tensor.conj, lambda x: x.conj().imag, torch._neg_view])
@pytest.mark.parametrize("value", [0, 2.5, torch.tensor(-3)])
def test_fill_sees_through_conjugate_and_negative_views(view, value):
    whole = {}
    for device in ("cpu", "npu"):
        whole[device] = torch.ones(5, dtype=torch.complex64, device=device)
        view(whole[device]).fill_(value)
    assert torch.equal(whole["npu"].cpu(), whole["cpu"])


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize(
    "dtype, value",
    [
        (torch.uint8, 1000),
        (torch.float16, 2**31),
        (torch.bfloat16, 1e39),
        (torch.float8_e4m3fn, 1000),
        (torch.float8_e5m2, 1e6),
        (torch.complex32, 1e6),
        (torch.float32, 1j),
    ],
    ids=str,
)
def test_fill_refuses_at_once_what_the_cpu_refuses(dtype, value, size):
    call = Call(lambda x: x.fill_(value), (torch.zeros(size, dtype=dtype),))
    assert not difference(observe(call, "npu"), observe(call, "cpu"))
    torch.npu.synchronize()


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_fill_refuses_tensors_where_the_cpu_does(device):
    for target, value in ((torch.zeros(3), torch.ones(2)), (torch.zeros(1).expand(3), torch.tensor(2.0))):
        with pytest.raises(RuntimeError) as expected:
            target.fill_(value)
        with pytest.raises(RuntimeError) as refused:
            placed(target, "npu").fill_(value.to(device))
        assert str(refused.value) == str(expected.value)


def test_fill_writes_numbers_and_scalars():
    x = torch.zeros(3, device="npu").fill_(torch.tensor(2.5))
    assert x.tolist() == [2.5] * 3
    x.fill_(torch.tensor(-0.0, device="npu"))
    assert torch.signbit(x).all()
    assert torch.zeros(3, dtype=torch.complex64, device="npu").fill_(1 - 2j).tolist() == [1 - 2j] * 3


def test_native_work_is_counted_as_launches():
    x = torch.ones(3, device="npu")
    torch_npu.reset_fallback_stats()
    x.zero_()
    x.copy_(torch.ones(3, device="npu"))
    stats = torch_npu.fallback_stats()
    assert stats["ops"]["aten::copy_"]["native_launches"] == 1
    assert stats["ops"]["aten::fill_"]["native_launches"] == 2
    assert stats["fallbacks"] == 0


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_move_and_convert():
    x = torch.arange(8.0).view(2, 4)
    for q in (
        torch.quantize_per_tensor(x, 0.5, 3, torch.quint8),
        torch.quantize_per_channel(x, torch.tensor([0.5, 0.25]), torch.tensor([0, 1]), 0, torch.qint8),
    ):
        moved = q.npu()
        assert moved.device.type == "npu" and moved.qscheme() == q.qscheme()
        assert torch.equal(moved.int_repr().cpu(), q.int_repr())
        assert torch.equal(moved.dequantize().cpu(), q.dequantize())
        assert torch.equal(moved.cpu().int_repr(), q.int_repr()) and moved.cpu().qscheme() == q.qscheme()
        if q.qscheme() == torch.per_channel_affine:
            assert torch.equal(moved.cpu().q_per_channel_scales(), q.q_per_channel_scales())
            assert q.q_per_channel_scales().untyped_storage().device.type == "cpu"
    ours = torch.quantize_per_tensor(x.npu(), 0.5, 3, torch.quint8)
    assert torch.equal(ours.int_repr().cpu(), torch.quantize_per_tensor(x, 0.5, 3, torch.quint8).int_repr())


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested")
def test_sparse_and_nested_tensors_move_and_compute():
    dense = torch.tensor([[0.0, 1, 0], [2, 0, 3]])
    for make in (torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc):
        sparse = make(dense)
        for ours in (sparse.npu(), make(dense.npu())):
            assert ours.device.type == "npu" and ours.layout == sparse.layout
            assert ours.values().device.type == "npu"
            assert torch.equal(ours.to_dense().cpu(), dense)
            assert torch.equal(ours.cpu().to_dense(), dense)
            assert torch.equal((ours @ torch.eye(3, device="npu")).cpu(), dense)
    coo = dense.npu().to_sparse()
    coo.add_(coo)
    assert torch.equal(coo.to_dense().cpu(), 2 * dense)
    assert torch.equal(coo.zero_().to_dense().cpu(), 0 * dense)
    with pytest.raises(NotImplementedError, match="layout Mkldnn"):
        dense.npu().to_mkldnn()
    nested = torch.nested.nested_tensor([dense, dense[:, :2]])
    assert torch.equal((nested.npu() * 2).to_padded_tensor(-1.0).cpu(), (nested * 2).to_padded_tensor(-1.0))
    assert torch.equal(nested.npu().cpu().to_padded_tensor(0.0), nested.to_padded_tensor(0.0))


SYNCHRONIZING = {
    "item": lambda x: x[0].item(),
    "cpu": lambda x: x.cpu(),
    "to npu": lambda x: torch.ones(2).to("npu"),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 1),
    "equal": lambda x: torch.equal(x, x + 1),
    "unique": lambda x: x.unique(),
    "if": lambda x: 1 if x.sum() > 0 else 2,
}


@pytest.mark.parametrize("call", SYNCHRONIZING)
def test_calls_that_synchronize_can_be_found(call):
    x = torch.arange(4.0, device="npu")
    assert torch.npu.get_sync_debug_mode() == 0
    try:
        torch.npu.set_sync_debug_mode("warn")
        with pytest.warns(UserWarning, match="synchronizing NPU operation"):
            SYNCHRONIZING[call](x)
        torch.npu.set_sync_debug_mode(2)
        with pytest.raises(RuntimeError, match="synchronizing NPU operation"):
            SYNCHRONIZING[call](x)
        y = (x.relu() @ torch.ones(4, device="npu")).add_(1)
        torch.empty(4).pin_memory().copy_(x, non_blocking=True)
        torch.npu.synchronize()
    finally:
        torch.npu.set_sync_debug_mode(0)
    assert y.item() == 7
    for wrong in ("loud", 3, -1):
        with pytest.raises(RuntimeError, match="debug_mode is"):
            torch.npu.set_sync_debug_mode(wrong)


# What C++ defines, and what x86 makes of the rest.
EDGES = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    127,
    128,
    255,
    256,
    300,
    -129,
    -300,
    32768,
    65504,
    2.0**31,
    2.0**31 + 5,
    2.0**32 + 7,
]
EDGES += [
    -(2.0**31) - 9,
    1e12,
    -1e12,
    2.0**62,
    1e19,
    -1e19,
    float("inf"),
    float("nan"),
    1e-40,
    1.5,
    2.5,
    70000.4,
]


@pytest.mark.parametrize("dtype", DTYPES[:-2], ids=str)
def test_casts_at_the_edges(dtype):
    x = torch.tensor(EDGES, dtype=torch.float64).repeat(3)
    x = (x if dtype.is_floating_point else x.nan_to_num(0, 0, 0).clamp(-(2**62), 2**62)).to(dtype)
    for other in DTYPES[:-2]:
        expected, ours = x.to(other), x.npu().to(other).cpu()
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True, msg=f"to {other}")
        if other.is_floating_point and dtype.is_floating_point:
            assert ours.signbit()[ours == 0].equal(expected.signbit()[expected == 0])


@pytest.mark.parametrize("shape", [(70, 33, 5), (3, 200, 130), (20, 1, 64)], ids=str)
def test_turned_tensors_keep_their_bits(shape):
    torch.manual_seed(0)
    for dtype in (*DTYPES, torch.uint16, torch.uint64, torch.float8_e4m3fn):
        bits = torch.randint(
            0, 2 if dtype == torch.bool else 256, (*shape, dtype.itemsize), dtype=torch.uint8
        )
        x = bits.view(dtype).squeeze(-1)
        for order in itertools.permutations(range(3)):
            ours = torch.empty(x.permute(order).shape, dtype=dtype, device="npu").copy_(
                x.npu().permute(order)
            )
            expected = bits.permute(*order, 3).contiguous()
            assert ours.cpu().unsqueeze(-1).view(torch.uint8).equal(expected), (dtype, order)


def test_copies_of_tensors_with_pending_signs_and_conjugates():
    z = torch.complex(values(6, 5), -values(6, 5))
    for view in (lambda z: z.conj(), lambda z: z.conj().imag, lambda z: z.t().conj(), lambda z: z.real.t()):
        for dtype in (torch.complex64, torch.float64):
            if view(z).is_complex() == dtype.is_complex:
                assert view(z.npu()).to(dtype).contiguous().cpu().equal(view(z).to(dtype).contiguous())
