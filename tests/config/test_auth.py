"""Who may read and who may write: by bearer tokens, of which several may hold while they are being changed."""

from __future__ import annotations

import pytest

from sie_config.api.auth import Access
from sie_sdk.errors import ForbiddenError, UnauthorizedError

ADMIN, READ = "a-new,a-old", "r-new , r-old,"


@pytest.mark.parametrize("token", ["a-new", "a-old"])
def test_every_admin_token_writes_and_reads(token: str) -> None:
    access = Access(ADMIN, READ)
    for scheme in ("Bearer", "bearer", "BEARER"):
        access.may_write(f"{scheme} {token}")
        access.may_read(f"{scheme}  {token} ")


@pytest.mark.parametrize("token", ["r-new", "r-old"])
def test_a_read_token_reads_and_is_forbidden_to_write(token: str) -> None:
    access = Access(ADMIN, READ)
    access.may_read(f"Bearer {token}")
    with pytest.raises(ForbiddenError):
        access.may_write(f"Bearer {token}")


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic a-new",
        "a-new",
        "Bearer a-new,a-old",
        "Bearer ,",
        "Bearer ä",
        "Bearer a-ne",
    ],
)
def test_whatever_is_no_token_is_unauthorized_with_a_challenge(authorization: str | None) -> None:
    access = Access(ADMIN, READ)
    for may in (access.may_read, access.may_write):
        with pytest.raises(UnauthorizedError) as refused:
            may(authorization)
        assert refused.value.details["challenge"].startswith("Bearer ")
        assert "a-new" not in f"{refused.value} {refused.value.details}"


@pytest.mark.parametrize("authorization", [None, "Bearer ", "Bearer anything", "Bearer r"])
def test_without_an_admin_token_nobody_writes(authorization: str | None) -> None:
    for empty in ("", " ", ", ,"):
        with pytest.raises(ForbiddenError, match="SIE_ADMIN_TOKEN"):
            Access(empty, "r").may_write(authorization)


@pytest.mark.parametrize("authorization", [None, "Bearer anything"])
def test_without_a_read_token_everybody_reads(authorization: str | None) -> None:
    Access(ADMIN).may_read(authorization)
