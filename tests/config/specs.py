"""Valid specs made at random, as records, for tests of what is done with any of them."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from sie_config.model.model_spec import Lora, ModelSpec, Parity, Profile
from sie_config.model.runtime_options import Options
from sie_config.model.sources import HubSource, LocalSource, PackageSource, Source
from sie_config.model.tasks import Dense, Extract, Multivector, Score, Sparse, Tasks

LETTERS = "abcXYZ019"
COMMITS = st.text("0123456789abcdef", min_size=40, max_size=40)
NAMES = st.builds("{}{}".format, st.sampled_from(LETTERS), st.text(LETTERS + "._-", max_size=8))
PROFILES = NAMES.map(str.lower).filter(lambda name: name != "default")
# What YAML would take for something else belongs here: it has to come back as text.
TEXTS = st.sampled_from(
    ["no", "yes", "1", "1e3", "null", "2024-01-01", "~", "a: b", "#", "{}", " x", "ü\n\n"]
) | st.text(st.characters(codec="utf-8"), max_size=12)
SIZES = st.integers(1, 1 << 40)
SOURCES: st.SearchStrategy[Source] = (
    st.builds(LocalSource, st.text(LETTERS + "/._-", min_size=1, max_size=12))
    | st.builds(HubSource, st.builds("{}/{}".format, NAMES, NAMES), COMMITS)
    | st.builds(
        PackageSource,
        st.text(LETTERS, min_size=1, max_size=8),
        st.text(LETTERS, min_size=1, max_size=8),
        st.text("0123456789abcdef", min_size=64, max_size=64),
        st.text(LETTERS, min_size=1, max_size=8),
    )
)
EVERY_SOURCE = st.lists(SOURCES, min_size=1, max_size=3).map(tuple)
QUERY_TEMPLATES = st.sampled_from(["", "{text}", "Instruct: {instruction}\nQuery: {text}"])


@st.composite
def dense(draw: st.DrawFn) -> Dense:
    """A task with shorter lengths, and prompts or templates."""
    dim = draw(st.integers(2, 4096))
    template = draw(QUERY_TEMPLATES)
    return Dense(
        dim=dim,
        pooling=draw(st.sampled_from(["cls", "mean", "last", "weighted_mean"])),
        normalize=draw(st.booleans()),
        query_prompt="" if template else draw(TEXTS),
        query_template=template,
        document_prompt=draw(TEXTS),
        dims=tuple(draw(st.lists(st.integers(1, dim - 1), max_size=3))),
        projection=draw(TEXTS),
    )


@st.composite
def tasks(draw: st.DrawFn) -> Tasks:
    """At least one task that the engine computes."""
    multivector = draw(st.none() | st.builds(Multivector, st.integers(1, 4096), TEXTS, query_length=st.integers(0, 64)))
    kinds = ["cross_encoder", "yes_no", *(["maxsim"] if multivector else [])]
    made = Tasks(
        dense=draw(st.none() | dense()),
        sparse=draw(st.none() | st.builds(Sparse, SIZES, st.sampled_from(["splade", "lexical"]))),
        multivector=multivector,
        score=draw(st.none() | st.builds(Score, st.sampled_from(kinds), yes=TEXTS, no=TEXTS, suffix=TEXTS)),
        extract=draw(
            st.none()
            | st.builds(
                Extract,
                st.sampled_from(["entities", "classes", "entailment"]),
                st.lists(TEXTS, max_size=3).map(tuple),
                multi_label=st.booleans(),
            )
        ),
    )
    return made if msgspec.structs.asdict(made) != msgspec.structs.asdict(Tasks()) else Tasks(dense=draw(dense()))


@st.composite
def profiles(draw: st.DrawFn, tasks: Tasks) -> Profile:
    """Options that go with a model of these tasks, and a LoRA or none."""
    muvera = {"muvera": st.sampled_from([True, {}, {"seed": 7, "projection": None}])} if tasks.multivector else {}
    dtypes = ["float32", "float16" if tasks.sparse else "int8"]  # which sparse vectors do not come in
    given: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "is_query": st.booleans(),
                "normalize": st.booleans(),
                "output_dtype": st.sampled_from(dtypes),
                "instruction": TEXTS,
                "threshold": st.floats(0, 1),
                "top_k": SIZES,
                "doc_template": QUERY_TEMPLATES,
                **muvera,
            },
        )
    )
    lora = st.builds(Lora, EVERY_SOURCE, st.floats(allow_nan=False, allow_infinity=False))
    return Profile(given, draw(st.none() | lora))


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    """Any valid spec."""
    able = draw(tasks())
    named: dict[str, Profile] = draw(st.dictionaries(PROFILES, profiles(able), max_size=3))
    planned = draw(st.booleans())
    return ModelSpec(
        id=draw(st.lists(NAMES, min_size=1, max_size=2).map("/".join).filter(_is_id)),
        family=draw(st.text(LETTERS, min_size=1, max_size=8)),
        tasks=able,
        sources=draw(EVERY_SOURCE),
        tokenizer=draw(st.just(()) | EVERY_SOURCE),
        revision=draw(COMMITS | TEXTS.filter(bool)),
        max_sequence_length=draw(SIZES),
        status="planned" if planned else "ready",
        blocked_by="its head" if planned else "",
        inputs=draw(st.sampled_from([("text",), ("image", "text")])) if planned else ("text",),
        files=tuple(draw(st.lists(st.sampled_from(["1_Dense/model.safetensors", "sparse_linear.pt"]), max_size=2))),
        precision=draw(st.sampled_from(["auto", "float32", "bfloat16", "float16"])),
        machine_profiles=tuple(draw(st.lists(NAMES, max_size=2))),
        pool=draw(NAMES),
        licence=draw(TEXTS),
        parameters=draw(SIZES),
        bytes=draw(SIZES),
        options=tuple(draw(st.lists(st.sampled_from(Options.__struct_fields__), max_size=3))),
        profiles=named,
        default_profile=draw(st.sampled_from([*named, "default"])),
        parity=tuple(draw(st.lists(st.builds(Parity, TEXTS, st.sampled_from(["real", "random"]), TEXTS), max_size=2))),
        owner=draw(TEXTS),
    )


def _is_id(name: str) -> bool:
    parts = name.split("/")
    return "__" not in name and ".." not in name and "." not in parts and parts[-1] != "status" and len(name) <= 200
