"""A request's terms are read from its headers, or refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_ingress.submit import job_id
from sie_ingress.terms import Terms, read_terms
from sie_sdk.errors import InvalidInputError


def test_a_request_without_terms_is_nobody_s_and_has_no_deadline() -> None:
    assert read_terms({}, 100.0) == Terms()


def test_all_terms_are_read() -> None:
    headers = {"x-sie-tenant": "acme", "x-sie-priority": "Bulk", "x-sie-expires-in": "2.5"}
    assert read_terms(headers, 100.0) == Terms(tenant="acme", priority="bulk", deadline=102.5)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-SIE-Priority", "urgent"),
        ("X-SIE-Expires-In", "soon"),
        ("X-SIE-Expires-In", "0"),
        ("X-SIE-Expires-In", "-1"),
        ("X-SIE-Expires-In", "nan"),
        ("X-SIE-Expires-In", "inf"),
        ("X-SIE-Tenant", "two words"),
        ("X-SIE-Tenant", "x" * 129),
    ],
)
def test_terms_that_cannot_be_read_are_refused_by_name(header: str, value: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        read_terms({header.lower(): value}, 100.0)
    assert refused.value.field == header


@given(st.dictionaries(st.sampled_from(["x-sie-tenant", "x-sie-priority", "x-sie-expires-in"]), st.text()))
def test_whatever_the_headers_are_they_are_read_or_refused(headers: dict[str, str]) -> None:
    try:
        terms = read_terms(headers, 0.0)
    except InvalidInputError:
        return
    assert terms.deadline is None or terms.deadline > 0


def test_only_a_request_that_was_split_is_bulk_by_itself() -> None:
    assert Terms().priority_of(1) == "interactive"
    assert Terms().priority_of(2) == "bulk"
    assert Terms(priority="interactive").priority_of(2) == "interactive"
    assert Terms(priority="bulk").priority_of(1) == "bulk"


def test_an_idempotency_key_is_each_tenant_s_own() -> None:
    assert len({job_id("key"), job_id("key", "acme"), job_id("key", "acme2")}) == 3
    assert job_id("key", "acme") == job_id("key", "acme")
