"""Floor 2: data sets behind one interface - batches, the form of a fitting model, loss and metrics."""

from continua.core.batch import Batch
from continua.data.burgers import Burgers, burgers_solution
from continua.data.csv_file import CsvSeries, CsvTable, read_csv
from continua.data.csv_series import Csv, redraw_rows, rescale_columns
from continua.data.darcy import Darcy, darcy_solution, hilbert_curve
from continua.data.digits import Digits
from continua.data.mnist1d import Mnist1d, raw_mnist1d
from continua.data.sampling import Resampling, Samples, drop_samples, interpolate, refine, roll, take_every
from continua.data.spirals import Spirals
from continua.data.task import AbstractTask, Form, Question, Split, Wording
from continua.data.text import Text, encode
from continua.data.uea import LabelledSeries, Uea, read_ts

__all__ = [
    "AbstractTask", "Batch", "Burgers", "Csv", "CsvSeries", "CsvTable", "Darcy", "Digits", "Form", "LabelledSeries",
    "Mnist1d", "Question", "Resampling", "Samples", "Spirals", "Split", "Text", "Uea", "Wording",
    "burgers_solution", "darcy_solution", "drop_samples", "encode", "hilbert_curve", "interpolate", "raw_mnist1d",
    "read_csv", "read_ts", "redraw_rows", "refine", "rescale_columns", "roll", "take_every",
]  # fmt: skip
