"""Random numbers follow from a seed and an offset; states are saved, restored and checkpointed."""

import threading

import pytest
import torch
import torch.nn.functional as F
from conformance.reference_random import engine_state, philox, uniforms
from torch.utils.checkpoint import checkpoint

DRAWS = {
    "randn": lambda device: torch.randn(1000, device=device),
    "randn odd": lambda device: torch.randn(7, device=device, dtype=torch.float64),
    "randint": lambda device: torch.randint(0, 100, (50,), device=device),
    "randperm": lambda device: torch.randperm(50, device=device),
    "normal_": lambda device: torch.empty(33, device=device).normal_(2, 3),
    "exponential_": lambda device: torch.empty(33, device=device).exponential_(),
    "bernoulli": lambda device: torch.bernoulli(torch.full((99,), 0.3, device=device)),
    "multinomial": lambda device: torch.multinomial(
        torch.arange(1.0, 9.0, device=device), 20, replacement=True
    ),
    "normal of tensors": lambda device: torch.normal(
        torch.zeros(9, device=device), torch.ones(9, device=device)
    ),
    "poisson": lambda device: torch.poisson(torch.full((40,), 4.0, device=device)),
}


def test_the_reference_is_philox():
    assert philox(0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox(2**64 - 1, 2**128 - 1) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("seed", [11, 2**63 + 5])
def test_numbers_follow_from_seed_and_offset(draw, seed):
    torch.npu.manual_seed(seed)
    for call in range(3):
        drawn = DRAWS[draw]("npu")
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(engine_state(seed, 4 * call))
            expected = DRAWS[draw]("cpu")
        assert drawn.is_npu and torch.equal(drawn.cpu(), expected)
        assert torch.npu.default_generators[0].get_offset() == 4 * (call + 1)


DIGITS = {torch.float32: 24, torch.float64: 53, torch.float16: 11, torch.bfloat16: 8}


@pytest.mark.parametrize("dtype", DIGITS, ids=str)
@pytest.mark.parametrize("seed", [11, 2**63 + 5])
def test_uniform_numbers_follow_from_seed_and_offset(seed, dtype):
    for call, size in enumerate((1, 2, 3, 4, 7, 64, 1001)):
        torch.npu.manual_seed(seed)
        torch.npu._set_rng_state_offset(4 * call)
        u = uniforms(seed, 4 * call, size, DIGITS[dtype])
        drawn = torch.empty(size, dtype=dtype, device="npu").uniform_(-1, 2)
        compute = torch.float64 if dtype == torch.float64 else torch.float32
        assert torch.equal(drawn.cpu(), (u.to(compute) * 3 - 1).to(dtype))
        assert torch.npu._get_rng_state_offset() == 4 * (call + 1)


@pytest.mark.parametrize("dtype", DIGITS, ids=str)
def test_dropout_follows_from_seed_and_offset(dtype):
    torch.npu.manual_seed(3)
    x = torch.randn(7, 33, dtype=torch.float64).to(dtype)
    x[0, :3] = torch.tensor([float("inf"), float("nan"), -0.0])
    ours = x.npu().requires_grad_()
    dropped = F.dropout(ours, 0.25)
    dropped.backward(torch.ones_like(dropped))
    digits = 53 if dtype == torch.float64 else 24
    kept = uniforms(3, 0, x.numel(), digits).view(x.shape) < 0.75
    scale = torch.tensor(1 / 0.75, dtype=torch.float64)
    wide = x.double() * kept * (scale if dtype == torch.float64 else scale.float().double())
    expected = wide.float().to(dtype) if dtype != torch.float64 else wide
    torch.testing.assert_close(dropped.detach().cpu(), expected, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(ours.grad.cpu(), (kept * scale).to(dtype))


def test_uniform_numbers_do_not_depend_on_threads_or_strides():
    def draw():
        torch.npu.manual_seed(9)
        return torch.rand(300001, device="npu").cpu(), F.dropout(torch.ones(300001, device="npu")).cpu()

    threads = torch.get_num_threads()
    many = draw()
    torch.set_num_threads(1)
    one = draw()
    torch.set_num_threads(threads)
    assert all(map(torch.equal, one, many))
    torch.npu.manual_seed(9)
    apart = torch.zeros(10, 6, device="npu")
    apart[:, ::2].uniform_()
    torch.npu.manual_seed(9)
    assert torch.equal(apart[:, ::2], torch.rand(10, 3, device="npu"))
    assert (apart[:, 1::2] == 0).all()


def test_neighbouring_seeds_and_offsets_are_unrelated():
    drawn = []
    for seed in range(4):
        torch.npu.manual_seed(seed)
        drawn += [torch.randn(4000, device="npu") for _ in range(4)]
    correlation = torch.corrcoef(torch.stack(drawn).cpu()) - torch.eye(len(drawn))
    assert correlation.abs().max() < 0.1  # 6 times the standard deviation of independent ones


def test_cpu_and_npu_draw_independently():
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    torch.rand(100, device="npu")
    assert torch.equal(torch.rand(4), expected)


def test_each_device_has_its_generator():
    torch.npu.manual_seed_all(3)
    a, b = torch.rand(5, device="npu:0"), torch.rand(5, device="npu:1")
    assert torch.equal(a.cpu(), b.cpu())
    with torch.npu.device(1):
        torch.npu.manual_seed(4)
        assert torch.npu.initial_seed() == 4
    assert torch.npu.initial_seed() == 3
    assert not torch.equal(torch.rand(5, device="npu:0").cpu(), torch.rand(5, device="npu:1").cpu())
    torch.npu.seed_all()
    seeds = {generator.initial_seed() for generator in torch.npu.default_generators}
    assert len(seeds) == 1 and seeds != {3}
    torch.npu.seed()
    assert torch.npu.initial_seed() not in seeds


def test_seeds_given_before_first_use_count(python):
    code = """
import torch
torch.manual_seed(123)
assert not torch.npu.is_initialized()
first = [torch.rand(3, device=f"npu:{i}").tolist() for i in range(2)]
torch.npu.manual_seed_all(123)
print([torch.rand(3, device=f"npu:{i}").tolist() == first[0] == first[1] for i in range(2)])
"""
    assert python(code).stdout == "[True, True]\n"


def test_unseeded_processes_differ(python):
    code = "import torch; print(torch.npu.initial_seed(), torch.rand(1, device='npu').item())"
    assert python(code).stdout != python(code).stdout


def test_states_are_saved_and_restored():
    state = torch.npu.get_rng_state()
    assert state.device.type == "cpu" and state.dtype == torch.uint8
    first = torch.randn(5, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.randn(5, device="npu"), first)
    states = torch.npu.get_rng_state_all()
    drawn = [torch.rand(5, device=f"npu:{index}") for index in range(2)]
    torch.npu.set_rng_state_all(states)
    for index, values in enumerate(drawn):
        assert torch.equal(torch.rand(5, device=f"npu:{index}"), values)


def test_a_state_is_seed_and_offset():
    torch.npu.manual_seed(2**40 + 3)
    torch.rand(2, device="npu")
    state = torch.npu.get_rng_state()
    assert state.view(torch.int64).tolist() == [2**40 + 3, 4]
    expected = torch.rand(5, device="npu")
    torch.npu.set_rng_state(torch.tensor([2**40 + 3, 4]).view(torch.uint8))
    assert torch.equal(torch.rand(5, device="npu"), expected)
    torch.npu.set_rng_state(torch.tensor([7]).view(torch.uint8))  # as torch.cuda: a seed alone
    assert torch.npu.initial_seed() == 7 and torch.npu._get_rng_state_offset() == 0
    for size in (0, 15, 17, 5056):
        with pytest.raises(RuntimeError, match="RNG state is wrong size"):
            torch.npu.set_rng_state(torch.zeros(size, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"ByteTensor"):
        torch.npu.set_rng_state(torch.zeros(16))


@pytest.mark.parametrize("name", ["uniform_", "bernoulli_", "normal_", "random_"])
def test_a_generator_of_npu_draws_for_no_other_device(name):
    with pytest.raises(
        RuntimeError, match="expected the arguments to be on an npu device, but they are on cpu"
    ):
        getattr(torch.ones(2), name)(generator=torch.Generator("npu"))


def test_offsets():
    torch.npu.manual_seed(5)
    drawn = [torch.rand(size, device="npu") for size in (1, 100, 3)]
    assert torch.npu._get_rng_state_offset() == 12
    torch.npu._set_rng_state_offset(4)
    assert torch.equal(torch.rand(100, device="npu"), drawn[1]) and torch.npu._get_rng_state_offset() == 8
    generator = torch.Generator("npu").manual_seed(5)
    generator.set_offset(8)
    assert generator.get_offset() == 8 and generator.initial_seed() == 5
    assert torch.equal(torch.rand(3, device="npu", generator=generator), drawn[2])
    generator.manual_seed(5)
    assert generator.get_offset() == 0
    with pytest.raises(RuntimeError, match="multiples of 4"):
        generator.set_offset(6)
    with pytest.raises(RuntimeError, match="graphsafe_get_state is not supported"):
        generator.graphsafe_get_state()
    with pytest.raises(RuntimeError, match="graphsafe_set_state is not supported"):
        generator.graphsafe_set_state(torch.Generator("npu"))


@pytest.mark.parametrize("size", [7, 1 << 20])
def test_threads_share_a_generator_without_repeating_numbers(size):
    torch.npu.manual_seed(1)
    drawn = [None] * 4

    def draw(number):
        drawn[number] = [torch.rand(size, device="npu")[:7].tolist() for _ in range(5)]

    threads = [threading.Thread(target=draw, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.npu._get_rng_state_offset() == 4 * 20
    torch.npu.manual_seed(1)
    expected = [torch.rand(size, device="npu")[:7].tolist() for _ in range(20)]
    assert sorted(values for each in drawn for values in each) == sorted(expected)


def test_fork_rng_restores():
    with torch.random.fork_rng(devices=[0, 1], device_type="npu"):
        torch.manual_seed(99)
        inside = torch.rand(9, device="npu")
    outside = torch.rand(9, device="npu")
    assert not torch.equal(inside, outside)
    torch.manual_seed(1)
    expected = torch.rand(4, device="npu")
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        torch.rand(7, device="npu")
    assert torch.equal(torch.rand(4, device="npu"), expected)


def test_generators():
    g = torch.Generator(device="npu").manual_seed(3)
    h = torch.Generator(device="npu:0")
    assert g.device == h.device == torch.device("npu:0") and g.initial_seed() == 3
    h.set_state(g.get_state())
    copy = g.clone_state()
    drawn = torch.randn(1000, device="npu", generator=g)
    assert copy.get_offset() == 0 and g.get_offset() == 4
    for other in (h, copy):
        assert torch.equal(drawn, torch.randn(1000, device="npu", generator=other))
    assert torch.equal(torch.randperm(50, device="npu", generator=g).sort()[0].cpu(), torch.arange(50))
    before = torch.npu.get_rng_state()
    torch.rand(10, device="npu", generator=g)
    assert torch.equal(torch.npu.get_rng_state(), before)
    assert g.seed() == g.initial_seed() != 3
    with pytest.raises(RuntimeError, match="ordinal 7"):
        torch.Generator(device="npu:7")


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator: torch.randn(2, device="npu", generator=generator),
        lambda generator: torch.empty(2, device="npu").uniform_(generator=generator),
        lambda generator: torch.randperm(4, device="npu", generator=generator),
        lambda generator: torch.bernoulli(torch.ones(2, device="npu"), generator=generator),
    ],
)
def test_generator_of_another_device_is_refused(draw):
    with pytest.raises(RuntimeError, match="Expected a 'npu' device type for generator but found 'cpu'"):
        draw(torch.Generator("cpu"))
    with pytest.raises(RuntimeError, match="npu"):
        torch.randn(2, generator=torch.Generator("npu"))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_draw_the_same_masks_again(reentrant):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 64)).to(
        "npu"
    )
    x = torch.randn(16, 64, device="npu")

    def gradients(forward):
        model.zero_grad()
        torch.manual_seed(7)
        forward().square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients(lambda: model(x))
    again = gradients(lambda: checkpoint(model, x.clone().requires_grad_(), use_reentrant=reentrant))
    assert all(map(torch.equal, again, expected))
