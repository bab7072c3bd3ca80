"""Tensors of npu in files, pickles and copies."""

import copy
import io
import pickle

import pytest
import torch

PLACES = {
    "as saved": (None, "npu:1", "npu:0"),
    "cpu": ("cpu", "cpu", "cpu"),
    "npu": ("npu", "npu:0", "npu:0"),
    "npu:1": ("npu:1", "npu:1", "npu:1"),
    "device": (torch.device("npu:0"), "npu:0", "npu:0"),
    "device without index": (torch.device("npu"), "npu:0", "npu:0"),
    "dictionary": ({"npu:1": "cpu"}, "cpu", "npu:0"),
    "function that moves": (lambda storage, location: storage.npu(1), "npu:1", "npu:1"),
    "function that keeps": (lambda storage, location: storage, "cpu", "cpu"),
}


def saved():
    base = torch.arange(12.0, device="npu:1").view(3, 4)
    file = io.BytesIO()
    torch.save(
        {
            "base": base,
            "row": base[1],
            "column": base[:, 2],
            "parameter": torch.nn.Parameter(base.half().to("npu:0")),
            "device": base.device,
            "on cpu": torch.arange(3),
        },
        file,
    )
    file.seek(0)
    return file


@pytest.mark.parametrize("options", [{"weights_only": True}, {"weights_only": False}])
@pytest.mark.parametrize("place", PLACES)
def test_loaded_tensors_are_where_they_were_mapped(place, options):
    map_location, base_device, parameter_device = PLACES[place]
    loaded = torch.load(saved(), map_location=map_location, **options)
    assert str(loaded["base"].device) == base_device and str(loaded["parameter"].device) == parameter_device
    assert loaded["base"].tolist() == torch.arange(12.0).view(3, 4).tolist()
    assert loaded["column"].stride() == (4,) and loaded["device"] == torch.device("npu:1")
    assert isinstance(loaded["parameter"], torch.nn.Parameter) and loaded["parameter"].dtype == torch.float16
    loaded["base"][1, 2] = -1
    assert loaded["row"][2].item() == loaded["column"][1].item() == -1
    assert loaded["on cpu"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("mmap", [False, True])
def test_files_and_modules(tmp_path, mmap):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).to("npu")
    x = torch.randn(5, 4, device="npu")
    optimizer = torch.optim.AdamW(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", map_location="cpu" if mmap else None, mmap=mmap)
    again = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).to("npu")
    again.load_state_dict(state["model"])
    optimizer_again = torch.optim.AdamW(again.parameters())
    optimizer_again.load_state_dict(state["optimizer"])
    assert all(value["exp_avg"].is_npu for value in optimizer_again.state.values())
    for both in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(*both)
    assert torch.equal(model.eval()(x), again.eval()(x))


def test_missing_device_in_a_file_is_named(python, tmp_path):
    torch.save(torch.ones(2, device="npu:1"), tmp_path / "one.pt")
    code = f"""
import torch
try:
    torch.load({str(tmp_path / "one.pt")!r})
except RuntimeError as error:
    print(error)
print(torch.load({str(tmp_path / "one.pt")!r}, map_location="npu").device)
"""
    done = python(code, env={"ANYNPU_DEVICES": "1"})
    assert "device 1 but torch.npu.device_count() is 1" in done.stdout and done.stdout.endswith("npu:0\n")


def test_files_load_without_the_plugin(python, tmp_path):
    torch.save({"x": torch.arange(12.0, device="npu")}, tmp_path / "x.pt")
    load = f"import torch; print(torch.load({str(tmp_path / 'x.pt')!r}, map_location=%s)['x'].sum().item())"
    without = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert python(load % "'cpu'", env=without).stdout == "66.0\n"
    error = python(load % "None", env=without, exit_code=1).stderr
    assert "RuntimeError" in error and "npu" in error.splitlines()[-1]


def test_deepcopy_keeps_sharing():
    module = torch.nn.Linear(3, 3).to("npu")
    module.tied = module.weight
    copied = copy.deepcopy(module)
    assert copied.weight is copied.tied and copied.weight.device == module.weight.device
    assert copied.weight.data_ptr() != module.weight.data_ptr() and torch.equal(copied.weight, module.weight)
    x = torch.arange(6.0, device="npu")
    x2, view2 = copy.deepcopy([x, x[1:4]])
    x2[2] = 99
    assert view2[1].item() == 99 and x[2].item() == 2
    assert copy.copy(x).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(protocol):
    x = torch.arange(6.0, device="npu:1")
    again = pickle.loads(
        pickle.dumps({"view": x[1:4], "strided": x.view(2, 3).t(), "bfloat16": x.bfloat16()}, protocol)
    )
    assert again["view"].device == x.device and again["view"].tolist() == [1, 2, 3]
    assert again["strided"].stride() == (1, 3) and again["strided"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert again["bfloat16"].dtype == torch.bfloat16 and again["bfloat16"].tolist() == x.tolist()


def test_storages():
    x = torch.arange(4, dtype=torch.int16, device="npu")
    storage = x.untyped_storage()
    assert storage.device == torch.device("npu:0") and storage.nbytes() == 8
    assert storage.cpu().tolist() == list(x.cpu().untyped_storage())
    assert storage.clone().data_ptr() != storage.data_ptr()
    assert torch.arange(4, dtype=torch.int16).untyped_storage().npu().device == torch.device("npu:0")
    assert torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.int16, _internal=True).tolist() == [
        0,
        1,
        2,
        3,
    ]
