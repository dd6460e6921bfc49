"""`recgrad completion`: what a shell needs to complete commands, flags and their values."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from recgrad.cli.command import COMMANDS, Command
from recgrad.terminal import say

FILES = "files"
NOTHING = "nothing"


@dataclass(frozen=True)
class Value:
    """What may be typed for an argument: one of some words, a file, or what cannot be guessed."""

    words: tuple[str, ...] = ()
    kind: str = FILES


@dataclass(frozen=True)
class Flag:
    """A flag in all its spellings, and the value it takes, if it takes one."""

    names: tuple[str, ...]
    help: str
    value: Value | None


@dataclass(frozen=True)
class Node:
    """A parser: the words that lead to it, its flags, its positional arguments, and the parsers below it."""

    path: str
    help: str
    flags: list[Flag] = field(default_factory=list)
    positionals: list[Value] = field(default_factory=list)
    below: dict[str, Node] = field(default_factory=dict)

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for node in self.below.values():
            yield from node.walk()


@COMMANDS.register("completion")
class Completion(Command):
    """Print the code that completes commands, flags and values in a shell.

    bash:  recgrad completion bash > ~/.local/share/bash-completion/completions/recgrad
    zsh:   echo 'source <(recgrad completion zsh)' >> ~/.zshrc
    fish:  recgrad completion fish > ~/.config/fish/completions/recgrad.fish

    In a shell that runs, `source <(recgrad completion bash)` does it at once.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "shell", choices=sorted(WRITERS), metavar="SHELL", help=", ".join(sorted(WRITERS))
        )

    def run(self, args: argparse.Namespace) -> int:
        from recgrad.cli.main import build_parser

        say(WRITERS[args.shell](read_parser(build_parser())))
        return 0


def read_parser(parser: argparse.ArgumentParser, path: str = "recgrad", summary: str = "") -> Node:
    """What a parser takes, read from its own list of actions."""
    node = Node(path, summary)
    for action in parser._actions:
        text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help).partition("(default")[0]
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, sub in action.choices.items():
                node.below[name] = read_parser(sub, f"{path} {name}", helps.get(name, ""))
        elif action.option_strings:
            value = None if action.nargs == 0 else _value(action)
            node.flags.append(Flag(tuple(action.option_strings), text.strip(), value))
        else:
            node.positionals.append(_value(action))
    return node


def _value(action: argparse.Action) -> Value:
    if action.choices:
        return Value(tuple(map(str, action.choices)))
    return Value(kind=NOTHING if action.type in (int, float) else FILES)


_BASH = r"""# Completion of recgrad for bash; `recgrad completion bash` wrote it.
_recgrad() {
    local cur=${COMP_WORDS[COMP_CWORD]} node=recgrad expects= positional=0 i word words=
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ -n $expects ]]; then
            [[ $word == = ]] || expects=
            continue
        fi
        if [[ $word == -* ]]; then
            case "$node ${word//_/-}" in
                @VALUED@) expects=${word//_/-} ;;
            esac
            continue
        fi
        case "$node $word" in
            @NODES@) node="$node $word" ;;
            *) positional=$((positional + 1)) ;;
        esac
    done
    [[ $cur == = ]] && cur=
    COMPREPLY=()
    if [[ -n $expects ]]; then
        case "$node $expects" in
@VALUES@
            *) words=/files ;;
        esac
    elif [[ $cur == -* ]]; then
        case "$node" in
@FLAGS@
        esac
        # Flags may be spelled with underscores: so they are when one is typed.
        [[ $cur == --*_* ]] && words=${words//-/_} && words=${words//__/--}
    else
        case "$node $positional" in
@POSITIONALS@
            *) words=/files ;;
        esac
    fi
    if [[ $words == /files ]]; then
        compopt -o filenames 2> /dev/null
        local IFS=$'\n'
        COMPREPLY=($(compgen -f -- "$cur"))
    else
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
    fi
}
complete -F _recgrad recgrad"""


def write_bash(root: Node) -> str:
    """A function for bash's `complete`."""
    nodes = list(root.walk())
    valued = [(node, flag) for node in nodes for flag in node.flags if flag.value is not None]
    values = [
        (" | ".join(_quoted(f"{node.path} {name}") for name in flag.names), flag.value)
        for node, flag in valued
        if flag.value is not None and (flag.value.words or flag.value.kind == NOTHING)
    ]
    flags = [
        (_quoted(node.path), " ".join(name for flag in node.flags for name in flag.names)) for node in nodes
    ]
    places = []
    for node in nodes:
        if node.below:
            places.append((_quoted(f"{node.path} 0"), " ".join(node.below)))
        for number, value in enumerate(node.positionals):
            if value.words:
                places.append((_quoted(f"{node.path} {number}"), " ".join(value.words)))
    filled = {
        "VALUED": " | ".join(_quoted(f"{node.path} {name}") for node, flag in valued for name in flag.names),
        "NODES": " | ".join(_quoted(node.path) for node in nodes[1:]),
        "VALUES": _cases((pattern, " ".join(value.words)) for pattern, value in values),
        "FLAGS": _cases(flags),
        "POSITIONALS": _cases(places),
    }
    text = _BASH
    for name, code in filled.items():
        text = text.replace(f"@{name}@", code)
    return text


def write_zsh(root: Node) -> str:
    """The function of bash, which zsh can run."""
    begin = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"
    begin += "autoload -Uz +X bashcompinit && bashcompinit\n"
    return begin + write_bash(root)


def write_fish(root: Node) -> str:
    """A line for each thing that fish can complete."""
    command = "complete -c recgrad"
    lines = ["# Completion of recgrad for fish; `recgrad completion fish` wrote it.", f"{command} -f"]
    for node in root.walk():
        here = _fish_condition(node)
        for name, below in node.below.items():
            lines.append(f"{command} -n {here} -a {name} -d {shlex.quote(below.help)}")
        for flag in node.flags:
            spelled = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names
            )
            lines.append(
                f"{command} -n {here} {spelled}{_fish_value(flag.value)} -d {shlex.quote(flag.help)}"
            )
        for value in node.positionals:
            lines.append(f"{command} -n {here}{_fish_value(value, positional=True)}")
    return "\n".join(lines)


def _fish_condition(node: Node) -> str:
    words = node.path.split()[1:]
    if not words:
        return "__fish_use_subcommand"
    tests = [f"__fish_seen_subcommand_from {word}" for word in words]
    if node.below:
        tests.append(f"not __fish_seen_subcommand_from {' '.join(node.below)}")
    return shlex.quote("; and ".join(tests))


def _fish_value(value: Value | None, *, positional: bool = False) -> str:
    if value is None:
        return ""
    if value.words:
        return f"{'' if positional else ' -x'} -a {shlex.quote(' '.join(value.words))}"
    if value.kind == NOTHING:
        return "" if positional else " -x"
    return " -F" if positional else " -r -F"


def _quoted(pattern: str) -> str:
    return f'"{pattern}"'


def _cases(pairs: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> str:
    return "\n".join(f'            {pattern}) words="{words}" ;;' for pattern, words in pairs)


WRITERS = {"bash": write_bash, "zsh": write_zsh, "fish": write_fish}
