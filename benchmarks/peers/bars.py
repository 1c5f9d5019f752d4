"""What leanseq is to reach against CTranslate2, as data, and whether a record shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.peers.subjects import OURS, PEER, Group

Shape = Literal["small", "base", "trained"]
"""A preset with random weights, or a trained model."""


@dataclass(frozen=True, kw_only=True)
class SpeedBar:
    """CTranslate2's time over ours, pair by pair. lower: it is the 10th percentile of the ratios
    that must reach it, rather than their median."""

    shape: Shape
    workload: str
    group: Group
    all_cores: bool
    at_least: float
    lower: bool = False


def _speed_bars() -> Iterator[SpeedBar]:
    for shape, workload, one, every in _INT8:
        for all_cores, at_least in ((False, one), (True, every)):
            yield SpeedBar(
                shape=shape, workload=workload, group="int8", all_cores=all_cores, at_least=at_least
            )
    for shape, workload, *_ in _INT8:
        yield SpeedBar(
            shape=shape,
            workload=workload,
            group="fp32",
            all_cores=False,
            at_least=1.0,
            lower=True,
        )


_INT8: tuple[tuple[Shape, str, float, float], ...] = (  # with one thread, with all cores
    ("small", "1x1", 1.4, 1.5),
    ("small", "1x4", 1.2, 1.3),
    ("small", "32x4", 1.15, 1.35),
    ("base", "1x1", 2.5, 3.5),
    ("base", "1x4", 1.8, 2.2),
    ("base", "32x4", 1.15, 1.3),
    ("trained", "file", 1.25, 1.35),
)
SPEED_BARS = tuple(_speed_bars())
MAX_BLEU_LOSS = 0.1
"""By which leanseq INT8 may be below CTranslate2 int8."""
MAX_DISK, MAX_RSS = 1.1, 1.5
"""Of what INT8 loads, over CTranslate2 int8's."""
MAX_FASTEST_SHARE = {"lengths": 0.1, "beams": 0.1}
"""Of the time at the largest size: what may be found in a term that grows faster than attention."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """bar: in words. found: None where this run did not measure it."""

    bar: str
    found: str | None
    holds: bool | None

    def to_json(self) -> dict[str, Any]:
        return {"bar": self.bar, "found": self.found, "holds": self.holds}


def judge(record: Mapping[str, Any]) -> list[Verdict]:
    """Every bar that this kind of run is about."""
    verdicts = [
        _judge_speed(bar, record) for bar in SPEED_BARS if bar.shape == record["what"]["shape"]
    ]
    if record["what"]["shape"] == "trained":
        verdicts.append(_judge_bleu(record["subjects"]))
    verdicts += _judge_sizes(record["subjects"])
    if record.get("cost"):
        verdicts += _judge_cost(record["cost"])
    return verdicts


def _judge_speed(bar: SpeedBar, record: Mapping[str, Any]) -> Verdict:
    found = _ratio(bar, record)
    statistic = "10th percentile" if bar.lower else "median"
    text = (
        f"{bar.shape} {bar.workload}, {'all cores' if bar.all_cores else '1 thread'}, "
        f"{bar.group.upper()}: {statistic} of CTranslate2 time / leanseq time at least "
        f"{bar.at_least:g}"
    )
    if found is None:
        return Verdict(bar=text, found=None, holds=None)
    value = found["p10" if bar.lower else "median"]
    told = f"{found['median']:.2f} ({found['p10']:.2f}-{found['p90']:.2f}, {found['pairs']} pairs)"
    return Verdict(bar=text, found=told, holds=value >= bar.at_least)


def _ratio(bar: SpeedBar, record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for block in record["threads"]:
        fits = block["all_cores"] if bar.all_cores else block["count"] == 1
        subject = block["workloads"].get(bar.workload, {}).get("subjects", {}).get(OURS[bar.group])
        if fits and subject and subject.get("peer_ratio"):
            found: Mapping[str, Any] = subject["peer_ratio"]
            return found
    return None


def _judge_bleu(subjects: Mapping[str, Any]) -> Verdict:
    text = f"INT8: BLEU at most {MAX_BLEU_LOSS:g} below CTranslate2 int8's"
    ours, theirs = (subjects.get(name, {}).get("quality") for name in (OURS["int8"], PEER["int8"]))
    if not ours or not theirs:
        return Verdict(bar=text, found=None, holds=None)
    difference = ours["bleu"] - theirs["bleu"]
    return Verdict(
        bar=text,
        found=f"{ours['bleu']:.2f} against {theirs['bleu']:.2f} ({difference:+.2f})",
        holds=difference >= -MAX_BLEU_LOSS,
    )


def _judge_sizes(subjects: Mapping[str, Any]) -> list[Verdict]:
    verdicts = []
    ours, theirs = (
        subjects.get(name, {}).get("footprint") for name in (OURS["int8"], PEER["int8"])
    )
    for key, label, at_most in (
        ("disk_bytes", "disk", MAX_DISK),
        ("rss_used", "memory above the libraries', once it has translated,", MAX_RSS),
        ("rss_peak", "memory above the libraries', at its peak,", MAX_RSS),
    ):
        text = f"INT8: {label} at most {at_most:g} times CTranslate2 int8's"
        if not ours or not theirs:
            verdicts.append(Verdict(bar=text, found=None, holds=None))
            continue
        share = ours[key] / max(1, theirs[key])
        told = f"{ours[key] / 1e6:.1f} MB over {theirs[key] / 1e6:.1f} MB: {share:.2f}"
        verdicts.append(Verdict(bar=text, found=told, holds=share <= at_most))
    return verdicts


def _judge_cost(cost: Mapping[str, Any]) -> list[Verdict]:
    verdicts = []
    for over, at_most in MAX_FASTEST_SHARE.items():
        text = (
            f"INT8: of the cost against {over} at most {at_most:.0%} in a term that grows faster "
            "than attention"
        )
        curve = cost[over].get(OURS["int8"])
        if curve is None:
            verdicts.append(Verdict(bar=text, found=None, holds=None))
            continue
        share = curve["fastest_share"]
        told = f"{share:.0%} at {curve['sizes'][-1]}"
        verdicts.append(Verdict(bar=text, found=told, holds=share <= at_most))
    return verdicts
