"""Runs the Python code of its first argument and prints, as JSON, what it printed."""

import contextlib
import io
import json
import sys

printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    exec(compile(sys.argv[1], "example", "exec"), {"__name__": "example"})
print(json.dumps(printed.getvalue()))
