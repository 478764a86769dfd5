"""Growing arrays of tokens, as the peers hold keys and values."""

import numpy as np

from golden.peers.protocol import Float

__all__ = ["Rows", "to_fp16"]


def to_fp16(x: Float) -> Float:
    """x rounded to FP16 (half even), as float32."""
    return x.astype(np.float16).astype(np.float32)


class Rows:
    """Rows of tokens [kv_heads, length, head_dim], growing at the end and compacted by `keep`."""

    def __init__(self, rows: Float, spare: int = 1024) -> None:
        self.length = rows.shape[1]
        self._data = np.empty((rows.shape[0], self.length + spare, rows.shape[2]), np.float32)
        self._data[:, : self.length] = rows

    @property
    def valid(self) -> Float:
        """The rows, as a view that may be written to."""
        return self._data[:, : self.length]

    def append(self, rows: Float) -> None:
        """Put `rows` [kv_heads, n, head_dim] at the end."""
        end = self.length + rows.shape[1]
        if end > self._data.shape[1]:
            self._data = np.pad(self._data, ((0, 0), (0, end), (0, 0)))
        self._data[:, self.length : end] = rows
        self.length = end

    def keep(self, index: np.typing.NDArray[np.integer]) -> None:
        """Keep the rows `index` [kv_heads, m], in this order."""
        kept = np.take_along_axis(self.valid, index[:, :, None], axis=1)
        self.length = index.shape[1]
        self._data[:, : self.length] = kept
