"""Compiled code is found, or made once; and where it cannot be made, nothing fails for it."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from sie_bundle import compiling
from sie_bundle.engine import native
from tests import tiny_model
from tests.bundle import variants

pytestmark = pytest.mark.skipif(not variants.HERE, reason="this CPU has none of the instructions, or there is no g++")
OF = next(iter(variants.HERE), "")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries are looked for anew."""
    monkeypatch.setattr(native, "library", inspect.unwrap(native.library))


def test_a_library_is_made_once_and_found_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made" / "here"
    assert native.library(OF, folder) is not None
    (only,) = folder.iterdir()
    monkeypatch.setenv("CXX", "/bin/false")
    assert native.library(OF, folder) is not None
    assert compiling.made(OF, folder) == only


def test_several_that_make_it_at_once_leave_one_whole_library(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as threads:
        made = {*threads.map(lambda _: compiling.made(OF, tmp_path), range(3))}
    assert [*tmp_path.iterdir()] == [*made]


@pytest.mark.parametrize("left", [0, 100, 4_096, -20], ids=["nothing", "a line", "a page", "all but its end"])
def test_what_a_loss_of_power_left_of_it_is_made_anew(
    left: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = compiling.made(compiling.WORDS, variants.FOLDER).read_bytes()
    (tmp_path / compiling.name(compiling.WORDS)).write_bytes(whole[:left])
    assert native.library(compiling.WORDS, tmp_path) is not None
    assert "is damaged, and made anew" in caplog.text
    assert compiling.is_whole(compiling.made(compiling.WORDS, tmp_path))


@pytest.mark.parametrize("what", ["echo text >", "g++ -shared -fPIC -fsanitize=address -x c++ /dev/null -o"])
def test_a_library_that_cannot_be_loaded_is_not_kept(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = tmp_path / "c++"
    script.write_text(f'#!/bin/sh\nfor last; do :; done\n{what} "$last"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    assert native.library(compiling.WORDS, tmp_path / "kernels") is None
    assert "torch computes each step" in caplog.text
    monkeypatch.delenv("CXX")
    assert native.library(compiling.WORDS, tmp_path / "kernels") is not None


def test_a_compiler_that_does_not_end_costs_speed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (script := tmp_path / "c++").write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setattr(compiling, "COMPILE_S", 0.2)
    assert native.library(compiling.WORDS, tmp_path / "kernels") is None
    assert "is not done after 0.2 s" in caplog.text


def test_what_an_image_has_beside_the_sources_is_taken_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiling.made(OF, variants.FOLDER)
    monkeypatch.setattr(compiling, "SOURCES", tmp_path)
    compiling.name.cache_clear()
    (tmp_path / compiling.name(OF)).write_bytes(made.read_bytes())
    try:
        assert native.library(OF, Path("/proc/nowhere")) is not None
    finally:
        compiling.name.cache_clear()


@pytest.mark.parametrize("compiler", ["/bin/false", "/nowhere/g++"])
def test_without_a_compiler_that_works_torch_computes_the_same(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_model.make(tmp_path / "model")
    with monkeypatch.context() as broken:
        broken.setenv("CXX", compiler)
        model = tiny_model.load(tiny_model.spec(folder), folder, kernels=tmp_path / "kernels")
    assert "torch computes each step" in caplog.text
    compiled = tiny_model.load(tiny_model.spec(folder), folder, kernels=variants.FOLDER)
    rows = model.tokenizer.rows(["hello world", "ship"], 32)
    assert abs(tiny_model.vectors(model, rows) - tiny_model.vectors(compiled, rows)).max() < 1e-5


def test_a_compiler_that_complains_in_another_encoding_costs_speed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = tmp_path / "c++"
    script.write_bytes(b"#!/bin/sh\nprintf 'caf\\351' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    assert native.library(OF, tmp_path / "kernels") is None
    assert "torch computes each step" in caplog.text


def test_a_compiler_may_be_named_with_what_stands_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"env {shutil.which('g++') or 'c++'}")
    assert compiling.made(OF, tmp_path).is_file()


@pytest.mark.parametrize("folder", ["o'brien", "two words"])
def test_a_compiler_s_path_may_have_spaces_and_quotes(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder).mkdir()
    (compiler := tmp_path / folder / "c++").symlink_to(shutil.which("g++") or "c++")
    monkeypatch.setenv("CXX", str(compiler))
    assert compiling.made(OF, tmp_path / "kernels").is_file()


def test_a_command_that_is_none_costs_speed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "o'brien")
    assert native.library(OF, tmp_path / "kernels") is None
    assert "is no command" in caplog.text


def test_a_folder_that_cannot_be_written_costs_speed_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    assert native.library(OF, Path("/proc/nowhere")) is None
    assert "torch computes each step" in caplog.text


def test_without_an_instruction_set_there_is_no_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_avx2_supported", "_is_avx512_supported", "_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    assert native.variant(torch.float32) is None and native.variant(torch.bfloat16) is None
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: True)
    assert native.variant(torch.float32) == "avx2" and native.variant(torch.bfloat16) is None


def test_on_another_kind_of_machine_there_is_no_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert native.variant(torch.float32) is None


def test_the_command_makes_every_variant_for_an_image_without_torch(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None; from sie_bundle import compiling; "
        f"compiling.main(['--all', {str(tmp_path)!r}])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert sorted(said.split()) == sorted(map(str, tmp_path.iterdir()))
    made = {path.name.rpartition("-")[0] for path in tmp_path.iterdir()}
    assert made == {compiling.WORDS, *(f"pass-{of}" for of in compiling.VARIANTS)}


def test_the_command_makes_what_either_precision_needs_for_which_is_taken_is_tried_at_each_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "KEPT", tmp_path)
    monkeypatch.setattr(native, "variant", {torch.bfloat16: "avx512_bf16", torch.float32: "avx512"}.get)
    compiling.main([])
    made = [tmp_path / compiling.name(of) for of in ("avx512_bf16", "avx512", compiling.WORDS)]
    assert capsys.readouterr().out.splitlines() == list(map(str, made))
    assert all(path.stat().st_size for path in made)


def test_the_command_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(SystemExit) as ended:
        compiling.main(["--all", str(tmp_path)])
    assert ended.value.code == 1 and "/nowhere/g++" in capsys.readouterr().out
