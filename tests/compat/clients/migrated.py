"""What the code of a user of a published integration computes: the same code with the module it imports from.

    python migrated.py langchain sie_langchain

Prints vectors, scores and entities as JSON. The server is SIE_URL, its models are SIE_DENSE, SIE_RANDOM, SIE_RERANKER
and SIE_TAGGER.
"""

import asyncio
import importlib
import json
import os
import sys

URL, DENSE, RANDOM, RERANKER, TAGGER = (
    os.environ[f"SIE_{name}"] for name in ("URL", "DENSE", "RANDOM", "RERANKER", "TAGGER")
)
TEXTS = ["hello world", "the ship sails past the lighthouse", "coffee"]
QUERY, PASSAGES = "how many people live in Berlin?", ["Rome is old.", "Berlin has 3.5 million inhabitants.", "Paris."]
SENTENCE = "Ada Lovelace lived in London."
LABELS, KINDS = ["PER", "LOC"], ("text", "label", "score", "start", "end")


def langchain(module):
    from langchain_core.documents import Document

    embeddings = module.SIEEmbeddings(base_url=URL, model=RANDOM, timeout_s=60)
    told = module.SIEEmbeddings(base_url=URL, model=RANDOM, instruction="ship ", output_dtype="float16")
    sparse = module.SIESparseEncoder(base_url=URL, model=RANDOM)
    reranker = module.SIEReranker(base_url=URL, model=RERANKER, top_k=2)
    documents = [Document(page_content=text, metadata={"at": at}) for at, text in enumerate(PASSAGES)]
    best = reranker.compress_documents(documents, QUERY)
    found = module.SIEExtractor(base_url=URL, model=TAGGER, labels=LABELS).invoke(SENTENCE)
    return {
        "documents": embeddings.embed_documents(TEXTS),
        "query": embeddings.embed_query(TEXTS[0]),
        "awaited": asyncio.run(embeddings.aembed_documents(TEXTS)),
        "told": told.embed_documents(TEXTS),
        "sparse": [*sparse.encode_documents(TEXTS), *sparse.encode_queries(TEXTS)],
        "best": [[document.page_content, document.metadata] for document in best],
        "found": [[entity[kind] for kind in KINDS] for entity in found["entities"]],
        "kinds": [found["relations"], found["classifications"], found["objects"]],
    }


def llamaindex(module):
    from llama_index.core.schema import NodeWithScore, TextNode

    embedding = module.SIEEmbedding(base_url=URL, model_name=RANDOM, timeout_s=60, embed_batch_size=2)
    sparse = module.SIESparseEmbeddingFunction(base_url=URL, model_name=RANDOM)
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.1) for text in PASSAGES]
    best = module.SIENodePostprocessor(base_url=URL, model=RERANKER, top_n=2).postprocess_nodes(nodes, query_str=QUERY)
    found = (
        module.create_sie_extractor_tool(base_url=URL, model=TAGGER, labels=LABELS, name="look")
        .call(SENTENCE)
        .raw_output
    )
    return {
        "documents": embedding.get_text_embedding_batch(TEXTS),
        "query": embedding.get_query_embedding(TEXTS[0]),
        "awaited": asyncio.run(embedding.aget_text_embedding(TEXTS[0])),
        "sparse": [*sparse.encode_documents(TEXTS), *sparse.encode_queries(TEXTS)],
        "best": [[node.node.text, node.score] for node in best],
        "found": [[entity[kind] for kind in KINDS] for entity in found["entities"]],
    }


def haystack(module):
    from haystack import Document

    documents = [Document(content=text, meta={"title": "Ships"}) for text in TEXTS]
    # The published one has no such parameter; it always puts a space there.
    space = {} if module.__name__ == "sie_haystack" else {"embedding_separator": " "}
    embedder = module.SIEDocumentEmbedder(base_url=URL, model=RANDOM, meta_fields_to_embed=["title"], **space)
    embedded = embedder.run(documents=documents)["documents"]
    passages = [Document(content=text) for text in PASSAGES]
    best = module.SIERanker(base_url=URL, model=RERANKER, top_k=2).run(query=QUERY, documents=passages)["documents"]
    found = module.SIEExtractor(base_url=URL, model=TAGGER, labels=LABELS).run(text=SENTENCE)
    return {
        "documents": [document.embedding for document in embedded],
        "query": module.SIETextEmbedder(base_url=URL, model=RANDOM).run(text=TEXTS[0])["embedding"],
        "best": [[document.content, document.meta.get("score", document.score)] for document in best],
        "found": [[getattr(entity, kind) for kind in KINDS] for entity in found["entities"]],
    }


framework, name = sys.argv[1:]
chosen = importlib.import_module(name)
print(json.dumps({"exports": list(chosen.__all__), "computed": globals()[framework](chosen)}))
