"""The memory that the graphs of variant cpu_static are bound to."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.static_workspace import new_block


@pytest.mark.parametrize("count", [1, 15, 16, 1000, 1 << 20, (1 << 22) + 3])
def test_a_block_begins_where_a_cache_line_does(count: int) -> None:
    block = new_block(count)
    assert block.shape == (count,)
    assert block.dtype == np.float32
    assert block.ctypes.data % 64 == 0
    assert block.flags.c_contiguous
    assert block.flags.writeable
