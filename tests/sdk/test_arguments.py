"""What a client is made with and a call is bounded by: nonsense is refused at once, by name, and no secret is shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sie_sdk import ConfigurationError, InvalidInputError, SIEAsyncClient, SIEClient, SIEError
from tests.sdk.scripted_server import ScriptedServer, vectors

SECRETS = ["s3cret\n", " s3cret", "s3c\nret", "s3crét", b"s3cret"]


@pytest.mark.parametrize("made", [SIEClient, SIEAsyncClient])
@pytest.mark.parametrize("field", ["api_key", "tenant", "machine_profile", "pool"])
@pytest.mark.parametrize("value", SECRETS)
def test_what_no_header_may_have_is_refused_and_not_shown(made: Callable[..., Any], field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        made("http://127.0.0.1:1", **{field: value})
    assert caught.value.field == field
    assert "s3c" not in str(caught.value)


def test_a_key_of_the_environment_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIE_API_KEY", "s3cret\n")
    with pytest.raises(ConfigurationError, match="api_key"):
        SIEClient("http://127.0.0.1:1")


def test_a_key_in_a_header_of_an_own_http_client_is_not_shown_either(server: ScriptedServer) -> None:
    with httpx.Client(headers={"X-Key": "s3cret\n"}) as http, SIEClient(server.url, http_client=http) as client:
        with pytest.raises(InvalidInputError, match="cannot be sent") as caught:
            client.encode("m", "a")
        assert "s3cret" not in str(caught.value) and caught.value.__cause__ is None


def test_a_password_in_the_url_is_sent_and_not_shown(server: ScriptedServer) -> None:
    server.script = [vectors()]
    with SIEClient(server.url.replace("//", "//me:s3cret@")) as client:
        client.encode("m", "a")
        assert "s3cret" not in repr(client)
    assert server.asked[0].headers["authorization"].startswith("Basic ")
    with SIEClient("http://me:s3cret@127.0.0.1:1") as client, pytest.raises(SIEError) as caught:
        client.encode("m", "a", wait_for_capacity=False)
    assert "http://***@127.0.0.1:1" in str(caught.value) and "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        "localhost:8080",
        "ftp://me:s3cret@x",
        "me:s3cret@x",
        "http://",
        "http:///v1",
        "http://[::1",
        "http://h:99999",
        "http://h:port",
        "http://h?x=1",
        "http://h#f",
        "http://exa mple",
        "http://h\n",
        5,
        b"http://h",
    ],
)
def test_what_is_no_address_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SIEClient(wrong)
    assert caught.value.field == "base_url"
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("HTTP://h:80", "http://h:80"),
        ("https://h/", "https://h"),
        ("http://h/v1", "http://h"),
        ("http://h/at/v1/", "http://h/at"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_an_address_is_read_as_people_write_it(given: str, read: str) -> None:
    assert SIEClient(given).base_url == read


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_connections", [0, -1, None, "5", 1.5, True]),
        ("timeout_s", [0, -1, None, "5", math.nan, math.inf, 1e9, True]),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_at_once(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigurationError, match=field) as caught:
            SIEClient("http://127.0.0.1:1", **{field: value})
        assert (caught.value.field, caught.value.limit is None) == (field, False)


@pytest.mark.parametrize(
    ("field", "values"), [("deadline_s", [None, "5", math.nan]), ("concurrency", [0, None, "2", 1.5])]
)
def test_a_call_that_is_bounded_by_no_number_is_refused(field: str, values: list[Any]) -> None:
    with SIEClient("http://127.0.0.1:1") as client:
        for value in values:
            with pytest.raises(InvalidInputError, match=field) as caught:
                client.encode("m", "a", **{field: value})
            assert caught.value.field == field


@pytest.mark.parametrize("made", [SIEClient, SIEAsyncClient])
@pytest.mark.parametrize(
    ("method", "arguments", "field", "value"),
    [
        ("encode", ("m", "a"), "output_types", "dense"),
        ("encode_stream", ("m", ["a"]), "output_types", "dense"),
        ("submit", ("encode", "m", "a"), "output_types", "dense"),
        ("extract", ("m", "a"), "labels", "person"),
        ("extract_stream", ("m", ["a"]), "labels", "person"),
        ("submit", ("extract", "m", "a"), "labels", "person"),
        ("create_pool", ("team-a",), "pinned_models", "org/m"),
    ],
)
def test_one_text_where_a_list_is_due_is_not_split_into_letters(
    made: Callable[..., Any], method: str, arguments: tuple[Any, ...], field: str, value: str
) -> None:
    client = made("http://127.0.0.1:1")
    with pytest.raises(InvalidInputError) as caught:
        getattr(client, method)(*arguments, **{field: value})
    assert caught.value.field == field
    assert str(caught.value) == f"{field} is one text, not a list of them. Pass {field}=['{value}']."


@pytest.mark.parametrize("value", [b"person", 7])
def test_what_is_no_list_of_texts_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="labels is a") as caught:
        SIEClient("http://127.0.0.1:1").extract("m", "a", labels=value)
    assert caught.value.field == "labels"
