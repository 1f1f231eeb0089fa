"""What lampc offers to any xDSL tool, found through the `xdsl.universe` entry point."""

from xdsl.universe import Universe

from lampc import registry

UNIVERSE = Universe(
    all_dialects=registry.get_all_dialects(),
    all_passes=registry.get_all_passes(),
    all_targets=registry.get_all_targets(),
    all_frontends=registry.get_all_frontends(),
)
