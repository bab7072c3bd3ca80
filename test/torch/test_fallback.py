"""Operators without a native kernel run PyTorch's CPU kernel on device memory, and copy none of it."""

import threading

import pytest
import torch
from conformance.reference_random import generator_of_call
from torch.nn import functional as F

import torch_npu


@pytest.fixture(autouse=True)
def fresh_counters():
    torch_npu.reset_fallback_stats()
    yield
    torch_npu.set_fallback_mode("allow")


def calls(name):
    return torch_npu.fallback_stats()["ops"].get(name, {}).get("fallbacks", 0)


def copies():
    return torch_npu.fallback_stats()["fallback_copies"]


def arange(*shape, device="npu", dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel(), dtype=dtype, device=device).view(shape)


# Memory


def test_a_training_step_copies_nothing():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(32, 32), torch.nn.LayerNorm(32), torch.nn.Dropout(0.1),
    ).npu()  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        images, classes = torch.randn(4, 3, 9, 9, device="npu"), torch.arange(4, device="npu")
        F.cross_entropy(model(images), classes).backward()
        optimizer.step()
    assert torch_npu.fallback_stats()["fallbacks"] > 5
    assert copies() == 0


@pytest.mark.parametrize("size", [10, 1 << 20], ids=["in the calling thread", "on the compute thread"])
def test_results_lie_in_device_memory_and_are_accounted(size):
    x = torch.ones(size, device="npu")
    before = torch.npu.memory_allocated()
    y = x.exp()
    assert torch.npu.memory_allocated() - before >= y.nbytes
    del y
    assert torch.npu.memory_allocated() == before


@pytest.mark.parametrize(
    "functions", [(torch.sin, torch.cos), (torch.exp, torch.tanh)], ids=["fallback", "native"]
)
def test_memory_of_a_result_is_reused_like_any_other(functions):
    x = torch.ones(1000, device="npu")
    first = functions[0](x).data_ptr()
    assert functions[1](x).data_ptr() == first


def test_in_place_and_out_write_where_the_tensor_lies():
    x, out = arange(6), torch.empty(6, device="npu")
    places = x.data_ptr(), out.data_ptr()
    assert x.exp_() is x
    assert torch.sin(x, out=out) is out
    assert (x.data_ptr(), out.data_ptr()) == places
    torch.testing.assert_close(out.cpu(), torch.arange(6.0).exp().sin())


@pytest.mark.parametrize("start", [(0,), (2,)], ids=["empty", "too small"])
def test_out_is_resized_and_keeps_its_identity(start):
    out = torch.empty(start, device="npu").resize_(0)
    view = out.view(0)
    torch.add(arange(2, 3), 1, out=out)
    assert torch.equal(out.cpu(), torch.arange(1.0, 7).view(2, 3))
    assert out.untyped_storage().nbytes() == 24 and out.untyped_storage().device.type == "npu"
    assert view.untyped_storage().data_ptr() == out.data_ptr()


def test_out_of_the_wrong_shape_warns_and_is_resized_as_on_the_cpu():
    out = torch.empty(2, device="npu")
    with pytest.warns(UserWarning, match="was resized"):
        torch.add(arange(2, 3), 1, out=out)
    assert out.shape == (2, 3)


def test_several_results_in_lists_and_tuples():
    x = arange(4, 3)
    values, indices = x.sort(0, descending=True)
    assert torch.equal(values.cpu(), x.cpu().flip(0)) and indices[:, 0].tolist() == [3, 2, 1, 0]
    parts = torch._foreach_lgamma([x, x + 1.5])
    assert [part.device.type for part in parts] == ["npu", "npu"]
    assert torch.equal(parts[1].cpu(), (x.cpu() + 1.5).lgamma())
    assert calls("aten::_foreach_lgamma") == 1
    assert copies() == 0


def test_lists_written_in_place_keep_their_tensors():
    tensors = [torch.ones(3, device="npu"), torch.ones(2, 2, device="npu")]
    places = [tensor.data_ptr() for tensor in tensors]
    torch._foreach_add_(tensors, 1)
    assert [tensor.data_ptr() for tensor in tensors] == places
    assert all(torch.equal(tensor.cpu(), torch.full(tensor.shape, 2.0)) for tensor in tensors)


def test_arguments_that_share_memory_are_seen_as_sharing():
    x = arange(6)
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.add(x[:5], 1, out=x[1:])


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.logical_and_(torch.ones(5, 5, dtype=torch.bool, device=x.device)),
        lambda x: x.addr_(torch.ones(5, device=x.device), torch.ones(5, device=x.device)),
        lambda x: torch.mul(x, torch.ones(5, 5, device=x.device), out=x),
    ],
)
def test_a_tensor_that_is_input_and_output_is_one_for_the_kernel(write):
    with pytest.raises(RuntimeError) as expected:
        write(torch.ones(5, 1))
    x = arange(5, 1)
    with pytest.raises(RuntimeError) as ours:
        write(x)
    assert str(ours.value) == str(expected.value)
    assert x.shape == (5, 1) and torch.equal(x.cpu(), torch.arange(5.0).view(5, 1))


def test_a_storage_without_memory_is_an_error_and_not_a_crash():
    x = arange(4)
    x.untyped_storage().resize_(0)
    first = torch.zeros(1, dtype=torch.long, device="npu")
    uses = (
        *(torch.erfinv, torch.exp, torch.sum, torch.clone, torch.Tensor.uniform_, torch.Tensor.half),
        lambda x: torch.softmax(x, 0),
        lambda x: torch.cat([x, x]),
        lambda x: x.index_select(0, first),
        lambda x: torch._foreach_add([x], 1),
        lambda x: x.cpu(),
    )
    for use in uses:
        with pytest.raises(RuntimeError, match="memory was given back"):
            use(x)


def test_a_view_that_a_kernel_returns_shares_with_the_argument():
    library = torch.library.Library("fallback_view", "DEF")
    library.define("tail(Tensor(a) x) -> Tensor(a)")
    library.impl("tail", lambda x: x[1:].t(), "CPU")
    x = arange(3, 2)
    tail = torch.ops.fallback_view.tail(x)
    assert tail.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert (tail.shape, tail.stride(), tail.storage_offset()) == ((2, 2), (1, 2), 2)
    tail.zero_()
    assert x.cpu().tolist() == [[0, 1], [0, 0], [0, 0]]


def test_operators_of_other_libraries_fall_back():
    @torch.library.custom_op("fallback_test::double_", mutates_args={"x"})
    def double_(x: torch.Tensor) -> None:
        x.mul_(2)

    x = arange(3)
    torch.ops.fallback_test.double_(x)
    assert torch.equal(x.cpu(), torch.arange(3.0) * 2)


def test_a_kernel_may_keep_its_arguments_and_results():
    kept = []
    library = torch.library.Library("fallback_keep", "DEF")
    library.define("keep(Tensor x) -> Tensor")

    def keep(x):
        y = x + 1
        kept.extend((x, y))
        return y

    library.impl("keep", keep, "CPU")
    x = arange(3)
    y = torch.ops.fallback_keep.keep(x)
    assert [tensor.device.type for tensor in kept] == ["cpu", "cpu"]
    assert kept[0].data_ptr() == x.data_ptr() and kept[1].data_ptr() == y.data_ptr()
    del x
    y.add_(1)
    torch.npu.synchronize()
    assert torch.equal(kept[0], torch.arange(3.0)) and torch.equal(kept[1], torch.arange(2.0, 5))
    assert kept[1].untyped_storage().device.type == "cpu"
    assert copies() == 0


def test_a_result_outside_device_memory_is_copied_and_counted():
    library = torch.library.Library("fallback_foreign", "DEF")
    library.define("foreign(Tensor x) -> Tensor")
    elsewhere = torch.arange(3.0)
    library.impl("foreign", lambda x: elsewhere, "CPU")
    y = torch.ops.fallback_foreign.foreign(arange(1))
    assert y.device.type == "npu" and torch.equal(y.cpu(), elsewhere)
    assert y.data_ptr() != elsewhere.data_ptr() and elsewhere.untyped_storage().device.type == "cpu"
    stats = torch_npu.fallback_stats()
    assert (stats["fallback_copies"], stats["fallback_copied_bytes"]) == (1, 12)


def test_a_lazy_clone_is_not_written_through():
    x = arange(4)
    y = torch._lazy_clone(x)
    y.sin_()
    assert torch.equal(x.cpu(), torch.arange(4.0))
    torch.testing.assert_close(y.cpu(), torch.arange(4.0).sin())


# Devices


def test_mixed_devices_are_refused_with_both_names():
    x = arange(2, 2)
    for function in (torch.add, torch.mm, lambda a, b: torch.cat([a, b])):
        with pytest.raises(RuntimeError, match="same device, but found at least two devices, npu:0 and cpu!"):
            function(x, x.cpu())


def test_two_npu_devices_are_refused_too():
    with pytest.raises(RuntimeError, match="at least two devices, npu:0 and npu:1!"):
        arange(2) + torch.ones(2, device="npu:1")


def test_a_cpu_scalar_is_read_but_never_written():
    scalar = torch.tensor(3.0)
    assert torch.equal((arange(3) * scalar).cpu(), torch.arange(3.0) * 3)
    with pytest.raises(RuntimeError, match="at least two devices"):
        scalar.add_(torch.ones((), device="npu"))
    with pytest.raises(RuntimeError, match="at least two devices"):
        torch.add(arange(3), 1, out=torch.empty(3))


def test_cpu_indices_select_and_assign():
    x, index = arange(4, 3), torch.tensor([2, 0])
    assert torch.equal(x[index].cpu(), x.cpu()[index])
    assert torch.equal(x[index, index].cpu(), x.cpu()[index, index])
    x[index] = -1.0
    x[torch.tensor([False, True, False, False])] = torch.tensor(5.0)
    assert x.cpu()[:, 0].tolist() == [-1, 5, -1, 9]
    with pytest.raises(RuntimeError, match="at least two devices"):
        x[index] = torch.zeros(2, 3)


@pytest.mark.parametrize("device", ["npu:0", "npu:1"])
def test_results_are_on_the_device_of_the_arguments(device):
    x = torch.ones(3, device=device)
    assert x.exp().device == torch.device(device)
    assert torch.randperm(4, device=device).device == torch.device(device)
    assert torch.tril_indices(3, 3, device=device).device == torch.device(device)


# Random numbers


def test_the_default_generator_is_the_device_s():
    x = torch.empty(5, device="npu")
    torch.npu.manual_seed(3)
    ours = x.exponential_().clone()
    expected = torch.empty(5).exponential_(generator=generator_of_call(3))
    assert torch.equal(ours.cpu(), expected)
    state = torch.get_rng_state()
    x.normal_()
    assert torch.equal(torch.get_rng_state(), state), "a draw on npu moved the CPU's generator"


def test_a_generator_of_the_device_is_used_and_of_another_refused():
    generator = torch.Generator("npu").manual_seed(4)
    ours = torch.randn(5, device="npu", generator=generator)
    assert torch.equal(ours.cpu(), torch.randn(5, generator=generator_of_call(4)))
    with pytest.raises(RuntimeError, match="Expected a 'npu' device type for generator but found 'cpu'"):
        torch.empty(5, device="npu").normal_(generator=torch.Generator())


@pytest.mark.parametrize(
    "draw", [lambda x: F.dropout(x, 0.3), lambda x: torch.native_dropout(x, 0.3, True)[0]]
)
def test_dropout_draws_from_the_device_s_generator(draw):
    x = torch.ones(1000, device="npu")
    cpu_state = torch.get_rng_state()
    torch.npu.manual_seed(5)
    first = draw(x)
    torch.npu.manual_seed(5)
    assert torch.equal(first, draw(x)) and not torch.equal(first, draw(x))
    assert torch.equal(torch.get_rng_state(), cpu_state)
    kept = first.cpu() != 0
    torch.testing.assert_close(first.cpu()[kept], torch.full((int(kept.sum()),), 1 / 0.7))
    assert 600 < kept.sum() < 800


# Errors


@pytest.mark.parametrize("size", [2, 1 << 20], ids=["in the calling thread", "on the compute thread"])
def test_errors_of_the_kernel_arrive_unchanged(size):
    x = torch.ones(size, device="npu")
    for wrong in (lambda x: x.sum(3), lambda x: x.view(-1, 1) @ x.view(-1, 1), lambda x: x.bitwise_not()):
        with pytest.raises((IndexError, RuntimeError, NotImplementedError)) as ours:
            wrong(x)
        with pytest.raises((IndexError, RuntimeError, NotImplementedError)) as expected:
            wrong(x.cpu())
        assert ours.type is expected.type and str(ours.value) == str(expected.value)
    assert torch.equal(x.cumsum(0)[-1:].cpu(), torch.tensor([float(size)]))


def test_an_operator_without_any_kernel_names_itself():
    with pytest.raises(
        NotImplementedError, match="aten::_cslt_compress: neither device npu nor PyTorch's CPU"
    ):
        torch._cslt_compress(arange(4, 4))


def test_the_fallback_can_warn_once_or_refuse():
    x = arange(3)
    torch_npu.set_fallback_mode("warn")
    with pytest.warns(UserWarning, match="aten::special_i1e has no native kernel"):
        torch.special.i1e(x)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.special.i1e(x)
    torch_npu.set_fallback_mode("error")
    with pytest.raises(NotImplementedError, match="aten::erfinv has no native kernel for device npu, and"):
        x.erfinv()
    with pytest.raises(NotImplementedError, match="takes these arguments, or they are wrong"):
        torch.mm(x[None], x[None])
    x.zero_()
    with pytest.raises(ValueError, match="accepted are 'allow', 'warn', 'error'"):
        torch_npu.set_fallback_mode("never")


# Threads and modes


def test_grad_mode_holds_on_the_compute_thread():
    library = torch.library.Library("fallback_mode_test", "DEF")
    library.define("grad_enabled(Tensor x) -> Tensor")
    seen = []

    def grad_enabled(x):
        seen.append((torch.is_grad_enabled(), threading.get_ident()))
        return x.new_zeros(1)

    library.impl("grad_enabled", grad_enabled, "CPU")
    large = torch.ones(1 << 20, device="npu")
    with torch.no_grad():
        torch.ops.fallback_mode_test.grad_enabled(large)
    torch.ops.fallback_mode_test.grad_enabled(large)
    torch.ops.fallback_mode_test.grad_enabled(large[:1])
    assert [mode for mode, _ in seen] == [False, True, True]
    assert seen[0][1] == seen[1][1] != threading.get_ident() == seen[2][1]


def test_warnings_of_kernels_on_the_compute_thread_are_python_warnings():
    large = torch.ones(1 << 20, device="npu")
    with pytest.warns(UserWarning, match="was resized"):
        torch.exp(large, out=torch.empty(3, device="npu"))


def test_work_enqueued_before_is_seen():
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        x = torch.zeros(1 << 20, device="npu")
        for _ in range(20):
            x.copy_((x + 1).view(-1, 2).t().contiguous().t().reshape(-1))
        assert x.sum().item() == 20 * (1 << 20)


def test_many_threads_fall_back_at_once():
    expected = torch.arange(3000.0).sqrt().cumsum(0)
    results = [None] * 8

    def work(index):
        x = torch.arange(3000.0, device="npu")
        for _ in range(50):
            results[index] = x.sqrt().cumsum(0)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(results))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for result in results:
        torch.testing.assert_close(result.cpu(), expected)


def test_inference_mode_and_the_cpu_s_autocast_leave_kernels_alone():
    x = arange(8, 8) / 64
    expected = x.cpu() @ x.cpu()
    with torch.inference_mode(), torch.autocast("cpu"):
        assert torch.equal((x @ x).cpu(), expected)


# Convolution, attention, recurrence: what PyTorch decides by device


def test_convolution_by_its_other_names():
    x, w, b = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    ours = torch.ops.aten.convolution_overrideable(x.npu(), w.npu(), b.npu(), *geometry)
    torch.testing.assert_close(ours.cpu(), torch.convolution(x, w, b, *geometry))
    grads = torch.ops.aten.convolution_backward_overrideable(
        torch.ones_like(ours), x.npu(), w.npu(), *geometry, [True] * 3
    )
    expected = torch.ops.aten.convolution_backward(
        torch.ones_like(ours).cpu(), x, w, [4], *geometry, [True] * 3
    )
    for a, b in zip(grads, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_one_call_forward_and_one_backward(masked):
    q, k, v = (torch.randn(2, 3, 40, 16, requires_grad=True) for _ in range(3))
    mask = torch.rand(40, 40) > 0.3 if masked else None
    ours = [x.detach().npu().requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*ours, mask.npu() if masked else None)
    out.sum().backward()
    expected = F.scaled_dot_product_attention(q, k, v, mask)
    expected.sum().backward()
    torch.testing.assert_close(out.cpu(), expected)
    for a, b in zip(ours, (q, k, v), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad)
    stats, name = torch_npu.fallback_stats()["ops"], "aten::_scaled_dot_product_fused_attention_overrideable"
    assert stats[name]["native_launches"] == 1 and stats[name + "_backward"]["native_launches"] == 1


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers_agree_with_the_cpu(layer, bias):
    torch.manual_seed(0)
    cpu = layer(5, 7, num_layers=2, bidirectional=True, bias=bias)
    npu = layer(5, 7, num_layers=2, bidirectional=True, bias=bias).npu()
    npu.load_state_dict(cpu.state_dict())
    x = torch.randn(6, 3, 5)
    lengths = torch.tensor([6, 4, 1])
    outputs = []
    for model, device in ((cpu, "cpu"), (npu, "npu")):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x.to(device), lengths)
        out, _ = torch.nn.utils.rnn.pad_packed_sequence(model(packed)[0])
        (model(x.to(device))[0].sin().sum() + out.cos().sum()).backward()
        outputs.append(out)
    torch.testing.assert_close(outputs[1].cpu(), outputs[0])
    for ours, expected in zip(npu.parameters(), cpu.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-5)


def test_the_encoder_s_fast_path_agrees_with_the_cpu():
    torch.manual_seed(0)
    cpu = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    npu = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).npu().eval()
    npu.load_state_dict(cpu.state_dict())
    x = torch.randn(2, 9, 16)
    with torch.inference_mode():
        torch.testing.assert_close(npu(x.npu()).cpu(), cpu(x))


def test_gradient_of_gradient():
    x = torch.randn(3, 4, dtype=torch.float64, device="npu", requires_grad=True)
    w = torch.randn(4, 2, dtype=torch.float64, device="npu", requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, w: (x @ w).tanh().exp(), (x, w))
    assert torch.autograd.gradcheck(lambda x: torch.nn.functional.layer_norm(x, (4,)), (x,))
