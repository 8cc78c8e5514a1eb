"""Labels: what a request to a zero-shot model has to bring. One rule for both ends of the queue.

Not here: their form (``wire``), whether a model with labels of its own has those asked for (the bundle).
"""

from __future__ import annotations

from sie_sdk.errors import InvalidInputError
from sie_sdk.types import ExtractRequest


def labels_to_try(request: ExtractRequest, model: str) -> list[str]:
    """The labels that ``model``, which has none of its own, is to try.

    Raises:
        InvalidInputError: there are none.
    """
    if not (labels := request.params.labels):
        raise InvalidInputError(
            f"{model} tells how well labels fit a text, and there are none.",
            field="params.labels",
            hint='Send the labels to try: {"params": {"labels": ["sports", "politics"]}}.',
        )
    return labels
