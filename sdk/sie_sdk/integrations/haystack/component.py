"""What the components share: where their calls go, when connections open and close, and how they are saved.

Owns the parameters of every component, and the text of a document. Not here: what a component computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from haystack import Document, default_from_dict, default_to_dict
from haystack.utils import Secret
from tqdm import tqdm

from sie_sdk.client import SIEAsyncClient, SIEClient
from sie_sdk.errors import InvalidInputError
from sie_sdk.integrations.connection import Connection
from sie_sdk.keywords import CallKeywords
from sie_sdk.types import Progress

KEY = Secret.from_env_var("SIE_API_KEY", strict=False)


class ServedComponent:
    """A component whose model a server has.

    Every component takes these parameters beside its own; all but the clients are saved with it.

    Args:
        model: a model of the server.
        base_url: the server's URL; else ``SIE_BASE_URL``, else ``http://127.0.0.1:8080``.
        api_key: sent as a bearer token; default: ``SIE_API_KEY``, if it is set.
        pool: the pool whose workers are to compute it; else everybody's.
        timeout_s: seconds one HTTP request may take.
        deadline_s: seconds until a call gives up, waiting included.
        options: per-model choices, see the model's own page.
        client: a client of your own, in place of ``base_url`` and ``api_key``. You close it.
        async_client: the same for ``run_async``.
    """

    shared: ClassVar[tuple[str, ...]] = (
        *("model", "base_url", "api_key", "pool", "timeout_s", "deadline_s", "options"),
    )
    own: ClassVar[tuple[str, ...]] = ()
    """The names of the parameters that one component has beside ``shared``."""

    # Not __init__: Haystack makes each component's class anew, and super() does not find its way there.
    def _connect(
        self,
        model: str,
        base_url: str | None,
        api_key: Secret | None,
        pool: str | None,
        timeout_s: float,
        deadline_s: float,
        options: dict[str, Any] | None,
        client: SIEClient | None,
        async_client: SIEAsyncClient | None,
    ) -> None:
        given = client or async_client
        self.model, self.pool, self.options = model, pool, options
        self.base_url = given.base_url if given else base_url
        self.api_key, self.timeout_s, self.deadline_s = api_key, timeout_s, deadline_s
        self.client, self.async_client = client, async_client
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """What the calls go through; made on first use."""
        if self._connection is None:
            key = self.api_key.resolve_value() if self.api_key else None
            self._connection = Connection(self.base_url, key, self.timeout_s, self.client, self.async_client)
        return self._connection

    @property
    def terms(self) -> CallKeywords:
        """The keywords of every call."""
        return {"options": self.options, "deadline_s": self.deadline_s, "pool": self.pool}

    def close(self) -> None:
        """Close the connections of ``run``. The next run opens others."""
        self.connection.close()

    async def close_async(self) -> None:
        """Close the connections of ``run_async`` too."""
        await self.connection.aclose()

    def to_dict(self) -> dict[str, Any]:
        """The component as Haystack saves it: without clients, and with the name of the key's variable."""
        return dict(default_to_dict(self, **{name: getattr(self, name) for name in (*self.shared, *self.own)}))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The component that ``to_dict`` saved."""
        made: Self = default_from_dict(cls, data)
        return made


def text_of(document: Document, fields: Sequence[str], separator: str) -> str:
    """A document's text, after those of its metadata that are named and there."""
    told = [str(document.meta[field]) for field in fields if document.meta.get(field) is not None]
    return separator.join([*told, document.content or ""])


def checked(documents: Any) -> list[Document]:
    """What was given for ``documents``.

    Raises:
        InvalidInputError: it is no list of documents.
    """
    if isinstance(documents, list) and all(isinstance(document, Document) for document in documents):
        return documents
    raise InvalidInputError(
        f"documents is a {type(documents).__name__}, not a list of Document.",
        field="documents",
        hint="For one text, use the text embedder.",
    )


@contextmanager
def bar(texts: Sequence[str], shown: bool) -> Iterator[Callable[[Progress], object]]:
    """A bar, if it is to be ``shown``, of how many texts are embedded; what is yielded moves it."""
    with tqdm(total=len(texts), desc="Embedding", unit="texts", disable=not shown) as moved:
        yield lambda progress: moved.update(max(progress.done - moved.n, 0))
        moved.update(len(texts) - moved.n)
