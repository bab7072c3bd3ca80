"""Complex tensors and the building blocks of rotary embeddings."""

import pytest
import torch
from conformance.compare import disagreement


def queries():
    """Batch, position, head, width."""
    return torch.randn(1, 16, 4, 8, generator=torch.Generator().manual_seed(0))


def frequencies(dtype=torch.float32):
    angles = torch.outer(torch.arange(16.0), 0.1 ** torch.arange(4.0)).to(dtype)
    return torch.polar(torch.ones_like(angles), angles)


def rotated_halves(t):
    a, b = t.transpose(1, 2).chunk(2, -1)
    return torch.cat((-b, a), -1) + torch.nn.functional.silu(t.transpose(1, 2)[..., ::2]).repeat(1, 1, 1, 2)


def rotated_pairs(t, w):
    pairs = torch.view_as_complex(t.reshape(1, 16, 4, 4, 2))
    return torch.view_as_real(pairs * w.view(1, 16, 1, 4)).flatten(3)


def test_rotations_agree_again_and_again():
    for _ in range(3):
        assert not disagreement(rotated_halves, queries().requires_grad_(), differentiates=True)
        assert not disagreement(rotated_pairs, queries().requires_grad_(), frequencies(), differentiates=True)


FUNCTIONS = {
    "rows by index": lambda z: z[torch.tensor([5, 0], device=z.device)],
    "rows by slice": lambda z: z[3:7],
    "conj": lambda z: z.conj(),
    "imaginary part of conj": lambda z: z.conj().imag,
    "negative view": lambda z: z.conj().imag.neg().contiguous(),
    "resolved": lambda z: z.conj().resolve_conj() + z.mH.t(),
    "in place through a part": lambda z: z.clone().real.mul_(2),
    "norm": lambda z: (z.conj() * z).real.sum(),
    "matmul with an adjoint": lambda z: z @ z.mH,
    "polar": lambda z: torch.polar(z.abs(), z.angle()),
    "spectrum": lambda z: torch.fft.ifft(torch.fft.fft(z, dim=0), dim=1),
    "eigenvalues": lambda z: torch.linalg.eigvalsh(z @ z.mH),
    "solve": lambda z: torch.linalg.solve(z[:4] + 2 * torch.eye(4, device=z.device), z[4:8]),
    "cumprod": lambda z: z.cumprod(0),
    "where": lambda z: torch.where(z.real > 0, z, -z.conj()),
    "comparison": lambda z: z == z.conj(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_complex_functions(name, dtype):
    assert not disagreement(FUNCTIONS[name], frequencies(dtype))


DIFFERENTIABLE = [name for name in FUNCTIONS if name not in ("comparison", "in place through a part")]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_of_complex_functions(name):
    z = frequencies(torch.float64) + 0.1j * torch.arange(64.0).view(16, 4)
    assert not disagreement(FUNCTIONS[name], z.requires_grad_(), differentiates=True)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_complex_half_moves_and_converts():
    z = frequencies()[:3].to(torch.complex32)
    assert torch.equal(torch.view_as_real(z.npu()).cpu(), torch.view_as_real(z))
    assert torch.equal(z.npu().to(torch.complex64).cpu(), z.to(torch.complex64))
