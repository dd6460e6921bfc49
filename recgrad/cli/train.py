"""`recgrad train`: train and evaluate a model from a config."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import warnings
from functools import partial
from typing import Any, NoReturn

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.launch import launch
from recgrad.cli.run_flags import (
    add_config_arguments,
    add_device_argument,
    add_threads_argument,
    add_verbose_argument,
    config_path,
    device_of,
    speak_up,
)
from recgrad.errors import RecgradError
from recgrad.terminal import say


@COMMANDS.register("train")
class Train(Command):
    """Train a model from a config, evaluating and saving as it says.

    The same check as `recgrad check` runs first. A run that was killed resumes with
    --continue_train, as if it had not been. Flags may be spelled with dashes or underscores.
    --nproc N trains with N processes of this machine; torchrun does so on several machines.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser)
        parser.add_argument("--train-input-path", metavar="PATH", help="instead of the config's")
        parser.add_argument("--eval-input-path", metavar="PATH", help="instead of the config's")
        parser.add_argument("--model-dir", metavar="DIR", help="instead of the config's")
        parser.add_argument(
            "--continue-train", action="store_true", help="resume from the newest checkpoint in the model dir"
        )
        parser.add_argument(
            "--fine-tune-checkpoint", metavar="PATH", help="start from the weights of this checkpoint"
        )
        parser.add_argument(
            "--ignore-restore-optimizer",
            action="store_true",
            help="restore weights only, not the optimizers' state",
        )
        parser.add_argument(
            "--increment-from",
            metavar="MODEL_DIR",
            help="train on from the newest checkpoint of this run, with the data and schedules of a new day",
        )
        parser.add_argument(
            "--days",
            metavar="GLOB",
            help="train on each of these paths in the order of their names, each from the last, in folders of"
            " the model dir; the same command resumes, and trains on days that have come since",
        )
        parser.add_argument(
            "--track",
            metavar="WHERE",
            help="also tell MLflow or Weights & Biases: mlflow:URI#EXPERIMENT, wandb:PROJECT; or both, a,b",
        )
        add_threads_argument(parser, "of each process ")
        add_device_argument(parser)
        add_verbose_argument(parser)
        parser.add_argument("--nproc", type=int, metavar="N", help="processes to train with together")
        parser.add_argument(
            "--max-restarts",
            type=int,
            metavar="N",
            help="with --nproc: how often to resume from the last checkpoint if a process dies (default: 0)",
        )

    def run(self, args: argparse.Namespace) -> int:
        path = config_path(args, "train")
        check_processes(args)
        check_increments(args)
        speak_up(args)
        by_day = args.days is not None or args.increment_from is not None
        if args.nproc is not None and not by_day:
            return launch_train(args)
        with heavy_imports():
            from recgrad.config import load_config
            from recgrad.training.increments import train_days, train_increment
            from recgrad.training.processes import read_environment
            from recgrad.training.run import train
            from recgrad.training.runtime import set_up_process

        environment = read_environment()
        if environment.rank != 0:
            speak_of_errors_only()
        set_up_process(args.num_threads, environment.local_world_size)
        common = {
            "eval_input_path": args.eval_input_path,
            "edit_config_json": with_trackers(args),
            "device": device_of(args),
            "custom_code": not args.no_custom_code,
        }
        # With --nproc each day is a run of several processes, which this one starts.
        days = {**common, "run": None if args.nproc is None else partial(launch_day, args)}
        if args.days is not None:
            folder = args.model_dir or load_config(path).model_dir
            result = train_days(path, days=args.days, model_dir=folder, parent=args.increment_from, **days)
        elif args.increment_from is not None:
            result = train_increment(
                path,
                parent=args.increment_from,
                data=args.train_input_path,
                model_dir=args.model_dir or load_config(path).model_dir,
                **days,
            )
        else:
            result = train(
                path,
                train_input_path=args.train_input_path,
                model_dir=args.model_dir,
                continue_train=args.continue_train,
                fine_tune_checkpoint=args.fine_tune_checkpoint,
                ignore_restore_optimizer=args.ignore_restore_optimizer,
                **common,
            )
        if environment.rank == 0:
            say(result.describe())
        if environment.distributed:
            leave_at_once(result.exit_code)
        return result.exit_code


def with_trackers(args: argparse.Namespace) -> Any:
    """The changes to the config, with the trackers that --track names."""
    if not args.track:
        return args.edit_config_json
    from recgrad.config.json_source import load_json

    edits = load_json(args.edit_config_json, "edits") if args.edit_config_json else {}
    return {**edits, "train_config.trackers": [one.strip() for one in args.track.split(",") if one.strip()]}


def leave_at_once(code: int) -> NoReturn:
    """End a rank that has done its work without taking Python apart.

    Objects of TorchRec may hold the process group to the last, and gloo's threads then abort a
    process that Python ends around them: a finished run would count as crashed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def check_processes(args: argparse.Namespace) -> None:
    """Raise for flags of processes that do not go together."""
    if args.nproc is None:
        if args.max_restarts is not None:
            raise RecgradError(f"--max-restarts {args.max_restarts} needs --nproc; torchrun has its own")
        return
    if args.nproc < 1:
        raise RecgradError(f"--nproc: must be at least 1, got {args.nproc}")
    if args.max_restarts is not None and args.max_restarts < 0:
        raise RecgradError(f"--max-restarts: must be at least 0, got {args.max_restarts}")
    for name in ("WORLD_SIZE", "RANK"):
        if name in os.environ:
            raise RecgradError(
                f"--nproc {args.nproc} starts the processes, but {name}={os.environ[name]} says that "
                "torchrun has done so; leave one out"
            )


def check_increments(args: argparse.Namespace) -> None:
    """Raise for flags of days that do not go together."""
    given = [
        flag for flag, value in (("--days", args.days), ("--increment_from", args.increment_from)) if value
    ]
    if not given:
        return
    flag = given[0]
    if args.continue_train:
        raise RecgradError(f"--continue_train with {flag}: days resume by themselves; leave it out")
    if args.fine_tune_checkpoint or args.ignore_restore_optimizer:
        raise RecgradError(
            f"{flag} says where a day begins, and so does --fine_tune_checkpoint; leave one out"
        )
    if args.days and args.train_input_path:
        raise RecgradError("--days and --train_input_path both name data; leave one out")
    if not args.days and not args.train_input_path:
        raise RecgradError("--increment_from needs --train_input_path, the data of the new day")


def launch_train(args: argparse.Namespace) -> int:
    """Train with several processes of this machine."""
    line = command_line(args)
    again = [*line, "--nproc", str(args.nproc)]
    if not args.continue_train:
        again.append("--continue-train")
    return launch(
        [sys.executable, "-m", "recgrad", *line],
        args.nproc,
        max_restarts=args.max_restarts or 0,
        resume_command=shlex.join(["recgrad", *again]),
    )


def launch_day(args: argparse.Namespace, config: Any, **given: Any) -> Any:
    """Train on a day with several processes of this machine; what `recgrad.train` would give."""
    from recgrad.training.increments import result_of

    own = argparse.Namespace(**vars(args))
    own.days = own.increment_from = None
    own.train_input_path, own.model_dir = given["train_input_path"], str(given["model_dir"])
    own.continue_train, own.fine_tune_checkpoint = given["continue_train"], given["fine_tune_checkpoint"]
    return result_of(own.model_dir, launch_train(own))


def command_line(args: argparse.Namespace) -> list[str]:
    """The line that gave these arguments, for one of the processes."""
    line = [args.command]
    for name, value in vars(args).items():
        flag = f"--{name.replace('_', '-')}"
        if name in ("command", "nproc", "max_restarts") or value is None or value is False:
            continue
        if name == "config":
            line.append(value)
        else:
            line += [flag] if value is True else [f"{flag}={value}"]
    return line


def speak_of_errors_only() -> None:
    """Leave it to rank 0 to say what all ranks would."""
    for name in ("recgrad", "torch", "torchrec"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.showwarning = lambda *_, **__: None
