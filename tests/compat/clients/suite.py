"""Runs a file of tests with the pytest of this environment, and prints how each went: {name: outcome} as JSON.

python suite.py langchain_suite.py
"""

import json
import os
import sys
from pathlib import Path

import pytest

OPTIONS = ["asyncio_mode=auto", "asyncio_default_fixture_loop_scope=function"]


class Outcomes:
    def __init__(self):
        self.found = {}

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.found[report.nodeid.partition("::")[2]] = report.outcome


def main():
    file = Path(__file__).parent / sys.argv[1]
    # Not the conftest and the settings of the repository, whose packages are not all here.
    own = ["-q", "-c", os.devnull, "--rootdir", str(file.parent), "--noconftest", "-p", "no:cacheprovider"]
    outcomes = Outcomes()
    code = pytest.main([*own, *(word for option in OPTIONS for word in ("-o", option)), str(file)], [outcomes])
    print(json.dumps(outcomes.found))
    sys.exit(code)


main()
