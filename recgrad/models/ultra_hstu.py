"""ULTRA-HSTU: DLRM-HSTU with several histories, each with an HSTU of its own.

    y_t = linear_t(mlp([hstu_1 | hstu_2 | …] ∘ item(candidate)))

How it is put together: `recgrad.models.hstu_ranking`; the HSTU: `recgrad.nn.stu`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from recgrad.limits import FILLED, Count
from recgrad.models.base import MODELS
from recgrad.models.hstu_ranking import FusionTowerSettings, HSTURanking


@MODELS.register("ultra_hstu")
class UltraHSTU(HSTURanking):
    """A history and an HSTU for each channel, side by side before the tower of all tasks."""

    @classmethod
    def channels(cls, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """One HSTU a channel; a single one needs no name."""
        return list(settings.get("hstu") or ())

    def build(
        self,
        *,
        hstu: Annotated[Sequence[Mapping[str, Any]], FILLED],
        fusion_mtl_tower: FusionTowerSettings,
        max_seq_len: Count,
        item_embedding_hidden_dim: Count = 512,
        enable_global_average_loss: bool = True,
        sequence_timestamp_is_ascending: bool = True,
        concat_contextual_features: bool = False,
    ) -> None:
        """Make the layers.

        Args:
            hstu: settings of each HSTU, see `recgrad.nn.stu.stack.HSTU`; `name` says which groups are its
                history.
            fusion_mtl_tower: `mlp` of the tower of all tasks.
            max_seq_len: the divisor of attention; `sequence_length` of features cuts.
            item_embedding_hidden_dim: width of the hidden layer of the item side.
            enable_global_average_loss: every candidate of all ranks weighs the same.
            sequence_timestamp_is_ascending: the oldest event comes first.
            concat_contextual_features: the features of a row are one token, not one each.
        """
        names = [given.get("name") or "" for given in hstu]
        if len(names) > 1 and ("" in names or len(set(names)) < len(names)):
            raise ValueError(f"hstu must have names of their own where there are several, got {names}")
        self.build_ranking(
            hstu,
            fusion_mtl_tower=fusion_mtl_tower,
            max_seq_len=max_seq_len,
            item_embedding_hidden_dim=item_embedding_hidden_dim,
            enable_global_average_loss=enable_global_average_loss,
            sequence_timestamp_is_ascending=sequence_timestamp_is_ascending,
            concat_contextual_features=concat_contextual_features,
        )
