from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from model.errors import ConfigError, DataError
from model.training.recipe import evaluation_command, load_recipe, recipe_names
from model.training.settings import TrainingSettings
from runtime.options import SearchOptions

MINE = """
title = "Mine"
[data]
train = ["a.tsv"]
valid = ["b.en", "b.de"]
test = ["c.tsv"]
where = "my cellar"
licence = "mine"
[search]
beam_size = 3
[settings]
warmup = 7
"""


def test_every_recipe_can_be_used() -> None:
    assert recipe_names() == ["multi30k-en-de", "multi30k-en-fr", "tatoeba-en-zh"]
    for name in recipe_names():
        recipe = load_recipe(name)
        assert recipe.describe().startswith(f"{name}: ")
        assert recipe.settings != TrainingSettings()
        assert recipe.search.beam_size == 5
        assert recipe.about()["search_defaults"] == {"beam_size": 5, "length_penalty": 1.0}


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    recipe = load_recipe(str(path))
    assert recipe.name == "mine"
    assert recipe.settings == TrainingSettings(warmup=7)
    assert recipe.search == SearchOptions(beam_size=3)
    assert recipe.describe().split("\n")[1:] == [
        "  files     a.tsv, b.en, b.de",
        "            c.tsv (to score only, at the end)",
        "  trains    20,000 updates",
        "  from      my cellar",
        "  licence   mine",
    ]
    (tmp_path / "a.tsv").write_text("one\teins\t1\t2\ntwo\tzwei\t3\t4\n")
    for name in ("b.en", "b.de"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"three\n"))
    assert recipe.read("train", tmp_path) == [("one", "eins"), ("two", "zwei")]
    assert recipe.read("valid", tmp_path) == [("three", "three")]


def test_stages_each_change_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        f"{MINE}max_updates = 3\n[[then]]\nmax_updates = 5\nr_drop = 2\n[[then]]\nmax_updates = 8\n"
    )
    recipe = load_recipe(str(path))
    assert recipe.settings == TrainingSettings(warmup=7, max_updates=3)
    assert "  trains    3 + 2 + 3 updates" in recipe.describe()
    assert recipe.then == (
        TrainingSettings(warmup=7, max_updates=5, r_drop=2),
        TrainingSettings(warmup=7, max_updates=8, r_drop=2),
    )


def test_missing_files_are_named_with_where_they_come_from(tmp_path: Path) -> None:
    (tmp_path / "val.de.gz").write_bytes(b"")
    with pytest.raises(DataError) as error:
        load_recipe("multi30k-en-de").read("valid", tmp_path)
    assert str(error.value) == (
        f"{tmp_path} lacks val.en (or val.en.gz), which recipe multi30k-en-de needs; get it from "
        "https://github.com/multi30k/dataset, folder data/task1/raw"
    )


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("title", "titel", "can't be used: unknown table or key 'titel'; did you mean 'title'"),
        ('title = "Mine"', "", "lacks 'title'; model/training/recipe.py says"),
        ("warmup", "warm_up", "can't be used: unknown training setting 'warm_up'; did you mean"),
        ("beam_size", "beams", "can't be used: unknown search option 'beams'"),
        ('["a.tsv"]', "[]", r"can't be used: train is \[\]; expected one TSV, or two aligned"),
        ('["a.tsv"]', "[1]", r"can't be used: train is \[1\]; expected one TSV, or two aligned"),
        ('["a.tsv"]', "7", "can't be used: train is 7; expected one TSV, or two aligned"),
        ('["a.tsv"]', '"ab"', "can't be used: train is 'ab'; expected one TSV, or two aligned"),
        (
            "[search]",
            f"[search]\ntop_p = 1{'0' * 400}",
            "can't be used: top_p is a whole number of",
        ),
        ("[search]", f"[search]\ntop_k = 1{'0' * 5000}", "can't be used: Exceeds the limit"),
        ("[search]", "[[search]]", r"can't be used: search is \[.*\]; expected a table: \[search"),
        ("warmup", "preset = []\nwarmup", r"can't be used: preset is \[\]; expected one of tiny"),
        ("[settings]", "[settings", "can't be used: Expected"),
        ("[data]", "then = 7\n[data]", r"can't be used: then is 7; expected tables: \[\[then"),
        (
            "warmup = 7",
            "max_updates = 9\n[[then]]\nmax_updates = 9\nnorm = 'post'",
            "can't be used: stage 2 can't follow the one before: max_updates is 9; expected more "
            "than the 9 before, .*; norm: 'pre', now 'post'",
        ),
        (
            "warmup = 7",
            "patience = 3\n[[then]]\nmax_updates = 30000",
            "can't be used: stage 1: patience is 3; expected none, since updates say when",
        ),
        (
            "warmup = 7",
            "[[then]]\nmax_updates = 30000\nmax_minutes = 5",
            "can't be used: stage 2: max_minutes is 5; expected none",
        ),
        (
            "warmup = 7",
            "[[them]]\nmax_updates = 30000",
            "can't be used: unknown table or key 'them'; did you mean 'then'",
        ),
        ("licence", "lizenz = 1\nlicence", "can't be used: data: unknown table or key 'lizenz'"),
        (
            "warmup = 7",
            "[[then]]\nmaxupdates = 30000",
            "can't be used: unknown training setting 'maxupdates'; did you mean",
        ),
    ],
)
def test_recipes_that_are_none(tmp_path: Path, before: str, after: str, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace(before, after))
    with pytest.raises(ConfigError, match=f"recipe mine {text}"):
        load_recipe(str(path))


def test_recipes_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="there is no recipe 'multi40k'; expected one of multi30k"
    ):
        load_recipe("multi40k")
    with pytest.raises(ConfigError, match=r"no\.toml can't be read \(No such file or directory\)"):
        load_recipe(str(tmp_path / "no.toml"))


@pytest.mark.parametrize(
    ("test", "flags"),
    [
        ([], "--src SRC --ref REF"),
        (["my test.tsv"], "--tsv 'my test.tsv'"),
        (["t.en", "t.de.gz"], "--src t.en --ref t.de.gz"),
    ],
)
def test_what_to_type_to_score_it(test: list[str], flags: str) -> None:
    command = evaluation_command(Path("out"), [Path(name) for name in test])
    assert command == f"python -m model evaluate --checkpoint out {flags}"
