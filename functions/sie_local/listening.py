"""Who reaches what is started here: this machine alone, or others too, which a token should keep out.

Owns the warning. What a token lets in is ``sie_ingress.authorization``'s.
"""

from __future__ import annotations

import ipaddress


def warning(host: str, auth_tokens: str) -> str | None:
    """What is said of listening on ``host`` with this ``SIE_AUTH_TOKENS``; None where there is nothing to say."""
    if auth_tokens or _is_loopback(host):
        return None
    return (
        f"Warning: {host or 'every address'} is reached from other machines, and whoever reaches it is answered."
        " Set SIE_AUTH_TOKENS to let in only who sends one of these as a bearer token."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"  # other names may lead anywhere
