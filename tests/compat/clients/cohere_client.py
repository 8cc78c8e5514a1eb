"""The official ``cohere`` client, both versions, synchronous and not: what it makes of the server's answers, as JSON.

cohere_client.py URL RERANKER DENSE
"""

import asyncio
import json
import sys

import cohere
from cohere.core.api_error import ApiError

URL, MODEL = sys.argv[1:3]
KEYS = {"base_url": URL, "api_key": "none"}
ASK = {
    "model": MODEL,
    "query": "how many people live in Berlin?",
    "documents": ["Rome is old.", "Berlin has 3.5 million inhabitants.", "Berlin is in Germany."],
}

TEXTS = ["A cat sits.", "A kitten rests.", "Rates rose."]


def results(found):
    assert found.id and found.meta.api_version.version
    return [
        {
            "index": each.index,
            "score": each.relevance_score,
            "document": getattr(each, "document", None) and each.document.text,
        }
        for each in found.results
    ]


def error(call):
    try:
        call()
    except ApiError as refused:
        return {"class": type(refused).__name__, "status": refused.status_code, "body": refused.body}
    raise AssertionError("it was not refused")


async def asynchronous():
    async with cohere.AsyncClientV2(**KEYS) as client:
        return results(await client.rerank(**ASK))


def embedded(first, second, model):
    ask = {"model": model, "texts": TEXTS, "input_type": "search_document"}
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    typed = second.embed(**ask, embedding_types=types).embeddings
    return {
        "v1": first.embed(**ask).embeddings,
        "v1 typed": first.embed(**ask, embedding_types=["float"]).embeddings.float_,
        "v1 in batches": len(first.embed(**{**ask, "texts": ["a"] * 200}).embeddings),
        "v2": second.embed(**ask).embeddings.float_,
        "types": {name: getattr(typed, name if name != "float" else "float_") for name in types},
    }


def main():
    first, second = cohere.Client(**KEYS), cohere.ClientV2(**KEYS)
    objects = [{"text": text, "title": str(place)} for place, text in enumerate(ASK["documents"])]
    print(
        json.dumps(
            {
                "v1": results(first.rerank(**ASK)),
                "v1 with documents": results(first.rerank(**ASK, return_documents=True, top_n=2)),
                "v1 objects": results(first.rerank(**{**ASK, "documents": objects}, return_documents=True)),
                "v1 fields": results(first.rerank(**{**ASK, "documents": objects}, rank_fields=["title", "text"])),
                "v2": results(second.rerank(**ASK)),
                "v2 best": results(second.rerank(**ASK, top_n=1, max_tokens_per_doc=512)),
                "embedded": embedded(first, second, sys.argv[3]),
                "async": asyncio.run(asynchronous()),
                "errors": {
                    "no documents": error(lambda: second.rerank(**{**ASK, "documents": []})),
                    "no model": error(lambda: second.rerank(**{**ASK, "model": "no/such"})),
                    "another model": error(lambda: second.rerank(**{**ASK, "model": sys.argv[3]})),
                },
            }
        )
    )


main()
