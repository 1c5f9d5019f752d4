"""What is measured, and how each is opened: in a process of its own, with nothing else loaded.

Nothing here imports torch, onnxruntime or ctranslate2 before a subject needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from benchmarks.peers.settings import Setting
from runtime.bundle import Bundle
from runtime.errors import BundleError, MissingExtraError, OptionError
from runtime.options import SearchOptions
from runtime.tokenizer import Tokenizer
from runtime.translator import Translator

if TYPE_CHECKING:
    from model.transformer import Transformer

logger = logging.getLogger(__name__)

Group = Literal["fp32", "int8"]
"""What is compared with what: each group has its CTranslate2."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """slow: measured in fewer rounds, so that a run takes minutes."""

    name: str
    label: str
    group: Group
    slow: bool = False


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(name="eager", label="PyTorch eager, KV cache", group="fp32", slow=True),
        Subject(name="torch-int8", label="PyTorch dynamic INT8", group="int8", slow=True),
        Subject(name="plain-fp32", label="ORT plain loop FP32", group="fp32", slow=True),
        Subject(name="plain-int8", label="ORT plain loop INT8", group="int8", slow=True),
        Subject(name="ctranslate2-float32", label="CTranslate2 float32", group="fp32"),
        Subject(name="ctranslate2-int8", label="CTranslate2 int8", group="int8"),
        Subject(name="leanseq-fp32", label="leanseq FP32", group="fp32"),
        Subject(name="leanseq-int8", label="leanseq INT8", group="int8"),
    )
}
PEER: dict[Group, str] = {"fp32": "ctranslate2-float32", "int8": "ctranslate2-int8"}
OURS: dict[Group, str] = {"fp32": "leanseq-fp32", "int8": "leanseq-int8"}


@dataclass(frozen=True, kw_only=True)
class Materials:
    """The same weights three times. ctranslate2: a directory for each of its subjects."""

    bundle: Path
    checkpoint: Path
    ctranslate2: dict[str, Path]


@dataclass(frozen=True, kw_only=True)
class Threads:
    """How many each subject may use. all_cores: as many as there are, so that leanseq makes its own
    choice; the others are told the number."""

    count: int
    all_cores: bool = False

    @property
    def label(self) -> str:
        return "all cores" if self.all_cores else f"{self.count} thread{'s'[: self.count > 1]}"


@dataclass(frozen=True, kw_only=True)
class Found:
    """The best translation of a line. finished: it ended in EOS, which is not in token_ids."""

    text: str
    token_ids: tuple[int, ...]
    finished: bool

    @property
    def num_tokens(self) -> int:
        """EOS counted."""
        return len(self.token_ids) + int(self.finished)


NOTHING = Found(text="", token_ids=(), finished=True)
"""The translation of an empty line, which no model sees."""


class Peer(Protocol):
    """An opened subject: text in, text out."""

    def translate(
        self, lines: Sequence[str], options: SearchOptions, setting: Setting | None
    ) -> list[Found]: ...

    def describe(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


def choose_subjects(names: Sequence[str], bundle: Bundle) -> list[Subject]:
    """By name, in the order of SUBJECTS. Where none are named all that the bundle has graphs for:
    one that was packed for one precision has fewer; says which are left out.

    Raises OptionError for a name that there is not, BundleError where the bundle lacks the graphs
    of one that is named, or of all.
    """
    for name in names:
        if name not in SUBJECTS:
            raise OptionError(f"subject {name!r} is unknown; expected one of {', '.join(SUBJECTS)}")
    chosen = [subject for name, subject in SUBJECTS.items() if not names or name in names]
    lacking = {subject: what for subject in chosen if (what := _lacks(subject, bundle))}
    what = ", ".join(sorted(set(lacking.values())))
    left = [subject for subject in chosen if subject not in lacking]
    if lacking and (names or not left):
        raise BundleError(
            f"{bundle.path} holds no graphs in {what}, which is to be measured; build it with "
            "`python -m export build --int8`, or name other --subjects"
        )
    if lacking:
        logger.warning(
            "%s holds no graphs in %s: not measured are %s",
            bundle.path, what, ", ".join(subject.name for subject in lacking),
        )  # fmt: skip
    return left


def _lacks(subject: Subject, bundle: Bundle) -> str:
    """What graphs the bundle would have to hold for it; empty where it does.

    A peer that reads the checkpoint alone is there to be compared with ours of the same precision.
    """
    if subject.group not in bundle.precisions():
        return subject.group
    portable = {g.role for g in bundle.graphs_of(subject.group) if g.variant == "portable"}
    plain = subject.name.startswith("plain-") and portable != {"encoder", "decoder_step"}
    return f"portable {subject.group}" if plain else ""


def import_libraries(name: str) -> None:
    """What the subject stands on, so that the memory it takes can be told from the model's."""
    kind = name.split("-")[0]
    try:
        if kind in ("eager", "torch"):
            import torch  # noqa: F401

            from model import checkpoint, translation  # noqa: F401
        elif kind == "ctranslate2":
            import ctranslate2  # noqa: F401
        else:
            import onnxruntime  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_peer(error) from error


def missing_peer(error: ModuleNotFoundError) -> MissingExtraError:
    """In the words of the extra that brings the package."""
    package = (error.name or "").split(".")[0]
    extra = {"onnxruntime": "cpu", "torch": "train"}.get(package, "peers")
    return MissingExtraError(package, extra, "comparing with peers")


def open_peer(name: str, materials: Materials, threads: Threads, setting: Setting | None) -> Peer:
    """Loads the subject. setting: CTranslate2's.

    Raises what loading it raises: BundleError, CheckpointError, BackendError, MissingExtraError.
    """
    return _OPENERS[name.split("-")[0]](SUBJECTS[name], materials, threads, setting)


class TranslatorPeer:
    """Anything that runs under our Translator. details: more to say of it."""

    def __init__(self, translator: Translator, **details: Any) -> None:
        self._translator, self._details = translator, details

    def translate(
        self, lines: Sequence[str], options: SearchOptions, setting: Setting | None
    ) -> list[Found]:
        best = [
            translation.hypotheses[0] for translation in self._translator.translate(lines, options)
        ]
        return [Found(text=h.text, token_ids=h.token_ids, finished=h.finished) for h in best]

    def describe(self) -> dict[str, Any]:
        """What it says of itself: {"precision", "threads", ...}."""
        capabilities = self._translator.capabilities
        return {"precision": capabilities.precision, **capabilities.detail, **self._details}

    def close(self) -> None:
        self._translator.close()


def _open_leanseq(
    subject: Subject, materials: Materials, threads: Threads, setting: Setting | None
) -> Peer:
    """As it opens by itself. Where a number of threads was asked for that is not the machine's,
    so many searches at once, with one thread each."""
    translator = Translator.open(
        materials.bundle,
        backend="onnxruntime",
        precision=subject.group,
        threads=None if threads.all_cores else 1,
        workers=None if threads.all_cores else threads.count,
    )
    return TranslatorPeer(translator, schedule=translator.schedule.render())


def _open_plain(
    subject: Subject, materials: Materials, threads: Threads, setting: Setting | None
) -> Peer:
    from benchmarks.peers.plain_loop import PlainLoopBackend

    bundle = Bundle.open(materials.bundle)
    source, target = (Tokenizer(proto) for proto in bundle.tokenizer_protos())
    return TranslatorPeer(
        Translator(
            PlainLoopBackend(bundle, subject.group, threads.count),
            source,
            bundle.manifest.special_ids,
            target_tokenizer=target,
        )
    )


def _open_eager(
    subject: Subject, materials: Materials, threads: Threads, setting: Setting | None
) -> Peer:
    return _open_torch_model(materials, threads, lambda model: model)


def _open_torch_int8(
    subject: Subject, materials: Materials, threads: Threads, setting: Setting | None
) -> Peer:
    from benchmarks.peers.torch_int8 import quantize_linears

    return _open_torch_model(materials, threads, quantize_linears)


def _open_torch_model(
    materials: Materials, threads: Threads, change: Callable[[Transformer], Transformer]
) -> Peer:
    from dataclasses import replace

    from model.checkpoint import load_checkpoint
    from model.translation import open_translator

    checkpoint = load_checkpoint(materials.checkpoint)
    changed = replace(checkpoint, model=change(checkpoint.model))
    return TranslatorPeer(open_translator(changed, threads=threads.count))


def _open_ctranslate2(
    subject: Subject, materials: Materials, threads: Threads, setting: Setting | None
) -> Peer:
    from benchmarks.peers.ctranslate2_peer import CTranslate2Peer

    assert setting is not None
    return CTranslate2Peer(
        materials.ctranslate2[subject.name], Bundle.open(materials.bundle), setting
    )


_Opener = Callable[[Subject, Materials, Threads, Setting | None], Peer]
_OPENERS: dict[str, _Opener] = {
    "eager": _open_eager,
    "torch": _open_torch_int8,
    "plain": _open_plain,
    "ctranslate2": _open_ctranslate2,
    "leanseq": _open_leanseq,
}
