"""tokenize_feature: tokens against the libraries themselves, defaults, sequences, normalisation."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from recgrad.data.text_normalizer import TextNormalizer
from recgrad.errors import ConfigError

tokenizers = pytest.importorskip("tokenizers")

WORDS = ["[UNK]", "abc", "efg", "hij", "xyz", "0", "ABC"]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    """A tokenizer of whole words, that would pad and add special tokens if it were let."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_tokens(["added"])
    made.enable_padding(length=9)
    path = tmp_path_factory.mktemp("tokens") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.fixture
def config(vocabulary):
    def make(body="", kind="tokenize_feature"):
        return (
            f'{kind} {{ feature_name: "f" expression: "item:t" embedding_dim: 4 '
            f'asset_dir: "{vocabulary.parent}" vocab_file: "{vocabulary.name}" {body} }}'
        )

    return make


TEXTS = ["abc efg", "", "hij", None, "abc what"]


def test_tokens_are_ids_in_their_order(encode, config):
    found = encode(config(), {"t": TEXTS})
    assert found.ids() == [[1, 2], [], [3], [], [1, 0]]
    assert found.features[0].spec.num_rows == len(WORDS) + 1
    assert found.features[0].spec.embedding_dim == 4


def test_the_default_is_a_text(encode, config):
    assert encode(config('default_value: "xyz abc"'), {"t": TEXTS}).ids()[1] == [4, 1]


def test_texts_of_a_sequence_have_tokens_each(encode, config):
    found = encode(
        config('sequence_delim: ";"', "sequence_tokenize_feature"), {"t": ["abc efg;hij", "", "hij"]}
    )
    assert found.sequence_ids() == [[[1, 2], [3]], [[5]], [[3]]]  # an empty one is a position of "0"


def test_tokens_may_be_positions(encode, config):
    body = "tokens_as_sequence: true sequence_length: 2"
    found = encode(config(body), {"t": ["abc efg hij", "", "hij"]})
    assert found.sequence_ids() == [[[1], [2]], [[5]], [[3]]]
    assert found.features[0].spec.sequence
    assert found.features[0].spec.value_dim == 1


def test_encoded_columns_hold_tokens(encode, config):
    columns = {"f": pa.array([[1, 2], [], None, [7]], pa.list_(pa.int64()))}
    assert encode(config(), columns, mode="FG_NONE").ids() == [[1, 2], [], [], [7]]
    assert encode(config(), {"f": ["1\x032", "3"]}, mode="FG_NONE").ids() == [[1, 2], [3]]
    found = encode(config("tokens_as_sequence: true"), {"f": ["1\x032", "3", ""]}, mode="FG_NONE")
    assert found.sequence_ids() == [[[1], [2]], [[3]], []]
    wrong = encode(config(), {"f": [[8]]}, mode="FG_NONE", bad=True)
    assert "token {value} is not among the 8 of vocab_file" in wrong.faults.first().reason


def test_texts_are_normalised_first(encode, config):
    body = "text_normalizer { norm_options: TEXT_UPPER2LOWER }"
    assert encode(config(body), {"t": ["ABC eFg"]}).ids() == [[1, 2]]


def test_a_sentencepiece_model(encode, tmp_path, config, vocabulary):
    library = pytest.importorskip("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(f"the quick brown fox {i} jumps over the lazy dog" for i in range(200)))
    library.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "m"), vocab_size=60, minloglevel=2
    )
    processor = library.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    text = config('tokenizer_type: "sentencepiece"').replace(str(vocabulary.parent), str(tmp_path))
    text = text.replace(vocabulary.name, "m.model")
    found = encode(text, {"t": ["the fox", "lazy dogs 7"]})
    assert found.ids() == [processor.encode("the fox"), processor.encode("lazy dogs 7")]
    assert found.features[0].spec.num_rows == 60


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (
            'tokenizer_type: "bp"',
            "tokenize_feature",
            "tokenizer_type must be one of bpe, sentencepiece, got 'bp'",
        ),
        (
            "tokens_as_sequence: true",
            "sequence_tokenize_feature",
            "tokens_as_sequence is for tokenize_feature",
        ),
        ('tokenizer_type: "sentencepiece"', "tokenize_feature", "is no model of SentencePiece"),
        (
            "text_normalizer { norm_options: [TEXT_LOWER2UPPER, TEXT_UPPER2LOWER] }",
            "tokenize_feature",
            "keep one",
        ),
        (
            "text_normalizer { norm_options: TEXT_SBC2DBC stop_char_file: 'x' }",
            "tokenize_feature",
            "stop_char_file needs TEXT_FILTER",
        ),
    ],
)
def test_what_cannot_work_is_refused(encode, config, body, kind, message):
    with pytest.raises(ConfigError, match=message):
        encode(config(body, kind), {"t": ["abc"]})


def test_a_missing_or_wrong_file_is_named(encode, config, vocabulary, tmp_path):
    with pytest.raises(ConfigError, match=r"vocab_file '.*none.json'.*: no such file"):
        encode(config().replace(vocabulary.name, "none.json"), {"t": ["abc"]})
    (tmp_path / "wrong.json").write_text(json.dumps({"a": 1}))
    text = config().replace(str(vocabulary.parent), str(tmp_path)).replace(vocabulary.name, "wrong.json")
    with pytest.raises(ConfigError, match=r"is no tokenizer.json"):
        encode(text, {"t": ["abc"]})


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        (["TEXT_SBC2DBC"], "ＡＢ　１！", "AB 1!"),
        (["TEXT_LOWER2UPPER"], "abc", "ABC"),
        (["TEXT_FILTER"], "a-b, c! $5 ©x", "ab c 5 x"),
        (["TEXT_SPLITCHRS"], "ab中国 cd", "ab 中 国 cd"),
        (["TEXT_REMOVE_SPACE"], " a b\tc ", "abc"),
        (["TEXT_UPPER2LOWER", "TEXT_SBC2DBC", "TEXT_SPLITCHRS"], "ＡＢ中", "ab 中"),
    ],
)
def test_steps_of_normalisation(options, text, expected):
    assert TextNormalizer(options)(text) == expected


def test_long_texts_are_left_and_stop_characters_may_come_from_a_file(tmp_path):
    assert TextNormalizer(["TEXT_LOWER2UPPER"], max_length=3)("abcd") == "abcd"
    assert TextNormalizer(["TEXT_LOWER2UPPER"], max_length=4)("abcd") == "ABCD"
    stop = tmp_path / "stop.txt"
    stop.write_text("xy\nz\n")
    assert TextNormalizer(["TEXT_FILTER"], stop_char_file=str(stop))("axbycz!") == "abc!"


def test_traditional_characters_become_simplified():
    pytest.importorskip("opencc")
    assert TextNormalizer(["TEXT_CHT2CHS"])("漢語 abc") == "汉语 abc"
    assert TextNormalizer()("漢語, abc") == "汉语 ABC"
