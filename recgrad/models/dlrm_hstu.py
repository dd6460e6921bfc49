"""DLRM-HSTU: ranks candidates by an HSTU over the history, the candidates and features of the row.

Zhai et al. 2024, https://arxiv.org/abs/2402.17152

    y_t = linear_t(mlp(hstu([context | history | candidates]) ∘ item(candidate)))

How it is put together: `recgrad.models.hstu_ranking`; the HSTU: `recgrad.nn.stu`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recgrad.limits import Count
from recgrad.models.base import MODELS
from recgrad.models.hstu_ranking import FusionTowerSettings, HSTURanking


@MODELS.register("dlrm_hstu")
class DlrmHSTU(HSTURanking):
    """One HSTU over the history, with many candidates a row and many tasks a candidate."""

    @classmethod
    def channels(cls, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """The one HSTU, whatever its name."""
        return [{**(settings.get("hstu") or {}), "name": ""}]

    def build(
        self,
        *,
        hstu: Mapping[str, Any],
        fusion_mtl_tower: FusionTowerSettings,
        max_seq_len: Count,
        item_embedding_hidden_dim: Count = 512,
        enable_global_average_loss: bool = True,
        sequence_timestamp_is_ascending: bool = True,
        concat_contextual_features: bool = False,
    ) -> None:
        """Make the layers.

        Args:
            hstu: settings of the HSTU, see `recgrad.nn.stu.stack.HSTU`.
            fusion_mtl_tower: `mlp` of the tower of all tasks.
            max_seq_len: the divisor of attention; `sequence_length` of features cuts.
            item_embedding_hidden_dim: width of the hidden layer of the item side.
            enable_global_average_loss: every candidate of all ranks weighs the same.
            sequence_timestamp_is_ascending: the oldest event comes first.
            concat_contextual_features: the features of a row are one token, not one each.
        """
        self.build_ranking(
            self.channels({"hstu": hstu}),
            fusion_mtl_tower=fusion_mtl_tower,
            max_seq_len=max_seq_len,
            item_embedding_hidden_dim=item_embedding_hidden_dim,
            enable_global_average_loss=enable_global_average_loss,
            sequence_timestamp_is_ascending=sequence_timestamp_is_ascending,
            concat_contextual_features=concat_contextual_features,
        )
