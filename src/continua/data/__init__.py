"""Floor 2: data sets behind one interface - batches, the form of a fitting model, loss and measures."""

from continua.core.batch import Batch
from continua.data.asked import redrawn, rescaled
from continua.data.burgers import Burgers, burgers_solution
from continua.data.csv_file import CsvSeries, CsvTable, read_csv
from continua.data.csv_series import Csv
from continua.data.darcy import Darcy
from continua.data.darcy_solver import darcy_solution
from continua.data.digits import Digits
from continua.data.hilbert import hilbert_curve
from continua.data.mnist1d import Mnist1d
from continua.data.mnist1d_posterior import Mnist1dPosterior, raw_mnist1d
from continua.data.sampling import Resampling, Samples, drop_samples, interpolate, refine, roll, take_every
from continua.data.spirals import Spirals
from continua.data.task import AbstractTask, Form, Preset, Question, Split, Stepping, Wording
from continua.data.text import Text, encoded
from continua.data.ts_file import LabelledSeries, read_ts
from continua.data.uea import Uea

__all__ = [
    "AbstractTask", "Batch", "Burgers", "Csv", "CsvSeries", "CsvTable", "Darcy", "Digits", "Form", "LabelledSeries",
    "Mnist1d", "Mnist1dPosterior", "Preset", "Question", "Resampling", "Samples", "Spirals", "Split", "Stepping",
    "Text", "Uea", "Wording", "burgers_solution", "darcy_solution", "drop_samples", "encoded", "hilbert_curve",
    "interpolate", "raw_mnist1d", "read_csv", "read_ts", "redrawn", "refine", "rescaled", "roll", "take_every",
]  # fmt: skip
