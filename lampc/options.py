"""What a user can choose about the attention scheme, and the pass pipeline that the choices mean."""

from dataclasses import asdict, dataclass
from typing import Literal

Target = Literal["numpy", "accel"]

POLICIES = ("lamp", "low", "high", "fp32", "host")
PRESETS: dict[str, dict[str, str]] = {
    "hw": {"range": "hw", "shift": "truncate", "exp_above_one": "clamp"},
    "paper-sim": {"range": "unbounded", "shift": "exact", "exp_above_one": "keep"},
}
"""docs/lampattention.md section 2: what each preset sets."""

BASELINES: dict[str, dict[str, object]] = {
    "fa2-fp32": {"policy": "fp32"},
    "uniform-16": {"policy": "high"},
    "uniform-8": {"policy": "low"},
    "lamp-stage1": {"policy": "lamp", "stage2": False},
}
"""Programs to compare with (docs/accelerator.md section 7), by what they change of the options."""


@dataclass(frozen=True)
class Options:
    """
    The options of docs/lampattention.md section 5, with its defaults.

    `range`, `shift` and `exp_above_one` are what the preset or the user says; `preset` is only remembered for reports.
    """

    preset: str = "hw"
    policy: str = "lamp"
    delta: float = 2.0**-8
    tau: float = 0.5
    tie: str = "slack"
    stage1: bool = True
    stage2: bool = True
    range: str = "hw"
    shift: str = "truncate"
    exp_above_one: str = "clamp"
    rounding: str = "rne"
    overflow: str = "saturate"
    accumulate_block: int = 1
    seed: int = 0
    operands: str = "model"
    kv_order: str = "forward"
    mask_threshold: float = -1e4
    layout: str = "safe"
    bq: int = 16
    nq: int = 8
    bk: int = 16
    nk: int = 4

    def to_json(self) -> dict[str, object]:
        """All choices by name."""
        return asdict(self)

    def tiling(self) -> str:
        """The pass that tiles, with every option."""
        return (
            f"lamp-tile-attention{{bq={self.bq} nq={self.nq} bk={self.bk} nk={self.nk} operands={self.operands} "
            f"kv-order={self.kv_order} mask-threshold={self.mask_threshold:e}}}"
        )

    def precision(self) -> str:
        """The pass that makes mixed precision, with every option."""
        return (
            f"lamp-mixed-precision{{policy={self.policy} delta={_float(self.delta)} tau={_float(self.tau)} tie={self.tie} "
            f"stage1={_bool(self.stage1)} stage2={_bool(self.stage2)} range={self.range} shift={self.shift} "
            f"exp-above-one={self.exp_above_one} rounding={self.rounding} overflow={self.overflow} "
            f"accumulate-block={self.accumulate_block} seed={self.seed}}}"
        )

    def attention_pipeline(self, target: Target) -> str:
        """From `attn.attention` (level 2) to what the target runs; FP32 stays at level 3."""
        passes = [self.tiling()]
        if self.policy != "fp32":
            passes.append(self.precision())
        passes.append(f"lamp-register-layout{{layout={self.layout}}}")
        if target == "accel":
            passes += ["lamp-convert-to-accel", "lamp-accel-allocate"]
        return ",".join(passes)

    def pipeline(self, target: Target) -> str:
        """From the imported graph (level 1) to what the target runs; policy host ends with the host's segments."""
        if self.policy == "host":
            return "lamp-keep-attention,lamp-outline-host"
        return f"lamp-raise-attention,lamp-outline-host,{self.attention_pipeline(target)}"


def scheme_name(options: Options) -> str:
    """What reports call the program under study: lamp, or the baseline it is."""
    if options.policy == "lamp":
        return "lamp"
    return next(name for name, changes in BASELINES.items() if changes == {"policy": options.policy})


def _float(value: float) -> str:
    """A float as pass options take it: with a point and an exponent, exact."""
    text = repr(float(value))
    mantissa, _, exponent = text.partition("e")
    if mantissa in ("inf", "nan"):
        return text
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}{'e' + exponent if exponent else ''}"


def _bool(value: bool) -> str:
    return "true" if value else "false"
