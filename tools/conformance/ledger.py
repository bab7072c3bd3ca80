"""The units that are known to fail, each with its reason, and the counts of the last whole run."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from .check import Outcome
from .units import Unit, all_units

DATA = Path(__file__).parent
REASONS = ("no such device semantics", "PyTorch bug", "random by definition")


@dataclass
class Verdict:
    """Of a unit, in the light of the ledger: "passed", "known", "failed", "stale", or "cpu"."""

    kind: str
    detail: str = ""


class Ledger:
    def __init__(self, path: Path = DATA / "known.tsv") -> None:
        self.known: dict[Unit, str] = {}
        units = {str(unit): unit for unit in all_units()}
        for number, line in enumerate(path.read_text().splitlines(), 1):
            name, reason, symptom = line.split("\t")
            where = f"{path.name}:{number}: {name}"
            if name not in units or units[name] in self.known:
                raise ValueError(f"{where} is not a unit, or is there twice")
            if reason not in REASONS:
                raise ValueError(f"{where}: {reason!r} is not one of {', '.join(REASONS)}")
            if not symptom:
                raise ValueError(f"{where} has no symptom")
            self.known[units[name]] = symptom

    def __contains__(self, unit: Unit) -> bool:
        return unit in self.known

    def judge(self, unit: Unit, outcome: Outcome) -> Verdict:
        if unit not in self.known:
            return Verdict(outcome.status, outcome.detail)
        if outcome.status == "failed":
            return Verdict("known", self.known[unit])
        what = "passes" if outcome.status == "passed" else "does not pass on the CPU"
        return Verdict("stale", f"{what}; known.tsv says: {self.known[unit]}")


@dataclass(frozen=True)
class Row:
    """Of results.tsv: the units of a family in one variant."""

    units: int
    not_on_cpu: int
    passed: int
    known: int


RESULTS = DATA / "results.tsv"


def read_results() -> dict[tuple[str, str], Row]:
    _, *lines = RESULTS.read_text().splitlines()
    rows = (line.split("\t") for line in lines)
    return {(family, variant): Row(*map(int, counts)) for family, variant, *counts in rows}


def write_results(verdicts: dict[Unit, Verdict]) -> None:
    counts: dict[tuple[str, str], Counter] = defaultdict(Counter)
    for unit, verdict in verdicts.items():
        counts[unit.family, unit.variant][verdict.kind] += 1
    lines = ["\t".join(("family", "variant", *Row.__annotations__))]
    for (family, variant), count in sorted(counts.items()):
        row = (count.total(), count["cpu"], count["passed"], count["known"])
        lines.append("\t".join((family, variant, *map(str, row))))
    RESULTS.write_text("\n".join(lines) + "\n")
