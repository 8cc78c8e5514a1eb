"""Profiles and aliases by a real model on both servers: what they give equals what the options they stand for give."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sie_sdk import SIEClient, UnknownProfileError
from tests import tiny_model
from tests.e2e.conftest import SPEC, serving
from tests.platform import Platform

pytestmark = pytest.mark.e2e

MODEL, TEXTS = "test/tiny", ["hello world", "hello"]
PROFILES = """
profiles:
  compact: {options: {output_dtype: int8, is_query: true}}
  raw: {options: {normalize: false}}
"""
ALIASES = {"house": MODEL, "small": f"{MODEL}:compact"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiles")
    tiny_model.make(folder / "tiny")
    (folder / "tiny.yaml").write_text(SPEC.format(path="tiny") + PROFILES)
    return folder


@pytest.fixture(scope="module", params=["serve", "up"])
def client(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SIEClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIE_MODEL_ALIASES", json.dumps(ALIASES))
        if request.param == "serve":
            with serving("--models", str(folder)) as url, SIEClient(url) as client:
                yield client
            return
        platform = Platform(tmp_path_factory.mktemp("state"), quiet_s=600)
        platform.up(0, "--models", str(folder))
    try:
        with SIEClient(platform.url) as client:
            yield client
    finally:
        platform.down()


def vectors(client: SIEClient, model: str, **asked: Any) -> np.ndarray[Any, Any]:
    results = client.encode(model, TEXTS, **asked)
    return np.stack([result.dense for result in results if result.dense is not None])


def test_a_profile_gives_what_its_options_give(client: SIEClient) -> None:
    by_options = vectors(client, MODEL, output_dtype="int8", is_query=True)
    assert by_options.dtype == np.int8
    for named in (f"{MODEL}:compact", "TINY:Compact", "default:/test/tiny:compact", "small", "house:compact"):
        assert np.array_equal(vectors(client, named), by_options), named
    assert np.array_equal(vectors(client, "house", options={"profile": "compact"}), by_options)


def test_what_a_request_says_itself_goes_before_its_profile(client: SIEClient) -> None:
    own = vectors(client, f"{MODEL}:compact", output_dtype="float32", options={"is_query": False})
    assert np.array_equal(own, vectors(client, MODEL)) and own.dtype == np.float32


def test_without_a_profile_or_with_the_default_one_nothing_is_added(client: SIEClient) -> None:
    plain = vectors(client, MODEL)
    assert np.allclose(np.linalg.norm(plain, axis=1), 1, atol=1e-3)
    for named in (f"{MODEL}:default", "house", "house:default"):
        assert np.array_equal(vectors(client, named), plain)
    assert not np.allclose(np.linalg.norm(vectors(client, f"{MODEL}:raw"), axis=1), 1, atol=1e-3)


def test_the_profiles_and_aliases_are_listed_and_an_unknown_one_is_refused_with_them(client: SIEClient) -> None:
    model = client.get_model("small")
    assert (list(model.profiles), model.aliases) == (["default", "compact", "raw"], ["house", "small"])
    with pytest.raises(UnknownProfileError) as refused:
        client.encode(f"{MODEL}:fast", TEXTS)
    assert refused.value.details["profiles"] == ["default", "compact", "raw"]
