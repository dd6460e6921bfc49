"""`recgrad serve`: an HTTP server for an exported model."""

from __future__ import annotations

import argparse
from typing import Any

from recgrad.cli.command import COMMANDS, Command


@COMMANDS.register("serve")
class Serve(Command):
    """Serve an exported model over HTTP.

    POST /v1/score takes {"rows": [{…}, …]}, {"user": {…}, "items": [{…}, …]} or an Arrow IPC stream;
    POST /v1/recommend {"user": {…}, "k": 20} with --index;
    GET / is a page to try the model with; /v1/model, /metrics, /healthz and /readyz tell about it.
    A bundle that is put in the place of the served one is taken up without a failed request.
    docs/serving.md has the whole of it.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("bundle", metavar="BUNDLE", help="the folder that `recgrad export` wrote")
        parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
        parser.add_argument(
            "--port", type=int, default=8000, help="0 for any that is free (default: %(default)s)"
        )
        parser.add_argument(
            "--workers", type=int, default=1, metavar="N", help="processes, at most one a core (default: 1)"
        )
        parser.add_argument(
            "--index",
            metavar="INDEX",
            help="what `recgrad index` made with this model, or a tdm model's tree, for /v1/recommend",
        )
        parser.add_argument("--table", metavar="NAME", help="the table of an index in PostgreSQL")
        parser.add_argument(
            "--follow",
            metavar="FOLDER",
            help="deltas of the bundle's run (delta_embedding_dump_config), applied as they come",
        )
        for role in ("user", "item"):
            parser.add_argument(
                f"--{role}-features", metavar="FILE", help=f"parquet or Arrow file of stored {role} features"
            )
            parser.add_argument(f"--{role}-key", metavar="COLUMN", help=f"its column of {role} ids")
        limits = parser.add_argument_group("limits")
        for flag, kind, text in (
            ("--max-body-mb", float, "largest body of a request (default: 8)"),
            ("--max-rows", int, "most rows of a request (default: 10000)"),
            ("--max-queue", int, "requests that wait in a worker, more get 429 (default: 1024)"),
            ("--max-queue-mb", float, "bytes that wait in a worker, more get 429 (default: 64)"),
            ("--max-wait-ms", float, "longest wait for requests to be scored together (default: 1)"),
            ("--batch-rows", int, "rows that are scored together (default: 2048)"),
            ("--timeout-s", float, "for a request; later it gets 504 (default: 10)"),
            ("--body-timeout-s", float, "for a body to arrive; later it gets 408 (default: 10)"),
            ("--drain-s", float, "for requests in flight after SIGTERM (default: 30)"),
            ("--poll-s", float, "between looks for a new bundle (default: 1)"),
        ):
            limits.add_argument(flag, type=kind, metavar="N", help=text)

    def run(self, args: argparse.Namespace) -> int:
        from recgrad.errors import RecgradError
        from recgrad.serving.needs import check_extra
        from recgrad.serving.settings import ServerSettings
        from recgrad.serving.supervisor import Supervisor

        check_extra()
        if args.table and not args.index:
            raise RecgradError("serve: --table is of an --index in PostgreSQL; give both")
        try:
            settings = ServerSettings(
                bundle=args.bundle,
                index=args.index or "",
                index_table=args.table or "",
                follow=args.follow or "",
                host=args.host,
                port=args.port,
                workers=args.workers,
                stores=_stores(args),
                **{name: value for name in _LIMITS if (value := getattr(args, name)) is not None},
            )
        except ValueError as error:
            raise RecgradError(f"serve: {error}") from error
        return Supervisor(settings).run()


_LIMITS = (
    "max_body_mb",
    "max_rows",
    "max_queue",
    "max_queue_mb",
    "max_wait_ms",
    "batch_rows",
    "timeout_s",
    "body_timeout_s",
    "drain_s",
    "poll_s",
)


def _stores(args: argparse.Namespace) -> dict[str, Any]:
    from recgrad.errors import RecgradError
    from recgrad.serving.settings import StoreSettings

    stores = {}
    for role in ("user", "item"):
        path, key = getattr(args, f"{role}_features"), getattr(args, f"{role}_key")
        if (path is None) != (key is None):
            given, other = ("features", "key") if key is None else ("key", "features")
            raise RecgradError(f"serve: --{role}_{given} is given without --{role}_{other}; give both")
        if path is not None:
            stores[role] = StoreSettings(path, key)
    return stores
