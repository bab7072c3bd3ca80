"""`./dev conformance`: runs the database and says what does not pass."""

import argparse
import sys
import time
from collections import Counter

from .compare import SEED
from .ledger import Ledger, write_results
from .units import all_units
from .worker import Checker


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev conformance", description=__doc__)
    parser.add_argument("-k", help="only units whose name contains this")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th unit, by hash")
    parser.add_argument("--all", action="store_true", help="also name the units that do not pass on the CPU")
    options = parser.parse_args()
    units = [u for u in all_units() if (not options.k or options.k in str(u)) and u.is_one_of(options.every)]
    print(f"{len(units)} units, seed {SEED}", flush=True)

    ledger, checker = Ledger(), Checker()
    verdicts, shown = {}, time.monotonic()
    try:
        for number, unit in enumerate(units, 1):
            verdict = verdicts[unit] = ledger.judge(unit, checker(unit, alone=unit in ledger))
            if verdict.kind in ("failed", "stale") or (options.all and verdict.kind == "cpu"):
                print(f"{verdict.kind} {unit}: {verdict.detail}", flush=True)
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                print(f"{number} of {len(units)}", flush=True)
    finally:
        checker.close()
    if len(units) == len(all_units()):
        write_results(verdicts)
    counts = Counter(verdict.kind for verdict in verdicts.values())
    on_cpu = len(units) - counts["cpu"]
    if on_cpu == 0:
        print("no unit passes on the CPU: nothing was compared")
        return 1
    print(
        f"{counts['passed']} of {on_cpu} units pass ({100 * counts['passed'] / on_cpu:.2f} %): "
        f"{counts['known']} known, {counts['failed']} failed, {counts['stale']} stale; "
        f"{counts['cpu']} more do not pass on the CPU"
    )
    return 1 if counts["failed"] or counts["stale"] else 0


if __name__ == "__main__":
    sys.exit(main())
