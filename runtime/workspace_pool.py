"""Workspaces that no batch is using, and how large a batch may be: profile and memory decide."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from dataclasses import replace

from runtime.device import Device
from runtime.engine_pair import Capacity, EnginePair
from runtime.errors import BackendError, DeviceMemoryError, SplitBatchError
from runtime.workspace import Workspace

log = logging.getLogger(__name__)


class WorkspacePool:
    """Workspaces by profile, made when they are needed and used again. For any number of threads.

    Raises EngineError as EnginePair.capacities does.
    """

    def __init__(self, device: Device, engines: EnginePair) -> None:
        self._device = device
        self._engines: EnginePair | None = engines
        self._limits = engines.capacities()
        self._free: dict[int, list[Workspace]] = defaultdict(list)
        self._lock = threading.RLock()  # a state can be collected, and give back, at any time
        self.closed = False

    def reach(self) -> Capacity:
        """The largest sizes that any profile takes."""
        return max(self._limits, key=lambda limit: (limit.source, limit.target, limit.batch))

    def take(self, batch: int, beam: int, source: int, target: int) -> Workspace:
        """One that takes these sizes, made where none is free.

        Raises SplitBatchError for more sentences than a profile or the memory takes, BackendError
        for other sizes beyond every profile, DeviceMemoryError when not even one sentence fits.
        """
        with self._lock:
            if self.closed:
                raise BackendError("the tensorrt backend is closed; open it again to go on")
            profile = self._choose(batch, beam, source, target)
            for workspace in self._free[profile]:
                if workspace.capacity.batch >= batch:
                    self._free[profile].remove(workspace)
                    return workspace
            made = self._make(profile)
            if made is not None and made.capacity.batch >= batch:
                return made
            if made is not None:
                self._free[profile].append(made)
            return self.take(batch, beam, source, target)  # the limits are lower now

    def give_back(self, workspace: Workspace) -> None:
        """Called when a state is gone, by whatever thread."""
        with self._lock:
            if not self.closed:
                self._free[workspace.profile].append(workspace)
                return
        self._device.use()
        workspace.close()

    def close(self) -> None:
        """Frees what no state holds; what one holds is freed when it is gone."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._clear()
            self._engines = None  # frees the weights, once the last workspace is gone

    def _choose(self, batch: int, beam: int, source: int, target: int) -> int:
        """The first profile that takes it all: the one for latency comes first."""
        fitting = [
            profile
            for profile, limit in enumerate(self._limits)
            if beam <= limit.beam and source <= limit.source and target <= limit.target
        ]
        if not fitting:
            raise BackendError(
                f"beam {beam}, source {source}, target {target} asked for; the engines were built "
                f"for {self.reach()}: ask for less, or build them again with larger limits "
                "(--max-beam, --max-source, --max-target)"
            )
        for profile in fitting:
            if batch <= self._limits[profile].batch:
                return profile
        most = max(self._limits[profile].batch for profile in fitting)
        if most == 0:
            raise DeviceMemoryError(
                f"{self._device.name} has no memory for one sentence of beam {beam}, source "
                f"{source}, target {target}; free some (nvidia-smi lists who holds it), or build "
                "engines with lower limits"
            )
        groups = [list(range(i, min(i + most, batch))) for i in range(0, batch, most)]
        raise SplitBatchError(groups, f"{batch} sentences; the engines take {most} at a time")

    def _make(self, profile: int) -> Workspace | None:
        """A workspace of the profile's limit, or of half of that, and so on.

        None where not even one sentence fits, and another profile may. The limit is then lowered.
        """
        assert self._engines is not None
        while self._limits[profile].batch > 0:
            limit = self._limits[profile]
            try:
                return Workspace(self._device, self._engines, profile, limit)
            except DeviceMemoryError:
                if any(self._free.values()):
                    self._clear()
                    continue
                if limit.batch == 1 and profile == 0:
                    raise
            lower = limit.batch // 2
            log.warning(
                "%s has no memory for batches of %d in profile %d: going on with %s",
                self._device.name,
                limit.batch,
                profile,
                lower or "the others",
            )
            self._limits[profile] = replace(limit, batch=lower)
        return None

    def _clear(self) -> None:
        self._device.use()
        for workspaces in self._free.values():
            while workspaces:
                workspaces.pop().close()
