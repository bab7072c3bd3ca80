"""The names of torch.npu: all of torch.cuda and of the published torch_npu, or a reason why not."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from surface import generate as surface


def test_every_absent_name_has_a_reason():
    asked = filter(surface.is_asked_about, surface.names_of_cuda() | surface.published_names())
    absent = {name for name in asked if not surface.is_present(name)}
    reasons = surface.reasons_of_absence()
    assert sorted(map(str, absent - set(reasons))) == []
    assert set(reasons.values()) == set(surface.REASONS)


def test_no_reason_is_given_for_what_is_there_or_never_asked_about():
    known = surface.names_of_cuda() | surface.published_names()
    rows = surface.reasons_of_absence()
    assert [str(name) for name in rows if surface.is_present(name)] == []
    assert [str(name) for name in rows if name not in known or not surface.is_asked_about(name)] == []


def test_the_comparison_sees_what_it_should():
    names = surface.names_of_cuda()
    for part, name in (
        ("", "memory_stats"),
        ("memory", "MemPool"),
        ("Stream", "wait_event"),
        ("", "NPUGraph"),
    ):
        assert surface.Name(part, name) in names
    for imported in ("os", "lru_cache", "Any", "torch"):
        assert surface.Name("", imported) not in names
    assert surface.Name("", "set_compile_mode") in surface.published_names()
    assert not surface.is_present(surface.Name("", "no_such_name"))


@pytest.mark.parametrize("name", ["no_such_name", "nccl"])
def test_absent_names_raise_attribute_errors(name):
    with pytest.raises(AttributeError, match=name):
        getattr(torch.npu, name)
