"""
The CFG block of a program: everything about an attention that its instructions refer to without naming it.

Source: docs/accelerator.md section 1, docs/lampattention.md sections 3 to 5.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from lampc.errors import InputError, printable
from lampc.targets.accel.isa import MAX_SUB_BLOCKS
from lampc.targets.accel.layout import Geometry

OPERAND_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "e4m3": 1}
CHOICES: dict[str, tuple[str, ...]] = {
    "layout": ("safe", "compact"),
    "policy": ("lamp", "low", "high", "fp32"),
    "tie": ("slack", "first"),
    "rounding": ("rne", "rtz", "stochastic"),
    "overflow": ("saturate", "nan"),
    "kv_order": ("forward", "reverse", "sink-first"),
    "operand": tuple(OPERAND_BYTES),
}
_POSITIVE = ("bq", "bk", "nk", "nq", "d", "dv", "lq", "lk", "batch", "hq", "hkv", "accumulate_block")
_LARGEST = 1 << 31


@dataclass(frozen=True)
class Config:
    """
    Shapes, tile sizes and options of one attention; the numbers are those of docs/lampattention.md.

    bq, bk, nk, nq   rows of a warp, keys of a sub-block, sub-blocks of a tile, warps of a thread block
    scale, delta     rounded to FP32 by whoever uses them; `cap` 0 means none, `window` 0 none
    overflow         what the accumulator's format makes of a value beyond its largest finite one
    operand          type of Q, K and V in memory: f32, bf16, f16 or e4m3

    Raises InputError for what cannot be.
    """

    bq: int
    bk: int
    nk: int
    nq: int
    d: int
    dv: int
    lq: int
    lk: int
    batch: int
    hq: int
    hkv: int
    scale: float
    delta: float = 2**-8
    tau: float = 0.5
    tie: str = "slack"
    cap: float = 0.0
    causal: bool = False
    causal_offset: int = 0
    window: int = 0
    layout: str = "safe"
    policy: str = "lamp"
    kv_order: str = "forward"
    rounding: str = "rne"
    overflow: str = "saturate"
    seed: int = 0
    accumulate_block: int = 1
    operand: str = "f32"
    has_mask: bool = False
    has_bias: bool = False
    has_sinks: bool = False

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not 0 < getattr(self, name) < _LARGEST:
                raise InputError(f"configuration: {name} must be positive, got {getattr(self, name)}")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"configuration: {name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.nk > MAX_SUB_BLOCKS:
            raise InputError(f"configuration: a tile has at most {MAX_SUB_BLOCKS} sub-blocks, got nk = {self.nk}")
        if self.hq % self.hkv:
            raise InputError(f"configuration: {self.hq} query heads are no multiple of {self.hkv} KV heads")
        for name in ("scale", "delta", "tau", "cap"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"configuration: {name} must be finite, got {getattr(self, name)}")
        if self.delta < 0 or self.tau < 0 or self.cap < 0 or self.window < 0:
            raise InputError("configuration: delta, tau, cap and window must not be negative")
        if not -(1 << 62) < self.causal_offset < 1 << 62 or not 0 <= self.window < 1 << 62 or not 0 <= self.seed < 1 << 64:
            raise InputError("configuration: causal_offset, window or seed is out of range")

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.bq, self.bk, self.nk, self.d, self.dv, self.layout)

    @property
    def blocks(self) -> int:
        """Thread blocks of one head."""
        return -(-self.lq // (self.bq * self.nq))

    @property
    def tiles(self) -> int:
        """Key tiles of one head."""
        return -(-self.lk // (self.bk * self.nk))

    @property
    def heads(self) -> int:
        """batch * query heads: the number of head indices."""
        return self.batch * self.hq

    @property
    def operand_bytes(self) -> int:
        return OPERAND_BYTES[self.operand]

    def to_dict(self) -> dict[str, int | float | str | bool]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "Config":
        """The configuration that `to_dict` gives; InputError for a missing, unknown or ill-typed entry."""
        known = {f.name: str(getattr(f.type, "__name__", f.type)) for f in fields(cls)}
        if unknown := set(values) - set(known):
            raise InputError(f"configuration: unknown entry {printable(repr(min(unknown)), 40)}")
        taken: dict[str, int | float | str | bool] = {}
        for name, kind in known.items():
            if name not in values:
                raise InputError(f"configuration: entry {name!r} is missing")
            value = values[name]
            if not isinstance(value, int | float | str) or type(value).__name__ != kind:
                raise InputError(f"configuration: entry {name!r} must be {kind}, got {printable(repr(value), 40)}")
            taken[name] = value
        return cls(**taken)  # pyright: ignore[reportArgumentType]
