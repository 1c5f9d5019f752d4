"""constraints.txt pins what pyproject.toml asks for, within the ranges it gives."""

from __future__ import annotations

import re
import tomllib

import pytest
from support.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
INSTALLED = ("cpu", "train", "dev", "trt-rtx")  # by `make test`
ASKED_FOR = [*PROJECT["dependencies"], *(r for extra in INSTALLED for r in EXTRAS[extra])]
FLOORS_FOR_KNOWN_HOLES = {"torch": (2, 10), "onnx": (1, 21), "sentencepiece": (0, 2, 1)}


def pinned() -> dict[str, tuple[int, ...]]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name.lower().replace("_", "-"): numbers(version) for name, version in pins}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@pytest.mark.parametrize("requirement", ASKED_FOR)
def test_requirement_is_pinned_within_its_range(requirement: str) -> None:
    match = re.fullmatch(r"([A-Za-z0-9-]+)(?:\[[a-z0-9]+\])?>=([0-9.]+)", requirement)
    assert match is not None, f"{requirement}: expected NAME>=VERSION or NAME[EXTRA]>=VERSION"
    name, floor = match.groups()
    assert pinned()[name.lower()] >= numbers(floor)


@pytest.mark.parametrize(("name", "floor"), FLOORS_FOR_KNOWN_HOLES.items())
def test_floors_keep_known_holes_out(name: str, floor: tuple[int, ...]) -> None:
    (requirement,) = [r for r in ASKED_FOR if r.startswith(f"{name}>=")]
    assert numbers(requirement.partition(">=")[2]) >= floor


def test_pins_are_plain_versions() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "+cpu" not in text  # a local version would refuse the wheels of other indexes


def test_runtime_needs_neither_torch_nor_onnx() -> None:
    served = [*PROJECT["dependencies"], *EXTRAS["cpu"]]
    assert not [r for r in served if re.match(r"(torch|onnx|tensorrt)\b", r)]
