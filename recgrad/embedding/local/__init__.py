"""The local engine: all tables in one process, on the CPU.

A step, and the file that does each part of it:

    ids ─▶ inputs ─▶ group.lookup ─▶ lookup.py (kernel) ─▶ block of outputs ─▶ model
                          │ keeps where ids lie                                  │ autograd
                          ▼                                                      ▼
    update.py (kernel) ◀─ planner + plan.py (kernel) ◀─ group.update ◀─ pending: where gradients lie
          │ staging.py: rows, to and fro                     ▲
          ▼                                                  └── optimizer.step()
    table: weights, states, index (memory.py, index.py)

Python and kernels speak through two matrices of int64, whose columns layout.py names: a line for each table
(addresses, sizes, initialiser), and a line for each lookup or source of gradients (table, ids, bags,
vectors). Kernels take addresses and not arrays: a launch costs microseconds, and what it costs does not
grow with the number of tables. Whoever puts an address into a line keeps alive what it points to.
"""
