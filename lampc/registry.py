"""
What lampc adds to xDSL: its dialects, passes, targets and frontends, by name.

Each table maps a name to where it lives, `module:object`; the factories import on use, so that listing the names (for
`--help`, or because somebody runs a plain `xdsl-opt` beside us) costs nothing. Names of passes start with `lamp-`: two
packages that offer one name make `xdsl-opt` fail for everybody.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

from xdsl.ir import Dialect
from xdsl.passes import ModulePass
from xdsl.utils.frontend import Frontend
from xdsl.utils.target import Target

# In the order of the levels they describe.
DIALECTS = {
    "onnx": "lampc.dialects.onnx:Onnx",
    "attn": "lampc.dialects.attn:Attn",
    "lamp": "lampc.dialects.lamp:Lamp",
    "accel": "lampc.dialects.accel:Accel",
}

# In the order of the pipeline.
PASSES = {
    "lamp-raise-attention": "lampc.passes.raise_attention:RaiseAttentionPass",
    "lamp-keep-attention": "lampc.passes.keep_attention:KeepAttentionPass",
    "lamp-outline-host": "lampc.passes.outline_host:OutlineHostPass",
    "lamp-tile-attention": "lampc.passes.tile_attention:TileAttentionPass",
    "lamp-mixed-precision": "lampc.passes.mixed_precision:MixedPrecisionPass",
    "lamp-register-layout": "lampc.passes.register_layout:RegisterLayoutPass",
    "lamp-convert-to-accel": "lampc.passes.convert_to_accel:ConvertToAccelPass",
    "lamp-accel-allocate": "lampc.passes.accel_allocate:AccelAllocatePass",
}

TARGETS = {
    "lamp-assembly": "lampc.targets.accel.assembly_target:AssemblyTarget",
}

FRONTENDS = {
    "onnx": "lampc.frontend.xdsl_frontend:OnnxFrontend",
}

_Entry = TypeVar("_Entry")


def _load(path: str) -> object:
    module, name = path.split(":")
    return getattr(import_module(module), name)


def _classes(paths: dict[str, str], base: type[_Entry]) -> dict[str, Callable[[], type[_Entry]]]:
    def factory(path: str) -> Callable[[], type[_Entry]]:
        def load() -> type[_Entry]:
            entry = _load(path)
            if not (isinstance(entry, type) and issubclass(entry, base)):
                raise TypeError(f"{path} is no {base.__name__}")
            return entry

        return load

    return {name: factory(path) for name, path in paths.items()}


def get_all_dialects() -> dict[str, Callable[[], Dialect]]:
    """Every dialect of lampc: name and a factory that imports it."""

    def factory(path: str) -> Callable[[], Dialect]:
        def load() -> Dialect:
            dialect = _load(path)
            if not isinstance(dialect, Dialect):
                raise TypeError(f"{path} is no Dialect")
            return dialect

        return load

    return {name: factory(path) for name, path in DIALECTS.items()}


def get_all_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """Every pass of lampc: name and a factory that imports its class."""
    return _classes(PASSES, ModulePass)


def get_all_targets() -> dict[str, Callable[[], type[Target]]]:
    """Every output format that lampc adds: name and a factory that imports its class."""
    return _classes(TARGETS, Target)


def get_all_frontends() -> dict[str, Callable[[], type[Frontend]]]:
    """Every input format that lampc adds: file extension and a factory that imports its class."""
    return _classes(FRONTENDS, Frontend)
