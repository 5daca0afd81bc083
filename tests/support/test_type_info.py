"""First conversions of one type in several threads: none of them crashes the interpreter."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tacit

RACE = """
import sys, threading
import msgspec
from tacit.support.type_info import prepare
from tacit.live.server import membership as roster
from tacit.party import store
from tacit.live.protocol import messages
from tacit.live.protocol.codec import decode, encode

sys.setswitchinterval(1e-6)


def new_types(number):
    fields = [(f"f{i}", dict[str, int] | None, None) for i in range(20)]
    inner = msgspec.defstruct(f"Inner{number}", fields)
    three = [(f"f{i}", inner, msgspec.field(default_factory=inner)) for i in range(3)]
    middle = msgspec.defstruct(f"Middle{number}", three)
    outer = [("a", middle), ("b", inner)]
    return msgspec.defstruct(f"Outer{number}", outer)


RAW = {"a": {"f0": {"f1": {"x": 1}}}, "b": {"f3": {"y": 2}}}
USES = {
    "config": lambda kind: msgspec.convert(RAW, prepare(kind)),
    "json": lambda kind: decode(msgspec.json.encode({"T": RAW}), "json", {"T": kind}),
    "msgpack": lambda kind: decode(msgspec.msgpack.encode({"T": RAW}), "msgpack", {"T": kind}),
    "cbor": lambda kind: decode(__import__("cbor2").dumps({"T": RAW}), "cbor", {"T": kind}),
}
use, kinds, failed = USES[sys.argv[1]], [new_types(number) for number in range(200)], []
together = threading.Barrier(2)


def work(late):
    for kind in kinds:
        together.wait()
        for _ in range(30 * late):
            pass
        try:
            assert use(kind).b.f3 == {"y": 2}
        except Exception as error:
            failed.append(error)


threads = [threading.Thread(target=work, args=(late,)) for late in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed[0]
"""


@pytest.mark.parametrize("use", ["config", "json", "msgpack", "cbor"])
def test_two_threads_may_be_the_first_to_read_a_type(use):
    done = subprocess.run([sys.executable, "-c", RACE, use], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]


def _unprepared(path: Path) -> list[str]:
    """Calls of msgspec with a type that did not go through `prepare`."""
    found = []
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        name = ast.unparse(call.func)
        types = [keyword.value for keyword in call.keywords if keyword.arg == "type"]
        if name == "msgspec.convert":
            types += call.args[1:2]
        elif name not in ("msgspec.json.decode", "msgspec.msgpack.decode"):
            continue
        for kind in types:
            words = {node.id for node in ast.walk(kind) if isinstance(node, ast.Name)}
            if not words & {"prepare", "prepare_type"} and words - {
                "str",
                "int",
                "float",
                "bytes",
                "tuple",
                "dict",
            }:
                found.append(f"{path.name}:{call.lineno}: {ast.unparse(call)[:80]}")
    return found


def test_every_conversion_of_the_library_prepares_its_type():
    files = sorted(Path(tacit.__file__).parent.rglob("*.py"))
    assert len(files) > 100
    assert [line for path in files for line in _unprepared(path)] == []
