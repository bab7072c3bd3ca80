"""torch.profiler and torch_npu.profiler: what npu did, on one timeline with the operators that asked."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import torch_npu

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def work():
    a = torch.ones(64, 64, device="npu")
    return (a @ a).relu()


def trace_of(profiler, tmp_path):
    """The events of the exported trace that have a duration or a flow, by category."""
    file = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(file))
    events = {}
    for event in json.loads(file.read_text())["traceEvents"]:
        events.setdefault(event.get("cat"), []).append(event)
    return events


def test_npu_is_a_supported_activity():
    assert ProfilerActivity.PrivateUse1 in torch.profiler.supported_activities()
    assert torch_npu.profiler.supported_activities() == set(torch_npu.profiler.ProfilerActivity)


def test_launches_and_tasks_stand_in_the_trace(tmp_path):
    work()
    with profile(activities=BOTH) as profiler:
        with record_function("my_block"):
            work()
        torch.npu.synchronize()
    events = trace_of(profiler, tmp_path)
    kernels = {event["name"]: event for event in events["kernel"]}
    assert {"aten::mm", "aten::relu"} <= set(kernels)
    ops = {
        event["args"]["External id"]: event for event in events["cpu_op"] if "External id" in event["args"]
    }
    for kernel in (kernels["aten::mm"], kernels["aten::relu"]):
        op = ops[kernel["args"]["External id"]]
        assert op["name"] == kernel["name"]
        assert op["ts"] <= kernel["ts"]
        assert kernel["ts"] + kernel["dur"] <= op["ts"] + op["dur"]  # a fallback waits for its end
    launches = {event["args"]["correlation"] for event in events["privateuse1_runtime"]}
    assert {kernel["args"]["correlation"] for kernel in kernels.values()} <= launches
    assert any(event["name"] == "my_block" for event in events["user_annotation"])


def test_each_stream_is_a_row(tmp_path):
    first, second = torch.npu.Stream(), torch.npu.Stream()
    with profile(activities=BOTH) as profiler:
        for stream in (first, second):
            with torch.npu.stream(stream):
                torch.ones(1000, device="npu")
        torch.npu.synchronize()
    fills = trace_of(profiler, tmp_path)["gpu_memset"]
    assert len({(event["pid"], event["tid"]) for event in fills}) == len(fills) == 2


def test_time_of_tasks_reaches_the_table():
    with profile(activities=BOTH) as profiler:
        work()
        torch.npu.synchronize()
    row = next(row for row in profiler.key_averages() if row.key == "aten::mm")
    assert row.device_time_total > 0
    assert "aten::mm" in profiler.key_averages().table(sort_by="self_device_time_total", row_limit=5)


def test_copies_have_their_size(tmp_path):
    host = torch.randn(1000).pin_memory()
    with profile(activities=BOTH) as profiler:
        there = host.to("npu", non_blocking=True)
        there.cpu()
    copies = trace_of(profiler, tmp_path)["gpu_memcpy"]
    assert [event["args"]["bytes"] for event in copies] == [4000, 4000]


def test_rounds_and_threads(tmp_path):
    """Each round has its own tasks; work of backward's thread is in it."""
    weight = torch.ones(32, 32, device="npu", requires_grad=True)
    for _ in range(3):
        with profile(activities=BOTH) as profiler:
            (weight @ weight).sum().backward()
            torch.npu.synchronize()
        names = [event["name"] for event in trace_of(profiler, tmp_path)["kernel"]]
        assert names.count("aten::mm") == 3  # one forward, two backward
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work()
    assert "kernel" not in trace_of(profiler, tmp_path)


def test_a_profile_inside_another_ends_it_and_harms_no_later_one(tmp_path):
    with profile(activities=BOTH), profile(activities=BOTH):
        work()
    with profile(activities=BOTH) as later:
        work()
    assert "aten::mm" in [event["name"] for event in trace_of(later, tmp_path)["kernel"]]


def test_names_of_torch_npu(tmp_path):
    names = torch_npu.profiler
    for _ in range(2):
        with names.profile(
            activities=[names.ProfilerActivity.CPU, names.ProfilerActivity.NPU],
            record_shapes=True,
            profile_memory=True,
            schedule=names.schedule(wait=0, warmup=1, active=2, repeat=1),
            on_trace_ready=names.tensorboard_trace_handler(
                str(tmp_path), analyse_flag=True, async_mode=False
            ),
        ) as profiler:
            for _ in range(4):
                work()
                profiler.step()
    files = list(tmp_path.rglob("*.json"))
    assert len(files) == 2
    for file in files:
        names_in_it = [event.get("name") for event in json.loads(file.read_text())["traceEvents"]]
        assert "ProfilerStep#1" in names_in_it and "aten::mm" in names_in_it


def test_tables_are_sorted_by_npu_s_times():
    with torch_npu.profiler.profile() as profiler:
        a = torch.ones(256, 256, device="npu")
        for _ in range(3):
            a @ a
        a.relu()
        torch.npu.synchronize()
    averages = profiler.key_averages()
    mm = next(row for row in averages if row.key == "aten::mm")
    assert mm.self_npu_time_total == mm.self_device_time_total > 0
    assert mm.count == 3 and mm.npu_time == mm.npu_time_total / 3
    table = averages.table(sort_by="self_npu_time_total").splitlines()
    assert any("Self NPU" in line and "NPU total" in line for line in table)
    expected = [row.key for row in sorted(averages, key=lambda row: row.self_device_time_total, reverse=True)]
    assert [line.split()[0] for line in table if line.split()[:1] and line.split()[0] in expected] == expected


def test_experimental_config_says_what_is_not_recorded(recwarn):
    names = torch_npu.profiler
    names._ExperimentalConfig(profiler_level=names.ProfilerLevel.Level1, data_simplification=False)
    names._ExperimentalConfig(export_type=[names.ExportType.Text], aic_metrics=names.AiCMetrics.AiCoreNone)
    assert [str(each.message) for each in recwarn] == []
    with pytest.warns(UserWarning, match=r"does not record what aic_metrics, l2_cache asks for"):
        names._ExperimentalConfig(aic_metrics=names.AiCMetrics.PipeUtilization, l2_cache=True)
    with pytest.raises(ValueError, match=r"export_type holds Db; ExportType\.Text is accepted"):
        names._ExperimentalConfig(export_type=names.ExportType.Db)
    for name in ("profiler_level", "aic_metrics", "export_type"):
        with pytest.raises(TypeError, match=rf"{name} is 7; a \w+ of torch_npu\.profiler is accepted"):
            names._ExperimentalConfig(**{name: 7})
    assert names.supported_ai_core_metrics() == {names.AiCMetrics.AiCoreNone}
    assert names.supported_export_type() == {names.ExportType.Text}
    assert names.supported_profiler_level() == set(names.ProfilerLevel)


@pytest.mark.parametrize("level", torch_npu.profiler.ProfilerLevel)
def test_levels_of_the_profiler(tmp_path, level):
    names = torch_npu.profiler
    with names.profile(experimental_config=names._ExperimentalConfig(profiler_level=level)) as profiler:
        work()
        torch.npu.synchronize()
    events = trace_of(profiler, tmp_path)
    assert "aten::mm" in {event["name"] for event in events["cpu_op"]}
    assert ("kernel" in events) == (level is not names.ProfilerLevel.Level_none)


@pytest.mark.parametrize("activities", [[ProfilerActivity.CPU], BOTH, None], ids=["cpu", "both", "default"])
def test_any_choice_of_activities(tmp_path, activities):
    with profile(activities=activities) as profiler, record_function("my_block"):
        work().sum().item()
    events = trace_of(profiler, tmp_path)
    assert "my_block" in [event["name"] for event in events["user_annotation"]]
    assert {"aten::mm", "aten::sum"} <= {event["name"] for event in events["cpu_op"]}
    assert "aten::sum" in profiler.key_averages().table(row_limit=50)


def test_cuda_activity_is_left_out_with_a_warning(tmp_path):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
    assert "cpu_op" in trace_of(profiler, tmp_path)


@pytest.mark.filterwarnings("ignore:.*use_device")
def test_the_profiler_of_autograd_measures_operators_on_their_stream(capfd):
    x = torch.ones(1 << 22, device="npu")
    with torch.autograd.profiler.profile(use_device="npu") as profiler:
        y = x * 2
        y.sum()
    measured = {event.key: event.device_time_total for event in profiler.key_averages()}
    assert measured["aten::mul"] > 10 and measured["aten::sum"] > 10
    assert "RecordFunction" not in capfd.readouterr().err
