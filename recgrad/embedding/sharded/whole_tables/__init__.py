"""Bags over tables that each lie whole on one rank: ids to their holders, and vectors back.

    ids of a rank ─▶ to each holder the ids of the keys it needs, each key
                     once, and each id once where ids of a key repeat     ═▶ one lookup for all ranks' bags
    [bags, dim] by feature, copied to the rows of the model's matrix      ◀═ its bags to each rank
    gradients of bags, over the number of ranks                           ═▶ gradients of that lookup

TorchRec has planned who holds which table, and carries everything else: tables cut by rows or columns, ids
with weights, single vectors, other kernels. Here features that share a key also share its ids on the way, and
bags of one id each need no lengths. What a rank has from itself does not travel (vectors.py).

Keys differ in how many bags a rank sends of them (outgoing.py), a lookup has as many of each: it is given
empty bags beyond the last, whose vectors nobody asks for.
"""

from recgrad.embedding.sharded.whole_tables.holders import WholeTables
from recgrad.embedding.sharded.whole_tables.vectors import BagExchange, HeldBags

__all__ = ["BagExchange", "HeldBags", "WholeTables"]
