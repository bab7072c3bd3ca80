"""Every tenth unit of PyTorch's operator database; `./dev conformance` runs them all."""

from collections import Counter

import pytest

pytest.importorskip("expecttest", reason="PyTorch's operator database needs it")
from conformance.ledger import Ledger, read_results
from conformance.units import all_units
from conformance.worker import Checker

LEDGER = Ledger()


@pytest.fixture(scope="module")
def checker():
    checker = Checker()
    yield checker
    checker.close()


@pytest.mark.parametrize("unit", [unit for unit in all_units() if unit.is_one_of(10)], ids=str)
def test_a_unit_agrees_with_the_cpu(checker, unit):
    verdict = LEDGER.judge(unit, checker(unit, alone=unit in LEDGER))
    if verdict.kind == "cpu":
        pytest.skip(f"not on the CPU: {verdict.detail}")
    assert verdict.kind in ("passed", "known"), verdict.detail


def test_the_results_are_those_of_this_database():
    """Every unit is counted, and those known to fail are the ledger's."""
    results, units = read_results(), Counter((unit.family, unit.variant) for unit in all_units())
    known = Counter((unit.family, unit.variant) for unit in LEDGER.known)
    assert {key: row.units for key, row in results.items()} == dict(units)
    assert {key: row.known for key, row in results.items() if row.known} == dict(known)
    assert all(row.passed + row.known + row.not_on_cpu == row.units for row in results.values())
