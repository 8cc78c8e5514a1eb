"""LlamaIndex's clients of Jina: what they make of the server's answers, as JSON.

jina_client.py URL DENSE RERANKER
"""

import asyncio
import json
import sys

from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.jinaai import JinaEmbedding
from llama_index.postprocessor.jinaai_rerank import JinaRerank

URL, DENSE, RERANKER = sys.argv[1:4]
KEYS = {"base_url": f"{URL}/v1", "api_key": "none"}
TEXTS = ["A cat sits.", "A kitten rests.", "Rates rose."]
QUERY = "how many people live in Berlin?"
DOCUMENTS = ["Rome is old.", "Berlin has 3.5 million inhabitants.", "Berlin is in Germany."]


def embedding(**fields):
    made = JinaEmbedding(**({"model": DENSE, "api_key": "none"} | fields))
    made._api.api_url = f"{URL}/v1/embeddings"  # it takes no base URL
    return made


def error(call):
    try:
        call()
    except RuntimeError as refused:
        return str(refused)
    raise AssertionError("it was not refused")


def main():
    embeddings, queries = embedding(), embedding(task="retrieval.query")
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in DOCUMENTS]
    ranked = JinaRerank(top_n=2, model=RERANKER, **KEYS).postprocess_nodes(nodes, QueryBundle(QUERY))
    print(
        json.dumps(
            {
                "documents": embeddings.get_text_embedding_batch(TEXTS),
                "query": queries.get_query_embedding(TEXTS[0]),
                "async": asyncio.run(embeddings.aget_text_embedding_batch(TEXTS)),
                "signed bits": embedding(encoding_queries="binary").get_query_embedding(TEXTS[0]),
                "bits": embedding(encoding_queries="ubinary").get_query_embedding(TEXTS[0]),
                "ranked": [[each.node.text, each.score] for each in ranked],
                "no model": error(lambda: embedding(model="no/such").get_query_embedding("a")),
            }
        )
    )


main()
