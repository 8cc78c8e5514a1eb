"""The `sie` command line. ``import sie_sdk`` does not import it, and it imports a command only when that runs.

Owns the group's own help. Not here: how commands are found (``group``), exit codes (``exits``), any command.
"""

from __future__ import annotations

import click

from sie_sdk.cli import exits
from sie_sdk.cli.group import Commands
from sie_sdk.version import __version__

HELP = f"""One deployment that serves a whole catalogue of models and scales to zero.

\b
Examples:
  sie up                                        the whole platform on this machine
  sie models                                    what the server can run
  sie encode all-MiniLM-L6-v2 "hello world"     one text to one vector
  sie encode all-MiniLM-L6-v2 - --json < in.jsonl > out.jsonl
  sie score ms-marco-MiniLM-L-6-v2 "capital of France?" "Paris" "Rome"
  sie extract distilbert-NER "Ada Lovelace lived in London."

Results go to standard output, everything else to standard error. Which server is asked: --url behind
the command, or SIE_BASE_URL.

\b
Exit codes:
{exits.documented()}
"""


@click.group(
    cls=Commands, help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="sie")
def main() -> None:
    """The group; its help is above, because it lists the exit codes."""
