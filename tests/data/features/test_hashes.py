"""Ids of `hash: MURMUR64` are those of TorchEasyRec, in every kind that hashes texts."""

import pyarrow as pa
import pytest

from recgrad.errors import ConfigError

HASHED = "embedding_dim: 4 hash_bucket_size: 100"


def ids_of(body: str) -> str:
    return f'id_feature {{ feature_name: "f" expression: "user:c" {HASHED} {body} }}'


@pytest.mark.parametrize(
    ("default", "column", "want"),
    [
        ("", ["abc\x1defg", None, "hij"], [[33, 44], [], [66]]),
        ("xyz", ["abc\x1defg", None, "hij"], [[33, 44], [13], [66]]),
        ("xyz", [["abc", "efg"], None, ["hij"]], [[33, 44], [13], [66]]),
        ("", [1, 2, None, 3], [[95], [70], [], [13]]),
        ("4", [1, 2, None, 3], [[95], [70], [56], [13]]),
        ("", [1.0, 2.0, None, 3.0], [[95], [70], [], [13]]),
    ],
)
def test_ids(encode, default: str, column: list, want: list) -> None:
    config = ids_of(f'default_value: "{default}"')
    assert encode(config, {"c": column}, hash="MURMUR64").ids() == want
    if not isinstance(column[0], list):
        assert encode(config, {"c": pa.array(column).dictionary_encode()}, hash="MURMUR64").ids() == want


def test_crosses(encode) -> None:
    config = f'combo_feature {{ feature_name: "f" expression: ["user:u", "item:i"] {HASHED} }}'
    columns = {"u": ["ua\x1dub", "uc", "ud", "ug"], "i": ["ia\x1dib", "ic", "ic", "id"]}
    want = [[37, 90, 5, 97], [60], [56], [40]]
    assert encode(config, columns, hash="MURMUR64").ids() == want


def test_values_found_in_maps(encode) -> None:
    config = f'lookup_feature {{ feature_name: "f" map: "user:m" key: "item:k" default_value: "z" {HASHED} }}'
    columns = {"m": ["ca:x\x1dcb:y"] * 3 + [""], "k": ["ca\x1dcb", "ca", "cd", "ca"]}
    assert encode(config, columns, hash="MURMUR64").ids() == [[35, 30], [35], [54], [54]]
    config = (
        'match_feature { feature_name: "f" nested_map: "user:m" pkey: "item:p" skey: "item:s"'
        f' default_value: "" {HASHED} }}'
    )
    columns = {"m": ["p^s:abc,t:x", "p^s:efg"], "p": ["p", "p"], "s": ["s", "t"]}
    assert encode(config, columns, hash="MURMUR64").ids() == [[33], []]


def test_masked_values_and_sequences(encode) -> None:
    config = (
        f'bool_mask_feature {{ feature_name: "f" expression: ["user:c", "user:m"] separator: "," {HASHED} }}'
    )
    result = encode(config, {"c": ["abc,efg,hij"], "m": ["true,false,true"]}, hash="MURMUR64")
    assert result.ids() == [[33, 66]]
    sequence = f'sequence_id_feature {{ feature_name: "f" expression: "user:c" {HASHED} }}'
    group = (
        'sequence_feature { sequence_name: "s" sequence_length: 9 sequence_delim: ";" features {'
        f' id_feature {{ feature_name: "f" expression: "item:c" {HASHED} }} }} }}'
    )
    want = [[[33], [44]], [[66]]]
    assert encode(sequence, {"c": ["abc;efg", "hij"]}, hash="MURMUR64").sequence_ids() == want
    assert encode(group, {"s__c": ["abc;efg", "hij"]}, hash="MURMUR64").sequence_ids() == want


def test_bucketized_columns(encode) -> None:
    got = encode(ids_of(""), {"f": ["abc\x03efg"]}, mode="FG_BUCKETIZE", hash="MURMUR64").ids()
    assert got == [[33, 44]]


def test_a_feature_may_have_a_hash_of_its_own(encode, bucket) -> None:
    config = [ids_of("hash: MURMUR64"), ids_of("").replace('"f"', '"g"')]
    result = encode(config, {"c": ["abc"]})
    assert (result.ids("f"), result.ids("g")) == ([[33]], [[bucket("abc", 100)]])
    assert [feature.spec.hash for feature in result.features] == ["MURMUR64", "XXH64"]
    result = encode([ids_of("hash: XXH64")], {"c": ["abc"]}, hash="MURMUR64")
    assert result.ids() == [[bucket("abc", 100)]]


@pytest.mark.parametrize(
    ("body", "mode", "problem"),
    [
        ("num_buckets: 9", "FG_DAG", "hash needs hash_bucket_size"),
        ('vocab_list: ["a"]', "FG_DAG", "hash needs hash_bucket_size"),
        ("hash_bucket_size: 9", "FG_NONE", "hash has no effect in fg_mode FG_NONE"),
    ],
)
def test_a_hash_that_nothing_uses_is_refused(build, body: str, mode: str, problem: str) -> None:
    config = f'id_feature {{ feature_name: "f" expression: "c" embedding_dim: 4 hash: MURMUR64 {body} }}'
    with pytest.raises(ConfigError, match=problem):
        build(config, mode)


def test_specs_know_the_hash(build) -> None:
    def hash_of(body: str, mode: str = "FG_DAG") -> str:
        (feature,) = build(
            f'id_feature {{ feature_name: "f" expression: "c" embedding_dim: 4 {body} }}', mode
        )
        return feature.spec.hash

    assert hash_of("hash_bucket_size: 9") == "XXH64"
    assert hash_of('hash_bucket_size: 9 fg_value_type: "int64"') == "XXH64"
    assert hash_of("num_buckets: 9") == ""
    assert hash_of("hash_bucket_size: 9", "FG_NONE") == ""
