"""Blocks of memory that go round."""

from __future__ import annotations

import threading

import numpy as np

from runtime.buffer_pool import KEPT, Block, BufferPool


def test_the_smallest_that_is_large_enough_is_given_again() -> None:
    pool = BufferPool()
    small, large = pool.take(10), pool.take(100)
    assert (len(small), len(large)) == (10, 100)
    pool.give(large)
    pool.give(small)
    assert pool.take(7) is small
    assert pool.take(7) is large
    assert pool.take(7) is not large


def test_no_more_wait_than_some() -> None:
    """The largest stay: they serve any batch."""
    pool = BufferPool()
    blocks = [pool.take(size) for size in range(1, KEPT + 3)]
    for block in blocks:
        pool.give(block)
    again = [pool.take(1) for _ in range(KEPT)]
    assert all(any(block is one for one in again) for block in blocks[-KEPT:])


def test_a_closed_pool_keeps_nothing() -> None:
    pool = BufferPool()
    first, second = pool.take(4), pool.take(4)
    pool.give(first)
    pool.close()
    pool.give(second)
    assert pool.take(4) is not first
    assert pool.take(4) is not second


def test_no_block_is_given_to_two_at_once() -> None:
    pool, wrong = BufferPool(), []

    def use(number: int) -> None:
        for _ in range(300):
            block: Block = pool.take(64)
            block[:] = number
            if not np.all(block == number):
                wrong.append(number)
            pool.give(block)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
