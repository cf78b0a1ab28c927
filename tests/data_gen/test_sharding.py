"""Shards: every sample in one of them, whatever the numbers; and how one is asked for."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from data_gen.errors import DataError
from data_gen.sharding import MAX_SHARDS, WHOLE, Shard, choose_shard, read_shard_from_environment


@pytest.mark.parametrize("num_samples", [1, 1023, 1024, 1025, 5000, 60_000, 60_000_000])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 1000])
def test_every_sample_is_in_one_shard(num_samples: int, count: int) -> None:
    cuts = [Shard(number, count).cut(num_samples) for number in range(1, count + 1)]
    assert cuts[0][0] == 0
    assert cuts[-1][1] == num_samples
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(cuts))
    assert all(start % 1024 == 0 or start == num_samples for start, _ in cuts)
    num_blocks = [-(-(stop - start) // 1024) for start, stop in cuts]
    assert max(num_blocks) - min(num_blocks) <= 1


def test_a_shard_is_typed_as_it_is_shown() -> None:
    assert Shard.parse("3/16") == Shard(3, 16)
    assert str(Shard(3, 16)) == "3/16"
    assert Shard.parse("1/1") == WHOLE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "3/",
        "/3",
        "a/b",
        "1/2/3",
        "-1/4",
        "1 / 4",
        "1/4\n",
        "1.0/4",
        "\N{FULLWIDTH DIGIT NINE}/10",
        "1/" + "9" * 20,
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"--shard .*: write it as NUMBER/COUNT, the first being 1"):
        Shard.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0/4", "--shard 0/4: there is no such shard; use 1/4 to 4/4"),
        ("5/4", "--shard 5/4: there is no such shard; use 1/4 to 4/4"),
        ("1/0", f"--shard 1/0: 0 shards are out of range; use 1 to {MAX_SHARDS}"),
        ("1/100001", f"--shard 1/100001: 100001 shards are out of range; use 1 to {MAX_SHARDS}"),
    ],
)
def test_shards_that_do_not_exist_are_refused(text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        Shard.parse(text)
    assert str(caught.value) == message


def test_parts_sort_by_name() -> None:
    names = [Shard(number, 12).name_part(Path("a/data.h5")).name for number in (1, 2, 10, 12)]
    assert names == [f"data.part-{number}-of-12.h5" for number in ("01", "02", "10", "12")]
    assert Shard(1, 2).name_part(Path("a/b.c/data")) == Path("a/b.c/data.part-1-of-2")


def test_a_launcher_says_which_shard_a_process_is() -> None:
    assert read_shard_from_environment({"RANK": "0", "WORLD_SIZE": "4"}) == Shard(1, 4)
    assert read_shard_from_environment({"RANK": "3", "WORLD_SIZE": "4"}) == Shard(4, 4)
    for environment in ({}, {"RANK": "0"}, {"WORLD_SIZE": "4"}, {"RANK": "0", "WORLD_SIZE": "1"}):
        assert read_shard_from_environment(environment) is None
    for environment in (
        {"RANK": "x", "WORLD_SIZE": "4"},
        {"RANK": "0", "WORLD_SIZE": ""},
        {"RANK": "4", "WORLD_SIZE": "4"},
    ):
        with pytest.raises(DataError, match=r"do not name a process|there is no such shard"):
            read_shard_from_environment(environment)


def test_what_is_typed_goes_before_what_a_launcher_says() -> None:
    launched = {"RANK": "1", "WORLD_SIZE": "4"}
    assert choose_shard(Path("d.h5"), None, {}) == (None, Path("d.h5"))
    assert choose_shard(Path("d.h5"), "1/1", launched) == (WHOLE, Path("d.h5"))
    assert choose_shard(Path("d.h5"), "3/8", launched) == (Shard(3, 8), Path("d.h5"))
    assert choose_shard(Path("d.h5"), None, launched) == (Shard(2, 4), Path("d.part-2-of-4.h5"))
