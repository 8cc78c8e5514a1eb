"""Everything sie-llamaindex exports, used as its documents show it, sync and async. Prints what came of it as JSON.

python published_llamaindex.py URL DENSE RANDOM RERANKER TAGGER CLASSIFIER
"""

import asyncio
import json
import sys
from io import BytesIO

import sie_llamaindex
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from PIL import Image
from sie_llamaindex import (
    SIEEmbedding,
    SIEExtractorTool,
    SIEMultiModalEmbedding,
    SIENodePostprocessor,
    SIESparseEmbeddingFunction,
    create_sie_extractor_tool,
)

URL, DENSE, RANDOM, RERANKER, TAGGER, CLASSIFIER = sys.argv[1:]
TEXTS = ["A cat sits on the mat.", "?", "Zażółć gęślą jaźń 東京", "A kitten rests.", "Rates rose."] * 8
PASSAGES = ["Rome is old.", "Berlin has 3.5 million inhabitants.", "Berlin is a city."]
QUERY = "how many people live in Berlin?"
SENTENCE = "Ada Lovelace moved from London to Turin."


def refused(call):
    try:
        return {"value": call()}
    except Exception as error:
        return {"class": type(error).__name__, "code": getattr(error, "code", None)}


def nodes():
    return [NodeWithScore(node=TextNode(text=text), score=0.1) for text in PASSAGES]


def picture():
    data = BytesIO()
    Image.new("RGB", (8, 8)).save(data, "PNG")
    return BytesIO(data.getvalue())


def both(encode_documents, encode_queries):
    return [
        [{"indices": places[0], "values": weights[0]}]
        for places, weights in (encode_documents(["hello world"]), encode_queries(["hello world"]))
    ]


async def awaited():
    embedding = SIEEmbedding(base_url=URL, model_name=DENSE)
    reranker = SIENodePostprocessor(base_url=URL, model=RERANKER)
    tool = create_sie_extractor_tool(base_url=URL, model=TAGGER, labels=["PER", "LOC"])
    best = await reranker.apostprocess_nodes(nodes(), query_str=QUERY)
    told = {
        "documents": await embedding.aget_text_embedding_batch(TEXTS),
        "query": await embedding.aget_query_embedding("hello"),
        "best": [[each.node.get_content(), each.score] for each in best],
        "found": (await tool.acall(text=SENTENCE)).raw_output,
    }
    await embedding.async_client.close()
    return told


embedding = SIEEmbedding(base_url=URL, model_name=DENSE, gpu="cpu", timeout_s=60)
index = VectorStoreIndex([TextNode(text=text) for text in TEXTS[:5]], embed_model=embedding)
reranker = SIENodePostprocessor(base_url=URL, model=RERANKER, top_n=2)
multimodal = SIEMultiModalEmbedding(base_url=URL, model_name=DENSE)
sparse = SIESparseEmbeddingFunction(base_url=URL, model_name=RANDOM)
tool = create_sie_extractor_tool(base_url=URL, model=TAGGER, labels=["PER", "LOC"])
classes = SIEExtractorTool(base_url=URL, model=CLASSIFIER, labels=["no such class"])

print(
    json.dumps(
        {
            "exports": sie_llamaindex.__all__,
            "documents": embedding.get_text_embedding_batch(TEXTS),
            "none": embedding.get_text_embedding_batch([]),
            "query": embedding.get_query_embedding("hello"),
            "int8": SIEEmbedding(base_url=URL, model_name=DENSE, output_dtype="int8").get_text_embedding("hello"),
            "bits": SIEEmbedding(base_url=URL, model_name=DENSE, output_dtype="binary").get_text_embedding("hello"),
            "instructed": [
                SIEEmbedding(base_url=URL, model_name=RANDOM, instruction="ship ").get_text_embedding("world")
            ],
            "nearest": [
                each.node.get_content() for each in index.as_retriever(similarity_top_k=2).retrieve("a small cat")
            ],
            "multimodal": [multimodal.get_text_embedding("hello"), multimodal.get_query_embedding("hello")],
            "image": refused(lambda: multimodal.get_image_embedding(picture())),
            "sparse": both(sparse.encode_documents, sparse.encode_queries),
            "best": [
                [each.node.get_content(), each.score]
                for each in reranker.postprocess_nodes(nodes(), QueryBundle(query_str=QUERY))
            ],
            "unranked": reranker.postprocess_nodes([], query_str=QUERY),
            "found": tool.call(text=SENTENCE).raw_output,
            "sure": create_sie_extractor_tool(
                base_url=URL, model=TAGGER, labels=["PER", "LOC"], options={"threshold": 1.0}
            )
            .call(text=SENTENCE)
            .raw_output,
            "awaited": asyncio.run(awaited()),
            "no model": refused(lambda: SIEEmbedding(base_url=URL, model_name="no/such").get_query_embedding("a")),
            "no reranker": refused(
                lambda: SIENodePostprocessor(base_url=URL, model=DENSE).postprocess_nodes(nodes(), query_str=QUERY)
            ),
            "no label": refused(lambda: classes.call(text=SENTENCE).raw_output),
        }
    )
)
