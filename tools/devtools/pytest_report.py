"""A pytest plugin: one line of JSON for each test that starts or ends, so that a crash loses no result."""

import json
import os

REPORT = os.environ["ANYNPU_PYTEST_REPORT"]


def write(test: str, outcome: str) -> None:
    with open(REPORT, "a") as report:
        report.write(json.dumps({"test": test, "outcome": outcome}) + "\n")


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # of pytest-xdist, whose controller hears of the same tests
        config.pluginmanager.unregister(name="devtools.pytest_report")


def pytest_runtest_logstart(nodeid):
    write(nodeid, "started")


def pytest_runtest_logreport(report):
    # The call decides; set-up and tear-down count only where they skip or fail.
    if report.when == "call" or report.outcome != "passed":
        write(report.nodeid, report.outcome)


def pytest_collectreport(report):
    if report.failed:
        write(report.nodeid or "collection", "failed")
