"""Build step: compiles `formats/proto/*.proto` to Python modules beside them (they are not kept in git)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
PROTO_PATH = "walferry/formats/proto"


def compile_protos(source: Path) -> None:
    """Write `*_pb2.py` and `*_pb2.pyi` for every .proto below `source`; raise RuntimeError when protoc refuses one."""
    from grpc_tools import protoc

    for proto in sorted((source / PROTO_PATH).glob("*.proto")):
        arguments = ["protoc", f"-I{source}", f"--python_out={source}", f"--pyi_out={source}", str(proto)]
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"protoc could not compile {proto}")


class ProtoBuildHook(BuildHookInterface[Any]):
    """Runs protoc before the wheel, editable or not, is put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compile_protos(ROOT / "src")
