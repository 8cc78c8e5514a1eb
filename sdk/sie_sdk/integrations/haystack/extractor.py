"""The extractor: labelled entities of a text, or the labels of the whole text."""

from __future__ import annotations

from typing import Any, ClassVar

from haystack import component
from haystack.utils import Secret

from sie_sdk.client import SIEAsyncClient, SIEClient
from sie_sdk.integrations.haystack.component import KEY, ServedComponent
from sie_sdk.keywords import ExtractKeywords
from sie_sdk.types import Classification, Entity, ExtractResult


@component
class SIEExtractor(ServedComponent):
    """Finds entities in a text, or classifies it.

    >>> SIEExtractor(model="dslim/distilbert-NER").run("Ada Lovelace lived in London.")["entities"][0].label
    """

    own: ClassVar[tuple[str, ...]] = ("labels", "instruction")

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: Secret | None = KEY,
        *,
        labels: list[str] | None = None,
        instruction: str | None = None,
        pool: str | None = None,
        timeout_s: float = 150.0,
        deadline_s: float = 300.0,
        options: dict[str, Any] | None = None,
        client: SIEClient | None = None,
        async_client: SIEAsyncClient | None = None,
    ) -> None:
        """Make the component; nothing is sent yet.

        Args:
            labels: what a zero-shot model is to look for; of a model with labels of its own, which of them to keep.
            instruction: for models that were trained with one.

        The other parameters are those of :class:`ServedComponent`.
        """
        self._connect(model, base_url, api_key, pool, timeout_s, deadline_s, options, client, async_client)
        self.labels, self.instruction = labels, instruction

    @component.output_types(
        entities=list[Entity],
        classifications=list[Classification],
        relations=list[dict[str, Any]],
        objects=list[dict[str, Any]],
    )
    def run(self, text: str, labels: list[str] | None = None) -> dict[str, Any]:
        """What was found, by kind; ``labels`` go before the component's own."""
        return _found(self.connection.extract(self.model, text, **self._asked(labels)))

    @component.output_types(
        entities=list[Entity],
        classifications=list[Classification],
        relations=list[dict[str, Any]],
        objects=list[dict[str, Any]],
    )
    async def run_async(self, text: str, labels: list[str] | None = None) -> dict[str, Any]:
        """:meth:`run`, awaited."""
        return _found(await self.connection.aextract(self.model, text, **self._asked(labels)))

    def _asked(self, labels: list[str] | None) -> ExtractKeywords:
        labels = labels or self.labels
        return {**self.terms, "labels": labels, "output_schema": None, "instruction": self.instruction}


def _found(result: ExtractResult) -> dict[str, Any]:
    return {
        "entities": result.entities,
        "classifications": result.classifications,
        "relations": result.relations,
        "objects": result.objects,
    }
