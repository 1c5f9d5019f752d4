"""Recipes: trainings that can be done again, each a small TOML file in model/recipes.

A recipe says which files it needs, with what settings it trains, how its checkpoint searches, and
what others published. The data is not part of it: whoever trains fetches the files.

    title, published   text; published may be left out
    [data]             train, valid, test: one name (a TSV) or two (source and target, line by
                       line), each found plain or with .gz; where: to get them; licence: of them
    [search]           runtime.options.SearchOptions
    [settings]         model.training.settings.TrainingSettings
    [[then]]           any number of further stages: the settings that each changes of the one
                       before, of which max_updates is one (settings.check_stages)
"""

from __future__ import annotations

import importlib.resources
import itertools
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from model.corpora.files import read_parallel, read_tsv
from model.errors import ConfigError, DataError
from model.search_defaults import told
from model.training.settings import TrainingSettings, check_stages
from runtime.errors import OptionError, nearest_hint
from runtime.options import SearchOptions

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

_FOLDER = importlib.resources.files("model.training") / "recipes"
_SUFFIX = ".toml"
_TABLES = ("title", "published", "data", "search", "settings", "then")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """files: of each split, without .gz. settings: of the first stage, then: of those after it."""

    name: str
    title: str
    published: str
    files: Mapping[Split, tuple[str, ...]]
    where: str
    licence: str
    search: SearchOptions
    settings: TrainingSettings
    then: tuple[TrainingSettings, ...] = ()

    @classmethod
    def from_toml(cls, name: str, text: str) -> Self:
        """Raises ConfigError for what is no recipe."""
        try:
            values = tomllib.loads(text)
            data, search, settings = values["data"], values.get("search", {}), values["settings"]
            for table, found in (("data", data), ("search", search), ("settings", settings)):
                if not isinstance(found, dict):
                    raise ConfigError(f"{table} is {found!r}; expected a table: [{table}]")
            _refuse_unknown("", values, _TABLES)
            _refuse_unknown("data: ", data, (*SPLITS, "where", "licence"))
            stages = _stages(settings, values.get("then", []))
            return cls(
                name=name,
                title=str(values["title"]),
                published=str(values.get("published", "")),
                files={split: _names(split, data[split]) for split in SPLITS},
                where=str(data["where"]),
                licence=str(data["licence"]),
                search=SearchOptions.from_json(search),
                settings=stages[0],
                then=tuple(stages[1:]),
            )
        except KeyError as error:
            raise ConfigError(
                f"recipe {name} lacks {error}; model/training/recipe.py says what one holds"
            ) from error
        except (ConfigError, OptionError, ValueError) as error:  # of tomllib: of numbers too
            raise ConfigError(f"recipe {name} can't be used: {error}") from error

    def read(self, split: Split, data: Path) -> list[tuple[str, str]]:
        """The pairs of one split, from files in the directory `data`. Raises DataError for files
        that are missing, saying where they come from, or that can't be read."""
        found = self.find(split, data)
        return read_tsv(found[0]) if len(found) == 1 else read_parallel(*found)

    def find(self, split: Split, data: Path) -> list[Path]:
        """The files of one split. Raises DataError as `read` does."""
        found = [_find(data, name) for name in self.files[split]]
        missing = [name for name, path in zip(self.files[split], found, strict=True) if not path]
        if missing:
            raise DataError(
                f"{data} lacks {' and '.join(f'{name} (or {name}.gz)' for name in missing)}, which "
                f"recipe {self.name} needs; get it from {self.where}"
            )
        return [path for path in found if path is not None]

    def _updates(self) -> list[int]:
        """Of each stage."""
        ends = [0, *(stage.max_updates for stage in (self.settings, *self.then))]
        return [end - begin for begin, end in itertools.pairwise(ends)]

    def about(self) -> dict[str, Any]:
        """What a checkpoint made by this recipe says about it; it searches as the recipe says."""
        return {"recipe": self.name, "search_defaults": told(self.search)}

    def describe(self) -> str:
        """Lines of text."""
        lines = [
            f"{self.name}: {self.title}",
            f"  files     {', '.join([*self.files['train'], *self.files['valid']])}",
            f"            {', '.join(self.files['test'])} (to score only, at the end)",
            f"  trains    {' + '.join(f'{count:,}' for count in self._updates())} updates",
            f"  from      {self.where}",
            f"  licence   {self.licence}",
        ]
        return "\n".join([*lines, *([f"  published {self.published}"] if self.published else [])])


def recipe_names() -> list[str]:
    """Of those that leanseq brings."""
    names = (Path(file.name) for file in _FOLDER.iterdir())
    return sorted(name.stem for name in names if name.suffix == _SUFFIX)


def load_recipe(name: str) -> Recipe:
    """One that leanseq brings, by its name, or one of your own, by the path of its file.

    Raises ConfigError if there is none, or it can't be used.
    """
    if name in recipe_names():
        return Recipe.from_toml(name, (_FOLDER / f"{name}{_SUFFIX}").read_text("utf-8"))
    if not name.endswith(_SUFFIX):
        raise ConfigError(
            f"there is no recipe {name!r}; expected one of {', '.join(recipe_names())}, or the "
            f"path of a file that ends in {_SUFFIX}"
        )
    try:
        return Recipe.from_toml(Path(name).stem, Path(name).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{name} can't be read ({reason}); expected a recipe") from error


def evaluation_command(checkpoint: Path, test: Sequence[Path]) -> str:
    """What to type to score a checkpoint on a test set of one file or two; with placeholders where
    there is none."""
    command = ["python", "-m", "model", "evaluate", "--checkpoint", str(checkpoint)]
    flags = ["--tsv"] if len(test) == 1 else ["--src", "--ref"]
    for flag, path in zip(flags, test or (Path("SRC"), Path("REF")), strict=True):
        command += [flag, str(path)]
    return shlex.join(command)


def _refuse_unknown(where: str, values: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises ConfigError for what nothing would read."""
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}unknown table or key {key!r}; {nearest_hint(key, known)}")


def _stages(first: Mapping[str, Any], changes: Any) -> list[TrainingSettings]:
    """Of the first and those after it. Raises ConfigError for what can't be."""
    if not isinstance(changes, list) or not all(isinstance(one, dict) for one in changes):
        raise ConfigError(f"then is {changes!r}; expected tables: [[then]] before each")
    stages = [TrainingSettings.from_json(first)]
    for one in changes:
        stages.append(TrainingSettings.from_json({**stages[-1].to_json(), **one}))
    check_stages(stages)
    return stages


def _names(split: Split, found: Any) -> tuple[str, ...]:
    """Raises ConfigError for what are no names of files."""
    names = found if isinstance(found, list) else []
    if len(names) not in (1, 2) or not all(isinstance(one, str) for one in names):
        raise ConfigError(f"{split} is {found!r}; expected one TSV, or two aligned files")
    return tuple(names)


def _find(data: Path, name: str) -> Path | None:
    for path in (data / name, data / f"{name}.gz"):
        if path.is_file():
            return path
    return None
