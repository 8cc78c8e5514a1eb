"""The components of Haystack: embedders of texts and documents, dense and sparse, a ranker and an extractor.

    pip install '.[haystack]'  # in a clone

Importing it also lets Haystack load saved pipelines that have these components, which it refuses of strange modules.
"""

from sie_sdk.integrations import absent

try:
    from haystack.core.serialization import allow_deserialization_module
except ImportError as error:
    raise absent("Haystack", "haystack", error) from error

from sie_sdk.integrations.haystack.embedders import SIEDocumentEmbedder, SIETextEmbedder
from sie_sdk.integrations.haystack.extractor import SIEExtractor
from sie_sdk.integrations.haystack.ranker import SIERanker
from sie_sdk.integrations.haystack.sparse import SIESparseDocumentEmbedder, SIESparseTextEmbedder

__all__ = [
    "SIEDocumentEmbedder",
    "SIEExtractor",
    "SIERanker",
    "SIESparseDocumentEmbedder",
    "SIESparseTextEmbedder",
    "SIETextEmbedder",
]

allow_deserialization_module(__name__)
