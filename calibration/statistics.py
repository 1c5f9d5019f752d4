"""What a tensor's values look like, gathered batch by batch, and the clipping bounds drawn from it.

The histogram's bins are the leading bits of the float32 itself: sign off, exponent and 9 bits of
mantissa kept. So its range never has to grow, its resolution is 0.2% everywhere, and it is the same
counts for the same values in whatever order and batches they come.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from calibration.errors import CalibrationError

Method = Literal["minmax", "percentile", "mse"]
METHODS: tuple[Method, ...] = ("minmax", "percentile", "mse")

# docs/decisions/0005-calibration.md
DEFAULT_METHOD: Method = "mse"
DEFAULT_PERCENTILE = 99.99
DEFAULT_SENTENCES = 500
"""How many sentences a build decodes."""

INT8_MAX = 127  # symmetric: -127..127; -128 is not used

_DROPPED_BITS = 14  # of 23 mantissa bits
_LOWEST = (127 - 24) << (23 - _DROPPED_BITS)  # 2**-24: what is below counts as zero

FloatArray = npt.NDArray[np.float32]


class TensorStatistics:
    """The largest |x| and a histogram of |x| of one tensor."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.amax = 0.0
        self.counts: npt.NDArray[np.int64] = np.zeros(1, dtype=np.int64)

    def add(self, values: FloatArray) -> None:
        """Counts values, of any shape. Raises CalibrationError for NaN or infinity."""
        if values.size == 0:
            return
        magnitudes = np.abs(np.ascontiguousarray(values, dtype=np.float32)).reshape(-1)
        largest = float(magnitudes.max())  # NaN if there is one
        if not np.isfinite(largest):
            raise CalibrationError(
                f"tensor {self.name!r} became {largest} while decoding the calibration sentences; "
                "expected finite values: the checkpoint is damaged or its training diverged"
            )
        self.amax = max(self.amax, largest)
        self.count += magnitudes.size
        bins = (magnitudes.view(np.int32) >> _DROPPED_BITS) - _LOWEST
        counts = np.bincount(np.maximum(bins, 0)).astype(np.int64)
        if counts.size > self.counts.size:
            counts, self.counts = self.counts, counts
        self.counts[: counts.size] += counts

    def bound(self, method: Method, percentile: float = DEFAULT_PERCENTILE) -> float:
        """Values beyond +-bound are clipped. It is never above the largest |x| seen.

        minmax: nothing that was seen is clipped. percentile: the least bound that holds that many
        percent of the values. mse: the bound with the least squared error after rounding.
        """
        if method == "percentile":
            needed = np.ceil(percentile / 100 * self.count)
            index = int(np.searchsorted(np.cumsum(self.counts), needed))
            upper = _edge(np.array([min(index, self.counts.size - 1) + 1]))[0]
            return min(float(upper), self.amax)
        if method == "mse":
            return self._least_squares_bound()
        return self.amax

    def _least_squares_bound(self) -> float:
        used = np.flatnonzero(self.counts)
        used = used[used > 0]  # zeros cost nothing
        if used.size == 0:
            return self.amax
        lower, upper = _edge(used), _edge(used + 1)
        centres = (lower + upper) / 2
        weights = self.counts[used]
        bounds = self.amax * np.linspace(1.0, 0.2, 161)
        errors = []
        for scale in bounds / INT8_MAX:
            rounded = np.minimum(np.rint(centres / scale), INT8_MAX) * scale
            errors.append(float(np.sum(weights * (centres - rounded) ** 2)))
        return float(np.float32(bounds[int(np.argmin(errors))]))


def _edge(bins: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The lower edge of bins: the float32 whose dropped bits are zero."""
    bits = (bins + _LOWEST).astype(np.int32) << _DROPPED_BITS
    return bits.view(np.float32).astype(np.float64)
