"""`lampc-asm`: commands, exit codes, one line an error."""

import io
from pathlib import Path

import pytest

from lampc.targets.accel import asm_cli
from lampc.targets.accel.isa import TABLE
from lampc.targets.accel.program import Program


def fails(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        asm_cli.main(arguments)
    assert stop.value.code == code
    output, error = capsys.readouterr()
    assert output == ""
    assert error.startswith("lampc-asm: ") and error.count("\n") == 1
    return error


@pytest.fixture
def source(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "layer.s"
    path.write_text(text)
    return path


def test_there_and_back(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asm_cli.main(["assemble", str(source)])
    first = source.with_suffix(".bin")
    asm_cli.main(["disassemble", str(first)])
    again = source.with_name("again.s")
    again.write_text(capsys.readouterr().out)
    asm_cli.main(["assemble", str(again), "-o", str(source.with_name("second.bin"))])
    assert source.with_name("second.bin").read_bytes() == first.read_bytes()
    asm_cli.main(["disassemble", str(first), "-o", str(source.with_name("third.s"))])
    assert source.with_name("third.s").read_text() == again.read_text()


def test_check_prints_sizes_and_hash(source: Path, program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    asm_cli.main(["check", str(source), "--machine", "packed"])
    output = capsys.readouterr().out
    assert program.program_hash() in output
    assert f"{program.cfg.nq * program.warp_bytes} register bytes, {program.sram_bytes} SRAM bytes" in output
    asm_cli.main(["assemble", str(source)])
    asm_cli.main(["check", str(source.with_suffix(".bin"))])
    assert capsys.readouterr().out == output


def test_check_refuses_what_does_not_fit(source: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_text(text.replace("granules=40", "granules=1000"))
    assert "exceed the register file" in fails(["check", str(source), "--machine", "packed"], 1, capsys)


def test_list_has_every_instruction(capsys: pytest.CaptureFixture[str]) -> None:
    asm_cli.main(["list"])
    output = capsys.readouterr().out
    assert all(row.meaning in output for row in TABLE)


def test_text_on_stdin(source: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["check", "-"], ["assemble", "-", "-o", str(source.with_name("x.bin"))]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        asm_cli.main(arguments)
    assert "hash: " in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"halt")))
    assert "stdin: line 1: " in fails(["check", "-"], 1, capsys)


@pytest.mark.parametrize("arguments", [[], ["run"], ["check"], ["check", "a", "--fast"], ["assemble", "-"]])
def test_wrong_command_lines(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    fails(arguments, 2, capsys)


def test_bad_files(source: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in fails(["check", str(tmp_path / "none.s")], 1, capsys)
    assert "directory" in fails(["check", str(tmp_path)], 1, capsys)
    assert "object file: " in fails(["disassemble", str(source)], 1, capsys)
    asm_cli.main(["assemble", str(source)])
    assert "this is an object already" in fails(["assemble", str(source.with_suffix(".bin")), "-o", "x"], 1, capsys)
    assert "is the text itself" in fails(["assemble", str(source), "-o", str(source)], 2, capsys)
    assert source.read_text() == text
    source.write_bytes(b"\xff")
    assert "assembly text is UTF-8" in fails(["check", str(source)], 1, capsys)
    source.write_text(text.replace("halt", "hold", 1))
    assert f"{source}: line " in fails(["assemble", str(source)], 1, capsys)


def test_internal_errors_ask_for_a_report(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(asm_cli, "assemble", broken)
    assert "internal error: RuntimeError: two lines" in fails(["check", str(source)], 70, capsys)
    with pytest.raises(SystemExit):
        asm_cli.main(["check", str(source), "--traceback"])
    assert "Traceback" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        asm_cli.main(["--help"])
    assert stop.value.code == 0
    output = capsys.readouterr().out
    assert "exit codes" in output and "lampc-asm assemble layer.s" in output


def test_the_program_in_the_help_assembles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = asm_cli.EPILOG.split(":\n\n", 1)[1].split("\n\n", 1)[0]
    (tmp_path / "help.s").write_text(text)
    asm_cli.main(["check", str(tmp_path / "help.s"), "--machine", "packed"])
    assert "hash: " in capsys.readouterr().out
