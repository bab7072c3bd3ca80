"""Tensors that are not dense and plain: sparse, nested, quantized, fake, meta, subclasses."""

import copy
import pickle

import pytest
import torch
from conformance.compare import Call, difference, disagreement, observe
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

pytestmark = pytest.mark.filterwarnings("ignore")  # every one of these is announced as experimental


def dense():
    return torch.tensor([[0.0, 1.5, 0], [2, 0, -3], [0, 0, 0], [4, 0, 0]])


LAYOUTS = {
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda x: x.to_sparse_bsr((2, 1)),
    "bsc": lambda x: x.to_sparse_bsc((2, 1)),
}
SPARSE = {
    "to_dense": lambda s: s.to_dense(),
    "negated": lambda s: (-s).to_dense(),
    "scaled": lambda s: (s * 2).to_dense(),
    "detached and cloned": lambda s: s.detach().clone().to_dense(),
    "in double": lambda s: s.to(torch.float64).to_dense(),
    "values": lambda s: s.coalesce().values() if s.layout == torch.sparse_coo else s.values(),
    "sizes": lambda s: (s.shape, s._nnz(), s.dtype, s.layout),
    "pickled": lambda s: pickle.loads(pickle.dumps(s)).to_dense(),
    "sine": lambda s: s.sin().to_dense(),
    "zeroed": lambda s: torch.zeros_like(s).to_dense(),
}


PRODUCTS = {
    "matrix": lambda s: s @ torch.ones(3, 2, device=s.device),
    "vector": lambda s: s @ torch.ones(3, device=s.device),
    "matrix from the left": lambda s: torch.ones(2, 4, device=s.device) @ s,
}


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_of_sparse_tensors_give_the_cpu_s_values_or_its_error(layout, function):
    call = Call(PRODUCTS[function], (LAYOUTS[layout](dense()),))
    assert not difference(observe(call, "npu"), observe(call, "cpu"))


@pytest.mark.parametrize("function", SPARSE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_tensors_give_the_cpu_s_values_or_its_error(layout, function):
    make = LAYOUTS[layout]
    for call in (
        Call(SPARSE[function], (make(dense()),)),
        Call(lambda x: SPARSE[function](make(x)), (dense(),)),
    ):
        assert not difference(observe(call, "npu"), observe(call, "cpu"))


@pytest.mark.parametrize("function", SPARSE)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_tensors_live_on_devices_that_are_not_the_current_one(layout, function):
    expected = LAYOUTS[layout](dense())
    made, moved = LAYOUTS[layout](dense().to("npu:1")), expected.to("npu:1")
    assert torch.npu.current_device() == 0
    for ours in (made, moved):
        assert ours.device == torch.device("npu:1") and ours.to("npu:0").device == torch.device("npu:0")
        call = Call(lambda s: SPARSE[function](s.to("npu:1") if s.is_npu else s), (ours.cpu(),))
        assert not difference(observe(call, "npu"), observe(Call(SPARSE[function], (expected,)), "cpu"))


COO_ONLY = {
    "sum": lambda s: torch.sparse.sum(s, 0).to_dense(),
    "softmax": lambda s: torch.sparse.softmax(s, 1).to_dense(),
    "sum of two": lambda s: (s + s.transpose(0, 1).transpose(0, 1)).coalesce().to_dense(),
    "sum with a dense": lambda s: s.to_dense() + s,
    "transposed": lambda s: s.t().to_dense(),
    "coalesced": lambda s: torch.cat([s, s]).coalesce().indices(),
    "selected": lambda s: s.index_select(0, torch.tensor([3, 0], device=s.device)).to_dense(),
    "product of two": lambda s: torch.sparse.mm(s, s.t()).to_dense(),
    "addmm": lambda s: torch.sparse.addmm(
        torch.ones(4, 2, device=s.device), s, torch.ones(3, 2, device=s.device)
    ),
    "mask": lambda s: torch.ones(4, 3, device=s.device).sparse_mask(s.coalesce()).to_dense(),
    "row": lambda s: s[1].to_dense(),
    "deepcopied": lambda s: copy.deepcopy(s).to_dense(),
}


@pytest.mark.parametrize("name", COO_ONLY)
def test_coordinate_tensors(name):
    assert not disagreement(COO_ONLY[name], dense().to_sparse())


SPARSE_GRADIENTS = {
    "product": lambda x: torch.sparse.mm(x.to_sparse(), x.t() * 2),
    "through CSR": lambda x: x.to_sparse_csr().to_dense() * 3,
    "sum": lambda x: torch.sparse.sum(x.to_sparse(), 1).to_dense(),
    "values": lambda x: x.to_sparse().coalesce().values() ** 2,
    "softmax": lambda x: torch.sparse.softmax(x.to_sparse(), 1).to_dense(),
    "made of values": lambda x: torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 1], [2, 0, 2]], device=x.device), x[:3, 0], (2, 3)
    ).to_dense(),
}


@pytest.mark.parametrize("name", SPARSE_GRADIENTS)
def test_gradients_through_sparse_tensors(name):
    assert not disagreement(SPARSE_GRADIENTS[name], dense().requires_grad_(), differentiates=True)


def test_sparse_gradients_of_embeddings_train():
    def steps(weight, index):
        weight = nn.Parameter(weight.clone())
        optimizer = torch.optim.SparseAdam([weight], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.embedding(index, weight, sparse=True).square().sum().backward()
            assert weight.grad.is_sparse
            optimizer.step()
        return weight.detach()

    assert not disagreement(steps, dense(), torch.tensor([1, 3, 1]))


RAGGED = {
    "padded": lambda n: n.to_padded_tensor(-1.0),
    "scaled": lambda n: (n * 2).to_padded_tensor(0.0),
    "linear": lambda n: F.linear(n, torch.ones(2, 3, device=n.device)).to_padded_tensor(0.0),
    "softmax": lambda n: n.softmax(-1).to_padded_tensor(0.0),
    "relu": lambda n: n.relu().to_padded_tensor(0.0),
    "parts": lambda n: n.unbind(),
    "copied": lambda n: n.clone().to_padded_tensor(0.0),
    "transposed": lambda n: n.transpose(1, 2).contiguous().to_padded_tensor(0.0),
}


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("name", RAGGED)
def test_nested_tensors(name, layout):
    def function(a, b):
        return RAGGED[name](torch.nested.nested_tensor([a, b], layout=layout))

    assert not disagreement(function, dense(), dense()[:2])


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_gradients_of_nested_tensors(layout):
    def function(a, b, w):
        ragged = torch.nested.as_nested_tensor([a, b], layout=layout)
        return F.linear(ragged, w).to_padded_tensor(0.0).sin()

    arguments = dense().requires_grad_(), dense()[:2].requires_grad_(), torch.ones(2, 3, requires_grad=True)
    assert not disagreement(function, *arguments, differentiates=True)


def per_tensor(x):
    return torch.quantize_per_tensor(x, 0.5, 3, torch.quint8)


def per_channel(x):
    scales, zeros = torch.tensor([0.5, 0.25, 1.0], device=x.device), torch.tensor([0, 1, 2], device=x.device)
    return torch.quantize_per_channel(x, scales, zeros, 1, torch.qint8)


QUANTIZED = {
    "dequantized": lambda q: q.dequantize(),
    "integers": lambda q: q.int_repr(),
    "scheme": lambda q: (q.qscheme(), q.dtype, q.shape),
    "cloned": lambda q: q.clone().int_repr(),
    "a view": lambda q: q[1:].dequantize(),
    "transposed": lambda q: (
        q.t().contiguous().dequantize() if q.qscheme() == torch.per_tensor_affine else q.dequantize()
    ),
    "pickled": lambda q: pickle.loads(pickle.dumps(q)).int_repr(),
    "deepcopied": lambda q: copy.deepcopy(q).int_repr(),
    "moved": lambda q: q.cpu().to(q.device).int_repr(),
}


@pytest.mark.parametrize("make", [per_tensor, per_channel])
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_tensors(name, make):
    assert not disagreement(lambda x: QUANTIZED[name](make(x)), dense())


def test_a_quantized_tensor_transposes():
    assert not disagreement(lambda x: per_tensor(x).t().contiguous().dequantize(), dense())


FAKE_QUANTIZATION = {
    "per tensor": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 3, 0, 255),
    "per channel": lambda x: torch.fake_quantize_per_channel_affine(
        x,
        torch.tensor([0.5, 0.25, 1.0], device=x.device),
        torch.zeros(3, dtype=torch.int32, device=x.device),
        1,
        -8,
        7,
    ),
}


@pytest.mark.parametrize("name", FAKE_QUANTIZATION)
def test_quantization_in_training(name):
    assert not disagreement(FAKE_QUANTIZATION[name], dense())


def test_products_with_packed_integer_weights():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    w, scales = (
        (torch.arange(32 * 64) % 19 - 9).view(32, 64).to(torch.int8),
        torch.full((32,), 0.5).bfloat16(),
    )
    assert not disagreement(torch._weight_int8pack_mm, x, w, scales)


def test_fake_tensors_of_npu_compute_shapes_and_touch_no_memory():
    before = torch.npu.memory_allocated()
    with FakeTensorMode() as mode:
        with torch.device("npu"):
            model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))
        x = torch.empty(2, 3, 6, 6, device="npu")
        out = model(x)
        out.sum().backward()
        assert out.device == torch.device("npu:0") and out.shape == (2, 5) and out.stride() == (5, 1)
        assert next(model.parameters()).grad.device.type == "npu"
        assert (x[0] + torch.tensor(1.0)).device.type == "npu"
        with pytest.raises(RuntimeError, match=r"npu.*cpu|cpu.*npu"):
            x + torch.ones(2, 3, 6, 6)
        assert F.scaled_dot_product_attention(x, x, x).device.type == "npu"
    real = torch.ones(3, device="npu")
    assert mode.from_tensor(real).device == real.device
    del real
    assert torch.npu.memory_allocated() == before


def test_meta_tensors_become_npu_tensors():
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    model = model.to_empty(device="npu")
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    assert model(dense().npu()).tolist() == dense().sum(1, keepdim=True).expand(4, 2).tolist()


def test_subclasses_see_every_operator():
    class Counted(torch.Tensor):
        seen = ()

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.seen = (*cls.seen, getattr(function, "__name__", ""))
            return super().__torch_function__(function, types, args, kwargs or {})

    x = dense().npu().as_subclass(Counted)
    y = torch.exp(x) + 1
    assert type(y) is Counted and y.device.type == "npu" and Counted.seen[:2] == ("exp", "add")
    torch.testing.assert_close(y.as_subclass(torch.Tensor).cpu(), dense().exp() + 1)


def test_numpy_says_what_to_do():
    x = torch.ones(2, device="npu")
    with pytest.raises(TypeError, match=r"can't convert npu:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(TypeError, match="can't convert npu"):
        x.__array__()
    assert x.cpu().numpy().tolist() == [1, 1] and x.numpy(force=True).tolist() == [1, 1]
    assert torch.from_numpy(x.cpu().numpy()).npu().tolist() == [1, 1]
    assert x.new_tensor(x.cpu().numpy()).device == x.device
