"""Run a pass pipeline and keep the IR of every stage."""

from dataclasses import dataclass
from io import StringIO

from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.passes import PassPipeline
from xdsl.printer import Printer
from xdsl.utils.exceptions import ArgSpecParseError

from lampc import registry
from lampc.errors import CompileError, LampcError, UsageError

UPSTREAM_DIALECTS = ("builtin", "func")

STAGE_AFTER = {
    "onnx": "import",
    "attn": "lamp-outline-host",
    "tiled": "lamp-tile-attention",
    "lamp": "lamp-register-layout",
    "accel": "lamp-accel-allocate",
}
"""Names of `--emit`, and the pass after which the IR stands at that level (docs/README.md)."""


@dataclass(frozen=True)
class Stage:
    """The module after one pass (or after `import`), as text with locations."""

    name: str
    text: str


def new_context() -> Context:
    """A context with lampc's dialects and the upstream ones its IR uses."""
    context = Context()
    upstream = get_all_dialects()
    for name in UPSTREAM_DIALECTS:
        context.register_dialect(name, upstream[name])
    for name, factory in registry.get_all_dialects().items():
        context.register_dialect(name, factory)
    return context


class StageWriter:
    """
    Prints modules with the location of every op.

    Stages of one model repeat their types and names thousands of times, so every attribute is spelled once.
    """

    def __init__(self) -> None:
        self._texts: dict[Attribute, str] = {}

    def text(self, module: ModuleOp) -> str:
        """A module as MLIR text."""
        stream = StringIO()
        _StagePrinter(stream, self._texts).print_op(module)
        return stream.getvalue() + "\n"


class _StagePrinter(Printer):
    def __init__(self, stream: StringIO, texts: dict[Attribute, str]):
        super().__init__(stream, print_debuginfo=True)
        self._texts = texts

    def print_attribute(self, attribute: Attribute) -> None:
        text = self._texts.get(attribute)
        if text is None:
            once = StringIO()
            Printer(once).print_attribute(attribute)
            text = self._texts[attribute] = once.getvalue()
        self.print_string(text, indent=0)

    def print_bytes_literal(self, bytestring: bytes) -> None:
        if bytestring.isascii() and (text := bytestring.decode()).isprintable() and not {'"', "\\"} & set(text):
            self.print_string(f'"{text}"')
        else:
            super().print_bytes_literal(bytestring)


def run_pipeline(module: ModuleOp, pipeline: str, writer: StageWriter | None = None) -> list[Stage]:
    """
    Apply `pipeline` to `module` in place; verify after every pass.

    writer   prints the module after every pass
    returns  one stage for each pass, none without a writer

    Raises UsageError for a pipeline that does not parse, LampcError as the passes do, CompileError naming the pass if it leaves
    IR that does not verify.
    """
    try:
        passes = PassPipeline.parse_spec(registry.get_all_passes(), pipeline).passes
    except (ArgSpecParseError, ValueError) as error:
        first = str(error).strip().splitlines()[-1] if isinstance(error, ArgSpecParseError) else str(error)
        raise UsageError(f"--pipeline: {first}; the passes are listed in docs/passes.md") from error
    context = new_context()
    stages: list[Stage] = []
    for each in passes:
        try:
            each.apply(context, module)
            module.verify()
        except LampcError:
            raise
        except Exception as error:
            cause = error.__cause__ if isinstance(error.__cause__, LampcError) else None
            if cause is not None:
                raise cause from error
            raise CompileError(f"pass {each.name} failed: {' '.join(str(error).split())[:300]}") from error
        if writer is not None:
            stages.append(Stage(each.name, writer.text(module)))
    return stages


def attention_module(module: ModuleOp) -> ModuleOp:
    """A copy of the attention functions alone: what a second program is compiled from without the host's part."""
    functions = [op.clone() for op in module.body.ops if isinstance(op, FuncOp) and op.sym_name.data.startswith("attention_")]
    return ModuleOp(list(functions))
