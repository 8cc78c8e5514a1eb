"""The settings of the ingress; each field is the environment variable ``SIE_<FIELD>``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sie_sdk.settings import Bytes, Positive, Seconds


class Settings(msgspec.Struct, frozen=True):
    """Read once at the start."""

    nats_url: str = "nats://127.0.0.1:4222"
    """The NATS server, or several of a cluster, separated by commas."""
    host: str = "127.0.0.1"
    """The address to listen on; the port is ``PORT``, as Knative sets it."""
    max_body_bytes: Bytes = 64 * 1024 * 1024
    """The largest request body, as it comes and unpacked."""
    max_reply_bytes: Bytes = 256 * 1024 * 1024
    """The largest answer to one request, of all its parts together, before it is turned into JSON."""
    max_json_bytes: Bytes = 24 * 1024 * 1024
    """The largest answer that is turned into JSON, in any dialect: that takes twelve times its size."""
    max_items: Annotated[int, msgspec.Meta(ge=1)] = 4096
    """The most items in one request."""
    max_text_bytes: Bytes = 2 * 1024 * 1024
    """The longest text of one item, in bytes of UTF-8."""
    request_timeout_s: Positive = 120.0
    """How long a request is held before it becomes a job; the upper bound of ``Prefer: wait``."""
    tenant_in_flight: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Requests a tenant (``X-SIE-Tenant``) may have in flight at one ingress; parts count singly; 0: any number."""
    reply_sinks: str = ""
    """Beginnings of URLs, separated by commas: where results may be sent (``replyto`` of an event)."""
    reply_subjects: str = "_INBOX."
    """Beginnings of NATS subjects, likewise."""
    auth_tokens: str = ""
    """Bearer tokens, separated by commas, of those who may ask for anything; empty: everybody may."""
    cors_origins: str = ""
    """Origins of web pages that may read the answers, separated by commas, or ``*``; empty: none but its own."""
    config_url: str = ""
    """Where the config service is: told to who would change the catalogue here, and asked for when a pool needs it."""
    config_read_token: str = ""
    """Bearer tokens, separated by commas, of those who may read ``/v1/configs``; empty: everybody may."""
    admin_token: str = ""
    """Bearer tokens of those who may write, which they do at the config service; they read here, too."""
    model_aliases: str = ""
    """Further names of models: a JSON map from each to ``[bundle:/]org/model[:profile]``."""
    default_models: str = ""
    """Models of requests that name none, as TEI's do: of these ids, separated by commas, the first that can do it."""
    openai_tokenizer: Literal["cl100k_base", "o200k_base", "off"] = "cl100k_base"
    """The vocabulary of token ids that come to ``/v1/embeddings`` instead of texts; ``off`` refuses them."""
    cold_start_s: Seconds = 5.0
    """The first ``Retry-After``, until cold starts have been measured."""
