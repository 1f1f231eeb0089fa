"""
Which query-key entries are live, and the bias of those that are (lampattention.md §4.3 and "Fine print").

A mask is any array of rank at most 4 that broadcasts, right-aligned, to [batch, heads, queries, keys]. Nothing here expands
it to that shape unless rows that share it differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lampc.errors import InputError
from lampc.numerics.arrays import F32, Array, Bools, Ints
from lampc.numerics.engine import form

MASK_THRESHOLD = -1e4
"""Default of option `mask_threshold`: a finite bias this low means masked."""


@dataclass(frozen=True)
class Liveness:
    """
    The structured rules of one attention, and its boolean mask.

    queries, keys   Lq, Lk; rows and keys beyond them are dead
    causal          key i is live for query j only if i <= j + offset
    causal_offset   one for all, or int64 [batch]
    window          keys <= j + offset - window are dead; None or a negative number: no window
    key_lengths     int64 [batch]: keys from there on are dead; None: all are there
    mask            bool [B|1, H|1, Lq|1, Lk|1], true is live; None: all
    """

    queries: int
    keys: int
    causal: bool = False
    causal_offset: int | Ints = 0
    window: int | None = None
    key_lengths: Ints | None = None
    mask: Bools | None = None

    def bounds(self, batch: Ints, query: Ints) -> tuple[Ints, Ints]:
        """First live key and the one after the last, by the structured rules, for queries of batches (broadcast)."""
        batch, query = np.broadcast_arrays(batch, query)
        offsets = np.asarray(self.causal_offset, np.int64)
        offset = offsets[batch] if offsets.ndim else offsets
        first = np.zeros(query.shape, np.int64)
        end = np.full(query.shape, self.keys, np.int64)
        if self.key_lengths is not None:
            end = np.minimum(end, self.key_lengths[batch])
        if self.causal:
            end = np.minimum(end, query + offset + 1)
        if self.window is not None and self.window >= 0:
            first = np.maximum(first, query + offset - self.window + 1)
        inside = (query >= 0) & (query < self.queries)
        return first, np.where(inside, np.maximum(end, 0), 0)


def live_entries(rules: Liveness, batch: Ints, head: Ints, query_start: Ints, key_start: Ints, rows: int, count: int) -> Bools:
    """
    Live entries of one key tile per lane.

    batch, head, query_start, key_start  int64 [n]: the lane's batch, query head, first query and first key
    returns                              bool [n, count, rows]
    """
    query = query_start[:, None] + np.arange(rows)
    first, end = rules.bounds(batch[:, None], query)
    live = form("tiles").between(first, end, key_start, count)
    if rules.mask is not None:
        live &= rows_tile(rules.mask, batch, head, query_start, key_start, rows, count)
    return live


def tile_is_live(rules: Liveness, batch: Ints, query_start: Ints, key_start: Ints, rows: int, count: int) -> Bools:
    """
    Whether the structured rules (not the mask) leave anything live in one key tile per lane: bool [n].

    Cheap: the keys live for consecutive queries form one interval, from the first query's first to the last one's end.
    """
    if rules.causal and rules.window == 0:
        return np.zeros(len(batch), np.bool_)
    last_query = np.minimum(query_start + rows, rules.queries) - 1
    first, _ = rules.bounds(batch, query_start)
    _, end = rules.bounds(batch, last_query)
    return (last_query >= query_start) & (np.maximum(first, key_start) < np.minimum(end, key_start + count))


def rows_tile(table: Array, batch: Ints, head: Ints, query_start: Ints, key_start: Ints, rows: int, count: int) -> Array:
    """
    One tile per lane of a mask or bias.

    table    [B|1, H|1, Lq|1, Lk|1]
    returns  [n, count, rows] of the same type; 0 (false) outside the table
    """
    start = np.stack([batch, head, query_start, key_start], axis=1).astype(np.int64)
    return form("tiles").gather(table, start, rows, count)


def split_mask(
    mask: Array | None,
    *,
    masked_value: float = -np.inf,
    threshold: float = MASK_THRESHOLD,
    shape: tuple[int, int, int, int],
    causal: bool = False,
    causal_offset: int | Ints = 0,
    window: int | None = None,
    key_lengths: Ints | None = None,
) -> tuple[Bools | None, F32 | None]:
    """
    What a mask kills and what it adds: decided per row (batch, head, query) before any tiling.

    mask          boolean (true is live) or float, rank at most 4, broadcasting to `shape` = (B, Hq, Lq, Lk)
    masked_value  what a false entry adds: -inf kills it, a finite one makes the mask a float bias
    threshold     a finite bias this low or lower is dead if its row has a live entry above; a row with none keeps its
                  values. Live counts causal, window and key lengths as in `Liveness`, and bias -inf is always dead
    returns       live, bool [B|1, H|1, Lq|1, Lk|1] or None if the mask kills nothing; bias, float32 of such a shape (0
                  where dead) or None if it adds nothing

    Raises InputError if the mask does not broadcast to `shape`.
    """
    if mask is None:
        return None, None
    table = _rank4(mask, shape)
    if table.dtype == np.bool_:
        if masked_value == -np.inf:
            return (None if table.all() else table), None
        bias = np.where(table, np.float32(0), np.float32(masked_value))
    else:
        with np.errstate(over="ignore"):
            bias = table.astype(np.float32)
    alive = ~np.isneginf(bias)
    low = alive & (bias <= np.float32(threshold))
    if low.any():
        rules = Liveness(shape[2], shape[3], causal, causal_offset, window, key_lengths)
        alive = alive & ~(low & _row_has(bias > np.float32(threshold), rules, shape[0]))
    bias = np.where(alive, bias, np.float32(0))
    return (None if alive.all() else alive), (bias if bias.any() else None)


def _rank4(mask: Array, shape: Sequence[int]) -> Array:
    wanted = "x".join(map(str, shape))
    if mask.ndim > 4:
        raise InputError(f"attention mask has rank {mask.ndim}; it must broadcast to {wanted}")
    table = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if any(size not in (1, full) for size, full in zip(table.shape, shape, strict=True)):
        raise InputError(f"attention mask {'x'.join(map(str, mask.shape))} does not broadcast to {wanted}")
    return table


def _row_has(above: Bools, rules: Liveness, batches: int) -> Bools:
    """
    Whether a row has an entry of `above` that the structured rules leave live: bool [B|1, H|1, Lq|1, 1].

    The structured rules leave an interval of keys, so a running count per stored row answers it for every row that
    shares it. Axes along which all rows agree stay 1.
    """
    b, h, q, k = above.shape
    per_batch = rules.key_lengths is not None or np.ndim(rules.causal_offset) > 0
    per_query = rules.causal or rules.window is not None
    batch: Ints = np.arange(max(b, batches if per_batch else 1), dtype=np.int64).reshape(-1, 1, 1)
    head: Ints = np.arange(h, dtype=np.int64).reshape(1, -1, 1)
    query: Ints = np.arange(max(q, rules.queries if per_query else 1), dtype=np.int64).reshape(1, 1, -1)
    first, end = rules.bounds(batch, query)
    if k == 1:  # one entry stands for every key
        has = above[..., 0] & (first < end)
    else:
        running = np.zeros((b, h, q, k + 1), np.int32)
        np.cumsum(above, axis=3, out=running[..., 1:])
        first = np.minimum(first, k)
        row = (np.minimum(batch, b - 1), head, np.minimum(query, q - 1))
        has = running[(*row, np.maximum(end, first))] > running[(*row, first)]
    for axis, stored in enumerate((b, h, q)):
        one = has.take([0], axis)
        if stored == 1 and (has == one).all():
            has = one
    return has[..., None]
