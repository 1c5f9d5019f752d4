"""Memory that is in use moves to huge pages; what is not, and what can't, stays."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from runtime import huge_pages
from runtime.huge_pages import Memory, look_at_memory, use_huge_pages

SIZE = 2 << 20
ENABLED = huge_pages._huge_page_size() == SIZE
ON_LINUX = pytest.mark.skipif(not ENABLED, reason="this system has no huge pages of 2 MB")


def fresh(step: int) -> npt.NDArray[np.uint8]:
    """Eight times as much as a huge page holds, on small pages, of which every `step`th is used."""
    block = mmap.mmap(-1, 8 * SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_NOHUGEPAGE)  # none by itself
    array = np.frombuffer(block, dtype=np.uint8)
    array[:: step * mmap.PAGESIZE] = 1
    block.madvise(mmap.MADV_HUGEPAGE)
    return array


def on_huge_pages() -> int:
    """Bytes of this process."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(re.findall(r"AnonHugePages: +(\d+) kB", text)[0])


def in_use(array: npt.NDArray[np.uint8]) -> int:
    """Small pages."""
    address = array.__array_interface__["data"][0]
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(address // mmap.PAGESIZE * 8)
        entries = np.frombuffer(file.read(array.nbytes // mmap.PAGESIZE * 8), dtype=np.uint64)
    return int(np.count_nonzero(entries & huge_pages._PRESENT))


@ON_LINUX
def test_what_has_come_moves_and_stays_what_it_is() -> None:
    before = look_at_memory()
    memory = fresh(1)
    values = np.random.default_rng(0).integers(0, 256, len(memory), dtype=np.uint8)
    memory[:] = values
    small = on_huge_pages()
    if not use_huge_pages(before):
        pytest.skip("this kernel can't move memory to huge pages when asked")
    assert on_huge_pages() - small >= SIZE
    np.testing.assert_array_equal(memory, values)


@ON_LINUX
def test_what_was_there_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, asked = fresh(1), set()
    address = memory.__array_interface__["data"][0]
    monkeypatch.setattr(
        huge_pages, "c_function", lambda _: lambda start, *_: asked.add(start.value) or -1
    )
    assert use_huge_pages(look_at_memory()) == 0
    assert not [start for start in asked if address <= start < address + memory.nbytes]


@ON_LINUX
def test_what_is_mostly_free_takes_no_memory() -> None:
    before = look_at_memory()
    memory = fresh(128)
    used = in_use(memory)
    assert used == memory.nbytes // mmap.PAGESIZE // 128
    use_huge_pages(before)
    assert in_use(memory) == used


def test_full_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the page map, whose entries say which small pages are there."""
    entries = np.zeros((10, SIZE // mmap.PAGESIZE), dtype=np.uint64)
    entries[[2, 3, 5, 6, 9]] = huge_pages._PRESENT | np.uint64(7)
    entries[6, ::5] = 7  # a fifth of it is not there
    entries[3, ::20] = 0  # a twentieth
    (tmp_path / "pagemap").write_bytes(entries.tobytes())
    monkeypatch.setattr(huge_pages, "_PAGEMAP", tmp_path / "pagemap")
    for piece in (1, 3, 512):
        monkeypatch.setattr(huge_pages, "_PIECE", piece)
        found = list(huge_pages._full_pages([(SIZE, 6 * SIZE + 5), (8 * SIZE, 10 * SIZE)], SIZE))
        assert found == [2 * SIZE, 3 * SIZE, 5 * SIZE, 9 * SIZE]
    assert list(huge_pages._full_pages([(2 * SIZE + 1, 4 * SIZE - 1)], SIZE)) == []


@pytest.mark.parametrize(
    ("others", "left"),
    [
        ([], [(10, 20), (30, 40)]),
        ([(0, 50)], []),
        ([(35, 38), (12, 14)], [(10, 12), (14, 20), (30, 35), (38, 40)]),
        ([(5, 12), (18, 33)], [(12, 18), (33, 40)]),
        ([(20, 30)], [(10, 20), (30, 40)]),
    ],
)
def test_what_lies_in_none_of_the_others(
    others: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    assert huge_pages._without([(10, 20), (30, 40)], others) == left


@pytest.mark.parametrize("text", ["always madvise [never]\n", "", None])
def test_where_they_are_not_wanted_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "enabled").write_text(text)
    monkeypatch.setattr(huge_pages, "_SETTINGS", tmp_path)
    monkeypatch.setattr(huge_pages, "c_function", lambda _: pytest.fail("asked for it"))
    assert look_at_memory() is None
    assert use_huge_pages(None) == 0
    assert use_huge_pages(Memory(ranges=[], full=frozenset())) == 0


@pytest.mark.parametrize("maps", ["no map at all\n", None])
def test_a_system_that_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maps: str | None
) -> None:
    if maps is not None:
        (tmp_path / "maps").write_text(maps)
    monkeypatch.setattr(huge_pages, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(huge_pages, "_huge_page_size", lambda: SIZE)
    assert look_at_memory() is None
    assert use_huge_pages(Memory(ranges=[], full=frozenset())) == 0


@ON_LINUX
def test_a_kernel_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    before = look_at_memory()
    memory, asked = fresh(1), set()

    def refuse(start: object, size: object, advice: int) -> int:
        asked.add(advice)
        return -1

    monkeypatch.setattr(huge_pages, "c_function", lambda _: refuse)
    assert use_huge_pages(before) == 0
    assert asked == {25}
    del memory
