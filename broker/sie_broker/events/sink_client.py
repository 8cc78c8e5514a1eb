"""How sinks are spoken to over HTTP, and of: a client that carries nothing from one to the next, no address's secrets.

Not here: which sinks may be spoken to (``allow_list``), what is sent and when (``sinks``, the config service's relay).
"""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from sie_sdk.version import __version__


def client(**options: Any) -> httpx.AsyncClient:
    """A client for sinks; ``options`` are httpx's.

    It follows nothing: who may be sent to was decided before. It takes no proxy of the environment's choice: a sink was
    allowed as it is. It keeps no cookies: one sink is many tenants', and what it sets for one goes to no other.
    """
    return httpx.AsyncClient(
        follow_redirects=False,
        trust_env=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        headers={"User-Agent": f"sie-knative/{__version__}"},
        **options,
    )


def shown(address: str) -> str:
    """The address as people may see it: without its user, its query and its fragment, which may be secrets."""
    if not address.startswith(("http://", "https://")):
        return address  # a subject, all of which is its name
    try:
        return str(httpx.URL(address).copy_with(userinfo=b"", query=None, fragment=None))
    except httpx.InvalidURL:  # whose words may have a password in them
        return "an address that cannot be read"
