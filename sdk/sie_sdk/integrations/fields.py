"""The fields that the parts of LangChain and LlamaIndex share: where the server is, and how long a call may take.

Owns their names, defaults and documentation, and what of them leaves in a dump: everything but the key and the clients.
"""

from __future__ import annotations

import os
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, model_validator

from sie_sdk.client import SIEAsyncClient, SIEClient
from sie_sdk.integrations import embeddings
from sie_sdk.integrations.connection import Connection
from sie_sdk.keywords import CallKeywords, EncodeKeywords
from sie_sdk.types import OutputDtype


def _key() -> SecretStr | None:
    return SecretStr(key) if (key := os.environ.get("SIE_API_KEY")) else None


class Connected(BaseModel):
    """A part that calls a server. A field it does not know is an error, so that a slip of the pen is not ignored."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    base_url: str | None = Field(
        default_factory=lambda: os.environ.get("SIE_BASE_URL"),
        description="The server's URL; else SIE_BASE_URL, else http://127.0.0.1:8080.",
    )
    api_key: SecretStr | None = Field(
        default_factory=_key, exclude=True, description="Sent as a bearer token; else SIE_API_KEY, else none is sent."
    )
    pool: str | None = Field(default=None, description="The pool whose workers are to compute it; else everybody's.")
    timeout_s: float = Field(default=150.0, gt=0, description="Seconds one HTTP request may take.")
    deadline_s: float = Field(default=300.0, gt=0, description="Seconds until a call gives up, waiting included.")
    options: dict[str, Any] | None = Field(default=None, description="Per-model choices, see the model's own page.")
    client: SIEClient | None = Field(
        default=None, exclude=True, repr=False, description="A client of your own, in place of base_url. You close it."
    )
    async_client: SIEAsyncClient | None = Field(
        default=None, exclude=True, repr=False, description="The same for awaited calls."
    )
    _connection: Connection | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _follow_client(self) -> Connected:
        # So that a dump says where the calls go.
        if (given := self.client or self.async_client) is not None:
            self.base_url = given.base_url
        return self

    def __getstate__(self) -> dict[Any, Any]:
        # LlamaIndex leaves out of a pickle what does not go into it: the part would come out without its client.
        if (given := self.client or self.async_client) is not None:
            given.__reduce__()
        return super().__getstate__()

    @property
    def connection(self) -> Connection:
        """What the calls go through; made on first use."""
        if self._connection is None:
            key = self.api_key.get_secret_value() if self.api_key else None
            self._connection = Connection(self.base_url, key, self.timeout_s, self.client, self.async_client)
        return self._connection

    @property
    def terms(self) -> CallKeywords:
        """The keywords of every call."""
        return {"options": self.options, "deadline_s": self.deadline_s, "pool": self.pool}

    def close(self) -> None:
        """Close the connections of blocking calls. The next call opens others."""
        self.connection.close()

    async def aclose(self) -> None:
        """Close all connections of this event loop and of blocking calls. The next call opens others."""
        await self.connection.aclose()


class Embedding(Connected):
    """The fields of dense embeddings."""

    dimensions: int | None = Field(
        default=None, gt=0, description="The first so many dimensions, of a model trained for it (Matryoshka)."
    )
    output_dtype: OutputDtype | None = Field(
        default=None, description="The number format on the way; what comes out are floats. Default: float32."
    )
    instruction: str | None = Field(
        default=None, description="Put before each text, in place of the model's own prompts."
    )
    query_instruction: str | None = Field(default=None, description="The same for queries alone.")

    def asked(self, *, is_query: bool) -> EncodeKeywords:
        """The keywords of ``encode``."""
        return embeddings.asked(
            "dense",
            self.terms,
            is_query=is_query,
            instruction=self.instruction,
            query_instruction=self.query_instruction,
            dimensions=self.dimensions,
            output_dtype=self.output_dtype,
        )
