"""`recgrad index`: an index of items by their vectors, and changes of one."""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.model_flags import add_model_arguments, open_index, open_model
from recgrad.errors import RecgradError
from recgrad.terminal import say

_TYPES = {  # TorchEasyRec's names: kind and similarity
    "IVFFlatIP": ("ivf", "INNER_PRODUCT"),
    "HNSWFlatIP": ("hnsw", "INNER_PRODUCT"),
    "IVFFlatL2": ("ivf", "EUCLID"),
    "HNSWFlatL2": ("hnsw", "EUCLID"),
}
_SAMPLE, _DATABASE_SAMPLE = 1000, 200


@COMMANDS.register("index")
class IndexItems(Command):
    """Make an index of items, add or change items of one, or take items out.

    Items are those of --items, by the item tower of MODEL, or ids and vectors of --embedding_input_path, as
    `recgrad embed` and TorchEasyRec's predictions have them. The kind is exact unless --kind says otherwise;
    others need faiss (pip install 'recgrad[index]'), or are pgvector's in a database (hnsw and ivf), and
    their recall against exact search is printed.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_model_arguments(parser, optional=True)
        parser.add_argument(
            "--items", metavar="PATH", help="every item: its id, the item tower's columns, others"
        )
        parser.add_argument(
            "--embedding-input-path", metavar="PATH", help="ids and vectors instead of MODEL and --items"
        )
        parser.add_argument(
            "--out",
            "--to",
            "--index-output-dir",
            metavar="INDEX",
            required=True,
            help="the folder of the index, or a database with pgvector: postgresql://user@host/database",
        )
        parser.add_argument(
            "--id-field", metavar="NAME", default="item_id", help="the column of ids (default: %(default)s)"
        )
        parser.add_argument(
            "--embedding-field",
            metavar="NAME",
            default="item_tower_emb",
            help="the column of vectors (default: %(default)s)",
        )
        parser.add_argument(
            "--table", metavar="NAME", help="the table in that database (default: recgrad_items)"
        )
        parser.add_argument("--kind", choices=("exact", "hnsw", "ivf", "ivfpq"), help="(default: exact)")
        parser.add_argument(
            "--boost",
            metavar="COLUMN=WEIGHT",
            help="add WEIGHT · log(1 + COLUMN) to the similarities of items, such as visits=0.03",
        )
        parser.add_argument("--index-type", choices=tuple(_TYPES), help="TorchEasyRec's name of a kind")
        parser.add_argument(
            "--update", action="store_true", help="add these items to INDEX, or change them there"
        )
        parser.add_argument("--remove", metavar="PATH", help="take the ids of this file out of INDEX")
        parser.add_argument(
            "--k", type=int, default=100, help="of the recall that is printed (default: %(default)s)"
        )
        numbers = {
            "--ivf-nlist": "lists (default: 4·√items; in a database a thousandth of them)",
            "--ivf-nprobe": "lists that a query looks into (default: a tenth; in a database √lists)",
            "--hnsw-M": "neighbours of an item (default: 32)",
            "--hnsw-efConstruction": "candidates while building (default: 200)",
            "--hnsw-efSearch": "candidates while searching (default: 128)",
            "--pq-bytes": "bytes of a vector of ivfpq (default: a quarter of the dim)",
        }
        for flag, text in numbers.items():
            parser.add_argument(flag, type=int, metavar="N", help=text)

    def run(self, args: argparse.Namespace) -> int:
        with heavy_imports():
            from recgrad.serving.index import build_index
            from recgrad.serving.postgres import PREFIXES
        if args.remove:
            return _remove(args, open_index(args.out, args.table))
        kind, similarity = _kind(args)
        embedder = None if args.model is None else open_model(args)
        if args.update:
            if args.boost:
                raise RecgradError("index: --update keeps the boost of the index; leave --boost out")
            old = open_index(args.out, args.table)
            if embedder is not None:
                old.check_model(embedder)
            return _update(old, *_items(args, embedder)[:2])
        table, vectors, model_similarity, golden = _items(args, embedder)
        settings = _settings(args, kind)
        if similarity and golden is not None and similarity != model_similarity:
            raise RecgradError(
                f"index: --index-type asks for {similarity}, the model compares by {model_similarity}"
            )
        if args.out.startswith(PREFIXES):
            return _write_to_database(args, kind, table, vectors, similarity or model_similarity, golden)
        began = time.perf_counter()
        index = build_index(
            args.out,
            table,
            vectors,
            id_field=args.id_field,
            similarity=similarity or model_similarity,
            boost=_boost(args, table),
            kind=kind,
            settings=settings,
            golden=golden,
            model={"path": str(args.model)} if args.model else {},
        )
        seconds = time.perf_counter() - began
        size = f"{len(index):,} items of {index.dim} dims, {kind}"
        say(f"{size}, built in {seconds:.2f} s, {index.bytes:,} bytes in {args.out}")
        if kind != "exact":
            from recgrad.retrieval.similarity import query_side

            packed, view, boosted = index.segments[0].packed, index.view(), index.boost is not None
            exact = lambda q, k: packed.search(query_side(q, index.similarity, boosted), k).items  # noqa: E731
            say(_recall(lambda q, k: view.search(q, k).items, exact, vectors, args.k))
        return 0


def _write_to_database(
    args: argparse.Namespace, kind: str, table: Any, vectors: Any, similarity: str, golden: Any
) -> int:
    from recgrad.retrieval.exact import PackedVectors
    from recgrad.retrieval.similarity import item_side, query_side
    from recgrad.serving.postgres import TABLE, write_postgres

    if args.boost:
        raise RecgradError("index: a table in PostgreSQL has no boost; leave --boost out, or take a folder")
    began = time.perf_counter()
    index = write_postgres(
        args.out,
        table,
        vectors,
        id_field=args.id_field,
        similarity=similarity,
        golden=golden,
        name=args.table or TABLE,
        kind=kind,
        settings=_settings(args, kind),
    )
    seconds = time.perf_counter() - began
    size = f"{len(index):,} items of {vectors.shape[1]} dims, {kind}"
    say(f"{size}, built in {seconds:.2f} s, {index.num_bytes:,} bytes in {index.path}")
    if kind != "exact":
        packed, view = PackedVectors(item_side(vectors, similarity)), index.view()
        search = lambda q, k: index.places(view.search(q, k).items)  # noqa: E731
        exact = lambda q, k: packed.search(query_side(q, similarity), k).items  # noqa: E731
        say(_recall(search, exact, vectors, args.k, _DATABASE_SAMPLE))
    return 0


def _boost(args: argparse.Namespace, table: Any) -> Any:
    """What --boost adds, or None."""
    from recgrad.retrieval.boost import Boost

    if args.boost is None:
        return None
    field, _, text = args.boost.rpartition("=")
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not field or not math.isfinite(weight) or weight == 0:
        raise RecgradError(f"index: --boost is COLUMN=WEIGHT, such as visits=0.03, got {args.boost!r}")
    if field not in table.column_names:
        names = ", ".join(table.column_names)
        raise RecgradError(f"index: --boost names column '{field}', which the items have not (have: {names})")
    return Boost(field, weight)


def _kind(args: argparse.Namespace) -> tuple[str, str]:
    """The kind, and the similarity where the line says it."""
    if args.index_type and args.kind:
        raise RecgradError("index: --kind and --index-type are both set; keep one")
    return _TYPES[args.index_type] if args.index_type else (args.kind or "exact", "")


def _settings(args: argparse.Namespace, kind: str) -> Any:
    from recgrad.retrieval.approximate import Settings

    given = {
        "nlist": (args.ivf_nlist, "--ivf-nlist", ("ivf", "ivfpq")),
        "nprobe": (args.ivf_nprobe, "--ivf-nprobe", ("ivf", "ivfpq")),
        "hnsw_m": (args.hnsw_M, "--hnsw-M", ("hnsw",)),
        "ef_construction": (args.hnsw_efConstruction, "--hnsw-efConstruction", ("hnsw",)),
        "ef_search": (args.hnsw_efSearch, "--hnsw-efSearch", ("hnsw",)),
        "pq_bytes": (args.pq_bytes, "--pq-bytes", ("ivfpq",)),
    }
    chosen = {}
    for name, (value, flag, kinds) in given.items():
        if value is None:
            continue
        if value < 1:
            raise RecgradError(f"index: {flag} must be at least 1, got {value}")
        if kind not in kinds:
            raise RecgradError(f"index: {flag} has no effect with kind {kind}; leave it out")
        chosen[name] = value
    return Settings(**chosen)


def _items(args: argparse.Namespace, embedder: Any) -> tuple[Any, Any, str, Any]:
    """Ids and columns, vectors, the model's similarity, and rows to know the model by."""
    if bool(args.items) == bool(args.embedding_input_path):
        raise RecgradError("index: give --items with a MODEL, or --embedding-input-path, one of the two")
    if args.items and not args.model:
        raise RecgradError("index: --items needs a MODEL that gives their vectors")
    if args.embedding_input_path and args.model:
        raise RecgradError("index: --embedding-input-path holds vectors; leave MODEL out")
    import numpy as np
    import pyarrow as pa

    from recgrad.data.readers.reader import missing_column
    from recgrad.data.readers.tables import open_table, read_table
    from recgrad.export.towers import embedded_blocks, golden_of_file, golden_rows
    from recgrad.export.vector_files import vectors_of
    from recgrad.retrieval.tower_names import TREE_INSTEAD

    if embedder is not None and "item" in embedder.towers and "user" not in embedder.towers:
        raise RecgradError(f"index: '{args.model}' gives vectors of items alone; {TREE_INSTEAD}")
    reader = open_table(args.items or args.embedding_input_path, embedder.data if embedder else None)
    names = list(reader.schema.names)
    needed = [args.id_field] if embedder else [args.id_field, args.embedding_field]
    for name in needed:
        if name not in names:
            raise RecgradError(missing_column(name, reader.files[reader.first_file], reader.schema))
    if embedder is not None:
        blocks = list(embedded_blocks(embedder, reader, "item", names))
        table = pa.concat_tables([block for block, _ in blocks])
        vectors = np.concatenate([part for _, part in blocks])
        return table, vectors, embedder.similarity, golden_rows(embedder, reader, "item")
    table = pa.concat_tables(list(read_table(reader, names)))
    where = f"{args.embedding_input_path}: column '{args.embedding_field}'"
    vectors = vectors_of(table.column(args.embedding_field), where)
    golden = golden_of_file(reader.local_paths[0]) if reader.local_paths else None
    return table.drop_columns([args.embedding_field]), vectors, "INNER_PRODUCT", golden


def _update(index: Any, table: Any, vectors: Any) -> int:
    import numpy as np

    before = len(index)
    index.update(table, np.asarray(vectors))
    added = len(index) - before
    say(f"{added:,} items added and {table.num_rows - added:,} changed: {len(index):,} items in {index.path}")
    return 0


def _remove(args: argparse.Namespace, index: Any) -> int:
    from recgrad.data.readers.tables import open_table, read_column

    if args.update or args.items or args.embedding_input_path or args.boost:
        raise RecgradError("index: --remove goes alone with --out; add or change items by another command")
    ids = read_column(open_table(args.remove), args.id_field)
    gone = index.remove(ids)
    strange = len(ids) - gone
    unknown = f" ({strange:,} ids were not there)" if strange else ""
    say(f"{gone:,} items removed{unknown}: {len(index):,} items in {index.path}")
    return 0


def _recall(search: Any, exact: Any, vectors: Any, k: int, sample: int = _SAMPLE) -> str:
    """The share of what `exact(queries, k)` finds that `search` finds too, with items as queries."""
    import numpy as np

    chosen = np.random.default_rng(0).permutation(len(vectors))[:sample]
    k = min(k, len(vectors))
    queries = vectors[np.sort(chosen)]
    best = exact(queries, k)
    shared = sum(len(np.intersect1d(a, b)) for a, b in zip(best, search(queries, k)))
    share = shared / best.size
    return f"recall@{k} against exact search: {share:.4f} (vectors of {len(queries):,} items as queries)"
