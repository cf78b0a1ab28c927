"""Compiling once, keeping the library, and never loading a broken one."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from overlaycaps.kernels import compiler
from overlaycaps.kernels.compiler import CompilationError, compile_library

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler is installed"
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    file = tmp_path / "answer.c"
    file.write_text("int answer(void) { return 42; }\n")
    return file


def ask(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


@needs_compiler
def test_a_library_is_made_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = compile_library(source)
    assert ask(library) == 42
    assert library.parent == tmp_path / "cache" / "overlaycaps"
    # From now on no compiler is needed.
    monkeypatch.setenv("PATH", "")
    assert compile_library(source) == library
    assert sorted(file.suffix for file in library.parent.iterdir()) == [".sha256", ".so"]


@needs_compiler
def test_a_changed_source_is_another_library(source: Path) -> None:
    first = compile_library(source)
    source.write_text("int answer(void) { return 43; }\n")
    second = compile_library(source)
    assert second != first
    assert ask(second) == 43


@needs_compiler
def test_another_processor_is_another_library(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_library(source)
    monkeypatch.setattr(compiler, "_describe_processor", lambda: "another")
    assert compile_library(source) != first


@needs_compiler
@pytest.mark.parametrize("damage", ["cut short", "emptied", "without digest"])
def test_a_damaged_library_is_made_again(source: Path, damage: str) -> None:
    library = compile_library(source)
    whole = library.read_bytes()
    if damage == "without digest":
        library.with_suffix(".sha256").unlink()
    else:
        library.write_bytes(whole[: len(whole) // 2] if damage == "cut short" else b"")
    assert ask(compile_library(source)) == 42


@needs_compiler
def test_a_cache_folder_that_cannot_be_is_done_without(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file stands here")
    library = compile_library(source)
    assert ask(library) == 42
    assert tmp_path not in library.parents


@needs_compiler
def test_a_user_without_a_home_is_served(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", fail)
    assert ask(compile_library(source)) == 42


@needs_compiler
def test_an_error_of_the_compiler_is_named(source: Path) -> None:
    source.write_text("int answer(void) { return no_such_thing; }\n")
    with pytest.raises(CompilationError, match=r"failed: .*answer"):
        compile_library(source)


def test_a_compiler_that_hangs_is_given_up(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow-cc"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CC", str(slow))
    monkeypatch.setattr(compiler, "_TIMEOUT_S", 0.1)
    with pytest.raises(CompilationError, match=r"took more than 0\.1 s"):
        compile_library(source)
