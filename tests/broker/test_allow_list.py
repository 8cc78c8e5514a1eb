"""Results go where an operator allows, and no spelling of a URL gets around that."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker.events.allow_list import AllowList, Target
from sie_sdk.errors import ConfigurationError, InvalidInputError

ALLOWED = AllowList(
    "https://example.org/hooks, http://sink.test:8080/,http://[::1]:7000/a/", "_INBOX., shop.results,sie.work"
)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/hooks",
        "https://example.org/hooks/a?token=%2F..%2F&b=//",
        "https://example.org:443/hooks/",
        "https://EXAMPLE.org/hooks/%41",
        "http://sink.test:8080/anything",
        "http://sink.test:8080",
        "http://[::1]:7000/a/b",
    ],
)
def test_what_lies_under_an_allowed_url_is_allowed(url: str) -> None:
    assert ALLOWED.check(url) == Target("http", url)


def test_a_refusal_says_nothing_of_a_query() -> None:
    with pytest.raises(InvalidInputError, match="/other") as caught:
        ALLOWED.check("https://example.org/other?key=secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/",
        "https://example.org/hooks2",
        "https://example.org/Hooks",
        "http://example.org/hooks",
        "https://example.org:8443/hooks",
        "https://example.org.evil.test/hooks",
        "https://example.org./hooks",
        "https://sub.example.org/hooks",
        "https://user@example.org/hooks",
        "https://user:secret@example.org/hooks",
        "https://@example.org/hooks",
        "https://example.org@evil.test/hooks",
        "https://example.org%40evil.test/hooks",
        "https://evil.test/https://example.org/hooks",
        "https://evil.test?https://example.org/hooks",
        "https://evil.test#https://example.org/hooks",
        "https://example.org/hooks#evil",
        "https://example.org/hooks/../admin",
        "https://example.org/hooks/./../admin",
        "https://example.org/hooks/..",
        "https://example.org/hooks/%2e%2e/admin",
        "https://example.org/hooks/.%2E/admin",
        "https://example.org/hooks/%252e%252e/admin",
        "https://example.org/hooks/..%2fadmin",
        "https://example.org/hooks%2f..%2fadmin",
        "https://example.org/hooks/..\\admin",
        "https://example.org/hooks/..;/admin",
        "https://example.org/hooks/%5c..%5cadmin",
        "https://example.org//hooks",
        "https://example.org\\@evil.test/hooks",
        "https:\\\\example.org\\hooks",
        "https:example.org/hooks",
        "https:///example.org/hooks",
        "//example.org/hooks",
        " https://example.org/hooks",
        "https://example.org/hooks\n",
        "https://example.org/hooks\tx",
        "https://exämple.org/hooks",
        "HTTPS://example.org/hooks",
        "file:///etc/passwd",
        "ftp://example.org/hooks",
        "http://2130706433:8080/",
        "http://sink.test:8080@evil.test/",
        "http://sink.test:80800/",
        "http://sink.test:x/",
        "http://sink.test/",
        "http://:8080/",
        "http://",
        "https://example.org/hooks/" + "a" * 2048,
        "",
        "somewhere",
    ],
)
def test_everything_else_is_refused_by_the_name_of_its_attribute(url: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        ALLOWED.check(url, "ce-replyto")
    assert refused.value.field == "ce-replyto"
    assert refused.value.limit


PARTS = [
    "..;",
    "https://",
    "http://",
    "example.org",
    "evil.test",
    "@",
    ":",
    "443",
    "/",
    "hooks",
    "..",
    ".",
    "%2e",
    "%2f",
    "\\",
]
PARTS += ["#", "?", "[", "]", "%", " ", "\t", "\n", "ä", ";", "//", "@example.org", "sink.test:8080"]


@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
def test_whatever_is_allowed_leads_the_sender_to_an_allowed_place(url: str) -> None:
    try:
        target = ALLOWED.check(url)
    except InvalidInputError:
        return
    sent = httpx.Request("POST", target.address)
    path = sent.url.raw_path.partition(b"?")[0].decode()
    assert ".." not in path and "%2e" not in path.lower()
    place = (sent.url.scheme, sent.url.host, sent.url.port, path)
    assert place[:3] == ("http", "sink.test", 8080) or (
        place[:3] == ("https", "example.org", None) and (path == "/hooks" or path.startswith("/hooks/"))
    )


@pytest.mark.parametrize("subject", ["_INBOX.abc.1", "shop.results", "shop.results.encode"])
def test_a_subject_under_an_allowed_one_is_allowed(subject: str) -> None:
    assert ALLOWED.check(f"nats:{subject}") == Target("nats", subject)


@pytest.mark.parametrize(
    "subject",
    [
        "_INBOX",
        "_INBOXES.a",
        "_INBOX.*",
        "_INBOX.>",
        "_INBOX..a",
        "_INBOX.",
        "_INBOX.a b",
        "_INBOX.a\r\nPUB x 0",
        "shop.resultsx",
        "shop",
        "$JS.API.STREAM.DELETE.DUE",
        "sie.work.default",
        "",
    ],
)
def test_no_other_subject_is_least_of_all_ours(subject: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        ALLOWED.check(f"nats:{subject}")
    assert refused.value.field == "replyto"


def test_an_empty_list_allows_nothing() -> None:
    for sink in ("https://example.org/", "nats:_INBOX.a"):
        with pytest.raises(InvalidInputError):
            AllowList("", "").check(sink)


@pytest.mark.parametrize("entry", ["example.org", "https://u@example.org/", "https://example.org/?a=b", "ftp://a/"])
def test_a_wrong_entry_stops_the_start_and_names_the_setting(entry: str) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        AllowList(f"https://fine.test/,{entry}", "")
    assert wrong.value.field == "SIE_REPLY_SINKS"


@pytest.mark.parametrize("entry", ["a.*", ">", "a b.", "a..b", "."])
def test_a_wrong_subject_stops_the_start_too(entry: str) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        AllowList("", entry)
    assert wrong.value.field == "SIE_REPLY_SUBJECTS"
