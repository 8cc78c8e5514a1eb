"""Who listens for other machines without asking for a token is told so, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sie_local import listening
from tests.sdk.cli.running import sie


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "2001:db8::1", "example.org", ""])
def test_an_address_that_others_reach_is_warned_of_unless_a_token_is_asked_for(host: str) -> None:
    told = listening.warning(host, "")
    assert told is not None and host in told and "SIE_AUTH_TOKENS" in told
    assert listening.warning(host, "token") is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_of_this_machine_alone_nothing_is_said(host: str) -> None:
    assert listening.warning(host, "") is None


@pytest.mark.parametrize(("tokens", "warned"), [("", True), ("token", False)])
def test_up_warns_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: str, warned: bool) -> None:
    monkeypatch.setenv("SIE_AUTH_TOKENS", tokens)
    done = sie(
        "up", "--state", str(tmp_path), "--host", "192.0.2.7"
    )  # an address that no machine has: it does not come up
    assert done.exit_code == 1
    assert ("Set SIE_AUTH_TOKENS" in done.stderr) is warned
