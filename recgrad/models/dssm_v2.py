"""DSSM V2: DSSM whose towers share embedding tables.

Here features with the same embedding_name share a table in every model, so the data flow and the
formula are those of `recgrad.models.dssm`; the name is kept for configs that use it.
"""

from __future__ import annotations

from recgrad.models.base import MODELS
from recgrad.models.dssm import DSSM


@MODELS.register("dssm_v2")
class DSSMV2(DSSM):
    """DSSM under its second name."""
