"""What tells two jobs apart."""

from __future__ import annotations

from sie_broker import jobs


def test_requests_for_two_models_are_two_however_long_their_names_are() -> None:
    long = "org/" + "m" * 200
    texts = [("a", b"bc"), ("ab", b"c"), ("", b"2:abc"), (f"{long}-a", b"c"), (f"{long}-b", b"c")]
    assert len({jobs.digest(model, body) for model, body in texts}) == len(texts)
