"""From events and context to tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from recgrad.limits import keep_limits
from recgrad.nn.jagged import Segments
from recgrad.nn.jagged_rows import join_rows
from recgrad.nn.stu.action import SimpleActionEncoder
from recgrad.nn.stu.content import build_content
from recgrad.nn.stu.contextual import ContextualTokens, build_contextualized_mlp, chosen, xavier_linear
from recgrad.nn.stu.inputs import Events, HSTUInput
from recgrad.nn.stu.tokens import Tokens


class Preprocessor(nn.Module):
    """Base: contextual tokens in front of each row, actions of events.

    Args:
        dim: of the tokens.
        contextual: number and width of contextual features; (0, 0) without any.
        action_encoder: message of the encoder of actions.
        action_mlp: message of the MLP that brings them to `dim`.
    """

    interleaves: bool = False

    def __init__(
        self,
        dim: int,
        contextual: tuple[int, int],
        *,
        action_encoder: Mapping[str, Any] | None = None,
        action_mlp: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if (action_encoder is None) != (action_mlp is None):
            raise ValueError("action_encoder and action_mlp go together; set both or none")
        self.dim, (self.contextual, width) = dim, contextual
        self.contextual_tokens = ContextualTokens(self.contextual, width, dim) if self.contextual else None
        self.actions: SimpleActionEncoder | None = None
        if action_encoder is not None:
            assert action_mlp is not None
            _, params = chosen(action_encoder, {"simple_action_encoder": None}, "action_encoder")
            self.actions = keep_limits(SimpleActionEncoder)(**params)
            self.action_mlp = build_contextualized_mlp(
                action_mlp, self.actions.out_features, dim, self.contextual * width
            )

    def forward(self, given: HSTUInput) -> Tokens:
        """The tokens of each row."""
        parts = self.parts(given)
        history_and_candidates = [(part.values, part.segments) for part in parts]
        times = [(part.times.unsqueeze(1), part.segments) for part in parts]
        rows = given.history.segments.lengths
        if self.contextual_tokens is not None:
            assert given.contextual is not None
            values = self.contextual_tokens(given.contextual)
            segments = Segments.from_lengths(torch.full_like(rows, self.contextual), values.shape[0])
            segments = replace(segments, most=self.contextual)
            history_and_candidates.insert(0, (values, segments))
            times.insert(0, (parts[0].times.new_zeros(values.shape[0], 1), segments))
        values, segments = join_rows(history_and_candidates)
        targets = parts[1].segments.lengths if len(parts) > 1 else torch.zeros_like(rows)
        return Tokens(values, join_rows(times)[0].squeeze(1), segments, targets, self.contextual)

    def parts(self, given: HSTUInput) -> list[Events]:
        """Tokens of the history, and of candidates."""
        raise NotImplementedError

    @property
    def candidate_tokens(self) -> int:
        """The tokens of a candidate, of which the first counts."""
        return 1

    def _acted(self, given: HSTUInput, both: Segments) -> Tensor:
        """Vectors of actions, of all events of the history and then of all candidates."""
        assert self.actions is not None
        values = self.actions.history(given.history)
        if given.candidates is not None:
            count = given.candidates.values.shape[0]
            values = torch.cat([values, self.actions.candidates(count)])
        acted: Tensor = self.action_mlp(values, both, given.contextual)
        return acted


class ContextualPreprocessor(Preprocessor):
    """[contextual | history | candidates]; items plus actions, or items and actions in turns.

    Where they take turns, candidates have two tokens each in training, of which the first counts, and one
    in evaluation, since their actions are what is asked for.
    """

    def __init__(
        self,
        dim: int,
        contextual: tuple[int, int],
        *,
        history_dim: int,
        candidate_dim: int,
        content_encoder: Mapping[str, Any],
        content_mlp: Mapping[str, Any],
        enable_interleaving: bool = False,
        **actions: Any,
    ) -> None:
        super().__init__(dim, contextual, **actions)
        if enable_interleaving and self.actions is None:
            raise ValueError("interleaving needs action_encoder and action_mlp")
        self.interleaves = enable_interleaving
        self.content = build_content(content_encoder, history_dim, candidate_dim)
        self.content_mlp = build_contextualized_mlp(
            content_mlp, self.content.out_features, dim, contextual[0] * contextual[1]
        )

    def parts(self, given: HSTUInput) -> list[Events]:
        """Tokens of the history, and of candidates."""
        history, candidates = given.history, given.candidates
        assert candidates is not None
        both = _stacked(history.segments, candidates.segments)
        contents = torch.cat(self.content(history.values, candidates.values))
        tokens = self.content_mlp(contents, both, given.contextual)
        acted = None if self.actions is None else self._acted(given, both)
        count = history.values.shape[0]
        if acted is not None and not self.interleaves:
            tokens, acted = tokens + acted, None
        halves = [
            Events(tokens[:count], history.times, history.segments),
            Events(tokens[count:], candidates.times, candidates.segments),
        ]
        if acted is None:
            return halves
        turns = [_in_turns(halves[0], acted[:count]), halves[1]]
        return [turns[0], _in_turns(halves[1], acted[count:])] if self.training else turns

    @property
    def candidate_tokens(self) -> int:
        """Two in training where items and actions take turns."""
        return 2 if self.interleaves and self.training else 1


class UIHPreprocessor(Preprocessor):
    """[contextual | history]: a linear layer of the history, plus actions."""

    def __init__(self, dim: int, contextual: tuple[int, int], *, history_dim: int, **actions: Any) -> None:
        super().__init__(dim, contextual, **actions)
        self.linear = xavier_linear(history_dim, dim)

    def parts(self, given: HSTUInput) -> list[Events]:
        """Tokens of the history."""
        history = given.history
        tokens = self.linear(history.values)
        if self.actions is not None:
            tokens = tokens + self._acted(given, history.segments)
        return [Events(tokens, history.times, history.segments)]


def build_preprocessor(
    config: Mapping[str, Any], dim: int, contextual: tuple[int, int], history_dim: int, candidate_dim: int
) -> Preprocessor:
    """The preprocessor of a `GRInputPreprocessor`; candidate_dim 0 means that there are no candidates."""
    kinds = ("contextual_preprocessor", "contextual_interleave_preprocessor", "uih_preprocessor")
    kind, params = chosen(config, dict.fromkeys(kinds), "input_preprocessor")
    if (kind == "uih_preprocessor") != (candidate_dim == 0):
        wanted = "uih_preprocessor" if candidate_dim == 0 else " or ".join(kinds[:2])
        raise ValueError(f"input_preprocessor must be {wanted} for this model, got {kind}")
    if kind == "uih_preprocessor":
        return UIHPreprocessor(dim, contextual, history_dim=history_dim, **params)
    return ContextualPreprocessor(
        dim, contextual, history_dim=history_dim, candidate_dim=candidate_dim, **params
    )


def _stacked(history: Segments, candidates: Segments) -> Segments:
    """Which row each event of the history, and then each candidate, belongs to.

    Rows come twice, those of candidates behind those of the history, so that each half stays in order.
    """
    rows = history.lengths.shape[0]
    lengths = torch.cat([history.lengths, candidates.lengths])
    offsets = torch.cat([history.offsets, candidates.offsets + history.rows.shape[0]])
    return Segments(lengths, offsets, torch.cat([history.rows, candidates.rows + rows]))


def _in_turns(content: Events, actions: Tensor) -> Events:
    """An item's token, then its action's."""
    values = torch.stack([content.values, actions], dim=1).flatten(0, 1)
    segments = Segments.from_lengths(2 * content.segments.lengths, values.shape[0])
    if torch.compiler.is_exporting():
        segments = replace(segments, most=2 * content.segments.longest())
    return Events(values, content.times.unsqueeze(1).expand(-1, 2).flatten(), segments)
