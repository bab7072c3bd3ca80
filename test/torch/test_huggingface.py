"""transformers and accelerate find npu by themselves, and train and generate on it as on the CPU."""

import copy
import itertools

import pytest
import torch
from conformance.reference_random import engine_state

accelerate = pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")
IDS = torch.tensor([[5, 6, 7, 8], [100, 100, 9, 3]])
SEEN = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=101, n_positions=64, bos_token_id=0, eos_token_id=100,
        pad_token_id=100, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


SIZES = {
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32},
    **{"intermediate_size": 48, "vocab_size": 101, "max_position_embeddings": 64},
}


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, bos_token_id=0, eos_token_id=100, pad_token_id=100)
    return transformers.LlamaForCausalLM(config).eval()


def mixtral():
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        **SIZES, num_local_experts=4, bos_token_id=0, eos_token_id=100, pad_token_id=100
    )
    return transformers.MixtralForCausalLM(config).eval()


MODELS = {"gpt2": gpt2, "llama": llama, "mixtral": mixtral}
SAMPLING_SEED = 1
WAYS = {
    "greedy": {"do_sample": False},
    "beams": {"num_beams": 3, "do_sample": False},
    "penalties": {"do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "forbidden words": {"do_sample": False, "bad_words_ids": [[7], [9, 3]], "min_new_tokens": 5},
    "without cache": {"do_sample": False, "use_cache": False},
    "static cache": {"do_sample": False, "cache_implementation": "static", "disable_compile": True},
    "sampling": {"do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 0.8},
    "sampled beams": {"do_sample": True, "num_beams": 2, "top_k": 10},
}


@pytest.fixture
def same_samples(monkeypatch):
    """Makes torch.multinomial draw on the CPU, call by call, what it draws on npu."""
    multinomial, calls = torch.multinomial, itertools.count()

    def draw(probabilities, *args, **kwargs):
        if probabilities.is_cpu:
            torch.set_rng_state(engine_state(SAMPLING_SEED, offset=4 * next(calls)))
        return multinomial(probabilities, *args, **kwargs)

    monkeypatch.setattr(torch, "multinomial", draw)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_generation_gives_the_cpu_s_tokens(name, way, same_samples):
    model = MODELS[name]()

    def generate(model, device):
        torch.manual_seed(SAMPLING_SEED)
        inputs = {"attention_mask": SEEN.to(device), "max_new_tokens": 12, **WAYS[way]}
        return model.generate(IDS.to(device), **inputs).cpu()

    expected = generate(model, "cpu")
    assert torch.equal(generate(copy.deepcopy(model).npu(), "npu"), expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_the_cpu_s(name, attention):
    model = MODELS[name]()
    model.set_attn_implementation(attention)
    ours = copy.deepcopy(model).npu()
    for each, device in ((model, "cpu"), (ours, "npu")):
        each.loss = each(input_ids=IDS.to(device), attention_mask=SEEN.to(device), labels=IDS.to(device)).loss
        each.loss.backward()
    torch.testing.assert_close(ours.loss.cpu(), model.loss)
    for (name, a), b in zip(ours.named_parameters(), model.parameters(), strict=True):
        assert a.is_npu
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_every_library_finds_the_device_by_itself():
    from accelerate.utils import is_bf16_available, is_npu_available
    from transformers.utils import is_torch_npu_available

    assert (
        is_npu_available()
        and is_npu_available(check_device=True)
        and is_torch_npu_available(check_device=True)
    )
    assert is_bf16_available()
    state = accelerate.PartialState()
    assert state.device.type == "npu" and state.num_processes == 1
    assert transformers.TrainingArguments(output_dir="unused").device.type == "npu"


@pytest.mark.parametrize("precision", ["no", "fp16", "bf16"])
def test_accelerate_prepares_and_trains(precision):
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    expected_model, data = copy.deepcopy(model), torch.randn(32, 4)
    accelerator = accelerate.Accelerator(mixed_precision=precision, gradient_accumulation_steps=2)
    assert accelerator.device.type == "npu"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (x,) in loader:
        assert x.device.type == "npu"
        with accelerator.accumulate(model):
            loss = model(x).float().square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    expected_optimizer = torch.optim.SGD(expected_model.parameters(), lr=0.1)
    for pair in data.view(2, 2, 8, 4):
        sum(expected_model(x).square().mean() / 2 for x in pair).backward()
        torch.nn.utils.clip_grad_norm_(expected_model.parameters(), 1.0)
        expected_optimizer.step()
        expected_optimizer.zero_grad()
    tolerance = {"no": 1e-5, "fp16": 5e-3, "bf16": 3e-2}[precision]
    state = {name: value.cpu() for name, value in accelerator.unwrap_model(model).state_dict().items()}
    torch.testing.assert_close(state, dict(expected_model.state_dict()), rtol=tolerance, atol=tolerance)


class Text(torch.utils.data.Dataset):
    def __init__(self, size=24):
        self.ids = torch.randint(0, 100, (size, 8), generator=torch.Generator().manual_seed(4))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def trainer(folder, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, max_steps=6, learning_rate=1e-3,
        logging_steps=1, report_to=[], save_steps=3, seed=3, disable_tqdm=True, **options,
    )  # fmt: skip
    return transformers.Trainer(model=gpt2(), args=arguments, train_dataset=Text())


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def weights(trainer):
    return {name: value.float().cpu() for name, value in trainer.model.state_dict().items()}


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "fp16", "bf16"])
def test_the_trainer_trains_as_on_the_cpu(tmp_path, precision, accumulation):
    half = {} if precision == "float32" else {precision: True}
    ours = trainer(tmp_path / "npu", gradient_accumulation_steps=accumulation, **half)
    ours.train()
    assert next(ours.model.parameters()).is_npu
    expected = trainer(tmp_path / "cpu", gradient_accumulation_steps=accumulation, use_cpu=True)
    expected.train()
    assert len(losses(ours)) == 6
    tolerance = {"float32": 1e-3, "fp16": 1e-2, "bf16": 3e-2}[precision]
    torch.testing.assert_close(losses(ours), losses(expected), rtol=tolerance, atol=tolerance)
    # Adam moves what has no gradient but rounding errors by as much as it moves anything.
    noise = 2e-3 if precision != "bf16" else 6e-3
    torch.testing.assert_close(weights(ours), weights(expected), rtol=5 * tolerance, atol=noise)


@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_a_resumed_trainer_ends_where_the_first_one_did(tmp_path, precision):
    half = {} if precision == "float32" else {precision: True}
    first = trainer(tmp_path, **half)
    first.train()
    again = trainer(tmp_path, **half)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert losses(again)[-3:] == losses(first)[-3:]
    for name, value in weights(first).items():
        assert torch.equal(weights(again)[name], value), name


def test_a_saved_model_loads_onto_the_device(tmp_path):
    model = gpt2().npu()
    model.save_pretrained(tmp_path)
    for options in ({"device_map": "npu"}, {"device_map": {"": 1}}, {"device_map": "auto"}, {}):
        loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, **options)
        assert loaded.device.type == ("npu" if options else "cpu")
        assert torch.equal(loaded.npu()(IDS.npu()).logits, model(IDS.npu()).logits)
