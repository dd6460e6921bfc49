"""What is told of runs and models: the HTML page of a run, and whether one model beats another.

page.py (`recgrad report`) puts the page together from words (summary.py), pictures (plots.py) and
what a model gets wrong (diagnostics.py). comparison.py (`recgrad compare`) has the verdict on two
models, from differences of metrics with intervals (differences.py), and comparison_plot.py its picture.
"""
