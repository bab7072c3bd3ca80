"""Weights that products keep packed: no write to a weight is missed, whoever makes it, and no bits change."""

import ctypes
import gc
import textwrap
import time
from pathlib import Path

import pytest
import torch

import anynpu
import torch_npu

SIZE = 200  # of weights: large enough to be packed, and no multiple of a panel
ROWS = (1, 5, 8, 70, 300)
linear = torch.nn.functional.linear


def stats():
    torch.npu.synchronize()
    return torch_npu.fallback_stats()


def uses(function):
    """How many products in it used a packed weight."""
    before = stats()["packed_weight_uses"]
    function()
    return stats()["packed_weight_uses"] - before


def new_weight(dtype=torch.float32, size=(SIZE, SIZE)):
    torch.npu.empty_cache()
    return torch.randn(size).to(dtype).npu()


def pack(weight, x):
    """Multiplies until a packed weight is used."""
    for _ in range(200):
        if uses(lambda: linear(x, weight)) == 1:
            return
    raise AssertionError("the weight was never packed")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("sizes", [(SIZE, SIZE), (250, 600), (64, 4100), (4100, 16)], ids=str)
def test_no_bits_depend_on_packing(dtype, sizes):
    weight, bias = new_weight(dtype, sizes), torch.randn(sizes[0]).to(dtype).npu()
    wanted = [linear(torch.ones(1, sizes[1], dtype=dtype, device="npu"), weight)]
    inputs = [torch.randn(rows, sizes[1]).to(dtype).npu() for rows in ROWS]
    torch.npu.empty_cache()
    wanted = [(linear(x, weight.clone()), linear(x, weight.clone(), bias)) for x in inputs]
    pack(weight, inputs[0])
    for x, (plain, added) in zip(inputs, wanted, strict=True):
        assert uses(lambda x=x: linear(x, weight)) == 1
        assert linear(x, weight).equal(plain)
        assert linear(x, weight, bias).equal(added)
    assert uses(lambda: inputs[0] @ weight.T[:, :15]) == 0  # another matrix in the same memory


def acl():
    return ctypes.CDLL(str(Path(anynpu.__file__).parent / "lib64" / "libascendcl.so"))


def acl_copy(weight, other):
    device_to_device, size = 3, ctypes.c_size_t(weight.nbytes)
    addresses = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (weight, other))
    to, source = addresses
    assert acl().aclrtMemcpy(to, size, source, size, device_to_device) == 0


def acl_fill(weight, other):
    size = ctypes.c_size_t(weight.nbytes)
    assert acl().aclrtMemset(ctypes.c_void_p(weight.data_ptr()), size, 0, size) == 0


def aclnn_zero(weight, other):
    """A launch of libopapi on the address."""
    library = ctypes.CDLL(str(Path(anynpu.__file__).parent / "lib64" / "libopapi.so"))
    library.aclCreateTensor.restype = ctypes.c_void_p
    sizes, strides = (ctypes.c_int64 * 2)(*weight.shape), (ctypes.c_int64 * 2)(*weight.stride())
    nd, floats = 2, 0
    tensor = ctypes.c_void_p(
        library.aclCreateTensor(
            *(sizes, ctypes.c_uint64(2), floats, strides, ctypes.c_int64(0), nd, sizes, ctypes.c_uint64(2)),
            ctypes.c_void_p(weight.data_ptr()),
        )
    )
    size, executor = ctypes.c_uint64(), ctypes.c_void_p()
    wanted = (ctypes.byref(size), ctypes.byref(executor))
    assert library.aclnnInplaceZeroGetWorkspaceSize(tensor, *wanted) == 0
    stream = ctypes.c_void_p(torch.npu.current_stream().npu_stream)
    assert library.aclnnInplaceZero(None, size, executor, stream) == 0
    assert library.aclDestroyTensor(tensor) == 0


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def zero_four_bytes(address):
    ctypes.memset(address, 0, 4)


def host_function(weight, other):
    """A task that the runtime knows nothing of."""
    stream = ctypes.c_void_p(torch.npu.current_stream().npu_stream)
    assert acl().aclrtLaunchHostFunc(stream, zero_four_bytes, ctypes.c_void_p(weight.data_ptr())) == 0
    torch.npu.synchronize()


def step(optimizer, **options):
    def run(weight, other):
        parameter = torch.nn.Parameter(weight)
        parameter.grad = other
        optimizer([parameter], lr=0.1, **options).step()

    return run


def fall_back(weight, other):
    before = stats()["fallbacks"]
    torch.linalg.solve_triangular(torch.eye(SIZE, device="npu"), other, upper=True, out=weight)
    assert stats()["fallbacks"] > before


def by_unannotated_argument(weight, other):
    """PyTorch's schema does not say that running statistics are written."""
    mean, variance = weight.view(torch.float64)[:2, :3]
    torch.native_batch_norm(other[:4, :3].double(), None, None, mean, variance, True, 0.1, 1e-5)


def on_another_stream(weight, other):
    stream = torch.npu.Stream()
    stream.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(stream):
        weight.copy_(other)
    torch.npu.current_stream().wait_stream(stream)


def no_grad(function):
    def run(weight, other):
        with torch.no_grad():
            function(weight, other)

    return run


WRITES = {
    "data": lambda w, o: w.data.mul_(2),
    "view": lambda w, o: w[3:5, 7].fill_(1),
    "detached": lambda w, o: w.detach().t().add_(1),
    "set_": lambda w, o: torch.empty(0, device="npu").set_(w.untyped_storage(), 4, (3,)).zero_(),
    "storage": lambda w, o: w.untyped_storage().fill_(0),
    "storage copy": lambda w, o: w.untyped_storage().copy_(o.untyped_storage()),
    "out": lambda w, o: torch.add(o, 1, out=w),
    "product": lambda w, o: torch.mm(o, o, out=w),
    "fallback": fall_back,
    "unannotated": by_unannotated_argument,
    "index_put_": lambda w, o: w.index_put_((torch.tensor([1, 2], device="npu"),), o[:2]),
    "scatter": lambda w, o: w.scatter_add_(0, torch.zeros(1, SIZE, dtype=torch.int64, device="npu"), o),
    "masked_fill_": lambda w, o: w.masked_fill_(o > 0, 3.0),
    "random": lambda w, o: w.uniform_(),
    "normal": lambda w, o: w.normal_(),
    "copy from the host": lambda w, o: w.copy_(torch.ones(SIZE, SIZE)),
    "copy from pinned": lambda w, o: w.copy_(torch.ones(SIZE, SIZE).pin_memory(), non_blocking=True),
    "strided copy": lambda w, o: w.copy_(o.t()),
    "converting copy": lambda w, o: w.copy_(o.double()),
    "foreach": lambda w, o: torch._foreach_mul_([w, o], 2),
    "foreach copy": lambda w, o: torch._foreach_copy_([w], [o]),
    "SGD": step(torch.optim.SGD, foreach=False),
    "SGD foreach": step(torch.optim.SGD, foreach=True),
    "AdamW": step(torch.optim.AdamW, fused=False),
    "AdamW fused": step(torch.optim.AdamW, fused=True),
    "init": lambda w, o: torch.nn.init.orthogonal_(w),
    "dlpack": lambda w, o: torch.from_dlpack(w.detach()).zero_(),
    "other stream": on_another_stream,
    "aclrtMemcpy": acl_copy,
    "aclrtMemset": acl_fill,
    "aclnn": aclnn_zero,
    "host function": host_function,
    "resize_": lambda w, o: w.resize_(SIZE * 2, SIZE).zero_().resize_(SIZE, SIZE),
    "new data": lambda w, o: setattr(w, "data", o.clone()),
    "set_ another": lambda w, o: w.set_(o.clone()),
}


@pytest.mark.parametrize("name", WRITES)
def test_every_write_ends_a_pack(name):
    torch.manual_seed(0)
    x, other = torch.randn(8, SIZE, device="npu"), torch.randn(SIZE, SIZE, device="npu")
    weight = new_weight()
    pack(weight, x)
    before = weight.cpu()
    no_grad(WRITES[name])(weight, other)
    torch.npu.synchronize()
    y = linear(x, weight)
    assert not weight.cpu().equal(before), "the write changed nothing"
    assert y.equal(linear(x, weight.clone()))
    pack_again = [linear(x, weight) for _ in range(5)]
    assert all(again.equal(y) for again in pack_again)


def test_a_write_that_waits_in_another_stream_is_not_missed():
    """It was enqueued before the weight was ever seen, and runs after the products that looked at it."""
    x, weight, stream, started = torch.randn(8, SIZE, device="npu"), new_weight(), torch.npu.Stream(), []
    stream.wait_stream(torch.npu.current_stream())
    library = acl()

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def wait(_):
        started.append(True)
        time.sleep(0.3)

    assert library.aclrtLaunchHostFunc(ctypes.c_void_p(stream.npu_stream), wait, None) == 0
    with torch.npu.stream(stream):
        weight.zero_()
    for _ in range(20):  # unordered with the write: what they give is anybody's guess
        linear(x, weight)
    torch.npu.synchronize()
    assert started
    for _ in range(20):
        assert linear(x, weight).count_nonzero() == 0


def test_packs_are_used_on_other_streams_once_they_are_made():
    x, weight, stream = torch.randn(8, SIZE, device="npu"), new_weight(), torch.npu.Stream()
    pack(weight, x)
    wanted = linear(x, weight)
    stream.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(stream):
        assert uses(lambda: linear(x, weight)) == 1
        result = linear(x, weight)
    torch.npu.synchronize()
    assert result.equal(wanted)


def test_a_weight_that_another_process_may_write_is_not_packed():
    x, weight = (
        torch.randn(8, SIZE, device="npu"),
        torch.empty(SIZE * 100, SIZE, device="npu")[:SIZE].normal_(),
    )
    pack(weight, x)
    torch_npu._C.lend_storage(weight.untyped_storage())
    assert uses(lambda: [linear(x, weight) for _ in range(20)]) == 0


def test_a_weight_whose_alias_a_kernel_keeps_is_not_packed():
    kept = []
    with torch.library._scoped_library("packed_weights_test", "FRAGMENT") as library:
        library.define("keep(Tensor x) -> Tensor")
        library.impl("keep", lambda x: (kept.append(x.detach()), x.clone())[1], "CPU")
        x, weight = torch.randn(8, SIZE, device="npu"), torch.randn(SIZE * 100, SIZE, device="npu")[:SIZE]
        pack(weight, x)
        torch.ops.packed_weights_test.keep(weight)
    torch.npu.synchronize()
    kept[0].zero_()
    assert linear(x, weight).count_nonzero() == 0
    assert uses(lambda: [linear(x, weight) for _ in range(20)]) == 0


def test_packs_go_with_their_weights_and_by_empty_cache():
    x, weight = torch.randn(8, SIZE, device="npu"), new_weight()
    assert stats()["packed_weight_bytes"] == 0
    pack(weight, x)
    assert stats()["packed_weight_bytes"] >= weight.nbytes
    torch.npu.empty_cache()
    assert stats()["packed_weight_bytes"] == 0
    pack(weight, x)
    del weight
    gc.collect()
    assert stats()["packed_weight_bytes"] == 0


def test_packs_go_before_memory_runs_out(python):
    python(
        textwrap.dedent("""
        import torch, torch_npu
        x, weight = torch.randn(8, 4096).npu(), torch.randn(3072, 4096).npu()  # of whole panels
        while torch_npu.fallback_stats()["packed_weight_uses"] == 0:
            torch.nn.functional.linear(x, weight)
            torch.npu.synchronize()
        assert torch_npu.fallback_stats()["packed_weight_bytes"] == weight.nbytes
        torch.npu.set_per_process_memory_fraction((200 << 20) / torch.npu.mem_get_info()[1])
        more = torch.empty(120 << 20, dtype=torch.uint8, device="npu")
        assert torch_npu.fallback_stats()["packed_weight_bytes"] == 0
        assert torch.npu.memory_stats()["num_ooms"] == 0
        """)
    )


def test_the_option_bounds_packs(fresh_python):
    program = textwrap.dedent("""
        import torch, torch_npu
        x, weights = torch.randn(8, 256).npu(), [torch.randn(192, 256).npu() for _ in range(8)]
        for _ in range(50):
            for weight in weights:
                torch.nn.functional.linear(x, weight)
            torch.npu.synchronize()
        print(torch_npu.fallback_stats()["packed_weight_bytes"])
    """)
    size = 192 * 256 * 4  # 192 are columns of whole panels
    for limit, wanted in (("0", 0), ("600K", 3 * size), ("", 8 * size)):
        assert int(fresh_python(program, env={"ANYNPU_PACKED_WEIGHTS": limit}).stdout) == wanted


def test_a_bad_bound_is_named_by_each_product(fresh_python):
    program = textwrap.dedent("""
        import torch, torch_npu
        x = torch.ones(200, 200, device="npu")
        for _ in range(2):
            try:
                x @ x
            except RuntimeError as error:
                print(error)
    """)
    message = (
        "NPU runtime failed: option ANYNPU_PACKED_WEIGHTS: '1.5G' is not an integer of at least 0 "
        "(suffixes K, M, G, T are accepted)"
    )
    result = fresh_python(program, env={"ANYNPU_PACKED_WEIGHTS": "1.5G"})
    assert result.stdout.splitlines() == [message] * 2


def test_training_does_not_pack_what_each_step_writes():
    model, x = torch.nn.Linear(SIZE, SIZE, device="npu"), torch.randn(8, SIZE, device="npu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = stats()["packed_weights"]
    for _ in range(50):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert stats()["packed_weights"] == before
