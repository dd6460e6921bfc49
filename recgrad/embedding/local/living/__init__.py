"""Tables whose rows belong to ids as they come, on the local engine.

    ids of a batch ─▶ find.py: key ─▶ row, or none          every forward pass, all cores
                        │ keys without a row
                        ▼
                      window.py: how often each was seen     one core a table, only those keys
                        │ when a round is due
                        ▼
                      rounds.py: who gets a row, who loses one
                        │
    rows ◀──────────────┘                                    then the lookup of any plain table

Rows lie in a plain table (table.py) of `capacity` rows and a few in front that are nobody's: what keys
without a row read as. The engine's kernels see row numbers alone.
"""
