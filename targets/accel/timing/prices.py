"""
What every instruction costs: unit, work at which rate, latency. One entry for each opcode; without one nothing loads.

An instruction occupies its unit for ceil(work / rate) cycles, at least one, and its result is there `latency - 1` cycles after
the last of them. Source: docs/accelerator.md section 4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from lampc.targets.accel.config import Config
from lampc.targets.accel.isa import TABLE, Format, Unit
from lampc.targets.accel.machine import Machine


class Rate(IntEnum):
    """What limits a unit: work of each kind has its own rate."""

    CTL = 0
    HBM = 1
    QK_E4M3 = 2
    QK_E4M11 = 3
    QK_F32 = 4
    PV_E4M3 = 5
    PV_E4M11 = 6
    PV_F32 = 7
    VEC_8 = 8
    VEC_16 = 9
    VEC_32 = 10
    LUT = 11
    SFU_E4M11 = 12
    SFU_F32 = 13
    KNAP = 14


@dataclass(frozen=True)
class RateInfo:
    """Unit that a rate belongs to, and what its work counts."""

    unit: Unit
    work: str


RATES: dict[Rate, RateInfo] = {
    Rate.CTL: RateInfo(Unit.CTL, "instructions"),
    Rate.HBM: RateInfo(Unit.DMA, "bytes"),
    Rate.QK_E4M3: RateInfo(Unit.MXE, "multiply-accumulates"),
    Rate.QK_E4M11: RateInfo(Unit.MXE, "multiply-accumulates"),
    Rate.QK_F32: RateInfo(Unit.MXE, "multiply-accumulates"),
    Rate.PV_E4M3: RateInfo(Unit.MXE, "multiply-accumulates"),
    Rate.PV_E4M11: RateInfo(Unit.MXE, "multiply-accumulates"),
    Rate.PV_F32: RateInfo(Unit.MXE, "multiply-accumulates"),
    Rate.VEC_8: RateInfo(Unit.VEC, "element operations"),
    Rate.VEC_16: RateInfo(Unit.VEC, "element operations"),
    Rate.VEC_32: RateInfo(Unit.VEC, "element operations"),
    Rate.LUT: RateInfo(Unit.LUT, "exponentials"),
    Rate.SFU_E4M11: RateInfo(Unit.SFU, "exponentials"),
    Rate.SFU_F32: RateInfo(Unit.SFU, "exponentials"),
    Rate.KNAP: RateInfo(Unit.KNAP, "additions and comparisons"),
}


def rates(machine: Machine) -> dict[Rate, int]:
    """Work per cycle and core; HBM's is that of all cores together, CTL's the issue width."""
    lanes, mxe, vec, sfu = machine.vec.lanes_count, machine.mxe, machine.vec, machine.sfu
    return {
        Rate.CTL: machine.core.issue_instructions_per_cycle,
        Rate.HBM: machine.hbm.bytes_per_cycle,
        Rate.QK_E4M3: mxe.qk_e4m3_macs_per_cycle,
        Rate.QK_E4M11: mxe.qk_e4m11_macs_per_cycle,
        Rate.QK_F32: mxe.qk_f32_macs_per_cycle,
        Rate.PV_E4M3: mxe.pv_e4m3_macs_per_cycle,
        Rate.PV_E4M11: mxe.pv_e4m11_macs_per_cycle,
        Rate.PV_F32: mxe.pv_f32_macs_per_cycle,
        Rate.VEC_8: lanes * vec.elements_8bit_per_lane,
        Rate.VEC_16: lanes * vec.elements_16bit_per_lane,
        Rate.VEC_32: lanes,
        Rate.LUT: machine.lut.exponentials_per_cycle,
        Rate.SFU_E4M11: sfu.e4m11_exponentials_per_cycle,
        Rate.SFU_F32: sfu.f32_exponentials_per_cycle,
        Rate.KNAP: machine.knap.lanes_count,
    }


@dataclass(frozen=True)
class Price:
    """
    Cost of one instruction in one format, for a configuration and a machine.

    rate               of the work; `high` that of sub-blocks which field `hi` names, equal to `rate` where there is none
    per_block          work for each sub-block in the predicate mask
    fixed              work whatever the mask; for loads and stores the bytes of one row, entry or vector
    latency            cycles from the last operand to the result, at least 1
    latency_per_block  more of it for each sub-block in the mask: adds that wait for each other
    fetch_per_block    SRAM bytes for each sub-block that the operand buffer lacks
    """

    rate: Rate
    high: Rate
    per_block: int = 0
    fixed: int = 0
    latency: int = 1
    latency_per_block: int = 0
    fetch_per_block: int = 0


Pricing = Callable[[Format, Config, Machine], Price]

_QK = {
    Format.E4M3: Rate.QK_E4M3,
    Format.E4M11: Rate.QK_E4M11,
    Format.E4M11_SEQ: Rate.QK_E4M11,
    Format.F32: Rate.QK_F32,
}
_PV = {
    Format.MIX: (Rate.PV_E4M3, Rate.PV_E4M11),
    Format.E4M11_SEQ: (Rate.PV_E4M11, Rate.PV_E4M11),
    Format.F32: (Rate.PV_F32, Rate.PV_F32),
}
_PACKED = {
    Format.E4M3: Rate.VEC_8,
    Format.E4M11: Rate.VEC_16,
    Format.E4M11_SEQ: Rate.VEC_16,
    Format.F32: Rate.VEC_32,
}


def _ctl(_fmt: Format, _cfg: Config, _machine: Machine) -> Price:
    return Price(Rate.CTL, Rate.CTL, fixed=1)


def _dma(unit_bytes: Callable[[Config], int]) -> Pricing:
    def price(_fmt: Format, cfg: Config, machine: Machine) -> Price:
        return Price(Rate.HBM, Rate.HBM, fixed=unit_bytes(cfg), latency=machine.hbm.latency_cycles)

    return price


def _mx_qk(fmt: Format, cfg: Config, machine: Machine) -> Price:
    adds = -(-cfg.d // cfg.accumulate_block)
    return Price(
        _QK[fmt],
        _QK[fmt],
        per_block=cfg.bk * cfg.bq * cfg.d,
        latency=machine.mxe.latency_cycles + adds * machine.mxe.add_latency_cycles,
        fetch_per_block=cfg.bk * cfg.d * cfg.operand_bytes,
    )


def _mx_pv(fmt: Format, cfg: Config, machine: Machine) -> Price:
    low, high = _PV[fmt]
    return Price(
        low,
        high,
        per_block=cfg.bk * cfg.bq * cfg.dv,
        latency=machine.mxe.latency_cycles,
        latency_per_block=cfg.bk * machine.mxe.add_latency_cycles,
        fetch_per_block=cfg.bk * cfg.dv * cfg.operand_bytes,
    )


def _tile(cfg: Config) -> int:
    return cfg.bk * cfg.bq


def _vec_tile(fmt: Format, cfg: Config, machine: Machine) -> Price:
    """Scores tile at the packing of its format."""
    return Price(_PACKED[fmt], _PACKED[fmt], per_block=_tile(cfg), latency=machine.vec.latency_cycles)


def _vec(
    per_block: Callable[[Config, Machine], int] | None = None,
    fixed: Callable[[Config, Machine], int] | None = None,
    adds_per_block: Callable[[Config], int] | None = None,
) -> Pricing:
    """FP32 work on lanes."""

    def price(_fmt: Format, cfg: Config, machine: Machine) -> Price:
        return Price(
            Rate.VEC_32,
            Rate.VEC_32,
            per_block=per_block(cfg, machine) if per_block else 0,
            fixed=fixed(cfg, machine) if fixed else 0,
            latency=machine.vec.latency_cycles,
            latency_per_block=adds_per_block(cfg) * machine.vec.add_latency_cycles if adds_per_block else 0,
        )

    return price


def _v_live(_fmt: Format, cfg: Config, machine: Machine) -> Price:
    return Price(Rate.VEC_8, Rate.VEC_8, fixed=cfg.nk * _tile(cfg), latency=machine.vec.latency_cycles)


def _exp_lut(_fmt: Format, cfg: Config, machine: Machine) -> Price:
    return Price(Rate.LUT, Rate.LUT, per_block=_tile(cfg), latency=machine.lut.latency_cycles)


def _exp_sfu(fmt: Format, cfg: Config, machine: Machine) -> Price:
    rate = Rate.SFU_F32 if fmt is Format.F32 else Rate.SFU_E4M11
    return Price(rate, rate, per_block=_tile(cfg), latency=machine.sfu.latency_cycles)


def _exp_lambda(_fmt: Format, cfg: Config, machine: Machine) -> Price:
    return Price(Rate.SFU_F32, Rate.SFU_F32, fixed=cfg.bq, latency=machine.sfu.latency_cycles)


def _knap(_fmt: Format, cfg: Config, machine: Machine) -> Price:
    pairs = (1 << cfg.nk) * cfg.bq
    each = 1 if cfg.tie == "first" else 2 + machine.knap.division_lane_cycles
    return Price(Rate.KNAP, Rate.KNAP, fixed=pairs * each, latency=machine.knap.latency_cycles)


_vec_row = _vec(fixed=lambda cfg, _: cfg.bq)
_vec_rows = _vec(per_block=lambda cfg, _: cfg.bq)
_vec_wide = _vec(per_block=lambda cfg, _: _tile(cfg))
_vec_sum = _vec(per_block=lambda cfg, _: _tile(cfg), adds_per_block=lambda cfg: cfg.bk)
_vec_out = _vec(fixed=lambda cfg, _: cfg.dv * cfg.bq)

PRICES: dict[str, Pricing] = {
    **dict.fromkeys(("halt", "mark", "br", "br.z", "br.nz", "br.sz", "br.ge", "loop", "bar.arrive", "bar.wait"), _ctl),
    **dict.fromkeys(("s.id", "s.mov", "s.add", "s.ring", "s.range", "s.tile"), _ctl),
    **dict.fromkeys(("p.mov", "p.and", "p.or", "p.andn", "p.const", "p.cnt", "p.next", "p.after", "v.stat"), _ctl),
    "dma.ld": _dma(lambda cfg: cfg.operand_bytes),  # an element of a row; the tensor says how many
    "dma.ldr": _dma(lambda cfg: cfg.d * cfg.operand_bytes),
    "dma.ldm": _dma(lambda cfg: 1),
    "dma.ldb": _dma(lambda cfg: 4),
    "v.ld": _dma(lambda cfg: 4),
    "dma.st": _dma(lambda cfg: 4 * cfg.dv),
    "mx.qk": _mx_qk,
    "mx.pv": _mx_pv,
    "v.live": _v_live,
    **dict.fromkeys(("v.mask", "v.rmax", "v.sub"), _vec_tile),
    "v.cap": _vec(per_block=lambda cfg, machine: _tile(cfg) * machine.vec.tanh_lane_cycles),
    **dict.fromkeys(("v.bias", "v.floor", "v.fma", "v.ldexp", "v.fill", "v.scalet"), _vec_wide),
    **dict.fromkeys(("v.rsum", "v.xi"), _vec_sum),
    **dict.fromkeys(("v.zero", "v.scale"), _vec_out),
    "v.scaleq": _vec(fixed=lambda cfg, _: cfg.d * cfg.bq),
    "v.norm": _vec(fixed=lambda cfg, machine: cfg.dv * cfg.bq * machine.vec.division_lane_cycles),
    **dict.fromkeys(("v.mov", "v.const", "v.mul", "v.trunc", "v.round"), _vec_row),
    **dict.fromkeys(("v.vmax", "v.test"), _vec_rows),
    "v.threat": _vec(per_block=lambda cfg, _: cfg.bq, fixed=lambda cfg, _: cfg.nk**2),
    "exp.lut": _exp_lut,
    "exp.sfu": _exp_sfu,
    "exp.lambda": _exp_lambda,
    "knap": _knap,
}

if unpriced := {row.name for row in TABLE} ^ set(PRICES):
    raise AssertionError(f"instructions and prices differ: {', '.join(sorted(unpriced))}")
