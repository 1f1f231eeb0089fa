"""What the lowering makes: objects that save, assemble and fit machines, symbols that name nodes, refusals that say why."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import NameLoc, StringAttr, UnknownLoc

from lampc.dialects.accel import ProgramOp
from lampc.dialects.accel_inst import InstOp
from lampc.dialects.accel_registers import DeclarationOp
from lampc.errors import CompileError, UsageError
from lampc.passes.accel_allocate import AccelAllocatePass
from lampc.passes.convert_to_accel import ConvertToAccelPass
from lampc.targets.accel import object as object_file
from lampc.targets.accel.assembler import assemble
from lampc.targets.accel.compile import compile_program
from lampc.targets.accel.disassembler import disassemble
from lampc.targets.accel.run import AccelTarget, compile_programs
from tests.unit.accel.programs import accel_module, program_of, run_case
from tests.unit.numpy_target.compiled import Case, operands, same_bits

PRECISIONS: list[dict[str, Any] | None] = [
    {},
    {"policy": "low"},
    {"policy": "high"},
    {"stage1": False},
    {"stage2": False},
    None,
]


def a_case(precision: dict[str, Any] | None = None, **more: Any) -> Case:
    return Case(*operands(7, queries=40, keys=200), precision={} if precision is None else precision, **more)


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_objects_and_assembly_give_the_program_back(precision: dict[str, Any] | None):
    case = a_case(mask=np.zeros((40, 200), np.float32), sinks=np.zeros(2, np.float32), attention={"softcap": 9.0})
    case.precision = precision
    program = program_of(case)
    assert object_file.load(object_file.save(program)).program_hash() == program.program_hash()
    assert assemble(disassemble(program)).program_hash() == program.program_hash()


def test_equal_modules_have_equal_hashes_and_options_change_them():
    hashes = {program_of(a_case({"tau": tau})).program_hash() for tau in (0.5, 0.5, 0.25)}
    assert len(hashes) == 2


def test_every_word_names_the_node_it_comes_from():
    module = a_case(mask=np.zeros((40, 200), np.float32)).module()
    for op in module.walk():
        op.location = NameLoc(StringAttr(f"layers.0/{op.name}"), UnknownLoc())
    ConvertToAccelPass().apply(Context(), module)
    AccelAllocatePass().apply(Context(), module)
    (compiled,) = compile_programs(module).values()
    program = compiled.program
    for stream, words in program.streams.items():
        assert all(program.symbol(stream, word).startswith("layers.0/") for word in range(len(words)))
    named = {program.symbol("warp", word) for word in range(len(program.streams["warp"]))}
    assert {"layers.0/lamp.accumulate", "layers.0/lamp.keep_low", "layers.0/attn.add_bias"} <= named


def test_registers_that_are_needed_at_once_differ():
    """Two declarations share numbers only if no instruction between the first and the last use of one names the other."""
    module = accel_module(a_case(mask=np.zeros((40, 200), np.float32), attention={"softcap": 9.0}))
    program = next(op for op in module.walk() if isinstance(op, ProgramOp))
    instructions = [op for op in program.stream("warp").walk() if isinstance(op, InstOp)]
    uses: dict[DeclarationOp, list[int]] = {}
    for position, inst in enumerate(instructions):
        for value in inst.operands:
            if isinstance(value.owner, DeclarationOp):
                uses.setdefault(value.owner, []).append(position)
    shared = 0
    for a in uses:
        for b in uses:
            if a is b or a.KIND != b.KIND or a.parent is not b.parent or a.first is None or b.first is None:
                continue
            if a.first < b.first + b.size and b.first < a.first + a.size:
                shared += 1
                assert uses[a][-1] < uses[b][0] or uses[b][-1] < uses[a][0]
    assert shared


def test_a_program_is_compiled_after_allocation():
    module = a_case().module()
    ConvertToAccelPass().apply(Context(), module)
    program = next(op for op in module.walk() if isinstance(op, ProgramOp))
    with pytest.raises(CompileError, match="run lamp-accel-allocate"):
        compile_program(program)


@pytest.mark.parametrize("precision", [{}, {"policy": "high"}], ids=str)
def test_a_smaller_machine_gets_fewer_warps_and_slots_and_the_same_values(precision: dict[str, Any]):
    case = a_case(precision)
    whole, result = run_case(case)
    program = program_of(case)
    register_bytes, sram_bytes = 3 * program.warp_bytes, program.buffers[0].bytes * 3
    target = AccelTarget(accel_module(case), register_bytes=register_bytes, sram_bytes=sram_bytes)
    compiled = target.compiled("attention")
    assert len(compiled.changes) == 2
    assert compiled.program.cfg.nq * compiled.program.warp_bytes <= register_bytes
    assert compiled.program.sram_bytes <= sram_bytes
    assert [(b.name, b.slots) for b in compiled.program.buffers] == [("k", 2), ("v", 1)]
    output, fitted = target.run("attention", case.arguments())
    assert same_bits(output, whole)
    assert fitted.statistics == result.statistics


def test_the_compact_layout_saves_tile_registers_and_nothing_else_grows():
    safe, compact = (program_of(replace(a_case(), layout=layout)) for layout in ("safe", "compact"))
    assert safe.granules - compact.granules == safe.cfg.nk - 2
    assert safe.vectors == compact.vectors


def test_what_fits_is_left_as_it_is():
    module = accel_module(a_case())
    (compiled,) = compile_programs(module, register_bytes=1 << 20, sram_bytes=1 << 20).values()
    assert compiled.changes == ()
    assert compiled.program.program_hash() == program_of(a_case()).program_hash()


def test_what_fits_no_way_is_refused():
    with pytest.raises(CompileError, match="one warp takes"):
        compile_programs(accel_module(a_case()), register_bytes=64, sram_bytes=1 << 20)


@pytest.mark.parametrize("slots", [(1, 1), (2, 2), (5, 3)])
def test_any_ring_length_gives_the_same(slots: tuple[int, int]):
    case = a_case()
    expected, _ = run_case(case)
    module = accel_module(case, k_slots=slots[0], v_slots=slots[1])
    output, _ = AccelTarget(module).run("attention", case.arguments())
    assert same_bits(output, expected)


@pytest.mark.parametrize(
    ("precision", "told"),
    [
        ({"range": "unbounded", "shift": "exact", "exp_above_one": "keep"}, "paper-sim.* is not a program of the machine"),
        ({"range": "unbounded"}, "paper-sim.* is not a program of the machine"),
        ({"shift": "exact"}, "shift = exact of e4m3 scores is not a program of the machine"),
        ({"rounding": "rtz"}, "rounding = rtz is not a program of the machine"),
        ({"rounding": "stochastic"}, "rounding = stochastic is not a program of the machine"),
    ],
)
def test_what_is_no_program_of_the_machine_is_refused_in_one_line(precision: dict[str, Any], told: str):
    module = a_case(precision).module()
    for op in module.walk():
        op.location = NameLoc(StringAttr("layers.0/attention"), UnknownLoc())
    with pytest.raises(CompileError, match=told) as error:
        ConvertToAccelPass().apply(Context(), module)
    assert str(error.value).startswith("node 'layers.0/attention': ")
    assert "\n" not in str(error.value)


def test_operands_of_several_types_are_refused():
    module = a_case(tiling={"operands": "bf16"}).module()
    rounds = [op for op in module.walk() if op.name == "attn.round_operand"]
    rounds[0].results[0].replace_all_uses_with(rounds[0].operands[0])
    with pytest.raises(CompileError, match="stored in one type"):
        ConvertToAccelPass().apply(Context(), module)


def test_a_ring_has_a_slot():
    with pytest.raises(UsageError, match="k-slots=0"):
        ConvertToAccelPass(k_slots=0).apply(Context(), a_case().module())


def test_a_function_that_launches_nothing_is_named():
    with pytest.raises(CompileError, match="function other launches 0 programs"):
        AccelTarget(accel_module(a_case())).compiled("other")
