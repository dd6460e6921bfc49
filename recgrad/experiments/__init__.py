"""Several runs together: tables of runs, repeats with other seeds, whether two sets of runs differ."""
