"""What ``import torch`` grows by with torch_npu: new processes take turns with autoload on and off."""

import os
import statistics
import subprocess
import sys

from bench import report

LIMIT = 1.15  # times the import without torch_npu
PROGRAM = """
import time
start = time.perf_counter()
import torch
seconds = time.perf_counter() - start
print(hasattr(torch, "npu"), seconds)
"""


def seconds_of_import(autoload):
    """Of a new process, which is otherwise the same."""
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1" if autoload else "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, env=environment
    )
    loaded, seconds = done.stdout.split()
    if loaded != str(autoload):
        sys.exit(f"bench imports: torch.npu is there: {loaded}; expected {autoload}")
    return float(seconds)


def measure(rounds):
    """The seconds with and without torch_npu of each round; who is first alternates."""
    seconds_of_import(True), seconds_of_import(False)  # warm up: files are in the page cache
    times = []
    for number in range(rounds):
        both = {autoload: seconds_of_import(autoload) for autoload in (number % 2 == 0, number % 2 == 1)}
        times.append((both[True], both[False]))
    return times


def main():
    parser = report.parser_of("imports", __doc__)
    parser.add_argument("--rounds", type=int, default=30, help="processes of each kind (30)")
    parser.add_argument("--strict", action="store_true", help="exit status 1 where the aim is missed")
    options = parser.parse_args()
    times = measure(options.rounds)
    with_npu, alone = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(a / b for a, b in times)
    met = ratio <= LIMIT
    console = report.console()
    console.print(f"import torch with torch_npu  {with_npu * 1e3:7.1f} ms")
    console.print(f"import torch alone           {alone * 1e3:7.1f} ms")
    console.print(f"ratio                        {ratio:7.3f}    aim <= {LIMIT}: {report.verdict(met)}")
    report.finish(console, options, {"npu": with_npu, "alone": alone, "ratio": ratio})
    return 1 if options.strict and not met else 0


if __name__ == "__main__":
    sys.exit(main())
