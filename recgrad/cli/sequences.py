"""`recgrad sequences`: turn a log of events into histories that sequence models train on."""

from __future__ import annotations

import argparse

from recgrad.cli.command import COMMANDS, Command
from recgrad.errors import RecgradError, system_reason
from recgrad.terminal import say

FAR = 0.05
"""The share of events that no model would see from which on it is said."""


@COMMANDS.register("sequences")
class Sequences(Command):
    """Turn a log of events into histories, and what came next, for sequence models.

    Writes train.parquet, valid.parquet and test.parquet, rows in the order of time, and items.parquet, the
    catalogue with how often each item is in the training rows; beside them sasrec.config and hstu.config,
    which train on them. The log may be larger than memory: users are cut into parts on disk.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("log", metavar="LOG", help="parquet files, or text files with a header line")
        parser.add_argument("--out", required=True, metavar="DIR", help="folder to write into")
        parser.add_argument("--user", default="user_id", metavar="COLUMN", help="(default: %(default)s)")
        parser.add_argument("--item", default="item_id", metavar="COLUMN", help="(default: %(default)s)")
        parser.add_argument(
            "--time",
            default="",
            metavar="COLUMN",
            help="seconds, or dates and times (in text files such as 2026-01-31 12:30:00); without it the "
            "rows of the log are in order",
        )
        parser.add_argument(
            "--carry", default="", metavar="COLUMNS", help="other columns of events, joined by commas"
        )
        parser.add_argument(
            "--lines", action="store_true", help="LOG is text with one line a user: user item item …"
        )
        parser.add_argument(
            "--items", default="", metavar="FILE", help="a table of attributes, by the column of items"
        )
        parser.add_argument(
            "--split",
            choices=["leave-one-out", "time", "none"],
            default="leave-one-out",
            help="each user's last two events are held back, or all events from two times on "
            "(default: %(default)s)",
        )
        parser.add_argument("--valid-from", type=float, metavar="SECONDS", help="for --split time")
        parser.add_argument("--test-from", type=float, metavar="SECONDS", help="for --split time")
        parser.add_argument(
            "--valid-share", type=float, default=0.1, help="of events, without --valid-from (%(default)s)"
        )
        parser.add_argument(
            "--test-share", type=float, default=0.1, help="of events, without --test-from (%(default)s)"
        )
        parser.add_argument(
            "--max-length", type=int, default=0, metavar="N", help="keep the newest N events of a history"
        )
        parser.add_argument(
            "--stride",
            type=int,
            default=0,
            metavar="N",
            help="a training row each N events of a user (sliding windows); one row a user by default",
        )
        parser.add_argument(
            "--events-in-memory", type=int, default=8_000_000, metavar="N", help="(default: %(default)s)"
        )

    def run(self, args: argparse.Namespace) -> int:
        from recgrad.histories import HistorySettings, write_histories
        from recgrad.histories.config import share_beyond, usual_length, write_configs

        try:
            settings = HistorySettings(
                user=args.user,
                item=args.item,
                time=args.time,
                carry=tuple(name for name in args.carry.split(",") if name),
                split=args.split,
                valid_from=args.valid_from,
                test_from=args.test_from,
                valid_share=args.valid_share,
                test_share=args.test_share,
                max_length=args.max_length,
                stride=args.stride,
                events_in_memory=args.events_in_memory,
            )
            report = write_histories(args.log, args.out, settings, lines=args.lines, items_path=args.items)
            configs = write_configs(args.out, settings, report)
        except OSError as error:
            raise RecgradError(f"sequences: {error.filename or args.out}: {system_reason(error)}") from error
        except ValueError as error:
            raise RecgradError(f"sequences: {error}") from error
        say(f"{report.events:,} events of {report.users:,} users and {report.items:,} items")
        if report.turned:
            say(f"  {report.turned:,} stood in the log before an earlier event of their user; sorted by time")
        if report.single:
            say(f"  {report.single:,} users have one event, and nothing that comes next: no training row")
        if report.bounds:
            say(f"  valid begins at {report.bounds[0]:.0f}, test at {report.bounds[1]:.0f}")
        for name, rows in report.rows.items():
            say(f"  {name + '.parquet':<14} {rows:>12,} rows")
        length = usual_length(report)
        if not settings.max_length and share_beyond(report, length) > FAR:
            share = share_beyond(report, length)
            say(
                f"  {share:.0%} of the training events are further back than the newest {length} of their "
                f"user, at which models look; --max-length {length} --stride {length} makes rows of them too"
            )
        say(f"train on them with: recgrad train {configs[0]}, or {configs[1]}")
        return 0
