"""The benchmark: a spec becomes cells, a grid runs them, every cell leaves a record.

`spec` says what to measure, `presets` has the paper's experiments, `cell` measures, `grid` runs many,
`records` keeps them, `compare` holds them against the paper.
"""

from acclimate.bench.compare import CLAIMS, Verdict, judge
from acclimate.bench.grid import run_grid
from acclimate.bench.presets import PRESETS
from acclimate.bench.spec import Cell, Spec, read_spec
from acclimate.records import read_records

__all__ = ["CLAIMS", "PRESETS", "Cell", "Spec", "Verdict", "judge", "read_records", "read_spec", "run_grid"]
