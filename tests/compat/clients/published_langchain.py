"""Everything sie-langchain exports, used as its documents show it, sync and async. Prints what came of it as JSON.

python published_langchain.py URL DENSE RANDOM RERANKER TAGGER CLASSIFIER
"""

import asyncio
import json
import sys

import sie_langchain
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from sie_langchain import SIEEmbeddings, SIEExtractor, SIEReranker, SIESparseEncoder

URL, DENSE, RANDOM, RERANKER, TAGGER, CLASSIFIER = sys.argv[1:]
TEXTS = ["A cat sits on the mat.", "", "Zażółć gęślą jaźń 東京", "A kitten rests.", "Rates rose."] * 8
PASSAGES = ["Rome is old.", "Berlin has 3.5 million inhabitants.", "Berlin is a city."]
QUERY = "how many people live in Berlin?"
SENTENCE = "Ada Lovelace moved from London to Turin."


def refused(call):
    try:
        return {"value": call()}
    except Exception as error:
        return {"class": type(error).__name__, "code": getattr(error, "code", None)}


async def awaited():
    embeddings = SIEEmbeddings(base_url=URL, model=DENSE)
    reranker = SIEReranker(base_url=URL, model=RERANKER)
    extractor = SIEExtractor(base_url=URL, model=TAGGER, labels=["PER", "LOC"])
    documents = [Document(page_content=text) for text in PASSAGES]
    told = {
        "documents": await embeddings.aembed_documents(TEXTS),
        "query": await embeddings.aembed_query("hello"),
        "best": [
            [each.page_content, each.metadata["relevance_score"]]
            for each in await reranker.acompress_documents(documents, QUERY)
        ],
        "found": await extractor.ainvoke(SENTENCE),
    }
    for each in (embeddings, reranker, extractor):
        await each.async_client.close()
    return told


embeddings = SIEEmbeddings(base_url=URL, model=DENSE, gpu="cpu", api_key="k", timeout_s=60)
store = InMemoryVectorStore(embeddings)
store.add_documents([Document(page_content=text, metadata={"at": at}) for at, text in enumerate(TEXTS[:5])])
sparse = SIESparseEncoder(base_url=URL, model=RANDOM)
documents = [Document(page_content=text, metadata={"at": at}) for at, text in enumerate(PASSAGES)]
best = SIEReranker(base_url=URL, model=RERANKER, top_k=2).compress_documents(documents, QUERY)
classes = SIEExtractor(base_url=URL, model=CLASSIFIER, labels=["no such class"])
everything = SIEExtractor(base_url=URL, model=TAGGER, labels=["PER", "LOC"], options={"threshold": 1.0})

print(
    json.dumps(
        {
            "exports": sie_langchain.__all__,
            "documents": embeddings.embed_documents(TEXTS),
            "none": embeddings.embed_documents([]),
            "query": embeddings.embed_query("hello"),
            "int8": SIEEmbeddings(base_url=URL, model=DENSE, output_dtype="int8").embed_query("hello"),
            "bits": SIEEmbeddings(base_url=URL, model=DENSE, output_dtype="binary").embed_query("hello"),
            "instructed": SIEEmbeddings(base_url=URL, model=RANDOM, instruction="ship ").embed_documents(["world"]),
            "nearest": [each.page_content for each in store.similarity_search("a small cat", k=2)],
            "sparse": [sparse.encode_documents(["hello world"]), sparse.encode_queries(["hello world"])],
            "best": [[each.page_content, each.metadata] for each in best],
            "unranked": list(SIEReranker(base_url=URL, model=RERANKER).compress_documents([], QUERY)),
            "found": SIEExtractor(base_url=URL, model=TAGGER, labels=["PER", "LOC"]).invoke(SENTENCE),
            "sure": everything.invoke(SENTENCE),
            "awaited": asyncio.run(awaited()),
            "no model": refused(lambda: SIEEmbeddings(base_url=URL, model="no/such").embed_query("a")),
            "no reranker": refused(
                lambda: list(SIEReranker(base_url=URL, model=DENSE).compress_documents(documents, QUERY))
            ),
            "no label": refused(lambda: classes.invoke(SENTENCE)),
        }
    )
)
