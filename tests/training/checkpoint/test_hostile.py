"""Checkpoints that are damaged or made to harm: a CheckpointError, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint import Snapshot, read_checkpoint, verify_checkpoint, write_checkpoint
from recgrad.training.checkpoint.manifest import shard_path

USER = shard_path("user", 0, 1)
FILES = ["manifest.json", "tree.json", "tree.safetensors", USER]
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def checkpoint(tmp_path, make_snapshot):
    return write_checkpoint(tmp_path / "model.ckpt-7", make_snapshot(rows=10))


@pytest.fixture
def pristine(checkpoint):
    """The bytes of each file, and a function that writes other bytes in place of one file's."""
    return {name: (checkpoint / name).read_bytes() for name in FILES}


def reseal(folder) -> None:
    """Make sizes and checksums true again, as one who means harm would."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for name, entry in manifest["files"].items():
        content = (folder / name).read_bytes()
        entry |= {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    write_manifest(folder, manifest)


def write_manifest(folder, manifest) -> None:
    manifest.pop("crc32", None)
    rest = json.dumps(manifest, indent=2).encode().removeprefix(b"{\n")
    (folder / "manifest.json").write_bytes(b'{\n  "crc32": "%08x",\n' % zlib.crc32(rest) + rest)


def header_file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def array_file(dtype: str, shape: list[int], offsets: list[int]) -> bytes:
    return header_file({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}, bytes(8))


def read_all(path) -> None:
    """Read, and touch every page that was promised."""
    snapshot = read_checkpoint(path)
    for table in snapshot.tables:
        table.weights.sum()
        table.row_ids.sum()


@FUZZ
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_found(checkpoint, pristine, data):
    name = data.draw(st.sampled_from(FILES))
    content = bytearray(pristine[name])
    position = data.draw(st.integers(0, len(content) * 8 - 1))
    content[position // 8] ^= 1 << position % 8
    (checkpoint / name).write_bytes(content)
    try:
        with pytest.raises(CheckpointError, match=name.split("/")[-1]):
            verify_checkpoint(checkpoint)
        with pytest.raises(CheckpointError):
            read_checkpoint(checkpoint)
    finally:
        (checkpoint / name).write_bytes(pristine[name])


@FUZZ
@given(data=st.data())
def test_a_truncated_or_longer_file_is_found_even_without_checksums(checkpoint, pristine, data):
    name = data.draw(st.sampled_from(FILES))
    size = len(pristine[name])
    new_size = data.draw(st.integers(0, size + 100).filter(lambda n: n != size))
    (checkpoint / name).write_bytes((pristine[name] + bytes(100))[:new_size])
    try:
        with pytest.raises(CheckpointError):
            read_checkpoint(checkpoint, verify=False)
    finally:
        (checkpoint / name).write_bytes(pristine[name])


def read_or_refuse(checkpoint, pristine, name, content):
    """Read the checkpoint with other content in a file, under true checksums; only its own error may come."""
    (checkpoint / name).write_bytes(content)
    reseal(checkpoint)
    try:
        with suppress(CheckpointError):
            read_all(checkpoint)
    finally:
        (checkpoint / name).write_bytes(pristine[name])


@FUZZ
@given(data=st.data())
def test_changed_bytes_under_true_checksums_read_or_are_refused(checkpoint, pristine, data):
    """A checksum proves nothing against one who can write it: the parser must stand alone."""
    name = data.draw(st.sampled_from(FILES[1:]))
    content = bytearray(pristine[name])
    for _ in range(data.draw(st.integers(1, 4))):
        # The headers are where harm can be done; they lie at the front.
        at = data.draw(st.integers(0, min(len(content), 600) - 1))
        content[at] = data.draw(st.sampled_from(b'0179{}[]",:$-eE\x00\xff') | st.integers(0, 255))
    read_or_refuse(checkpoint, pristine, name, content)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**60, 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["model/half", "F32", "BF16", "0x10", "7ff0000000000000"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.tuples(
            st.sampled_from(
                ["$tensor", "$array", "$scalar", "$bytes", "$int", "$float", "$tuple", "$dict", "$x"]
            ),
            inner,
        ).map(lambda pair: {pair[0]: pair[1]})
        | st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "BF16", "I64", "BOOL", "X"]) | inner,
                "shape": st.lists(st.integers(-1, 2**65) | st.integers(0, 4), max_size=3) | inner,
                "data_offsets": st.lists(st.integers(-1, 2**65) | st.integers(0, 40), max_size=3) | inner,
            }
        )
    ),
    max_leaves=8,
)


@FUZZ
@given(value=json_values)
def test_any_json_as_tree_reads_or_is_refused(checkpoint, pristine, value):
    read_or_refuse(checkpoint, pristine, "tree.json", json.dumps({"a": value}).encode())


@FUZZ
@given(value=json_values, data=st.binary(max_size=64))
def test_any_json_as_array_header_reads_or_is_refused(checkpoint, pristine, value, data):
    header = {
        "__metadata__": {"table": "user", "num_rows": "100", "dim": "4"},
        "row_ids": value,
        "weights": value,
    }
    read_or_refuse(checkpoint, pristine, USER, header_file(header, data))


@FUZZ
@given(
    key=st.sampled_from(["step", "versions", "tables", "files", "format_version", "format"]),
    value=json_values,
)
def test_any_json_in_the_manifest_reads_or_is_refused(checkpoint, pristine, key, value):
    manifest = json.loads(pristine["manifest.json"])
    manifest[key] = value
    write_manifest(checkpoint, manifest)
    try:
        with suppress(CheckpointError):
            read_all(checkpoint)
    finally:
        (checkpoint / "manifest.json").write_bytes(pristine["manifest.json"])


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc/passwd", "tables/../../secret", "tables/../00000-of-00001.safetensors", "tree.json\n",
     "tables/./00000-of-00001.safetensors", "tables/a/b/00000-of-00001.safetensors", "manifest.json", "",
     "tables/a\x00/00000-of-00001.safetensors"],
)  # fmt: skip
def test_a_file_name_that_leads_elsewhere_is_refused(checkpoint, name):
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"].pop(USER)
    manifest["tables"][0]["shards"] = [name]
    write_manifest(checkpoint, manifest)
    with pytest.raises(CheckpointError, match="none of a checkpoint's"):
        read_checkpoint(checkpoint)


def test_a_missing_file_is_named(checkpoint):
    (checkpoint / USER).unlink()
    with pytest.raises(CheckpointError, match=rf"{USER}: cannot be opened \(No such file"):
        read_checkpoint(checkpoint)


def test_a_link_to_a_file_elsewhere_is_refused(checkpoint, tmp_path):
    shutil.move(checkpoint / USER, tmp_path / "elsewhere")
    (checkpoint / USER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="cannot be opened"):
        read_checkpoint(checkpoint)


@pytest.mark.timeout(20)
def test_a_pipe_does_not_hang_the_reader(checkpoint):
    (checkpoint / USER).unlink()
    os.mkfifo(checkpoint / USER)
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_checkpoint(checkpoint)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too few"),
        ((2**63).to_bytes(8, "little") + b"{}", "the header claims"),
        (header_file(b"{"), "not valid JSON"),
        (header_file(b"[" * 100_000), "not valid JSON"),
        (header_file(b"[1]"), "not an object"),
        (header_file(b'{"a":NaN}'), "NaN is not JSON"),
        (header_file(b'{"a":' + b"9" * 5000 + b"}"), "JSON|not an object"),
        (array_file("F32", [2**61, 4], [0, 8]), "does not fit"),
        (array_file("F32", [1], [1, 5]), "does not fit"),
        (array_file("F32", [4], [0, 16]), "does not fit"),
        (array_file("O", [1], [0, 8]), "unknown dtype"),
        (array_file("F32", [True], [0, 4]), "no valid shape"),
        (array_file("F32", [1] * 33, [0, 4]), "no valid shape"),
        (array_file("F32", [0, 2**61, 2**61], [0, 0]), "impossible shape"),
    ],
    ids=range(14),
)  # fmt: skip
def test_crafted_array_files_are_refused(checkpoint, content, message):
    (checkpoint / "tree.safetensors").write_bytes(content)
    reseal(checkpoint)
    with pytest.raises(CheckpointError, match=f"tree.safetensors: .*{message}"):
        read_checkpoint(checkpoint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "not valid JSON"),
        ('{"a":' * 900 + "1" + "}" * 900, "nests too deep|not valid JSON"),
        ("[]", "not a dict"),
        ('{"$tuple":[]}', "not a dict"),
        ('{"a":{"$tensor":"nothing"}}', "malformed"),
        ('{"a":{"$tensor":"model/half"},"b":{"$bytes":"model/half"}}', "malformed"),
        ('{"a":{"$eval":"1"}}', "unknown tag"),
        ('{"a":{"$dict":[[[],1]]}}', "malformed"),
        ('{"a":{"$dict":[[1]]}}', "malformed"),
        ('{"a":{"$float":"zz"}}', "malformed"),
        ('{"a":Infinity}', "not JSON"),
    ],
    ids=range(11),
)
def test_crafted_trees_are_refused(checkpoint, text, message):
    (checkpoint / "tree.json").write_text(text)
    reseal(checkpoint)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(checkpoint)


def test_pickled_bytes_are_never_run(checkpoint, tmp_path):
    import pickle

    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    for name in FILES[1:]:
        (checkpoint / name).write_bytes(pickle.dumps(Payload()))
    reseal(checkpoint)
    with pytest.raises(CheckpointError):
        read_checkpoint(checkpoint)
    assert not (tmp_path / "owned").exists()


def test_a_newer_format_says_what_to_do(checkpoint):
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    write_manifest(checkpoint, manifest | {"format_version": 3})
    with pytest.raises(CheckpointError, match=r"manifest.json: has format version 3, .*upgrade Recgrad"):
        read_checkpoint(checkpoint)


def test_a_distributed_torch_checkpoint_is_told_apart(tmp_path):
    (tmp_path / "model.ckpt-1" / "model").mkdir(parents=True)
    (tmp_path / "model.ckpt-1" / "model" / ".metadata").touch()
    with pytest.raises(CheckpointError, match=r"torch\.distributed checkpoint"):
        read_checkpoint(tmp_path / "model.ckpt-1")


def test_rows_out_of_order_under_true_checksums_are_refused(tmp_path, make_table):
    path = write_checkpoint(tmp_path / "c", Snapshot(1, {}, [make_table("user", 10)]))
    content = bytearray((path / USER).read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    ids = np.frombuffer(content, np.int64, 10, start)[::-1].tobytes()
    content[start : start + 80] = ids
    (path / USER).write_bytes(content)
    reseal(path)
    with pytest.raises(CheckpointError, match=r"table 'user': row ids must be"):
        read_checkpoint(path)
