"""Engines on disk: found, checked against what is here, built where there is none that fits.

    BUNDLE/engines/ROLE.PRECISION.TARGET.LIBRARY/    or, where the bundle can't be written,
    CACHE/engines/BUNDLE_ID/ROLE.PRECISION.TARGET.LIBRARY/
        plan            what TensorRT deserializes
        engine.json     what it was built from and for, with which limits, and the proof
        build.log.gz    the builder's own words

An engine belongs to one ONNX file, one version of one library, and one kind of GPU. It is native
code: it is built where it runs, or ahead of time by the user, and is no part of the bundle's
identity.
"""

from __future__ import annotations

import contextlib
import fnmatch
import gzip
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import platformdirs

from runtime.bundle import ENGINES_NAME, Bundle, sha256_of
from runtime.directory import lock_directory, recover, replace_directory
from runtime.engines import worker
from runtime.engines.builder import SETTINGS_VERSION, Report
from runtime.engines.engine import (
    ENGINE_NAME,
    LOG_NAME,
    Engine,
    EngineFacts,
    check_plan,
    check_precision,
    engine_directory_name,
    read_engine,
)
from runtime.engines.layers import read_log
from runtime.engines.library import Library, LibraryName
from runtime.engines.profiles import EngineLimits, check_sizes, engine_profiles
from runtime.engines.proof import gather_bytes, prove
from runtime.errors import BundleError, EngineError, LeanseqError
from runtime.graph_contract import graph_inputs
from runtime.manifest import GraphSpec, Role

logger = logging.getLogger(__name__)

ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, kw_only=True)
class Here:
    """What would run an engine. gpu: "sm89"; None where there is none."""

    library: LibraryName
    version: str
    gpu: str | None

    @classmethod
    def of(cls, library: Library, gpu: str | None) -> Here:
        return cls(library=library.name, version=library.version, gpu=gpu)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """No engine fits; why says what each was built for and what is here, or that there is none."""

    why: str


def places(bundle: Bundle) -> tuple[Path, Path]:
    """Where the engines of a bundle may lie: inside it, and in the user's cache."""
    cache = Path(platformdirs.user_cache_dir("leanseq")) / "engines" / bundle.bundle_id[:16]
    return bundle.path / ENGINES_NAME, cache


def find(
    bundle: Bundle,
    role: Role,
    precision: str,
    here: Here,
    *,
    limits: EngineLimits | None = None,
) -> Engine | Mismatch:
    """The engine of a graph that runs here and takes at least these limits. Never raises for an
    engine that is damaged, foreign or too old: the Mismatch says so."""
    graph = bundle.graph(role, check_precision(precision))
    wanted = None if limits is None else limits.within(bundle.manifest.model)
    reasons = []
    if here.gpu is not None:
        name = engine_directory_name(role, precision, here.gpu, here.library)
        for place in places(bundle):
            with contextlib.suppress(OSError, LeanseqError):  # then it stays as it is
                recover(place / name)
    for directory in _directories(bundle, role, precision):
        if isinstance(directory, Mismatch):
            reasons.append(directory.why)
            continue
        try:
            engine = read_engine(directory)
            _check_fits(engine, _onnx_sha256(bundle, graph), here, wanted)
            check_plan(engine)
        except EngineError as error:
            reasons.append(str(error))
        else:
            return engine
    if not reasons:
        reasons = [f"no {role} engine in {precision} has been built for {bundle.path}"]
    return Mismatch(why="; ".join(reasons))


def all_engines(bundle: Bundle) -> Iterator[Engine | Mismatch]:
    """Every engine of the bundle, whatever it was built for; a Mismatch for one that is damaged or
    belongs to another ONNX file."""
    for directory in _directories(bundle):
        if isinstance(directory, Mismatch):
            yield directory
            continue
        try:
            engine = read_engine(directory)
            graph = bundle.graph(engine.role, engine.precision)
            _check_onnx(engine, _onnx_sha256(bundle, graph))
            check_plan(engine)
        except (EngineError, BundleError) as error:
            yield Mismatch(why=str(error))
        else:
            yield engine


def ensure_engine(
    bundle: Bundle,
    role: Role,
    precision: str,
    *,
    library: Library,
    target: str,
    limits: EngineLimits,
    timeout_s: float = worker.DEFAULT_TIMEOUT_S,
    force: bool = False,
    report: Report | None = None,
) -> tuple[Engine, bool]:
    """The engine for that GPU ("sm89"), built unless one made from the same inputs is there; and
    whether it was built now.

    The caller has checked that the library can build for the target. A build of the same engine by
    another process is waited for. Raises EngineError (ProofError) when it can't be built or proved,
    and leaves nothing then; OptionError for limits that are too large together; DirectoryBusyError
    when the other build takes too long.
    """
    worker.check_timeout(timeout_s)
    graph = bundle.graph(role, check_precision(precision))
    limits = limits.within(bundle.manifest.model)
    check_sizes(limits, bundle.manifest.model)
    name = engine_directory_name(role, precision, target, library.name)
    path = _writable_place(bundle) / name
    with lock_directory(path, timeout_s=timeout_s):
        found = None if force else _reusable(path, bundle, graph, library, limits)
        if found is not None:
            return found, False
        onnx_path = bundle.graph_path(graph)
        try:
            with replace_directory(path, locked=True) as temporary:
                _build(
                    bundle, graph, onnx_path, temporary, library, target, limits, timeout_s, report
                )
        except OSError as error:
            raise EngineError(
                f"the engine can't be written to {path} ({error.strerror or error}); free some "
                "space, or check who may write there"
            ) from error
    return read_engine(path), True


def _build(
    bundle: Bundle,
    graph: GraphSpec,
    onnx_path: Path,
    directory: Path,
    library: Library,
    target: str,
    limits: EngineLimits,
    timeout_s: float,
    report: Report | None,
) -> None:
    """Fills the directory."""
    precision = check_precision(graph.precision)
    profiles = engine_profiles(graph_inputs(graph.role, bundle.manifest.model, precision), limits)
    request = worker.BuildRequest(
        name=f"{graph.role} {precision} {target}",
        library=library.name,
        onnx_path=onnx_path,
        profiles=profiles,
        target=target if library.targets else None,
    )
    result = worker.run_build(request, directory, timeout_s=timeout_s, report=report)
    log_text = result.log_path.read_text(encoding="utf-8", errors="replace")
    log = read_log(log_text.split("\n"))
    try:
        proof = prove(
            log,
            result.network,
            expected=graph.int8_matmuls,
            profiles=len(profiles),
            graph=request.name,
            strict=library.name == "tensorrt_rtx",
        )
    except EngineError as error:
        raise type(error)(f"{error}. {worker.keep_log(directory, request.name)}") from error
    if not proof.proved:
        logger.warning("%s: INT8 is not proved, since %s", request.name, proof.reason)
    for leftover in directory.iterdir():
        if leftover != result.plan_path:
            leftover.unlink()
    with gzip.GzipFile(directory / LOG_NAME, "wb", mtime=0) as file:
        file.write(log_text.encode("utf-8"))
    engine = Engine(
        directory=directory,
        role=graph.role,
        precision=precision,
        library=library.name,
        version=library.version,
        target=target,
        limits=limits,
        profiles=profiles,
        onnx_sha256=_onnx_sha256(bundle, graph),
        plan_sha256=sha256_of(result.plan_path),
        plan_size=result.plan_path.stat().st_size,
        settings_version=SETTINGS_VERSION,
        proof=proof,
        facts=EngineFacts(
            seconds=round(result.seconds, 3),
            activation_bytes=log.activation_bytes,
            gather_bytes=gather_bytes(log, profiles),
            weights_bytes=log.weights_bytes,
        ),
    )
    text = json.dumps(engine.to_json(), indent=1, sort_keys=True)
    (directory / ENGINE_NAME).write_text(text + "\n", encoding="utf-8")


def _reusable(
    path: Path, bundle: Bundle, graph: GraphSpec, library: Library, limits: EngineLimits
) -> Engine | None:
    """The engine at that place, if it was made from the same inputs and is whole."""
    try:
        engine = read_engine(path)
        _check_onnx(engine, _onnx_sha256(bundle, graph))
        check_plan(engine)
    except EngineError:
        return None
    same = (engine.version, engine.limits, engine.settings_version)
    return engine if same == (library.version, limits, SETTINGS_VERSION) else None


def _check_fits(engine: Engine, onnx_sha256: str, here: Here, wanted: EngineLimits | None) -> None:
    """Raises EngineError for an engine that was built for something else than what is here."""
    label = f"{here.library.replace('_', '-')} {here.version}"
    if (engine.library, engine.version) != (here.library, here.version):
        raise EngineError(
            f"the engine {engine.name} was built by {engine.built_by}, and here is {label}: only "
            "the same version runs it; build it again here"
        )
    if engine.target != here.gpu:
        found = f"the GPU here is {here.gpu}" if here.gpu else "there is no GPU here"
        raise EngineError(
            f"the engine {engine.name} was built for {engine.target}, and {found}; build it again "
            "here, or with --target"
        )
    _check_onnx(engine, onnx_sha256)
    if wanted is not None and not engine.limits.covers(wanted):
        raise EngineError(
            f"the engine {engine.name} takes at most {engine.limits}, asked for {wanted}; build it "
            "again with larger limits"
        )


def _check_onnx(engine: Engine, onnx_sha256: str) -> None:
    if engine.onnx_sha256 != onnx_sha256:
        raise EngineError(
            f"the engine {engine.name} was built from another ONNX file (SHA-256 "
            f"{engine.onnx_sha256[:12]}..., the bundle's is {onnx_sha256[:12]}...); build it again"
        )


def _onnx_sha256(bundle: Bundle, graph: GraphSpec) -> str:
    """Of the model file; external data, where there is any, hangs on its hash in the manifest."""
    hashes = [bundle.manifest.files[name].sha256 for name in graph.files]
    return hashes[0] if len(hashes) == 1 else "+".join(hashes)


def _directories(
    bundle: Bundle, role: str = "*", precision: str = "*"
) -> Iterator[Path | Mismatch]:
    """A Mismatch for a bundle whose engines can't be looked at. A cache that can't be is taken for
    empty: services often run with a home directory that they may not enter."""
    pattern = engine_directory_name(role, precision, "*", "*")
    inside, cache = places(bundle)
    for place in (inside, cache):
        try:
            paths = [path for path in place.iterdir() if fnmatch.fnmatch(path.name, pattern)]
            found = [path for path in sorted(paths) if path.name[0] != "." and path.is_dir()]
        except FileNotFoundError:
            continue
        except OSError as error:
            if place == inside:
                yield Mismatch(
                    why=f"{place} can't be read ({error.strerror}), so none of its engines is "
                    "used; make it a directory that you may enter"
                )
            continue
        yield from found


def _writable_place(bundle: Bundle) -> Path:
    """Inside the bundle, else in the user's cache. An EngineError where neither can be written."""
    inside, cache = places(bundle)
    if os.access(inside if inside.is_dir() else bundle.path, os.W_OK | os.X_OK):
        return inside
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineError(
            f"neither {bundle.path} nor {cache} can be written ({error.strerror}), so there is no "
            "place for engines; make one of them writable, or copy the bundle"
        ) from error
    return cache
